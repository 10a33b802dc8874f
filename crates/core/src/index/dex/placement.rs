//! The memory servers in use, and the placement of nodes that are created while operations run.
//!
//! A node below the placement level goes to the memory server of its neighbours until that server
//! is nearly full; then it goes to the emptiest one. A handle that needs a chunk asks its memory
//! server how full it is. That costs one request per chunk, and one to every other memory server
//! for each chunk that would come from a server that is nearly full.
//!
//! *Thread safety*: all threads share [`MemoryUse`]; a [`Placement`] belongs to its handle's
//! thread.

use crate::page::Layout;
use crate::remote::PageClient;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Fabric, ServerId};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A memory server counts as nearly full from this fraction of its memory on.
const NEARLY_FULL: f64 = 0.9;

/// Another server must have at least this fraction more of its memory free; otherwise nodes had
/// better stay together.
const EMPTIER: f64 = 0.05;

/// Nodes placed elsewhere before the handle asks again.
const NODES_BETWEEN: u32 = 256;

/// How many of the fabric's memory servers are in use: all but the last ones. All handles of an
/// index in this process share it.
#[derive(Debug, Default)]
pub struct MemoryUse {
    spare: AtomicU64,
}

impl MemoryUse {
    /// Uses all memory servers but the last `spare` ones.
    pub fn all_but(spare: u16) -> Self {
        Self { spare: AtomicU64::new(spare.into()) }
    }

    /// How many of `servers` are in use; at least one.
    pub fn used(&self, servers: u16) -> u16 {
        servers.saturating_sub(self.spare.load(Ordering::Acquire) as u16).max(1)
    }

    /// Takes one more server into use; `false` if all are in use already.
    pub fn add_one(&self) -> bool {
        let less = |spare: u64| spare.checked_sub(1);
        self.spare.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }
}

/// What a handle knows of memory servers that are nearly full: the server that gets their nodes
/// instead, and for how many more nodes.
#[derive(Debug, Default)]
pub(super) struct Placement {
    instead: RefCell<BTreeMap<ServerId, (ServerId, u32)>>,
}

impl Placement {
    /// The memory server for a node with neighbours on `home`.
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
        // If the server does not answer, keep to it: the request for the node itself will report
        // the failure.
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
