//! The parts that were opened over one endpoint.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::part::{EnteredTree, PartTrees};
use farleaf_fabric::Fabric;
use farleaf_index::ScanRequest;
use farleaf_page::Layout;
use farleaf_pool::remote::RemoteError;
use std::cell::OnceCell;
use std::rc::Rc;

/// A list of parts that only grows, so that a load can refer to their trees.
#[derive(Debug)]
pub(super) struct OpenedParts<F: Fabric, L: Layout>(OnceCell<Box<OpenedPart<F, L>>>);

/// A part, and those that were opened after it.
#[derive(Debug)]
struct OpenedPart<F: Fabric, L: Layout> {
    part: Rc<PartTrees<F, L>>,
    next: OpenedParts<F, L>,
}

impl<F: Fabric, L: Layout> OpenedParts<F, L> {
    pub(super) fn new() -> Self {
        Self(OnceCell::new())
    }

    pub(super) fn add(&self, part: Rc<PartTrees<F, L>>) {
        let mut end = self;
        while let Some(opened) = end.0.get() {
            end = &opened.next;
        }
        end.0.get_or_init(|| Box::new(OpenedPart { part, next: Self::new() }));
    }

    /// The parts, in the order in which they were opened.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PartTrees<F, L>> {
        let mut next = self;
        std::iter::from_fn(move || {
            let opened = next.0.get()?;
            next = &opened.next;
            Some(&*opened.part)
        })
    }

    /// The trees of all parts, which none of them leaves meanwhile.
    pub(super) async fn enter_all(&self) -> Result<Vec<EnteredTree<'_, F, L>>, RemoteError> {
        let mut entered = Vec::new();
        for part in self.iter() {
            entered.extend(part.enter_for_scan(&ScanRequest::range(..)).await?.1);
        }
        Ok(entered)
    }
}
