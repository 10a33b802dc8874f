//! The fields of messages: integers little-endian, keys and values as the layout writes them.
//!
//! *Invariant*: any bytes may arrive. Taking a field never panics, and never allocates more than the message is long.
//! *Thread safety*: plain functions.

use crate::page::{Action, Layout, LeafEdit};
use farleaf_fabric::{GlobalAddr, Message};
use std::ops::Bound;

pub(super) fn take_bytes<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*bytes)
}

#[inline]
pub(super) fn take_u8(from: &mut &[u8]) -> Option<u8> {
    take_bytes::<1>(from).map(|[byte]| byte)
}

pub(super) fn take_u16(from: &mut &[u8]) -> Option<u16> {
    take_bytes(from).map(u16::from_le_bytes)
}

pub(super) fn take_u32(from: &mut &[u8]) -> Option<u32> {
    take_bytes(from).map(u32::from_le_bytes)
}

pub(super) fn take_u64(from: &mut &[u8]) -> Option<u64> {
    take_bytes(from).map(u64::from_le_bytes)
}

#[inline]
pub(super) fn take_bool(from: &mut &[u8]) -> Option<bool> {
    match take_u8(from)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// `value` if nothing is left of the message.
#[inline]
pub(super) fn whole<T>(value: T, rest: &[u8]) -> Option<T> {
    rest.is_empty().then_some(value)
}

pub(super) fn put_records<L: Layout>(records: &[(L::Key, L::Value)], to: &mut Message) {
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    to.extend_from_slice(&count.to_le_bytes());
    for (key, value) in records {
        L::put_key(key, to);
        L::put_value(value, to);
    }
}

pub(super) fn take_records<L: Layout>(from: &mut &[u8]) -> Option<Vec<(L::Key, L::Value)>> {
    let count = take_u32(from)? as usize;
    // A lying count must not make us allocate: a record takes two bytes at the very least.
    let mut records = Vec::with_capacity(count.min(from.len() / 2));
    for _ in 0..count {
        records.push((L::take_key(from)?, L::take_value(from)?));
    }
    Some(records)
}

pub(super) fn put_bound<L: Layout>(bound: &Bound<L::Key>, to: &mut Message) {
    match bound {
        Bound::Unbounded => to.push(0),
        Bound::Included(key) => {
            to.push(1);
            L::put_key(key, to);
        }
        Bound::Excluded(key) => {
            to.push(2);
            L::put_key(key, to);
        }
    }
}

pub(super) fn take_bound<L: Layout>(from: &mut &[u8]) -> Option<Bound<L::Key>> {
    Some(match take_u8(from)? {
        0 => Bound::Unbounded,
        1 => Bound::Included(L::take_key(from)?),
        2 => Bound::Excluded(L::take_key(from)?),
        _ => return None,
    })
}

pub(super) fn put_option<T>(
    option: Option<&T>,
    to: &mut Message,
    put: impl FnOnce(&T, &mut Message),
) {
    to.push(u8::from(option.is_some()));
    if let Some(value) = option {
        put(value, to);
    }
}

#[inline]
pub(super) fn take_option<T>(
    from: &mut &[u8],
    take: impl FnOnce(&mut &[u8]) -> Option<T>,
) -> Option<Option<T>> {
    Some(if take_bool(from)? { Some(take(from)?) } else { None })
}

pub(super) fn put_address(address: GlobalAddr, to: &mut Message) {
    to.extend_from_slice(&address.to_bits().to_le_bytes());
}

pub(super) fn take_address(from: &mut &[u8]) -> Option<GlobalAddr> {
    take_u64(from).map(GlobalAddr::from_bits)
}

/// What is done with a key, as a number from `first` on, and the key and the values.
pub(super) fn put_edit<L: Layout>(first: u8, edit: &LeafEdit<L::Key, L::Value>, to: &mut Message) {
    let (number, values) = match &edit.action {
        Action::Get => (0, [None, None]),
        Action::Insert(value) => (1, [Some(value), None]),
        Action::Update(value) => (2, [Some(value), None]),
        Action::Upsert(value) => (3, [Some(value), None]),
        Action::Remove => (4, [None, None]),
        Action::CompareExchange(expected, new) => (5, [Some(expected), Some(new)]),
    };
    to.push(first + number);
    L::put_key(&edit.key, to);
    values.into_iter().flatten().for_each(|value| L::put_value(value, to));
}

/// The edit of this number.
pub(super) fn take_edit<L: Layout>(
    number: u8,
    from: &mut &[u8],
) -> Option<LeafEdit<L::Key, L::Value>> {
    let key = L::take_key(from)?;
    let action = match number {
        0 => Action::Get,
        1 => Action::Insert(L::take_value(from)?),
        2 => Action::Update(L::take_value(from)?),
        3 => Action::Upsert(L::take_value(from)?),
        4 => Action::Remove,
        5 => Action::CompareExchange(L::take_value(from)?, L::take_value(from)?),
        _ => return None,
    };
    Some(LeafEdit { key, action })
}
