//! Copying words: the work of a READ or a WRITE where the memory is mapped.
//!
//! *Invariants*: each aligned 8-byte word is read by one access and written by one access, so a
//! copy may mix old and new words, but each word is either old or new. The order of the words is
//! unspecified.
//!
//! *Thread safety*: any threads, on any words, concurrently.

use crate::sync::{AtomicU64, Ordering};

/// From this length on, the processor's string instructions are faster.
const STRING_WORDS: usize = 32;

/// Copies `from` to `to`, word by word.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) fn copy_words(from: &[AtomicU64], to: &[AtomicU64]) {
    assert_eq!(from.len(), to.len(), "both sides of a copy have one length");
    if STRING && from.len() >= STRING_WORDS {
        let target = to.as_ptr().cast_mut().cast();
        // SAFETY: both slices have `from.len()` aligned words, which are atomics.
        return unsafe { copy_string(from.as_ptr().cast(), target, from.len()) };
    }
    for (source, target) in from.iter().zip(to) {
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

const STRING: bool = cfg!(all(target_arch = "x86_64", not(any(loom, shuttle, miri))));

/// Copies with `rep movsq`. It keeps far more cache misses in flight than a loop can, because a
/// loop's loads and stores fill the processor's reorder window. At 1 KB it is 2 to 3 times as fast
/// on memory that is in no cache.
///
/// It is as atomic as the loop: the instruction is defined as a sequence of quadword moves, which
/// are atomic because they are aligned. A processor that moves several at a time may only change
/// their order among each other; they stay ordered with the stores before and after (Intel's
/// manual, volume 3A, "Fast-String Operation and Out-of-Order Stores"). To the compiler it is an
/// opaque block of relaxed loads and stores.
///
/// # Safety
/// `from` points to `words` aligned words that may be read, `to` to as many that may be written:
/// atomics, or memory that no other thread accesses.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
#[inline]
unsafe fn copy_string(from: *const u64, to: *mut u64, words: usize) {
    // SAFETY: the caller's promise; the direction flag is clear between blocks of assembly.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
unsafe fn copy_string(_from: *const u64, _to: *mut u64, _words: usize) {
    unreachable!("`rep movsq` is only used on x86-64")
}

/// Copies words out as little-endian bytes, to which only the caller has access.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn load_bytes(from: &[AtomicU64], to: &mut [u8]) {
    assert_eq!(from.len() * 8, to.len(), "both sides of a copy have one length");
    if STRING && from.len() >= STRING_WORDS && to.as_ptr().addr().is_multiple_of(8) {
        // SAFETY: `to` has as many bytes as `from`, and is aligned; it is borrowed exclusively.
        return unsafe { copy_string(from.as_ptr().cast(), to.as_mut_ptr().cast(), from.len()) };
    }
    for (source, target) in from.iter().zip(to.chunks_exact_mut(8)) {
        target.copy_from_slice(&source.load(Ordering::Relaxed).to_le_bytes());
    }
}

/// Copies little-endian bytes into words; each word is written by one store. The bytes must not
/// change meanwhile.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn store_bytes(from: &[u8], to: &[AtomicU64]) {
    assert_eq!(from.len(), to.len() * 8, "both sides of a copy have one length");
    if STRING && to.len() >= STRING_WORDS && from.as_ptr().addr().is_multiple_of(8) {
        // SAFETY: `from` has as many bytes as `to`, and is aligned; the words are atomics.
        return unsafe {
            copy_string(from.as_ptr().cast(), to.as_ptr().cast_mut().cast(), to.len())
        };
    }
    for (source, target) in from.chunks_exact(8).zip(to) {
        let word = u64::from_le_bytes(source.try_into().expect("8 bytes"));
        target.store(word, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Region;
    use crate::sync::thread;

    #[test]
    fn every_length_is_copied_and_nothing_else() {
        let (from, to) = (Region::new(4096).unwrap(), Region::new(4096).unwrap());
        for (index, word) in (1..).zip(from.words()) {
            word.store(index, Ordering::Relaxed);
        }
        for length in 0..200 {
            for first in [0, 1, 7] {
                to.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
                let target = &to.words()[first..first + length];
                copy_words(&from.words()[3..3 + length], target);
                for (index, word) in to.words().iter().enumerate() {
                    let copied = (first..first + length).contains(&index);
                    let expected = if copied { index - first + 4 } else { 0 };
                    assert_eq!(word.load(Ordering::Relaxed), expected as u64, "{length} {first}");
                }
            }
        }
    }

    /// Copies between addresses with different alignments, while other threads change the words.
    #[test]
    fn no_word_is_torn() {
        const ROUNDS: u64 = 20_000;
        let shared = Region::new(4096).unwrap();
        let word = |value: u64| value << 32 | (value ^ 0xffff_ffff);
        shared.words().iter().for_each(|it| it.store(word(0), Ordering::Relaxed));
        thread::scope(|scope| {
            for writer in 0..2 {
                let shared = &shared;
                scope.spawn(move || {
                    let own = Region::new(4096).unwrap();
                    for round in 0..ROUNDS {
                        own.words()
                            .iter()
                            .for_each(|it| it.store(word(round * 2 + writer), Ordering::Relaxed));
                        let (from, to) = (round as usize % 13, round as usize % 11);
                        copy_words(&own.words()[from..from + 64], &shared.words()[to..to + 64]);
                    }
                });
            }
            let own = Region::new(4096).unwrap();
            for round in 0..ROUNDS as usize {
                let (from, to) = (round % 7, round % 5);
                copy_words(&shared.words()[from..from + 70], &own.words()[to..to + 70]);
                for found in &own.words()[to..to + 70] {
                    let found = found.load(Ordering::Relaxed);
                    assert_eq!(found, word(found >> 32), "a torn word: {found:#x}");
                }
            }
        });
    }

    /// In frames, bytes may have any alignment.
    #[test]
    fn bytes_of_every_length_and_alignment_are_copied() {
        let (from, to) = (Region::new(4096).unwrap(), Region::new(4096).unwrap());
        for (index, word) in (1..).zip(from.words()) {
            word.store(index << 40 | index, Ordering::Relaxed);
        }
        let mut bytes = vec![0_u64; 512];
        // SAFETY: the vector has these bytes, and every value of them is valid.
        let bytes = unsafe { bytes.align_to_mut::<u8>().1 };
        for length in 0..100 {
            for first in [0, 1, 4, 8, 9, 16] {
                bytes.fill(0xaa);
                load_bytes(&from.words()[3..3 + length], &mut bytes[first..first + length * 8]);
                assert!(bytes[..first].iter().all(|&byte| byte == 0xaa));
                assert!(bytes[first + length * 8..].iter().all(|&byte| byte == 0xaa));
                to.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
                store_bytes(&bytes[first..first + length * 8], &to.words()[5..5 + length]);
                for (index, word) in to.words().iter().enumerate() {
                    let value = (index as u64).wrapping_sub(1);
                    let copied = (5..5 + length).contains(&index);
                    let expected = if copied { value << 40 | value } else { 7 };
                    assert_eq!(word.load(Ordering::Relaxed), expected, "{length} {first} {index}");
                }
            }
        }
    }

    /// The same as above, between words and bytes, aligned and not.
    #[test]
    fn no_word_is_torn_on_its_way_to_or_from_bytes() {
        const ROUNDS: u64 = 20_000;
        let shared = Region::new(4096).unwrap();
        let word = |value: u64| value << 32 | (value ^ 0xffff_ffff);
        shared.words().iter().for_each(|it| it.store(word(0), Ordering::Relaxed));
        thread::scope(|scope| {
            for writer in 0..2 {
                let shared = &shared;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut own = vec![0; 8 * 65];
                        let first = round as usize % 2 * 3;
                        for bytes in own[first..first + 8 * 64].chunks_exact_mut(8) {
                            bytes.copy_from_slice(&word(round * 2 + writer).to_le_bytes());
                        }
                        let to = round as usize % 11;
                        store_bytes(&own[first..first + 8 * 64], &shared.words()[to..to + 64]);
                    }
                });
            }
            let mut own = vec![0; 8 * 71];
            for round in 0..ROUNDS as usize {
                let (from, first) = (round % 7, round % 2 * 5);
                let own = &mut own[first..first + 8 * 70];
                load_bytes(&shared.words()[from..from + 70], own);
                for bytes in own.chunks_exact(8) {
                    let found = u64::from_le_bytes(bytes.try_into().unwrap());
                    assert_eq!(found, word(found >> 32), "a torn word: {found:#x}");
                }
            }
        });
    }
}
