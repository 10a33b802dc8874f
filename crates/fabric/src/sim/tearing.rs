//! Splits a READ or a WRITE into pieces.
//!
//! The contract guarantees atomic words and nothing more, so any word may belong to any piece.
//! Random pieces would hardly ever leave out a single word, or cut a page in the middle. These are
//! the cases on which code tends to break, so they are drawn on purpose.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

/// Maximum number of pieces of one verb.
const MAX_PIECES: u8 = 4;

/// Returns the piece of each word, and the number of pieces; `words` is at least 2.
pub(super) fn split(rng: &mut SmallRng, words: usize) -> (Box<[u8]>, u8) {
    let mut piece_of = vec![0; words].into_boxed_slice();
    match rng.random_range(0..4_u8) {
        // One word goes before or after all others.
        0 => {
            let first = rng.random_bool(0.5);
            piece_of.fill(u8::from(first));
            piece_of[rng.random_range(0..words)] = u8::from(!first);
            (piece_of, 2)
        }
        // Two halves, either one first.
        1 => {
            let cut = rng.random_range(1..words);
            let first = rng.random_bool(0.5);
            piece_of[..cut].fill(u8::from(!first));
            piece_of[cut..].fill(u8::from(first));
            (piece_of, 2)
        }
        // Cache lines in any order.
        2 => {
            for line in piece_of.chunks_mut(8) {
                line.fill((rng.next_u64() % u64::from(MAX_PIECES)) as u8);
            }
            (piece_of, MAX_PIECES)
        }
        // Words in any order.
        _ => {
            for piece in &mut *piece_of {
                *piece = (rng.next_u64() % u64::from(MAX_PIECES)) as u8;
            }
            (piece_of, MAX_PIECES)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_word_has_a_piece_and_pieces_differ() {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut torn = 0;
        for words in 2..40 {
            let (piece_of, pieces) = split(&mut rng, words);
            assert_eq!(piece_of.len(), words);
            assert!(piece_of.iter().all(|piece| *piece < pieces));
            torn += usize::from(piece_of.iter().any(|piece| *piece != piece_of[0]));
        }
        assert!(torn > 20);
    }
}
