//! The protocol that clients of Redis speak, RESP2 and RESP3, for an ordered index of byte strings.
//!
//! Nothing here has a socket, a thread or a clock. A server feeds the bytes of a connection to its
//! [`RespSession`], runs the commands that come out with [`execute`] on its [`RespStore`], gives
//! the replies back in any order, and writes the session's output. `farleaf gateway` is one.
//!
//! - `decode` takes commands out of bytes, `command` parses them by the `table`.
//! - `session` keeps the order of a pipeline, and the bounds of `limits`.
//! - `execute` runs commands on a `store`; `reply` has the bytes of replies.
//! - `shared` has what the sessions of one server share; `introspect` describes it to clients.
//!
//! *Invariants*: `resp.D`, decoder; `resp.R`, replies; `resp.T`, table; `resp.S`, shared state;
//! `resp.N`, session; `resp.X`, `resp.G`, execution.
//!
//! *Thread safety*: a session belongs to one thread at a time; [`RespShared`] to all.

#![forbid(unsafe_code)]
#![deny(missing_debug_implementations)]

mod command;
mod decode;
mod execute;
mod glob;
mod introspect;
mod limits;
mod number;
mod reply;
mod session;
mod shared;
mod store;
mod table;

pub use command::{RecordFields, SetAnswer, SetCondition, StoreCommand};
pub use decode::{DecodedCommand, RespDecoder, RespProtocolError, SkippedCommand};
pub use execute::{execute, execute_lookups};
pub use limits::RespLimits;
pub use reply::{RespReply, RespVersion};
pub use session::{CommandTicket, RespSession, StartedCommand};
pub use shared::{RespConfig, RespPassword, RespShared};
pub use store::{RespStore, StoreError, StoreExchange, StoreRange, StoredRecord};
pub use table::{COMMANDS, CommandSpec, REFUSED};
