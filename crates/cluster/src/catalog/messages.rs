//! What the handle and the embedded catalog say to each other: JSON, one request and one answer a
//! call.
//!
//! *Invariant*: no message is longer than [`MAX_MESSAGE_BYTES`]; a list that would be comes in
//! pages.

use super::{Entry, Lease, Version};
use farleaf_fabric::MAX_MESSAGE_BYTES;
use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    Get {
        key: String,
    },
    /// Entries with the prefix and a key above `after`.
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

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    Entry(Option<Entry>),
    /// A page of a list, and whether there are more.
    Page {
        entries: Vec<Entry>,
        more: bool,
    },
    /// Of [`Request::PutIf`], [`Request::DeleteIf`], [`Request::KeepAlive`]: whether it was done.
    Done(bool),
    Granted(Lease),
    Revoked,
    Refused(String),
}

/// Room that an answer takes beside its entries.
const FRAME_BYTES: usize = 1024;

/// How much of an answer an entry takes, in bytes.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    serde_json::to_vec(entry).map_or(usize::MAX, |json| json.len() + 1)
}

/// Whether an answer can hold these many bytes of entries.
pub(super) fn fits(entries_bytes: usize) -> bool {
    entries_bytes <= MAX_MESSAGE_BYTES - FRAME_BYTES
}

/// The bytes of a message.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is JSON")
}
