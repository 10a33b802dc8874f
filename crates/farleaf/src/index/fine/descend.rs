//! Descents: READs from the root down, and to the right where a parent does not know yet.

use super::FineIndex;
use crate::index::IndexError;
use crate::page::{Layout, Probe, Step, step};
use crate::remote::{Miss, PageCopy, Pointer};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use std::collections::BTreeMap;

/// Siblings that one descent follows on a level. More would mean that nobody installs separators.
const MAX_STEPS: usize = 10_000;

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    pub(super) fn root_pointer(&self) -> Pointer {
        Pointer::fixed(self.root)
    }

    fn note_root(&self, copy: &PageCopy<L>) {
        if copy.at() == self.root {
            self.root_level.set(copy.page().level());
        }
    }

    /// The node at level `target` that `probe` looks for: one READ per level.
    #[inline]
    pub(super) async fn descend(
        &self,
        probe: Probe<'_, L::Key>,
        target: u8,
    ) -> Result<PageCopy<L>, Miss> {
        self.pages.fabric().charge(Work::Client).await;
        self.walk(self.root_pointer(), probe, target).await
    }

    /// The same from the page at `from`.
    pub(super) async fn walk(
        &self,
        from: Pointer,
        probe: Probe<'_, L::Key>,
        target: u8,
    ) -> Result<PageCopy<L>, Miss> {
        let mut copy = self.pages.read(from).await?;
        self.note_root(&copy);
        for _ in 0..MAX_STEPS {
            self.pages.fabric().charge(Work::VisitNode).await;
            copy = match step(copy.page(), probe, target) {
                Step::Here => return Ok(copy),
                Step::Child(to) | Step::Right(to) => self.pages.read(copy.pointer(to)).await?,
                Step::Lost => return Err(Miss::Restart),
            };
        }
        Err(Miss::Restart)
    }

    /// The descents of many keys go on together, level by level, and share the READs of the nodes that they
    /// have in common.
    pub(super) async fn descend_together(
        &self,
        keys: &[L::Key],
    ) -> Result<Vec<Option<Option<L::Value>>>, IndexError> {
        self.pages.fabric().charge(Work::Client).await;
        let mut found = vec![None; keys.len()];
        let mut frontier: BTreeMap<GlobalAddr, (Pointer, Vec<usize>)> = BTreeMap::new();
        frontier.insert(self.root, (self.root_pointer(), (0..keys.len()).collect()));
        while !frontier.is_empty() {
            let mut posted = Vec::with_capacity(frontier.len());
            for (_, (pointer, of)) in std::mem::take(&mut frontier) {
                match self.pages.post_together(pointer) {
                    Ok(read) => posted.push((read, of)),
                    Err(Miss::Restart) => {}
                    Err(Miss::Failed(error)) => return Err(error.into()),
                }
            }
            for (read, of) in posted {
                let copy = match self.pages.finish_read(read).await {
                    Ok(copy) => copy,
                    Err(Miss::Restart) => continue,
                    Err(Miss::Failed(error)) => return Err(error.into()),
                };
                for number in of {
                    let key = &keys[number];
                    self.pages.fabric().charge(Work::VisitNode).await;
                    match step(copy.page(), Probe::At(key), 0) {
                        Step::Here => found[number] = Some(L::leaf_get(copy.page(), key)),
                        Step::Child(to) | Step::Right(to) => {
                            let next = || (copy.pointer(to), Vec::new());
                            frontier.entry(to).or_insert_with(next).1.push(number);
                        }
                        Step::Lost => {}
                    }
                }
            }
        }
        Ok(found)
    }
}
