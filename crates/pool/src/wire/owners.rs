//! Requests about clients that hold locks and write logs.

use super::table::messages;
use farleaf_page::Layout;

messages! {
    /// A request about clients that hold locks and write logs. All but [`OwnerRequest::LogArea`] go
    /// to memory server 0.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum OwnerRequest {
        /// Requests a number under which a client can hold locks. Answered by
        /// [`Reply::Owner`](super::Reply::Owner).
        17 => Register,
        /// Requests the memory in which a client logs its changes to this server's pages. Answered
        /// by [`Reply::Chunk`](super::Reply::Chunk), the same each time.
        18 => LogArea {
            /// Number of the client that owns the log.
            owner: u16,
            /// Whether to allocate the log if there is none. Otherwise the refusal is
            /// [`Refusal::NoSuchOwner`](super::Refusal::NoSuchOwner).
            create: bool,
        },
        /// Declares all clients dead that a compute server has registered so far. This is final.
        19 => DeclareDead {
            /// Number of the compute server that is dead.
            compute_server: u16,
            /// Whether they are already fenced at all memory servers. If so, a client that finishes
            /// their changes must not fence the compute server, which may have begun another life.
            fenced: bool,
        },
        /// Asks whether a client has been declared dead. Answered by
        /// [`Reply::Owner`](super::Reply::Owner).
        20 => OwnerState {
            /// The client.
            owner: u16,
        },
        /// Requests the clients of a compute server that were declared dead, latest first,
        /// [`DEAD_OWNERS`] at most. Answered by [`Reply::Owners`](super::Reply::Owners).
        25 => DeadOwners {
            /// Number of the compute server that registered them.
            compute_server: u16,
        },
        /// Reports that the requesting client has ended, with nothing locked, logged or in flight.
        /// Its number and its logs may be given to another client.
        26 => Retire {
            /// The client.
            owner: u16,
        },
    }
}

/// Maximum number of clients in one [`Reply::Owners`](super::Reply::Owners); the latest ones of a
/// compute server. It is more than a compute server has threads (1,024), each of which is a client:
/// the next life needs the logs of all of them.
pub const DEAD_OWNERS: usize = 2_048;

/// The number of changes that a client can log at the same time on one memory server.
pub const LOG_SLOTS: u64 = 4;

/// Size of one slot of a client's log in bytes: room for the changed words of three pages, with
/// their positions.
pub fn log_slot_bytes<L: Layout>() -> u64 {
    let words = 8 + 3 * (L::page_words() + 8);
    (words as u64 * 8).next_multiple_of(1024)
}
