//! The slotted layout: keys and values are byte strings of any length within limits.
//!
//! ```text
//! word 0  latch / lock    word 1  own address    word 5  sibling / note    word 7  checksum / mark
//! word 2  [low length:16][high rest length:16][prefix length:16][first slot:16]
//! word 3  [heap top:16][garbage words:16][deleted:16][0:16]          word 6  0, reserved
//! word 4  [format:8][flags:8][0:16][count:16][level:16]              as in all layouts
//! word 8  low fence, whole │ high fence without the prefix           each zero-padded to words
//! then    slot 0 … slot count-1, ascending ──▶   free   ◀── heap of records, each from a word on
//! slot    [head:32][record:11][suffix length:10][value length:10][deleted:1]
//! record  value bytes, then suffix bytes 4 …, zero-padded to a word (inner: the child as value)
//! ```
//!
//! Words hold bytes in little-endian order. The prefix is the common prefix of the low and the high
//! fence; no slot repeats it. The suffix is the rest of a key. The head is its first four bytes,
//! big-endian and zero-padded: most comparisons need only the slot. Slot 0 of an inner page has no
//! suffix, because its key is the low fence (P5). The order of keys is that of `memcmp`.
//!
//! A slot is one word, so no reader sees half of it. A value begins at a word, so that one store
//! can replace a value of eight bytes. Positions are word indexes, lengths are in bytes.
//!
//! *Invariants* (beside P1–P9 of `docs/internals/page-format.md`)
//! - bytes.Y1. `8 ≤ first slot`, `first slot + count ≤ heap top ≤ WORDS`. Slots ascend, and records
//!   of different slots do not overlap and lie in the heap.
//! - bytes.Y2. The prefix is what the low and the high fence share. It is empty if the high fence
//!   is infinite, or not above the low one, as in heads.
//! - bytes.Y3. Padding bytes are zero.
//! - bytes.Y4. The words between slots and heap have no meaning.
//! - bytes.Y5. Every offset, length and count that is read from a page is clamped before use. If
//!   the page changes meanwhile, or its words are arbitrary, the results are meaningless, but no
//!   access leaves the page, nothing panics, and every loop ends. There is never a `&[u8]` over a
//!   page.
//! - bytes.Y6. A split that counts the pending entry leaves room for it in its half (layout.Y6).
//! - bytes.Y7. A separator of leaves is the shortest string above the left neighbour and not above
//!   the right one. Plans depend on keys and lengths only (layout.Y7).
//! - bytes.Y8. A change that finds no room changes nothing (layout.Y8).
//! - bytes.Y9. A new record goes to words of the heap that no slot refers to, and these words are
//!   WRITTEN before the front of the page ([`super::PageWords::writes`]). So between the two
//!   WRITEs, the pool has the page's old content. A change that overwrites words to which a slot in
//!   the pool may refer counts as a new layout of the whole page, and includes the page's last
//!   word: while it is being WRITTEN, the stamp is invalid.
//! - bytes.Y10. A record with unchanged lengths is replaced in place if its value is one word. Any
//!   other record that is not larger than the old one is replaced in place only if there is no
//!   other room. Garbage is reclaimed when an entry needs it.
//!
//! After LeanStore's `BTreeNode` (prefix, heads, separators) and Bf-Tree's leaf nodes (8-byte
//! slots).
//!
//! *Thread safety*: the same as for [`super::Page`].

mod content;
mod fill;
mod layout;
mod plan;
mod slots;
#[cfg(test)]
mod tests;

pub use slots::Bytes;
