//! The messages between a handle and the embedded catalog: JSON, one request and one answer per
//! call.
//!
//! *Invariant*: no message is longer than [`MAX_MESSAGE_BYTES`]; longer lists are split into pages.

use super::{Entry, Lease, Version};
use farleaf_fabric::MAX_MESSAGE_BYTES;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
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
        expected: Option<Version>,
        value: String,
        lease: Option<Lease>,
    },
    DeleteIf {
        key: String,
        expected: Version,
    },
    Grant {
        term_ns: u64,
    },
    KeepAlive {
        lease: Lease,
    },
    Revoke {
        lease: Lease,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    Entry(Option<Entry>),
    /// A page of a list, and whether more pages follow.
    Page {
        entries: Vec<Entry>,
        more: bool,
    },
    /// For [`Request::PutIf`], [`Request::DeleteIf`] and [`Request::KeepAlive`]: whether it took
    /// effect.
    Done(bool),
    Granted(Lease),
    Revoked,
    Refused(String),
}

/// Size of an answer without its entries, in bytes.
const FRAME_BYTES: usize = 1024;

/// Encoded size of an entry in an answer, in bytes.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
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
