//! The placement of nodes that are created while operations run.
//!
//! A node below the placement level goes to the memory server of its neighbours until that server
//! is nearly full; then it goes to the emptiest server. A handle that needs a chunk asks its memory
//! server how full it is. That costs one request per chunk, plus one to every other memory server
//! for each chunk that would come from a nearly full server.
//!
//! *Thread safety*: a [`NodePlacement`] belongs to its handle's thread.

use farleaf_fabric::{Fabric, ServerId};
use farleaf_page::Layout;
use farleaf_pool::remote::PageClient;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A memory server counts as nearly full above this fraction of its memory.
const NEARLY_FULL: f64 = 0.9;

/// Nodes go to another server only if its used fraction is lower by at least this much. Below that,
/// keeping neighbours together matters more.
const EMPTIER: f64 = 0.05;

/// Number of nodes placed elsewhere before the handle asks again.
const NODES_BETWEEN: u32 = 256;

/// For each nearly full memory server, the server that gets its nodes instead, and how many more.
#[derive(Debug, Default)]
pub(super) struct NodePlacement {
    instead: RefCell<BTreeMap<ServerId, (ServerId, u32)>>,
}

impl NodePlacement {
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
        // If the server does not answer, use it anyway: the request for the node itself will report
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
