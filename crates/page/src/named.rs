//! Keys and values by names, for suites, models and checkers: those use only numbers, from which a
//! layout makes keys and values.
//!
//! *Thread safety*: plain functions.

use super::bytes::Bytes;
use super::entries8::Entries8;
use super::fixed8::Fixed8;
use super::layout::{Layout, OwnedKey, OwnedValue};
use super::stubborn::RefusingLayout;

/// A layout with a key and a value for every number.
///
/// Keys have the order of their names. Keys and values can be decoded, and decoding is strict: a
/// key or value that is damaged, or a mixture of two, has no name. Name 0 is the smallest key.
pub trait NamedLayout: Layout {
    /// The key with this name.
    fn key_named(name: u64) -> OwnedKey<Self>;
    /// The name of a key; `None` if it has none.
    fn name_of_key(key: &Self::Key) -> Option<u64>;
    /// The value with this name.
    fn value_named(name: u64) -> OwnedValue<Self>;
    /// The name of a value; `None` if it has none.
    fn name_of_value(value: &Self::Value) -> Option<u64>;
}

macro_rules! names_are_the_keys {
    () => {
        #[inline]
        fn key_named(name: u64) -> u64 {
            name
        }

        #[inline]
        fn name_of_key(key: &u64) -> Option<u64> {
            Some(*key)
        }

        #[inline]
        fn value_named(name: u64) -> u64 {
            name
        }

        #[inline]
        fn name_of_value(value: &u64) -> Option<u64> {
            Some(*value)
        }
    };
}

impl<const WORDS: usize> NamedLayout for Fixed8<WORDS> {
    names_are_the_keys!();
}

impl<const WORDS: usize, const HOPS: bool> NamedLayout for Entries8<WORDS, HOPS> {
    names_are_the_keys!();
}

impl<const WORDS: usize, const SEED: u64> NamedLayout for RefusingLayout<WORDS, SEED> {
    names_are_the_keys!();
}

/// Bytes of a name.
const NAME_BYTES: usize = 8;
/// Names are grouped by their highest bits. All keys of a group share a prefix.
const GROUPS: usize = 16;
const GROUP_SHIFT: u32 = 60;
/// The byte that a group's keys repeat before the name.
const FILLERS: [u8; 4] = [b'/', 0, b'p', 0xff];

impl<const WORDS: usize> Bytes<WORDS> {
    /// The longest key with a name. Values with names fit beside it.
    fn longest_named_key() -> usize {
        Self::max_key().min(Self::longest_value_beside(0) - 2 * NAME_BYTES)
    }

    fn longest_named_value() -> usize {
        Self::longest_value_beside(Self::longest_named_key())
    }

    /// Minimum length of the prefix that the keys of a group share, in bytes.
    fn lead_length(group: usize) -> usize {
        match group {
            0 => 0,
            _ => 1 + group * (Self::longest_named_key() - NAME_BYTES - 1) / (GROUPS - 1),
        }
    }
}

/// A number that varies the lengths.
fn spread(name: u64) -> usize {
    Fixed8::<128>::hash(&(name ^ 0x5bd1_e995)) as usize >> 8
}

/// `name_bytes`, repeated to a length. Each repetition differs, so that a shifted copy is detected.
fn repeated(name_bytes: &[u8], length: usize) -> Vec<u8> {
    (0..length).map(|at| name_bytes[at % NAME_BYTES] ^ (at / NAME_BYTES) as u8).collect()
}

/// Byte strings of all lengths up to the limit.
///
/// A key is the lead of its group, up to the limit minus the length of a name, and then the name,
/// big-endian. Trailing zeros are omitted, so that some keys are prefixes of others, and the key
/// with name 0 is empty. Other keys continue after the name. Neighbours differ in their last byte,
/// unless they continue.
///
/// A value repeats its name over a length that depends on it. The value with name 0 is empty.
impl<const WORDS: usize> NamedLayout for Bytes<WORDS> {
    fn key_named(name: u64) -> Vec<u8> {
        let group = (name >> GROUP_SHIFT) as usize;
        let mut key = Vec::new();
        if group > 0 {
            // The names of group 0 begin with a byte below 16.
            key.push((group * GROUPS) as u8);
            key.resize(Self::lead_length(group), FILLERS[group % FILLERS.len()]);
        }
        key.extend_from_slice(&name.to_be_bytes());
        if name as u8 == 0 {
            let kept = key.len() - (name.trailing_zeros() / 8) as usize;
            key.truncate(kept);
        } else if spread(name).is_multiple_of(4) {
            let room = Self::longest_named_key() - key.len();
            let tail = repeated(&name.to_le_bytes(), spread(name) / 4 % (room + 1));
            key.extend_from_slice(&tail);
        }
        key
    }

    fn name_of_key(key: &[u8]) -> Option<u64> {
        let group = key.first().map_or(0, |first| usize::from(*first) / GROUPS);
        let rest = key.get(Self::lead_length(group)..).unwrap_or_default();
        let mut bytes = [0; NAME_BYTES];
        let length = rest.len().min(NAME_BYTES);
        bytes[..length].copy_from_slice(&rest[..length]);
        let name = u64::from_be_bytes(bytes);
        (Self::key_named(name) == key).then_some(name)
    }

    fn value_named(name: u64) -> Vec<u8> {
        let width = match name {
            0 => return Vec::new(),
            1..=0xff => 1,
            _ => NAME_BYTES,
        };
        // Short values are more frequent.
        let spread = spread(name);
        let most = Self::longest_named_value() - width + 1;
        let length = width + ((spread / 4 % most) >> (2 * (spread % 4)));
        match width {
            1 => repeated(&[name as u8; NAME_BYTES], length),
            _ => repeated(&name.to_le_bytes(), length),
        }
    }

    fn name_of_value(value: &[u8]) -> Option<u64> {
        let short = value.first().copied().map_or(0, u64::from);
        let long = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let has = |name: &u64| Self::value_named(*name) == value;
        Some(short).filter(has).or(long.filter(has))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Names from all over: small and large ones, some with zeros at the end, and the neighbours of
    /// all.
    fn names() -> BTreeSet<u64> {
        let spread = (0..64).flat_map(|shift| (1..20_u64).map(move |n| n.rotate_left(shift)));
        let even = (0..400).map(|n| n * (u64::MAX / 400));
        let near = |name: u64| [name.wrapping_sub(1), name, name.wrapping_add(1)];
        spread.chain(even).chain([0, u64::MAX]).flat_map(near).collect()
    }

    fn check<const W: usize>() {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let (mut key_lengths, mut value_lengths) = (0, 0);
        let mut values = BTreeSet::new();
        let mut shared = 0;
        for name in names() {
            let (key, value) = (Bytes::<W>::key_named(name), Bytes::<W>::value_named(name));
            assert_eq!(Bytes::<W>::check_record(&key, &value), Ok(()), "{name:x}");
            assert_eq!(Bytes::<W>::name_of_key(&key), Some(name));
            assert_eq!(Bytes::<W>::name_of_value(&value), Some(name), "{value:?}");
            key_lengths = key_lengths.max(key.len());
            value_lengths = value_lengths.max(value.len());
            if let Some(last) = keys.last() {
                assert!(*last < key, "{name:x}: keys have the order of names");
                let same = |(a, b): &(&u8, &u8)| a == b;
                let common = last.iter().zip(&key).take_while(same).count();
                shared += usize::from(common + 1 == last.len() && last.len() == key.len());
            }
            keys.push(key);
            assert!(values.insert(value), "{name:x}");
        }
        assert_eq!(keys[0], b"", "the smallest key is the smallest name");
        assert_eq!(key_lengths, Bytes::<W>::longest_named_key());
        assert!(value_lengths > Bytes::<W>::longest_named_value() / 2);
        assert!(shared > 100, "{shared} neighbours differ in the last byte only");
    }

    #[test]
    fn byte_strings_are_ordered_as_their_names_and_lead_back_to_them() {
        check::<32>();
        check::<64>();
        check::<128>();
        check::<256>();
        check::<512>();
        assert_eq!(Bytes::<128>::key_named(u64::MAX).len(), Bytes::<128>::max_key());
    }

    /// If a reader takes words of two values, the result has no name.
    #[test]
    fn a_mixture_has_no_name() {
        type NamedTestLayout = Bytes<128>;
        let long = |name: &u64| NamedTestLayout::value_named(*name).len() >= 32;
        let values: Vec<_> =
            (1_000..20_000).filter(long).take(60).map(NamedTestLayout::value_named).collect();
        assert_eq!(values.len(), 60);
        for (one, other) in values.iter().zip(&values[1..]) {
            for cut in (8..one.len().min(other.len())).step_by(8) {
                let mixed: Vec<u8> = one[..cut].iter().chain(&other[cut..]).copied().collect();
                assert_eq!(NamedTestLayout::name_of_value(&mixed), None);
            }
            assert_eq!(NamedTestLayout::name_of_value(&one[..one.len() - 1]), None);
        }
    }
}
