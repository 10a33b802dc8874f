//! Inspects SMART's radix tree.
//!
//! *Invariants at every moment*
//! - A node's path continues that of its parent and the byte of its slot, and so does a leaf's key
//!   (radix.B1, radix.B2). Nothing is reachable twice, and all of it is allocated.
//! - The slots of a node are used from the front, none beyond its size, and no byte has two
//!   (smart.N2, smart.N5).
//! - A leaf that is not locked is whole (radix.L2, radix.L4), unless its owner needs no lock.
//!
//! *Invariant at the end of a run* without uncertain outcomes and deaths: no leaf is locked, and
//! all leaves are whole.

use super::walk::{Stop, Walk};
use super::{Expect, Records};
use crate::scenario::DesignSpec;
use crate::spread::gathered;
use farleaf_core::page::{
    Child, KeyPath, LEAF_WORDS, LeafCopy, Named, NodeCopy, NodeSize, Slot, Superblock,
};
use farleaf_fabric::{GlobalAddr, Region, RpcService};
use std::collections::BTreeSet;

/// The part of the tree below a slot: the lowest and the highest key there, and the path of the
/// node with the slot, if there is one.
#[derive(Clone, Copy)]
struct Below {
    low: u64,
    high: u64,
    parent: Option<KeyPath>,
}

impl<L: Named> Walk<'_, L> {
    /// The records, by their names.
    pub(super) fn radix(&mut self, spread: bool) -> Result<Records, Stop> {
        let words = &Region::words(self.pool.servers[0].region())[..Superblock::WORDS];
        let root = Superblock::root(words);
        let slot = Slot::from_bits(self.words(root, 1)?[0]);
        let mut found = Records::new();
        self.radix_below(slot, Below { low: 0, high: u64::MAX, parent: None }, &mut found)?;
        found.sort_unstable();
        if !spread {
            return Ok(found);
        }
        let named = found.into_iter().map(|(number, value)| match gathered(number) {
            Some(name) => Ok((name, value)),
            None => Err(Stop::Wrong(format!("no key has the number {number:#x}"))),
        });
        named.collect()
    }

    fn words(&self, at: GlobalAddr, words: usize) -> Result<Vec<u64>, Stop> {
        if self.pool.doomed.contains(&at.server().number()) {
            return Err(Stop::Held);
        }
        if self.is_free(at) {
            return Err(Stop::Wrong(format!("what is at {at:?} is reachable but free")));
        }
        let words = self.pool.words(at, words);
        words.ok_or_else(|| Stop::Wrong(format!("{at:?} is in no memory server")))
    }

    fn radix_below(&mut self, slot: Slot, below: Below, found: &mut Records) -> Result<(), Stop> {
        let (at, child) = (slot.at(), slot.child());
        let wrong = |what: String| Err(Stop::Wrong(format!("at {at:?}: {what}")));
        if child != Child::None && !self.met.insert(at) {
            return wrong("it is reached twice".to_owned());
        }
        match child {
            Child::None => Ok(()),
            Child::Leaf => {
                let words = self.words(at, LEAF_WORDS)?;
                let leaf = LeafCopy::new(at, |word| words[word]);
                if !(below.low..=below.high).contains(&leaf.key) {
                    return wrong(format!("the leaf of {:#x} is in a wrong place", leaf.key));
                }
                let divided = matches!(self.pool.design, DesignSpec::Smart { divided: true, .. });
                let may_be_torn = divided && self.expect == Expect::WellFormed;
                if leaf.word.is_locked() {
                    if self.expect != Expect::WellFormed && !self.pool.clients_die {
                        return wrong("the leaf is still locked".to_owned());
                    }
                } else if !may_be_torn && !leaf.is_whole() {
                    return wrong("the leaf is torn, and no client holds it".to_owned());
                }
                found.extend(leaf.found().map(|value| (leaf.key, value)));
                Ok(())
            }
            Child::Node(size) => {
                let words = self.words(at, NodeSize::LARGEST.words())?;
                let Some(node) = NodeCopy::new(at, words.into_iter()) else {
                    return wrong("it has no header of a node".to_owned());
                };
                let path = node.header.path;
                let continues = below.parent.is_none_or(|parent| path.length() > parent.length());
                if !continues || path.low() < below.low || path.high() > below.high {
                    return wrong(format!("the node of {path:?} is in a wrong place"));
                }
                if node.header.size < size {
                    return wrong(format!("it has {:?}, and its slot says {size:?}", node.header));
                }
                let used: Vec<Slot> = node.in_use().map(|(_, slot)| slot).collect();
                let last = node.in_use().last().map_or(0, |(number, _)| number + 1);
                if used.len() < 2 || last != used.len() || last > node.header.size.slots() {
                    let of = node.header.size.slots();
                    return wrong(format!("{} slots up to {last} of {of} are used", used.len()));
                }
                let bytes: BTreeSet<u8> = used.iter().map(|slot| slot.byte()).collect();
                if bytes.len() < used.len() {
                    return wrong("two slots are for the same byte".to_owned());
                }
                for slot in used {
                    let (low, high) = path.range_of(slot.byte());
                    self.radix_below(slot, Below { low, high, parent: Some(path) }, found)?;
                }
                Ok(())
            }
        }
    }
}
