//! Guesses where the records of popular keys are, so that a lookup READs one bucket of a leaf
//! instead of a window.
//!
//! *Invariants*
//! - hot.G1. A guess is a hint: the entry is used only if its check matches, with the version of
//!   the guess, and if it is live and has the key. A record is live only in its key's leaf, so the
//!   leaf is the key's, even if the version only looks the same: the check has its low 24 bits.
//! - hot.G2. The guesses take at most the given bytes. Each key has one place; it takes the place
//!   of another key once that one has been asked for less often.
//!
//! After Luo et al., *CHIME* (SOSP 2024).
//!
//! *Thread safety*: shared by all threads of a compute server.

use super::windows::RecordPlace;
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_page::{Layout, OwnedKey};

/// Lookups that a guess outlasts without being used itself, at most.
const MAX_HEAT: u32 = 16;

#[derive(Debug)]
struct LeafGuess<K> {
    key: K,
    place: RecordPlace,
    heat: u32,
}

/// The guesses of one compute server.
#[derive(Debug)]
pub(super) struct HotEntries<L: Layout> {
    places: Vec<Mutex<Option<LeafGuess<OwnedKey<L>>>>>,
}

impl<L: Layout> HotEntries<L> {
    pub(super) fn new(bytes: u64) -> Self {
        let most = bytes / size_of::<Mutex<Option<LeafGuess<OwnedKey<L>>>>>() as u64;
        let most = if L::WINDOWS { usize::try_from(most).unwrap_or(usize::MAX) } else { 0 };
        Self { places: (0..most).map(|_| Mutex::new(None)).collect() }
    }

    /// Size of the guesses, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&self.places[..]) as u64
    }

    fn place(&self, key: &L::Key) -> Option<&Mutex<Option<LeafGuess<OwnedKey<L>>>>> {
        let number = (u128::from(L::hash(key)) * self.places.len() as u128) >> 64;
        self.places.get(number as usize)
    }

    /// Where the record of a key may be.
    pub(super) fn guess(&self, key: &L::Key) -> Option<RecordPlace> {
        let mut guess = lock(self.place(key)?);
        let guess = guess.as_mut().filter(|guess| L::key(&guess.key) == key)?;
        guess.heat = (guess.heat + 1).min(MAX_HEAT);
        Some(guess.place.clone())
    }

    /// Notes where the record of a key is.
    pub(super) fn note(&self, key: &L::Key, place: RecordPlace) {
        let Some(held) = self.place(key) else { return };
        let mut held = lock(held);
        match held.as_mut() {
            Some(guess) if L::key(&guess.key) == key => guess.place = place,
            Some(guess) if guess.heat > 0 => guess.heat -= 1,
            _ => *held = Some(LeafGuess { key: key.to_owned(), place, heat: 0 }),
        }
    }

    /// Drops a guess that was wrong.
    pub(super) fn forget(&self, key: &L::Key) {
        let Some(held) = self.place(key) else { return };
        let mut held = lock(held);
        if held.as_ref().is_some_and(|guess| L::key(&guess.key) == key) {
            *held = None;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::{GlobalAddr, ServerId};
    use farleaf_page::{Entries8, LockWord};

    type HotTestLayout = Entries8<128, true>;

    #[test]
    fn guesses_are_of_the_keys_that_are_asked_for_most() {
        let one = size_of::<Mutex<Option<LeafGuess<u64>>>>() as u64;
        let hot = HotEntries::<HotTestLayout>::new(2 * one - 1);
        assert_eq!(hot.bytes(), one);
        let place = |number: u64| RecordPlace {
            leaf: GlobalAddr::new(ServerId::new(0), number * 1024),
            words: 10..15,
            version: LockWord::from_bits(number),
        };
        assert_eq!(hot.guess(&1), None);
        hot.note(&1, place(1));
        assert_eq!((hot.guess(&1), hot.guess(&2)), (Some(place(1)), None));
        // Key 1 was asked for once, so the second note of another key replaces it.
        hot.note(&2, place(2));
        assert_eq!(hot.guess(&2), None);
        hot.note(&1, place(3));
        hot.note(&2, place(2));
        assert_eq!((hot.guess(&1), hot.guess(&2)), (None, Some(place(2))));
        hot.forget(&1);
        assert_eq!(hot.guess(&2), Some(place(2)));
        hot.forget(&2);
        assert_eq!(hot.guess(&2), None);
        let none = HotEntries::<HotTestLayout>::new(one - 1);
        none.note(&1, place(1));
        assert_eq!((none.bytes(), none.guess(&1)), (0, None));
        assert_eq!(HotEntries::<Entries8<128>>::new(1 << 20).bytes(), 0, "it has no windows");
    }
}
