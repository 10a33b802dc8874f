//! SMART: a radix tree that clients access only by one-sided verbs, with cached nodes and a leaf of
//! its own for each key.
//!
//! After Luo et al., *SMART: A High-Performance Adaptive Radix Tree for Disaggregated Memory*
//! (OSDI 2023), with these differences: a leaf is unlocked by a WRITE of its own, its lock has a
//! version, and its holder has the version that it read, because WRITEs are atomic only word by
//! word; a node tells its whole path instead of six bytes of it, so that no header changes when
//! another node comes between; removed keys keep their leaves. `docs/internals/smart.md` has the
//! reasons.
//!
//! ```text
//! point, scan, load          operations
//!    ├──▶ together           operations of several clients on one key
//!    ├──▶ find ──▶ cache     where a key's leaf is, or would be
//!    └──▶ link               new leaves and nodes
//! all ──▶ radix ──▶ radix_space      nodes and leaves over one-sided verbs, and their memory
//! ```
//!
//! *Invariants* (`radix.rs` and `page/radix/mod.rs` have those of leaves and bytes)
//! - smart.N1. The tree only grows. A slot changes from free to a leaf, from a leaf to the one of
//!   its key that took its place (radix.B4), from a leaf or a node to a node above it, or to a
//!   larger size of the same node; it never leads to less than before. No node and no leaf is
//!   freed once a slot leads to it. So a cached slot leads to what is still in the tree, and what
//!   a CAS of a slot expects never comes back.
//! - smart.N2. The slots of a node are used from the front: a new one is the first that was free in
//!   a copy whose earlier slots are for other bytes. So no byte has two slots.
//! - smart.N3. A key that has a leaf is absent iff the leaf says so. A key counts as absent without
//!   a leaf only by a node or a slot that the operation itself has read, never by a cached one.
//! - smart.N4. A key has at most one leaf that has not moved, for ever: a removed key's leaf is
//!   revived.
//! - smart.N5. A node's size is changed before the slots beyond it are used. So a copy of a node
//!   whose size matches its header, and whose slots are all in use, has all of them.
//! - smart.N6. Reverse pointers are hints: they show whether a cached slot is out of date, and
//!   follow their slots a little later.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod cache;
mod design;
mod find;
mod link;
mod load;
mod options;
mod point;
mod radix;
mod radix_space;
mod scan;
mod sides;
mod together;

pub use design::{PSmart, PSmartOptions, Smart, SmartIndex};
pub use options::SmartOptions;
pub use sides::SmartCompute;
