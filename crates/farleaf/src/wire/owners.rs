//! Requests about clients that hold locks and write logs.

use super::table::messages;
use crate::page::Layout;

messages! {
    /// A request about clients that hold locks and write logs. All but [`OwnerRequest::LogArea`] go
    /// to memory server 0.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum OwnerRequest {
        /// A number for a client, to hold locks under. Answered by
        /// [`Reply::Owner`](super::Reply::Owner).
        17 => Register,
        /// The memory that a client logs its changes to this server's pages in; answered by
        /// [`Reply::Chunk`](super::Reply::Chunk), the same each time.
        18 => LogArea {
            /// The client.
            owner: u16,
            /// Make it if it is not there; else the refusal is
            /// [`Refusal::NoSuchOwner`](super::Refusal::NoSuchOwner).
            create: bool,
        },
        /// All clients that a compute server has registered so far are dead, and stay so.
        19 => DeclareDead {
            /// The compute server.
            compute_server: u16,
            /// They are shut out of all memory servers already: who finishes their changes must not
            /// fence the compute server, which may have begun another life.
            fenced: bool,
        },
        /// Whether a client has been declared dead. Answered by
        /// [`Reply::Owner`](super::Reply::Owner).
        20 => OwnerState {
            /// The client.
            owner: u16,
        },
        /// The clients of a compute server that were declared dead, the latest first,
        /// [`DEAD_OWNERS`] at most. Answered by [`Reply::Owners`](super::Reply::Owners).
        25 => DeadOwners {
            /// The compute server.
            compute_server: u16,
        },
        /// The client that asks has ended with nothing locked, logged or on its way: another may
        /// have its number, and its logs with it.
        26 => Retire {
            /// The client.
            owner: u16,
        },
    }
}

/// The most clients that [`Reply::Owners`](super::Reply::Owners) names: those of the last lives of
/// a compute server.
pub const DEAD_OWNERS: usize = 256;

/// Changes that a client can log at the same time on one memory server.
pub const LOG_SLOTS: u64 = 4;

/// The bytes of one slot of a client's log: room for the changed words of three pages, and what
/// says where they go.
pub const fn log_slot_bytes<L: Layout>() -> u64 {
    let words = 8 + 3 * (L::PAGE_WORDS + 8);
    (words as u64 * 8).next_multiple_of(1024)
}
