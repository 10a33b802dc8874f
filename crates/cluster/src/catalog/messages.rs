//! The messages between a handle and the embedded catalog: JSON, one request and one answer per
//! call.
//!
//! *Invariant*: no message is longer than [`MAX_MESSAGE_BYTES`]; longer lists are split into pages.

use super::{CatalogEntry, CatalogLease, EntryVersion};
use farleaf_fabric::MAX_MESSAGE_BYTES;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CatalogRequest {
    Get {
        key: String,
    },
    /// Lists entries with keys that begin with `prefix` and are greater than `after`.
    List {
        prefix: String,
        after: Option<String>,
    },
    PutIf {
        key: String,
        expected: Option<EntryVersion>,
        value: String,
        lease: Option<CatalogLease>,
    },
    DeleteIf {
        key: String,
        expected: EntryVersion,
    },
    Grant {
        term_ns: u64,
    },
    KeepAlive {
        lease: CatalogLease,
    },
    Revoke {
        lease: CatalogLease,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CatalogAnswer {
    Entry(Option<CatalogEntry>),
    /// A page of a list, and whether more pages follow.
    Page {
        entries: Vec<CatalogEntry>,
        more: bool,
    },
    /// For [`CatalogRequest::PutIf`], [`CatalogRequest::DeleteIf`] and
    /// [`CatalogRequest::KeepAlive`]: whether it took effect.
    Done(bool),
    Granted(CatalogLease),
    Revoked,
    Refused(String),
}

/// Size of an answer without its entries, in bytes.
const FRAME_BYTES: usize = 1024;

/// Encoded size of an entry in an answer, in bytes.
pub(super) fn entry_bytes(entry: &CatalogEntry) -> usize {
    serde_json::to_vec(entry).map_or(usize::MAX, |json| json.len() + 1)
}

/// Whether an answer can hold this many bytes of entries.
pub(super) fn fits(entries_bytes: usize) -> bool {
    entries_bytes <= MAX_MESSAGE_BYTES - FRAME_BYTES
}

/// Encodes a message as JSON.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is JSON")
}
