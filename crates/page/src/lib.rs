//! The bytes of pages, of keys and values, and of an LSM index's tables ([`table`]), and nothing
//! else: no I/O, no allocation policy, no network. [`rules`] lists the protocol rules that the
//! simulator can break, for all crates above.
//!
//! `docs/internals/page-format.md` draws the bytes and numbers the invariants (P1 …).
//! `view.rs` and `layout.rs` use each other: a view reads keys as its layout says, and a layout
//! searches views. So do `fixed8.rs` and `entries8.rs`: each layout names the other one, because
//! they differ only in their leaves.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bytes;
mod carve;
mod checksum;
mod chosen;
mod edit;
mod encoded;
mod entries8;
pub mod fields;
mod filling;
mod fixed8;
mod latch;
mod layout;
mod limits;
mod lock_word;
mod named;
mod outline;
mod places;
mod radix;
mod restructure;
pub mod rules;
mod stored;
mod stubborn;
mod superblock;
pub mod table;
mod trend;
mod view;
mod walk;
mod weight;
mod words;

pub use bytes::Bytes;
pub use carve::NodeCarver;
pub use checksum::sum_of;
pub use chosen::{CHOSEN, with_page_words};
pub use edit::{EditAction, EditAnswer, LeafEdit, LeafOutcome, RecordEdit};
pub use encoded::Encoded;
pub use entries8::Entries8;
pub use filling::{CarriedEntry, NextPage, fill_end};
pub use fixed8::Fixed8;
pub use latch::{ExclusiveLatch, Latch, LatchVersion};
pub use layout::{
    DescentProbe, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry,
    OwnedKey, OwnedRecord, OwnedValue, PutField, ScanWindow, SplitPlan, WireField, check_bounds,
    check_records, clipped, lies_within,
};
pub use limits::LengthError;
pub use lock_word::LockWord;
pub use named::NamedLayout;
pub use outline::{LeafOutline, WindowLookup};
pub use radix::{
    LEAF_CHECK_WORD, LEAF_REVERSE_WORD, LEAF_SPACE, LEAF_VALUE_WORD, MAX_RADIX_SERVERS, NODE_SPACE,
    PathMatch, STRING_CHECK_WORD, SlotSearch, just_after, just_before,
};
pub use radix::{
    LEAF_WORDS, LeafCopy, LeafMemory, NodeCopy, NodeHeader, NodeSize, Octets, RadixChild,
    RadixForm, RadixSlot, common_bytes,
};
pub use restructure::{merge, split_plan};
pub use stored::{
    BlockRef, MAX_BLOCK_BYTES, REFERENCE_BYTES, StoredValue, block_words, stored_inline,
};
pub use stubborn::RefusingLayout;
pub use superblock::{DEFAULT_PLACEMENT_LEVEL, DesignId, Superblock, SuperblockError};
pub use view::{ENTRY_LOCK_WORD, MARK_WORD, SIBLING_WORD};
pub use view::{HEADER_WORDS, MAX_LEVEL, Page};
pub use walk::{WalkStep, narrowed, slot_range, step};
pub use weight::{are_too_empty, filled_weight, is_sparse};
pub use words::PageWords;
