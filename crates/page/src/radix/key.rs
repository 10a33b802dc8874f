//! Keys as a radix tree has them: byte strings of which none is the beginning of another one.
//!
//! *Thread safety*: plain values.

use crate::Layout;
use smallvec::SmallVec;

/// A key, a path or a value. Those of numbers need no allocation.
pub type Octets = SmallVec<[u8; 16]>;

/// What the keys and values of a tree are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RadixForm {
    /// Eight bytes, the highest first.
    Numbers,
    /// Byte strings of any length. A key ends with a zero; its own zeros and ones are written as 1
    /// 1 and 1 2. So no key is the beginning of another one, and the order stays.
    Strings,
}

const END: u8 = 0;
const ESCAPE: u8 = 1;

impl RadixForm {
    /// The form of the keys of indexes with layout `L`.
    pub fn of<L: Layout>() -> Self {
        if L::HAS_HEAP { Self::Strings } else { Self::Numbers }
    }

    /// Words of a node before its slots.
    pub(crate) const fn header_words(self) -> usize {
        match self {
            Self::Numbers => 2,
            Self::Strings => 8,
        }
    }

    /// Maximum number of bytes of its path that a node stores: the last ones.
    pub const fn most_tail(self) -> usize {
        match self {
            Self::Numbers => 7,
            Self::Strings => 48,
        }
    }

    /// The form of a key that the tree stores.
    pub fn key(self, of: &[u8]) -> Octets {
        match self {
            Self::Numbers => Octets::from_slice(of),
            Self::Strings => {
                let mut key = Octets::with_capacity(of.len() + 1);
                for byte in of {
                    match *byte {
                        byte @ (END | ESCAPE) => key.extend([ESCAPE, byte + 1]),
                        byte => key.push(byte),
                    }
                }
                key.push(END);
                key
            }
        }
    }

    /// The key that is stored in this form; `None` if no key is.
    pub fn original(self, key: &[u8]) -> Option<Vec<u8>> {
        if self == Self::Numbers {
            return (key.len() == 8).then(|| key.to_vec());
        }
        let (END, body) = key.split_last().map(|(end, body)| (*end, body))? else { return None };
        let mut bytes = Vec::with_capacity(body.len());
        let mut rest = body.iter();
        while let Some(byte) = rest.next() {
            bytes.push(match (*byte, *byte == ESCAPE) {
                (END, _) => return None,
                (_, true) => rest.next()?.checked_sub(1).filter(|byte| *byte <= ESCAPE)?,
                (byte, false) => byte,
            });
        }
        Some(bytes)
    }
}

/// The number of bytes at the beginning of both that are equal.
pub fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The last byte string of this length before `bytes`. If `bytes` is a key or a path, no key lies
/// between it, followed by any bytes, and `bytes`.
pub fn just_before(bytes: &[u8]) -> Option<Octets> {
    let mut before = Octets::from_slice(bytes);
    for byte in before.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            return Some(before);
        }
    }
    None
}

/// The first byte string of this length after all that begin with `bytes`.
pub fn just_after(bytes: &[u8]) -> Option<Octets> {
    let mut after = Octets::from_slice(bytes);
    for byte in after.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(after);
        }
    }
    None
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_their_order_and_none_begins_another() {
        let mut strings: Vec<Vec<u8>> = vec![Vec::new()];
        for length in 1..=3_u32 {
            for number in 0..4_usize.pow(length) {
                let byte = |place: u32| [0, 1, 2, 255][number >> (2 * place) & 3];
                strings.push((0..length).map(byte).collect());
            }
        }
        strings.sort();
        let keys: Vec<Octets> = strings.iter().map(|of| RadixForm::Strings.key(of)).collect();
        assert!(keys.is_sorted_by(|one, next| one < next && !next.starts_with(one)));
        for (string, key) in strings.iter().zip(&keys) {
            assert_eq!(RadixForm::Strings.original(key).as_ref(), Some(string));
        }
        for wrong in [&[][..], &[7], &[1, 0], &[1, 3, 0], &[0, 0], &[1]] {
            assert_eq!(RadixForm::Strings.original(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn neighbours_carry() {
        assert_eq!(just_after(&[1, 255, 255]).unwrap()[..], [2, 0, 0]);
        assert_eq!(just_before(&[2, 0, 0]).unwrap()[..], [1, 255, 255]);
        assert_eq!(
            [just_after(&[255, 255]), just_after(&[]), just_before(&[0])],
            [None, None, None]
        );
    }
}
