//! Where to divide pages: by size, with short separators (bytes.Y6, bytes.Y7).
//!
//! *Thread safety*: plain functions over private memory.

use super::content::{Content, Fences, shared};

/// A division of entries between two pages.
#[derive(Debug)]
pub(super) struct Division {
    /// The number of entries of the left page.
    pub(super) at: usize,
    /// The low fence of the right page.
    pub(super) separator: Vec<u8>,
}

/// The shortest string that is above `below` and not above `above`.
pub(super) fn shortest<'k>(below: &[u8], above: &'k [u8]) -> &'k [u8] {
    &above[..(shared(below, above) + 1).min(above.len())]
}

/// Divides entries between two pages of `words` words.
///
/// Both halves have room for their entries. Of the divisions near the middle by size, the one with
/// the shortest separator wins. `pending` is an entry that is not in the inner page yet: it cannot
/// be the first of the right page, because that page does not keep the key of its first child.
/// `fits` can reject separators.
pub(super) fn divide(
    content: &Content,
    fences: Fences<'_>,
    inner: bool,
    pending: Option<usize>,
    words: usize,
    fits: impl Fn(&[u8]) -> bool,
) -> Option<Division> {
    let (count, prefix) = (content.len(), fences.prefix());
    let mut before = 0;
    let sizes: Vec<usize> = (0..count).map(|number| content.entry_words(number, prefix)).collect();
    let total: usize = sizes.iter().sum();
    // Each candidate has its distance from the middle, in half words, and its separator.
    let mut candidates: Vec<(usize, usize, &[u8])> = Vec::with_capacity(count);
    for at in 1..count {
        before += sizes[at - 1];
        if inner && pending == Some(at) {
            continue;
        }
        let separator = match inner {
            true => content.key(at),
            false => shortest(content.key(at - 1), content.key(at)),
        };
        candidates.push(((2 * before).abs_diff(total), at, separator));
    }
    let near = total / 8;
    candidates.sort_by_key(|&(distance, at, separator)| match distance <= near {
        true => (0, separator.len(), distance, at),
        false => (1, 0, distance, at),
    });
    let fitting = |&&(_, at, separator): &&(usize, usize, &[u8])| {
        let (left, right) = halves(fences, separator);
        content.words(&(0..at), left, inner) <= words
            && content.words(&(at..count), right, inner) <= words
            && fits(separator)
    };
    let (_, at, separator) = *candidates.iter().find(fitting)?;
    Some(Division { at, separator: separator.to_vec() })
}

/// The fences of the two pages on either side of a separator.
pub(super) fn halves<'k>(fences: Fences<'k>, separator: &'k [u8]) -> (Fences<'k>, Fences<'k>) {
    let left = Fences { low: fences.low, high: Some(separator) };
    (left, Fences { low: separator, high: fences.high })
}
