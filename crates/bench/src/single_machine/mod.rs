//! The baseline for the cost of distribution: one tree in the memory of the clients' machine,
//! called directly.
//!
//! This is the same tree that the coarse-grained design has on each memory server, with the same
//! pages and latches. Only the network is missing: it sends no RPC and posts no verb. The memory
//! servers hold no records, only the claim that this index exists. In the simulator, the machine
//! has a core for each client, on any compute server, and unlimited memory bandwidth.
//!
//! *Invariants*
//! - single_machine.Y1. An operation moves nothing over the fabric. Only creating and opening the
//!   index do so.
//! - single_machine.Y2. Handles opened with the same [`MachineTree`] see the same records; handles
//!   of different machines do not.
//!
//! *Thread safety*: any number of threads may share a machine. A handle belongs to its endpoint's
//! thread; its operations may overlap.

mod cpu;

pub use cpu::FabricCpu;

use farleaf_fabric::sync::{Arc, AtomicUsize, Ordering};
use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::{
    AscendingCheck, Design, EditAction, EditAnswer, IndexAdmin, IndexError, KeyedRecords, LeafEdit,
    RangeIndex, ScanRequest, check_fill,
};
use farleaf_page::{DesignId, Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::RpcClient;
use farleaf_pool::server::tree::{MAX_RESTARTS, ServerTree, TreeLoader};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::{Refusal, Usage};
use std::ops::Bound;

/// The single machine as an index [`Design`].
#[derive(Clone, Copy, Debug)]
pub struct SingleMachine;

/// Options of a single machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleMachineOptions {
    /// Size of its pool in bytes, a multiple of 4096. The operating system provides the memory when
    /// it is first touched.
    pub pool_bytes: usize,
    /// Size of the chunks that the tree allocates, in bytes.
    pub chunk_bytes: u64,
}

impl SingleMachineOptions {
    /// Options for a pool of `pool_bytes`, with the chunk size of memory servers.
    pub fn with_pool_bytes(pool_bytes: usize) -> Self {
        Self { pool_bytes, chunk_bytes: MemoryServerConfig::default().chunk_bytes }
    }
}

/// The server number in the machine's errors, because there is only one memory.
const MACHINE: ServerId = ServerId::new(0);

/// Records per batch of a bulk load.
const BATCH_RECORDS: usize = 2048;

/// A machine: its memory and the tree in it.
#[derive(Debug)]
pub struct MachineTree<L: Layout> {
    /// A memory server that is not connected to a fabric.
    memory: MemoryServer<L>,
    /// Number of handles opened so far. Each handle gets its own stripe.
    handles: AtomicUsize,
}

impl<L: Layout> MachineTree<L> {
    fn new(options: &SingleMachineOptions) -> Result<Self, IndexError> {
        let SingleMachineOptions { pool_bytes, chunk_bytes } = *options;
        let config = MemoryServerConfig { pool_bytes, chunk_bytes, ..Default::default() };
        let memory = MemoryServer::new(MACHINE, &config)
            .map_err(|_| IndexError::InvalidArgument("cannot allocate the memory of the pool"))?;
        memory.tree().create().map_err(refused)?;
        Ok(Self { memory, handles: AtomicUsize::new(0) })
    }

    /// The machine's only tree.
    #[inline]
    pub fn tree(&self) -> &ServerTree<L> {
        self.memory.tree()
    }

    /// How much of the pool is in use.
    pub fn usage(&self) -> Usage {
        self.memory.usage()
    }
}

impl<L: Layout> Design<L> for SingleMachine {
    const NAME: &'static str = "local";
    type Options = SingleMachineOptions;
    type Compute = Arc<MachineTree<L>>;
    type Index<F: Fabric> = SingleMachineIndex<F, L>;

    /// Claims the memory servers, so that no other index can be created on them.
    async fn create<F: Fabric>(fabric: &F, _options: &Self::Options) -> Result<(), IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        Ok(rpc.claim_all(DesignId::SingleMachine as u64, &[]).await?)
    }

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        MachineTree::new(options).map(Arc::new)
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<Self::Index<F>, IndexError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        for number in (0..fabric.memory_servers()).rev() {
            rpc.claimed(ServerId::new(number), DesignId::SingleMachine).await?;
        }
        let stripe = compute.handles.fetch_add(1, Ordering::Relaxed);
        let cpu = FabricCpu::new(fabric, stripe);
        Ok(SingleMachineIndex { cpu, machine: Arc::clone(compute) })
    }

    fn local_bytes(compute: &Self::Compute) -> u64 {
        compute.usage().allocated_bytes
    }
}

/// A handle of one endpoint on a machine's index.
#[derive(Debug)]
pub struct SingleMachineIndex<F: Fabric, L: Layout> {
    cpu: FabricCpu<F>,
    machine: Arc<MachineTree<L>>,
}

/// Translates a refusal of the tree into the caller's error.
#[cold]
fn refused(refusal: Refusal) -> IndexError {
    match refusal {
        Refusal::OutOfMemory => IndexError::OutOfMemory { server: MACHINE },
        Refusal::Contended => IndexError::Contended { retries: MAX_RESTARTS },
        refusal => IndexError::Refused { server: MACHINE, refusal },
    }
}

impl<F: Fabric, L: Layout> SingleMachineIndex<F, L> {
    /// Appends `records` in batches. They must ascend strictly.
    fn append(
        &self,
        loader: &mut TreeLoader<L>,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
    ) -> Result<u64, IndexError> {
        let tree = self.machine.tree();
        let mut batch: KeyedRecords<OwnedKey<L>, OwnedValue<L>> = Vec::with_capacity(BATCH_RECORDS);
        let mut order = AscendingCheck::<L>::default();
        for record in source {
            let (key, value) = record?;
            order.take(&key, &value)?;
            batch.push((key, value));
            if batch.len() == BATCH_RECORDS {
                tree.load_append(loader, &batch).map_err(refused)?;
                batch.clear();
            }
        }
        tree.load_append(loader, &batch).map_err(refused)?;
        Ok(order.count())
    }
}

impl<F: Fabric, L: Layout> RangeIndex for SingleMachineIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    #[inline]
    async fn get(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, IndexError> {
        L::check_key(key)?;
        self.machine.tree().get(&self.cpu, key).await.map_err(refused)
    }

    #[inline]
    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, IndexError> {
        edit.check::<L>()?;
        let tree = self.machine.tree();
        let answer = tree.execute(&self.cpu, edit).await.map_err(refused)?;
        if edit.action == EditAction::Remove {
            // Takes at most one step, as a memory server does after its reply. There is no
            // background task here to take it.
            tree.collect_if_due(&self.cpu).await;
        }
        Ok(answer)
    }

    async fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError> {
        scan.check::<L>()?;
        let tree = self.machine.tree();
        let mut rest = scan.clone();
        let mut records = KeyedRecords::new();
        loop {
            let limit = scan.limit - records.len();
            let (part, more) = tree
                .scan(&self.cpu, &rest.lower, &rest.upper, rest.reverse, limit)
                .await
                .map_err(refused)?;
            records.extend(part);
            let Some((last, _)) = records.last().filter(|_| more && records.len() < scan.limit)
            else {
                return Ok(records);
            };
            let near = if rest.reverse { &mut rest.upper } else { &mut rest.lower };
            *near = Bound::Excluded(last.clone());
        }
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&L::Key, &L::Value>],
    ) -> Vec<Result<EditAnswer<OwnedValue<L>>, IndexError>> {
        if edits.iter().any(|edit| edit.check::<L>().is_err()) {
            let mut answers = Vec::with_capacity(edits.len());
            for edit in edits {
                answers.push(self.execute(*edit).await);
            }
            return answers;
        }
        let mut answers = Vec::with_capacity(edits.len());
        let tree = self.machine.tree();
        tree.execute_all(&self.cpu, edits, |answer| answers.push(answer.map_err(refused))).await;
        if edits.iter().any(|edit| edit.action == EditAction::Remove) {
            tree.collect_if_due(&self.cpu).await;
        }
        answers
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        let tree = self.machine.tree();
        let mut loader = tree.load_begin((fill * 1000.0).round() as u16).map_err(refused)?;
        match self.append(&mut loader, source) {
            Ok(count) => {
                if let Err(refusal) = tree.load_end(&self.cpu, &mut loader).await {
                    tree.load_abort(loader);
                    return Err(refused(refusal));
                }
                Ok(count)
            }
            Err(error) => {
                tree.load_abort(loader);
                Err(error)
            }
        }
    }

    /// Does nothing: there is no remote memory to write back to.
    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for SingleMachineIndex<F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        self.machine.tree().collect(&self.cpu).await.map_err(refused)
    }
}
