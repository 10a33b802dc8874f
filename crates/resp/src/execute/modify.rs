//! Commands that change one key.
//!
//! Those that need the value read it, and then exchange exactly the value that they have read: what
//! another client writes in between is never overwritten.
//!
//! *Thread safety*: as that of the store.

use super::Deadline;
use crate::command::{SetAnswer, SetCondition};
use crate::number::{self, DecimalNumber};
use crate::reply::RespReply;
use crate::shared::RespShared;
use crate::store::{RespStore, StoreError, StoreExchange};

/// SET with its conditions, SETNX and GETSET.
pub(super) async fn set<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    value: Vec<u8>,
    condition: SetCondition,
    answer: SetAnswer,
) -> RespReply {
    if answer == SetAnswer::Former {
        return Box::pin(replace(store, shared, key, value, condition)).await;
    }
    let is_set = match &condition {
        SetCondition::Always => store.upsert(key, &value).await.map(|()| true),
        SetCondition::IfAbsent => store.insert(key, &value).await,
        SetCondition::IfPresent => store.update(key, &value).await,
        SetCondition::IfEqual(expected) => {
            let exchange = store.compare_exchange(key, expected, &value).await;
            exchange.map(|exchange| exchange == StoreExchange::Exchanged)
        }
    };
    match (is_set, answer) {
        (Ok(is_set), SetAnswer::Flag) => RespReply::flag(is_set),
        (Ok(true), _) => RespReply::OK,
        (Ok(false), _) => RespReply::Null,
        (Err(error), _) => error.into(),
    }
}

/// Sets a value under a condition, and returns the one before.
async fn replace<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    value: Vec<u8>,
    condition: SetCondition,
) -> RespReply {
    let changed = change(store, shared, key, |former| {
        let is_met = match (&condition, former) {
            (SetCondition::Always, _) => true,
            (SetCondition::IfAbsent, former) => former.is_none(),
            (SetCondition::IfPresent, former) => former.is_some(),
            (SetCondition::IfEqual(expected), former) => former == Some(expected),
        };
        Ok((is_met.then(|| value.clone()), RespReply::value(former.map(<[u8]>::to_vec))))
    });
    changed.await
}

/// Reads the value of a key, and lets `decide` give the new value, or `None` to leave it, and the
/// reply. Begins again if another client was faster.
async fn change<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    decide: impl Fn(Option<&[u8]>) -> Result<(Option<Vec<u8>>, RespReply), RespReply>,
) -> RespReply {
    let deadline = Deadline::begin(store, shared);
    let Some(_turn) = store.turn(key, deadline.length).await else {
        return contended("others wait for their turn to change this key");
    };
    let mut former = match store.get(key).await {
        Ok(former) => former,
        Err(error) => return error.of_read(),
    };
    loop {
        let (new, reply) = match decide(former.as_deref()) {
            Ok((Some(new), reply)) => (new, reply),
            Ok((None, reply)) => return reply,
            Err(refusal) => return refusal,
        };
        if deadline.is_over(store) {
            return contended("the time was over before this key was changed");
        }
        let changed = match &former {
            Some(expected) => store.compare_exchange(key, expected, &new).await,
            None => match store.insert(key, &new).await {
                Ok(true) => Ok(StoreExchange::Exchanged),
                Ok(false) if deadline.is_over(store) => {
                    return contended("another client has set this key");
                }
                // Its value is still to be read.
                Ok(false) => store.get(key).await.map_err(read_only).map(StoreExchange::Differs),
                Err(error) => Err(error),
            },
        };
        match changed {
            Ok(StoreExchange::Exchanged) => return reply,
            Ok(StoreExchange::Differs(current)) => former = current,
            Err(error) => return error.into(),
        }
        if deadline.is_over(store) {
            return contended("other clients change this key all the time");
        }
    }
}

fn contended(why: &str) -> RespReply {
    StoreError::Contended(format!("{why}: nothing was done")).into()
}

/// The error of a lookup, which certainly has changed nothing.
fn read_only(error: StoreError) -> StoreError {
    match error {
        StoreError::Indeterminate(why) => StoreError::Unavailable(why),
        error => error,
    }
}

/// The bytes from `start` to `end`, both included; negative places count from the end.
pub(super) fn part(mut value: Vec<u8>, start: i64, end: i64) -> Vec<u8> {
    let length = i64::try_from(value.len()).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        return Vec::new();
    }
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(length - 1));
    if start > end {
        return Vec::new();
    }
    let index = |at: i64| usize::try_from(at).unwrap_or(usize::MAX);
    value.truncate(index(end).saturating_add(1));
    value.split_off(index(start))
}

/// Refuses a value that the store cannot hold.
pub(super) fn too_long<S: RespStore>(store: &S, bytes: usize) -> Result<(), RespReply> {
    let max = store.max_value_bytes();
    match bytes <= max {
        true => Ok(()),
        false => Err(RespReply::error(format!(
            "string exceeds maximum allowed size: {bytes} bytes, of at most {max}"
        ))),
    }
}

/// SETRANGE.
pub(super) async fn set_range<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    offset: usize,
    piece: &[u8],
) -> RespReply {
    let changed = change(store, shared, key, |former| {
        let former = former.unwrap_or_default();
        if piece.is_empty() {
            return Ok((None, RespReply::count(former.len())));
        }
        let end = offset.saturating_add(piece.len());
        too_long(store, end)?;
        let mut new = former.to_vec();
        new.resize(former.len().max(end), 0);
        new[offset..end].copy_from_slice(piece);
        let length = RespReply::count(new.len());
        Ok((Some(new), length))
    });
    changed.await
}

/// The bit of this number, the highest of the first byte being 0.
pub(super) fn bit(value: &[u8], at: usize) -> bool {
    value.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
}

/// SETBIT.
pub(super) async fn set_bit<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    at: usize,
    is_set: bool,
) -> RespReply {
    let changed = change(store, shared, key, |former| {
        let former = former.unwrap_or_default();
        let length = former.len().max(at / 8 + 1);
        too_long(store, length)?;
        let mut new = former.to_vec();
        new.resize(length, 0);
        let mask = 1 << (7 - at % 8);
        if is_set {
            new[at / 8] |= mask;
        } else {
            new[at / 8] &= !mask;
        }
        Ok((Some(new), RespReply::flag(bit(former, at))))
    });
    changed.await
}

/// APPEND.
pub(super) async fn append<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    piece: &[u8],
) -> RespReply {
    let changed = change(store, shared, key, |former| {
        let new = [former.unwrap_or_default(), piece].concat();
        too_long(store, new.len())?;
        let length = RespReply::count(new.len());
        Ok((Some(new), length))
    });
    changed.await
}

/// INCR and its relatives.
pub(super) async fn increment<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    by: i64,
) -> RespReply {
    let changed = change(store, shared, key, |former| {
        let former = match former {
            None => 0,
            Some(former) => number::integer(former)
                .ok_or_else(|| RespReply::error("value is not an integer or out of range"))?,
        };
        let overflow = || RespReply::error("increment or decrement would overflow");
        let new = former.checked_add(by).ok_or_else(overflow)?;
        Ok((Some(new.to_string().into_bytes()), RespReply::Integer(new)))
    });
    changed.await
}

/// INCRBYFLOAT.
pub(super) async fn increment_decimal<S: RespStore>(
    store: &S,
    shared: &RespShared,
    key: &[u8],
    by: DecimalNumber,
) -> RespReply {
    let changed = change(store, shared, key, |former| {
        let former = DecimalNumber::parse(former.unwrap_or(b"0"));
        let former = former.ok_or_else(|| RespReply::error("value is not a valid float"))?;
        let infinite = || RespReply::error("increment would produce NaN or Infinity");
        let new = number::add_decimals(&former, &by).ok_or_else(infinite)?.into_bytes();
        Ok((Some(new.clone()), RespReply::Bulk(new)))
    });
    changed.await
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn a_part_has_both_its_ends() {
        for (start, end, expected) in [
            (0, 3, "Hell"),
            (0, -1, "Hello World"),
            (-4, -1, "orld"),
            (5, 3, ""),
            (5, 5000, " World"),
            (-5000, 10000, "Hello World"),
            (-1, -5, ""),
            (100, 200, ""),
            (i64::MIN, i64::MAX, "Hello World"),
            (i64::MIN, i64::MIN, "H"),
        ] {
            let found = part(b"Hello World".to_vec(), start, end);
            assert_eq!(found, expected.as_bytes(), "{start} {end}");
        }
        assert_eq!(part(Vec::new(), 0, -1), b"");
    }
}
