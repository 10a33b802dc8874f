//! How commands run on a store.
//!
//! *Invariants*: resp.X1. A reply other than INDETERMINATE that is an error means that the command
//! has changed nothing. Commands on several keys and on ranges reply INDETERMINATE if they have
//! changed some.
//!
//! *Thread safety*: as that of the store.

mod many;
mod modify;
mod ranges;

use crate::command::StoreCommand;
use crate::reply::RespReply;
use crate::session::CommandTicket;
use crate::shared::RespShared;
use crate::store::{RespStore, StoreError};
use futures_util::future::join_all;
use std::time::Duration;

/// When a command that changes keys begins no further operation.
#[derive(Clone, Copy)]
struct Deadline {
    begun: Duration,
    length: Duration,
}

impl Deadline {
    /// That of a command that begins now.
    fn begin<S: RespStore>(store: &S, shared: &RespShared) -> Self {
        Self { begun: store.now(), length: shared.config.deadline }
    }

    fn is_over<S: RespStore>(self, store: &S) -> bool {
        store.now().saturating_sub(self.begun) > self.length
    }

    /// The error of what was not begun.
    fn error(self) -> StoreError {
        StoreError::Contended(format!(
            "the {} s for a command were over",
            self.length.as_secs_f32()
        ))
    }
}

/// Runs a command, and returns its reply.
pub async fn execute<S: RespStore>(
    store: &S,
    shared: &RespShared,
    command: StoreCommand,
) -> RespReply {
    match command {
        StoreCommand::Get(key) => match store.get(&key).await {
            Ok(value) => RespReply::value(value),
            Err(error) => error.of_read(),
        },
        StoreCommand::Set { key, value, condition, answer } => {
            modify::set(store, shared, &key, value, condition, answer).await
        }
        other => Box::pin(execute_rare(store, shared, other)).await,
    }
}

/// Runs lookups that have begun together as one, which costs fewer messages.
pub async fn execute_lookups<S: RespStore>(
    store: &S,
    lookups: Vec<(CommandTicket, Vec<u8>)>,
) -> Vec<(CommandTicket, RespReply)> {
    let keys = lookups.iter().map(|(_, key)| key.clone()).collect();
    if let Ok(values) = store.get_many(keys).await {
        let values = values.into_iter().map(RespReply::value);
        return lookups.into_iter().map(|(ticket, _)| ticket).zip(values).collect();
    }
    // The keys of one server are still there if those of another are not.
    let one = async |(ticket, key): (CommandTicket, Vec<u8>)| match store.get(&key).await {
        Ok(value) => (ticket, RespReply::value(value)),
        Err(error) => (ticket, error.of_read()),
    };
    join_all(lookups.into_iter().map(one)).await
}

/// Those commands whose state would make that of each lookup larger.
async fn execute_rare<S: RespStore>(
    store: &S,
    shared: &RespShared,
    command: StoreCommand,
) -> RespReply {
    match command {
        StoreCommand::Length(key) => match store.get(&key).await {
            Ok(value) => RespReply::count(value.map_or(0, |value| value.len())),
            Err(error) => error.of_read(),
        },
        StoreCommand::GetRange { key, start, end } => match store.get(&key).await {
            Ok(value) => RespReply::Bulk(modify::part(value.unwrap_or_default(), start, end)),
            Err(error) => error.of_read(),
        },
        StoreCommand::Type(key) => match store.get(&key).await {
            Ok(value) => RespReply::Simple(value.map_or("none", |_| "string")),
            Err(error) => error.of_read(),
        },
        StoreCommand::TimeToLive(key) => match store.get(&key).await {
            Ok(value) => RespReply::Integer(value.map_or(-2, |_| -1)),
            Err(error) => error.of_read(),
        },
        StoreCommand::SetRange { key, offset, piece } => {
            modify::set_range(store, shared, &key, offset, &piece).await
        }
        StoreCommand::GetBit { key, at } => match store.get(&key).await {
            Ok(value) => RespReply::flag(modify::bit(&value.unwrap_or_default(), at)),
            Err(error) => error.of_read(),
        },
        StoreCommand::SetBit { key, at, is_set } => {
            modify::set_bit(store, shared, &key, at, is_set).await
        }
        StoreCommand::Append { key, piece } => modify::append(store, shared, &key, &piece).await,
        StoreCommand::Increment { key, by } => modify::increment(store, shared, &key, by).await,
        StoreCommand::IncrementDecimal { key, by } => {
            modify::increment_decimal(store, shared, &key, by).await
        }
        StoreCommand::Remove(keys) => many::remove(store, shared, keys).await,
        StoreCommand::Exists(keys) => many::exists(store, keys).await,
        StoreCommand::GetMany(keys) => many::get(store, shared, keys).await,
        StoreCommand::SetMany(records) => many::set(store, shared, records).await,
        StoreCommand::Scan { cursor, pattern, count, has_strings } => {
            ranges::scan(store, shared, cursor, pattern, count, has_strings).await
        }
        StoreCommand::Keys(pattern) => ranges::keys(store, shared, &pattern).await,
        StoreCommand::Count { is_exact } => ranges::count_all(store, shared, is_exact).await,
        StoreCommand::Clear => {
            let reply = ranges::clear(store, shared).await;
            shared.forget_count();
            reply
        }
        StoreCommand::Time => {
            let time = store.unix_time();
            let text = |number: u64| RespReply::text(number.to_string());
            RespReply::Array(vec![text(time.as_secs()), text(time.subsec_micros().into())])
        }
        StoreCommand::Range { range, limit, fields } => {
            ranges::records(store, shared, range, limit, fields).await
        }
        StoreCommand::RangeCount(range) => ranges::count(store, range).await,
        StoreCommand::RangeRemove { range, limit } => {
            ranges::remove(store, shared, range, limit).await
        }
        StoreCommand::Get(_) | StoreCommand::Set { .. } => {
            unreachable!("these run without this function")
        }
    }
}
