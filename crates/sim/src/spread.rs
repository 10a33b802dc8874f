//! SMART over keys that differ in several bytes: the few keys of a scenario then make a high radix
//! tree, in which nodes come between nodes all the time.
//!
//! *Thread safety*: plain values.

use crate::scenario::{DesignSpec, Scenario};
use farleaf_index::Naming;
use farleaf_page::{NamedLayout, OwnedKey, OwnedValue};

/// Two bits of a name are the low bits of each byte of its key.
const DIGIT_BITS: u32 = 2;
const DIGITS: u32 = 8;

/// Higher than the numbers of all names of `DIGITS` digits. Of higher names, scenarios have the
/// very highest ones only, which stay as they are.
const ABOVE: u64 = 0x0404_0404_0404_0404;

/// The number of the key with this name.
pub(crate) fn spread(name: u64) -> u64 {
    match name >> (DIGIT_BITS * DIGITS) {
        0 => (0..DIGITS).map(|digit| (name >> (DIGIT_BITS * digit) & 3) << (8 * digit)).sum(),
        _ => name.max(ABOVE),
    }
}

/// The name of the key with this number; `None` if it has none.
pub(crate) fn gathered(number: u64) -> Option<u64> {
    if number > ABOVE {
        return Some(number);
    }
    let digits = (0..DIGITS).map(|digit| (number >> (8 * digit) & 3) << (DIGIT_BITS * digit));
    let name = digits.sum();
    (spread(name) == number).then_some(name)
}

/// The names that a layout gives to its keys, or those of spread keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpreadNames {
    /// Whether keys are spread.
    pub(crate) spread: bool,
}

impl SpreadNames {
    /// Those of a scenario.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        Self { spread: matches!(scenario.design, DesignSpec::Smart { spread: true, .. }) }
    }
}

impl<L: NamedLayout> Naming<L> for SpreadNames {
    fn key_named(&self, name: u64) -> OwnedKey<L> {
        L::key_named(if self.spread { spread(name) } else { name })
    }

    fn name_of_key(&self, key: &L::Key) -> Option<u64> {
        let number = L::name_of_key(key)?;
        if self.spread { gathered(number) } else { Some(number) }
    }

    fn value_named(&self, name: u64) -> OwnedValue<L> {
        L::value_named(name)
    }

    fn name_of_value(&self, value: &L::Value) -> Option<u64> {
        L::name_of_value(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_keys_ascend_and_have_names() {
        let numbers: Vec<u64> = (0..1 << 16).map(spread).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next));
        assert!(numbers.iter().zip(0..).all(|(number, name)| gathered(*number) == Some(name)));
        assert_eq!((spread(0x1b), spread(u64::MAX - 1)), (0x00_01_02_03, u64::MAX - 1));
        assert_eq!((gathered(4), gathered(u64::MAX)), (None, Some(u64::MAX)));
        assert!(numbers.iter().all(|number| *number < ABOVE));
    }
}
