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

use super::walk::{Inspection, WalkStop};
use super::{ExpectedState, NamedRecords};
use crate::scenario::DesignSpec;
use crate::spread::gathered;
use farleaf_fabric::{GlobalAddr, Region, RpcService};
use farleaf_index::Encoded;
use farleaf_page::{
    LeafCopy, NamedLayout, NodeCopy, NodeSize, RadixChild, RadixForm, RadixSlot, Superblock,
};
use std::borrow::Borrow;
use std::collections::BTreeSet;

impl<L: NamedLayout> Inspection<'_, L> {
    /// The records, by their names.
    pub(super) fn radix(&mut self, spread: bool) -> Result<NamedRecords, WalkStop> {
        let words = &Region::words(self.pool.servers[0].region())[..Superblock::WORDS];
        let root = Superblock::root(words);
        let slot = RadixSlot::from_bits(self.words(root, 1)?[0]);
        let mut found = NamedRecords::new();
        self.radix_below(slot, &[], &mut found)?;
        found.sort_unstable();
        if !spread {
            return Ok(found);
        }
        let named = found.into_iter().map(|(number, value)| match gathered(number) {
            Some(name) => Ok((name, value)),
            None => Err(WalkStop::Wrong(format!("no key has the number {number:#x}"))),
        });
        named.collect()
    }

    fn words(&self, at: GlobalAddr, words: usize) -> Result<Vec<u64>, WalkStop> {
        if self.pool.dying.contains(&at.server().number()) {
            return Err(WalkStop::Held);
        }
        if self.is_free(at) {
            return Err(WalkStop::Wrong(format!("what is at {at:?} is reachable but free")));
        }
        let words = self.pool.words(at, words);
        words.ok_or_else(|| WalkStop::Wrong(format!("{at:?} is in no memory server")))
    }

    /// Adds the records below a slot whose keys all begin with `known`.
    fn radix_below(
        &mut self,
        slot: RadixSlot,
        known: &[u8],
        found: &mut NamedRecords,
    ) -> Result<(), WalkStop> {
        let form = RadixForm::of::<L>();
        let (at, child) = (slot.at(), slot.child());
        let wrong = |what: String| Err(WalkStop::Wrong(format!("at {at:?}: {what}")));
        if child != RadixChild::None && !self.met.insert(at) {
            return wrong("it is reached twice".to_owned());
        }
        match child {
            RadixChild::None => Ok(()),
            RadixChild::Leaf => {
                let words = self.words(at, slot.leaf_words())?;
                let leaf = LeafCopy::new(form, slot.leaf_room(), &words);
                if !leaf.key.starts_with(known) {
                    return wrong(format!("the leaf of {:?} is in a wrong place", leaf.key));
                }
                let divided = matches!(self.pool.design, DesignSpec::Smart { divided: true, .. });
                let may_be_torn = divided && self.expect == ExpectedState::WellFormed;
                if leaf.word.is_locked() {
                    if self.expect != ExpectedState::WellFormed && !self.pool.clients_die {
                        return wrong("the leaf is still locked".to_owned());
                    }
                } else if !may_be_torn && !leaf.is_whole() {
                    return wrong("the leaf is torn, and no client holds it".to_owned());
                }
                if let Some(larger) = leaf.moved() {
                    if larger.leaf_words() <= slot.leaf_words() {
                        return wrong("it has moved to a leaf that is not larger".to_owned());
                    }
                    let known = leaf.key.clone();
                    return self.radix_below(larger, &known, found);
                }
                let Some(value) = leaf.found() else { return Ok(()) };
                let name = form.original(&leaf.key).and_then(L::Key::decoded);
                let name = name.and_then(|key| L::name_of_key(key.borrow()));
                let of_value = L::Value::decoded(value.into_vec());
                match (name, of_value.and_then(|value| L::name_of_value(value.borrow()))) {
                    (Some(name), Some(value)) => found.push((name, value)),
                    _ => return wrong(format!("the record of {:?} has no name", leaf.key)),
                }
                Ok(())
            }
            RadixChild::Node(size) => {
                let words = self.words(at, NodeCopy::words_of(form, NodeSize::LARGEST))?;
                let Some(node) = NodeCopy::new(form, at, words.into_iter()) else {
                    return wrong("it has no header of a node".to_owned());
                };
                let Some(path) = node.header.path_below(known) else {
                    return wrong(format!("the node of {:?} is in a wrong place", node.header));
                };
                if node.header.size < size {
                    return wrong(format!("it has {:?}, and its slot says {size:?}", node.header));
                }
                let used: Vec<RadixSlot> = node.in_use().map(|(_, slot)| slot).collect();
                let last = node.in_use().last().map_or(0, |(number, _)| number + 1);
                // A node that only has a part of a long path may lead to one node.
                let least = if form == RadixForm::Strings { 1 } else { 2 };
                if used.len() < least || last != used.len() || last > node.header.size.slots() {
                    let of = node.header.size.slots();
                    return wrong(format!("{} slots up to {last} of {of} are used", used.len()));
                }
                let bytes: BTreeSet<u8> = used.iter().map(|slot| slot.byte()).collect();
                if bytes.len() < used.len() {
                    return wrong("two slots are for the same byte".to_owned());
                }
                for slot in used {
                    let mut below = path.clone();
                    below.push(slot.byte());
                    self.radix_below(slot, &below, found)?;
                }
                Ok(())
            }
        }
    }
}
