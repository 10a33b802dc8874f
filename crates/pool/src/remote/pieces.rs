//! READs and WRITEs of more words than an endpoint's buffer holds, in pieces. Log entries need
//! them: an entry about several pages of 2 or 4 KB is larger than a buffer.
//!
//! *Invariants*
//! - R4. The piece with word 0 is posted last, so it takes effect last (contract F3). An entry's
//!   word 0 is the checksum of all other words: a client that dies between two pieces leaves a slot
//!   without an entry, or with the previous entry.
//! - R5. A task that waits for a buffer holds no buffer.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::Backoff;
use farleaf_fabric::{BUFFER_BYTES, Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use std::ops::Range;

/// Splits `words` words into pieces. The piece with word 0 comes first.
pub fn pieces(words: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    const PIECE_WORDS: usize = BUFFER_BYTES / 8;
    (0..words.div_ceil(PIECE_WORDS))
        .map(move |number| number * PIECE_WORDS..((number + 1) * PIECE_WORDS).min(words))
}

/// A WRITE in flight, in one or several pieces.
pub struct Pieces<F: Fabric> {
    /// Empty, and not allocated, if there is only one piece.
    earlier: Vec<F::Op<Buffer>>,
    last: Option<F::Op<Buffer>>,
}

impl<F: Fabric> Pieces<F> {
    /// Nothing posted.
    pub(super) fn none() -> Self {
        Self { earlier: Vec::new(), last: None }
    }

    /// These WRITEs, which are posted.
    pub fn of(posted: Vec<F::Op<Buffer>>) -> Self {
        Self { earlier: posted, last: None }
    }

    /// Posts the WRITE of a piece of `words`, which begin at `at`.
    pub(super) fn post(
        &mut self,
        fabric: &F,
        (at, words): (GlobalAddr, &[u64]),
        piece: Range<usize>,
        buffer: Buffer,
    ) {
        let place = at.plus(piece.start as u64 * 8);
        words[piece].iter().enumerate().for_each(|(index, word)| buffer.set(index, *word));
        self.earlier.extend(self.last.replace(fabric.write(place, buffer)));
    }

    /// Waits for all pieces.
    ///
    /// # Errors
    /// The first error, or one that leaves an outcome unknown.
    pub async fn done(self) -> Result<(), FabricError> {
        all_done(self.earlier.into_iter().chain(self.last)).await
    }
}

/// Waits for several WRITEs.
///
/// # Errors
/// The first error, or one that leaves an outcome unknown.
pub async fn all_done<O, E>(posted: impl IntoIterator<Item = O>) -> Result<(), E>
where
    O: Future<Output = Result<Buffer, FabricError>>,
    E: From<FabricError>,
{
    let mut outcome = Ok(());
    for operation in posted {
        outcome = both(outcome, operation.await.map(drop));
    }
    Ok(outcome?)
}

/// Attempts to WRITE something that no one else writes.
const WRITE_ATTEMPTS: u32 = 16;

/// Repeats a WRITE of the same words to `server`, within bounds, until it has landed. After an
/// unknown outcome the connection is reset first, so that no earlier attempt can land later, when
/// the place may have been used again (F9).
///
/// The inner error is that of the last attempt, which never lands.
///
/// # Errors
/// [`FabricError`] if a reset fails: an attempt may still land.
pub async fn until_landed<F: Fabric>(
    fabric: &F,
    server: ServerId,
    mut attempt: impl AsyncFnMut() -> Result<(), FabricError>,
) -> Result<Result<(), FabricError>, FabricError> {
    let mut backoff = Backoff::default();
    let mut outcome = Ok(());
    for _ in 0..WRITE_ATTEMPTS {
        outcome = attempt().await;
        match &outcome {
            Err(FabricError::Indeterminate { .. }) => fabric.reset(server).await?,
            Err(FabricError::QueueFull { .. } | FabricError::NoBuffer { .. }) => {}
            Ok(()) | Err(_) => break,
        }
        fabric.counters().count_retry();
        backoff.count();
        backoff.wait(fabric).await;
    }
    Ok(outcome)
}

/// Combines the outcomes of two operations. If one is unknown and the other failed, the result is
/// unknown: the connection must be reset before anything is written again (C15).
pub fn both(
    one: Result<(), FabricError>,
    other: Result<(), FabricError>,
) -> Result<(), FabricError> {
    match (one, other) {
        (Err(_), unknown @ Err(FabricError::Indeterminate { .. })) => unknown,
        (one, other) => one.and(other),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::PageImage;
    use super::super::redo::{MAX_PAGES, Redo, RedoPage};
    use super::{both, pieces};
    use crate::wire::log_slot_bytes;
    use farleaf_fabric::sync::Ordering;
    use farleaf_fabric::{BUFFER_BYTES, FabricError, GlobalAddr, ServerId, Uncertainty};
    use farleaf_page::{Bytes, LockWord};

    type LargePieces = Bytes<512>;

    #[test]
    fn pieces_fit_a_buffer_and_cover_all_words() {
        for words in [1, 2, 511, 512, 513, 1024, 1025, 1568] {
            let mut next = 0;
            for piece in pieces(words) {
                assert_eq!(piece.start, next);
                assert!(!piece.is_empty() && piece.len() * 8 <= BUFFER_BYTES);
                next = piece.end;
            }
            assert_eq!(next, words);
        }
    }

    /// The largest possible entry, with words drawn from `seed`.
    fn largest(mut seed: u64) -> Redo {
        let page = |number: u64| {
            let (image, at) = (PageImage::<LargePieces>::empty(), number * 4096);
            let at = GlobalAddr::new(ServerId::new(1), at);
            image.page().format_empty(at, 0, b"", None);
            for word in &image.words()[8..] {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.store(seed, Ordering::Relaxed);
            }
            image.page().seal(LockWord::from_bits(0).next_by(3));
            RedoPage::whole(at, image.page())
        };
        Redo { owner: 3, pages: (1..=MAX_PAGES as u64).map(page).collect() }
    }

    /// A client dies after one of an entry's WRITEs, or within one, of which any subset of words
    /// may have landed.
    #[test]
    fn a_death_between_two_pieces_leaves_no_entry() {
        let (before, after) = (largest(1), largest(2));
        let (old, new) = (before.words(), after.words());
        let mut slot = vec![0; log_slot_bytes::<LargePieces>() as usize / 8];
        slot[..old.len()].copy_from_slice(&old);
        assert_eq!(Redo::decode(&slot).as_ref(), Some(&before));
        let posted: Vec<_> = pieces(new.len()).rev().collect();
        assert_eq!(posted.len(), 4, "three pages and their positions");
        for piece in posted {
            for kept in 1..piece.len().min(64) {
                let mut torn = slot.clone();
                let landed = piece.clone().filter(|word| word % (kept + 1) != 0);
                landed.for_each(|word| torn[word] = new[word]);
                assert_eq!(Redo::decode(&torn), None, "{kept} of {piece:?}");
            }
            let last = piece.start == 0;
            slot[piece.clone()].copy_from_slice(&new[piece]);
            assert_eq!(Redo::decode(&slot).is_some(), last);
        }
        assert_eq!(Redo::decode(&slot).as_ref(), Some(&after));
    }

    /// The previous entry was shorter. It stays complete until one of its words is overwritten.
    #[test]
    fn the_words_behind_a_short_entry_do_not_matter() {
        let before = Redo { owner: 3, pages: largest(1).pages[..1].to_vec() };
        let (old, new) = (before.words(), largest(2).words());
        let mut slot = vec![0; log_slot_bytes::<LargePieces>() as usize / 8];
        slot[..old.len()].copy_from_slice(&old);
        let beyond = pieces(new.len()).rev().filter(|piece| piece.start >= old.len());
        for piece in beyond {
            slot[piece.clone()].copy_from_slice(&new[piece]);
            assert_eq!(Redo::decode(&slot).as_ref(), Some(&before));
        }
    }

    #[test]
    fn an_unknown_outcome_outranks_a_failure() {
        let why = Uncertainty::TimedOut;
        let unknown = || Err(FabricError::Indeterminate { server: ServerId::new(0), why });
        let failed = || Err(FabricError::QueueFull { depth: 1 });
        for (one, other) in [(failed(), unknown()), (unknown(), failed()), (Ok(()), unknown())] {
            assert_eq!(both(one, other), unknown());
        }
        assert_eq!(both(failed(), Ok(())), failed());
        assert_eq!(both(Ok(()), Ok(())), Ok(()));
    }
}
