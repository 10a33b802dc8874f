//! The fields of messages: integers in little-endian order, keys and values as their types define.
//!
//! *Invariant*: any bytes may arrive. Decoding a field never panics, and never allocates more than
//! a few times the message's length.
//!
//! *Thread safety*: plain functions.

use super::{EditAction, EditAnswer, LeafEdit, PutField, WireField};
use farleaf_fabric::{GlobalAddr, Message};
use std::ops::Bound;

macro_rules! integers {
    ($($integer:ty),+) => {
        $(impl PutField for $integer {
            #[inline]
            fn put(&self, to: &mut Message) {
                to.extend_from_slice(&self.to_le_bytes());
            }
        }

        impl WireField for $integer {
            #[inline]
            fn take(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        })+
    };
}

integers!(u16, u32, u64);

impl PutField for u8 {
    #[inline]
    fn put(&self, to: &mut Message) {
        to.push(*self);
    }

    #[inline]
    fn put_each(values: &[Self], to: &mut Message) {
        to.extend_from_slice(values);
    }
}

impl WireField for u8 {
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Self> {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        Some(*byte)
    }

    #[inline]
    fn take_each(count: usize, from: &mut &[u8]) -> Option<Vec<Self>> {
        let (bytes, rest) = from.split_at_checked(count)?;
        *from = rest;
        Some(bytes.to_vec())
    }
}

impl<T: ?Sized + PutField> PutField for &T {
    #[inline]
    fn put(&self, to: &mut Message) {
        (**self).put(to);
    }
}

impl PutField for bool {
    #[inline]
    fn put(&self, to: &mut Message) {
        to.push(u8::from(*self));
    }
}

impl WireField for bool {
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl PutField for GlobalAddr {
    fn put(&self, to: &mut Message) {
        self.to_bits().put(to);
    }
}

impl WireField for GlobalAddr {
    fn take(from: &mut &[u8]) -> Option<Self> {
        u64::take(from).map(Self::from_bits)
    }
}

impl<T: PutField> PutField for Option<T> {
    #[inline]
    fn put(&self, to: &mut Message) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }
}

impl<T: WireField> WireField for Option<T> {
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<K: PutField> PutField for Bound<K> {
    fn put(&self, to: &mut Message) {
        match self {
            Self::Unbounded => to.push(0),
            Self::Included(key) => {
                to.push(1);
                key.put(to);
            }
            Self::Excluded(key) => {
                to.push(2);
                key.put(to);
            }
        }
    }
}

impl<K: WireField> WireField for Bound<K> {
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(match u8::take(from)? {
            0 => Self::Unbounded,
            1 => Self::Included(K::take(from)?),
            2 => Self::Excluded(K::take(from)?),
            _ => return None,
        })
    }
}

impl<K: PutField, V: PutField> PutField for (K, V) {
    fn put(&self, to: &mut Message) {
        self.0.put(to);
        self.1.put(to);
    }
}

impl<K: WireField, V: WireField> WireField for (K, V) {
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((K::take(from)?, V::take(from)?))
    }
}

/// A list: its length as a `u32`, then the items.
impl<T: PutField> PutField for [T] {
    fn put(&self, to: &mut Message) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(to);
        T::put_each(self, to);
    }
}

impl<T: PutField> PutField for Vec<T> {
    fn put(&self, to: &mut Message) {
        self.as_slice().put(to);
    }
}

impl<T: WireField> WireField for Vec<T> {
    fn take(from: &mut &[u8]) -> Option<Self> {
        T::take_each(u32::take(from)? as usize, from)
    }
}

/// A short list: its length as a `u16`, then the items.
pub mod short {
    use super::*;

    /// Appends the list to a message.
    pub fn put<T: PutField>(list: &[T], to: &mut Message) {
        u16::try_from(list.len()).unwrap_or(u16::MAX).put(to);
        T::put_each(list, to);
    }

    /// Takes the list off the front of a message.
    pub fn take<T: WireField>(from: &mut &[u8]) -> Option<Vec<T>> {
        T::take_each(u16::take(from)?.into(), from)
    }
}

/// A list that extends to the end of the message.
pub mod rest {
    use super::*;

    /// Appends the list to a message.
    pub fn put<T: PutField>(list: &[T], to: &mut Message) {
        list.iter().for_each(|item| item.put(to));
    }

    /// Takes the list off the front of a message.
    pub fn take<T: WireField>(from: &mut &[u8]) -> Option<Vec<T>> {
        let mut list = Vec::with_capacity(from.len() / size_of::<T>().max(1));
        while !from.is_empty() {
            list.push(T::take(from)?);
        }
        Some(list)
    }
}

impl<V: PutField> PutField for EditAnswer<V> {
    #[inline]
    fn put(&self, to: &mut Message) {
        self.applied.put(to);
        self.found.put(to);
    }
}

impl<V: WireField> WireField for EditAnswer<V> {
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Self> {
        Some(Self { applied: WireField::take(from)?, found: WireField::take(from)? })
    }
}

/// The number of an edit's action, then its key and its values.
impl<K: PutField, V: PutField> PutField for LeafEdit<K, V> {
    fn put(&self, to: &mut Message) {
        put_edit(0, self, to);
    }
}

impl<K: WireField, V: WireField> WireField for LeafEdit<K, V> {
    fn take(from: &mut &[u8]) -> Option<Self> {
        take_edit(u8::take(from)?, from)
    }
}

/// The number of actions.
pub const ACTIONS: u8 = 6;

/// Encodes an edit; actions are numbered from `first` on.
#[inline]
pub fn put_edit<K: PutField, V: PutField>(first: u8, edit: &LeafEdit<K, V>, to: &mut Message) {
    let (number, values) = match &edit.action {
        EditAction::Get => (0, [None, None]),
        EditAction::Insert(value) => (1, [Some(value), None]),
        EditAction::Update(value) => (2, [Some(value), None]),
        EditAction::Upsert(value) => (3, [Some(value), None]),
        EditAction::Remove => (4, [None, None]),
        EditAction::CompareExchange(expected, new) => (5, [Some(expected), Some(new)]),
    };
    to.push(first + number);
    edit.key.put(to);
    values.into_iter().flatten().for_each(|value| value.put(to));
}

/// Decodes an edit of the action with this number.
#[inline]
pub fn take_edit<K: WireField, V: WireField>(
    number: u8,
    from: &mut &[u8],
) -> Option<LeafEdit<K, V>> {
    let key = K::take(from)?;
    let action = match number {
        0 => EditAction::Get,
        1 => EditAction::Insert(V::take(from)?),
        2 => EditAction::Update(V::take(from)?),
        3 => EditAction::Upsert(V::take(from)?),
        4 => EditAction::Remove,
        5 => EditAction::CompareExchange(V::take(from)?, V::take(from)?),
        _ => return None,
    };
    Some(LeafEdit { key, action })
}
