//! Where to divide pages: by size, with short separators (bytes.Y6, bytes.Y7).
//!
//! *Thread safety*: plain functions over private memory.

use super::content::{PageContent, PageFences, shared};
use super::slots::HEAD_BYTES;
use std::ops::Range;

/// A division of entries between two pages.
#[derive(Debug)]
pub(super) struct EntryDivision {
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
    content: &PageContent,
    fences: PageFences<'_>,
    inner: bool,
    pending: Option<usize>,
    words: usize,
    fits: impl Fn(&[u8]) -> bool,
) -> Option<EntryDivision> {
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
    Some(EntryDivision { at, separator: separator.to_vec() })
}

/// Divides entries after the first `at`, if both pages have room for theirs. The place of `pending`
/// is as for [`divide`]; neither page may have this entry alone.
pub(super) fn divide_at(
    content: &PageContent,
    fences: PageFences<'_>,
    inner: bool,
    (at, pending): (usize, Option<usize>),
    words: usize,
) -> Option<EntryDivision> {
    let count = content.len();
    let is_alone = |range: Range<usize>| range.len() == 1 && pending == Some(range.start);
    if at == 0 || at >= count || is_alone(0..at) || is_alone(at..count) {
        return None;
    }
    if inner && pending == Some(at) {
        return None;
    }
    let fits = |separator: &[u8]| {
        let (left, right) = halves(fences, separator);
        content.words(&(0..at), left, inner) <= words
            && content.words(&(at..count), right, inner) <= words
    };
    let (below, above) = (content.key(at - 1), content.key(at));
    let beyond = beyond(below).filter(|fence| !inner && fence[..] <= *above && fits(fence));
    let separator = beyond.unwrap_or_else(|| match inner {
        true => above.to_vec(),
        false => shortest(below, above).to_vec(),
    });
    fits(&separator).then_some(EntryDivision { at, separator })
}

/// A string above the keys that a run will insert behind `key` for a long time: with it as the high
/// fence, the page's prefix has all bytes of these keys but those in slots. `None` if `key` is the
/// end of such a run itself.
fn beyond(key: &[u8]) -> Option<Vec<u8>> {
    let mut fence = key[..key.len().saturating_sub(HEAD_BYTES)].to_vec();
    fence.push(u8::MAX);
    (fence[..] > *key).then_some(fence)
}

/// A fence beyond a run of insertions at either end of a leaf, with which all of its entries fill
/// at most three quarters of the page; `None` if there is none. The entry at `place`, the first or
/// the last, is the pending one, and the other half of the split is empty.
///
/// The first and the last leaf of an index have no prefix, so they are full long before they would
/// be with fences that begin like their keys.
pub(super) fn fence_beyond(
    content: &PageContent,
    fences: PageFences<'_>,
    place: usize,
    words: usize,
) -> Option<Vec<u8>> {
    let (key, count) = (content.key(place), content.len());
    let is_last = place + 1 == count;
    let fence = match is_last {
        true => beyond(key)?,
        false => key[..key.len().saturating_sub(HEAD_BYTES)].to_vec(),
    };
    if fence[..] <= *fences.low || fences.high.is_some_and(|high| fence[..] >= *high) {
        return None;
    }
    let after = match is_last {
        true => PageFences { low: fences.low, high: Some(&fence) },
        false => PageFences { low: &fence, high: fences.high },
    };
    (content.words(&(0..count), after, false) <= words - words / 4).then_some(fence)
}

/// The fences of the two pages on either side of a separator.
pub(super) fn halves<'k>(
    fences: PageFences<'k>,
    separator: &'k [u8],
) -> (PageFences<'k>, PageFences<'k>) {
    let left = PageFences { low: fences.low, high: Some(separator) };
    (left, PageFences { low: separator, high: fences.high })
}
