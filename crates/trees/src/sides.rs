//! The sides of an index: what the clients of each compute server share, in designs whose clients
//! are handles of one process, and whose keys may be divided among compute servers.
//!
//! An index of which the keys are divided is open to one compute side only, because the turns and
//! the boundaries are in its memory. Its number is in the superblock of server 0, for good.
//!
//! *Thread safety*: shared by all threads of a process.

use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_page::{Layout, Superblock};
use farleaf_pool::remote::{ROOT_SERVER, RpcClient};
use std::collections::BTreeMap;

/// What a design's errors say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideErrors {
    /// The keys of the index are divided, those of the compute side are not.
    pub(crate) is_divided: &'static str,
    /// The keys of the compute side are divided, those of the index are not.
    pub(crate) is_shared: &'static str,
    /// There are more compute servers than have numbers.
    pub(crate) too_many: &'static str,
}

/// The sides of all compute servers, each with an `S`, and the boundaries between their keys.
#[derive(Debug)]
pub(crate) struct PerServer<K, S> {
    /// Where the keys of each compute server but the first begin; `None` if they share all keys.
    boundaries: Option<Arc<Vec<K>>>,
    by_server: Mutex<BTreeMap<u16, Arc<S>>>,
    /// 0 until it is drawn.
    number: AtomicU64,
    refusals: &'static SideErrors,
}

impl<K: Ord, S> PerServer<K, S> {
    /// Those of an index of which compute servers share all keys, or with `boundaries` have a range
    /// each.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the boundaries do not ascend, or are too many.
    pub(crate) fn new(
        boundaries: Option<Vec<K>>,
        refusals: &'static SideErrors,
    ) -> Result<Arc<Self>, IndexError> {
        if let Some(boundaries) = &boundaries {
            if !boundaries.is_sorted_by(|one, next| one < next) {
                return Err(IndexError::InvalidArgument("the boundaries must ascend"));
            }
            if boundaries.len() > usize::from(u16::MAX) {
                return Err(IndexError::InvalidArgument(refusals.too_many));
            }
        }
        let (by_server, number) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
        Ok(Arc::new(Self { boundaries: boundaries.map(Arc::new), by_server, number, refusals }))
    }

    /// Whether each compute server owns a range of keys.
    pub(crate) fn is_divided(&self) -> bool {
        self.boundaries.is_some()
    }

    /// The sides that a client on a compute server takes. `make` makes one that is new.
    pub(crate) fn sides(&self, compute_server: u16, make: impl Fn() -> S) -> ClientSides<K, S> {
        let numbers = match &self.boundaries {
            None => compute_server..=compute_server,
            Some(boundaries) => 0..=boundaries.len() as u16,
        };
        let mut by_server = lock(&self.by_server);
        let mut side = |number| by_server.entry(number).or_insert_with(|| Arc::new(make())).clone();
        let of = numbers.map(&mut side).collect();
        ClientSides { boundaries: self.boundaries.clone().unwrap_or_default(), of }
    }

    /// The sum of the sides' sizes.
    pub(crate) fn bytes(&self, of: impl Fn(&S) -> u64) -> u64 {
        lock(&self.by_server).values().map(|side| of(side)).sum()
    }

    /// Checks that an index is divided if and only if these are, and that a divided one belongs to
    /// these, as it does if no others have opened it.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if not; others if its memory server cannot say.
    pub(crate) async fn check_open<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
        is_divided: bool,
    ) -> Result<(), IndexError> {
        match (is_divided, self.is_divided()) {
            (false, false) => return Ok(()),
            (true, true) => {}
            (true, false) => return Err(IndexError::InvalidArgument(self.refusals.is_divided)),
            (false, true) => return Err(IndexError::InvalidArgument(self.refusals.is_shared)),
        }
        let at = GlobalAddr::new(ROOT_SERVER, Superblock::SIDE_WORD as u64 * 8);
        let drawn = rpc.fabric().unique();
        // The first number that was drawn is the one.
        let number = self
            .number
            .compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|earlier| earlier, |_| drawn);
        match rpc.enter(at, number).await? {
            true => Ok(()),
            false => Err(IndexError::InvalidArgument(
                "this index belongs to another process, or to another compute side of this one",
            )),
        }
    }
}

/// The sides that one client takes: that of its compute server for all keys, or for each key that
/// of its owner.
#[derive(Debug)]
pub(crate) struct ClientSides<K, S> {
    boundaries: Arc<Vec<K>>,
    of: Vec<Arc<S>>,
}

impl<K, S> ClientSides<K, S> {
    /// The number of the side of the keys that begin at the last boundary for which `begins` holds.
    /// It holds for the boundaries up to some key.
    #[inline]
    pub(crate) fn owner(&self, begins: impl Fn(&K) -> bool) -> usize {
        self.boundaries.partition_point(begins)
    }

    /// The side with this number.
    #[inline]
    pub(crate) fn side(&self, owner: usize) -> &S {
        &self.of[owner]
    }

    /// All sides that the client takes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &S> {
        self.of.iter().map(|side| &**side)
    }
}
