//! Which memory servers are used, and where a node goes that is made while operations run.
//!
//! A node below the placement level goes where its neighbours are, until that memory server is nearly full; then it goes to
//! the emptiest. Who needs a chunk asks how full its memory server is: one request for each chunk, and one to
//! every other memory server for each chunk that would come from one that is nearly full.
//!
//! *Thread safety*: [`MemoryUse`] is shared by all threads; a [`Placement`] belongs to its handle's.

use crate::page::Layout;
use crate::remote::PageClient;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Fabric, ServerId};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// From this part of its memory on, a memory server is nearly full.
const NEARLY_FULL: f64 = 0.9;

/// Another one must have so much more of its memory free, or nodes had better stay together.
const EMPTIER: f64 = 0.05;

/// So many nodes go elsewhere before somebody asks again.
const NODES_BETWEEN: u32 = 256;

/// How many of the fabric's memory servers are used: all but the last ones. All handles of an index in this process share
/// it.
#[derive(Debug, Default)]
pub struct MemoryUse {
    spare: AtomicU64,
}

impl MemoryUse {
    /// All but the last `spare` ones.
    pub fn all_but(spare: u16) -> Self {
        Self { spare: AtomicU64::new(spare.into()) }
    }

    /// How many of `servers` are used; one at least.
    pub fn used(&self, servers: u16) -> u16 {
        servers.saturating_sub(self.spare.load(Ordering::Acquire) as u16).max(1)
    }

    /// One more is used from now on; `false` if all are.
    pub fn add_one(&self) -> bool {
        let less = |spare: u64| spare.checked_sub(1);
        self.spare.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }
}

/// What a handle knows of memory servers that are nearly full: where their nodes go instead, and how many more.
#[derive(Debug, Default)]
pub(super) struct Placement {
    instead: RefCell<BTreeMap<ServerId, (ServerId, u32)>>,
}

impl Placement {
    /// Where a node goes whose neighbours are on `home`.
    pub(super) async fn near<F: Fabric, L: Layout>(
        &self,
        pages: &PageClient<F, L>,
        home: ServerId,
        used: u16,
    ) -> ServerId {
        if used == 1 || pages.available(home) > 0 {
            return home;
        }
        if let Some((other, left)) = self.instead.borrow_mut().get_mut(&home)
            && *left > 0
        {
            *left -= 1;
            return *other;
        }
        // Who does not answer is not asked for memory; whoever needs it there finds out.
        let Some(full) = pages.used_part(home).await.filter(|part| *part >= NEARLY_FULL) else {
            return home;
        };
        let mut emptiest = (full - EMPTIER, home);
        for other in (0..used).map(ServerId::new).filter(|other| *other != home) {
            match pages.used_part(other).await {
                Some(part) if part < emptiest.0 => emptiest = (part, other),
                _ => {}
            }
        }
        if emptiest.1 != home {
            self.instead.borrow_mut().insert(home, (emptiest.1, NODES_BETWEEN - 1));
        }
        emptiest.1
    }
}
