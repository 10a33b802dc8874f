//! Creating and opening a SMART index, and the traits of a handle.
//!
//! The superblock of server 0 names a word of memory, the root slot, which leads to the whole tree.
//!
//! *Thread safety*: that of a handle; the compute side is shared by all threads of a process.

use super::SmartOptions;
use super::cache::SmartCache;
use super::radix::RadixClient;
use super::sides::{ClientRadixSides, SmartCompute};
use super::together::UnresolvedChanges;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::{
    Design, EditAnswer, Encoded, IndexAdmin, IndexError, LeafEdit, OptionSchema, OwnedForm,
    RangeIndex, RecordOf, RecordsOf, ScanRequest,
};
use farleaf_page::{DesignId, EditAction, Layout, MAX_RADIX_SERVERS, Octets, OwnedKey, RadixForm};
use farleaf_pool::remote::{ROOT_SERVER, RemoteError, RpcClient};
use std::borrow::Borrow;
use std::ops::Bound;

/// The design SMART.
#[derive(Clone, Copy, Debug, Default)]
pub struct Smart;

const NO_KEY: IndexError =
    IndexError::InvalidArgument("a leaf has a key or a value that is none of this index");

/// In the superblock's options: the keys are divided among compute servers.
const DIVIDED: u64 = 1 << 15;

/// SMART with the keys divided among compute servers: only the owner of a key changes its leaf, so
/// a leaf needs no lock.
///
/// After Lu et al., *DEX* (VLDB 2024), §8.2, which calls it P-SMART. Operations use the owner's
/// state by a function call, as those of the other partitioned designs do within a process. Nodes
/// are shared. Keys do not move, and compute servers must not die: nothing in a leaf says whose
/// change is torn. The index belongs to the first compute side that opens it, in one process;
/// others are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct PSmart;

/// Options of a new index that is divided among compute servers.
#[derive(Clone, Debug)]
pub struct PSmartOptions<K> {
    /// The options that both forms have.
    pub smart: SmartOptions,
    /// Where the keys of each compute server but the first begin.
    pub boundaries: Vec<K>,
}

/// A handle on a SMART index.
#[derive(Debug)]
pub struct SmartIndex<F: Fabric, L: Layout> {
    pub(super) radix: RadixClient<F, L>,
    pub(super) sides: ClientRadixSides,
    /// Whether clients of a compute server execute operations on one key together.
    pub(super) combines: bool,
    /// Whether a leaf is changed in a turn of its key's owner, instead of under a lock.
    pub(super) is_divided: bool,
    /// Where the root slot is.
    pub(super) root: GlobalAddr,
    /// Changes of this handle that other handles may still make.
    pub(super) unsettled: UnresolvedChanges<EditAnswer<Octets>>,
    /// What the keys are.
    pub(super) form: RadixForm,
}

impl<L: Layout> Design<L> for Smart {
    const NAME: &'static str = "smart";
    type Options = SmartOptions;
    type Compute = SmartCompute;
    type Index<F: Fabric> = SmartIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &SmartOptions) -> Result<(), IndexError> {
        options.check_bounds()?;
        create::<F, L>(fabric, DesignId::Smart as u64).await
    }

    fn compute(options: &SmartOptions) -> Result<SmartCompute, IndexError> {
        options.check_bounds()?;
        SmartCompute::new(*options, None)
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &SmartCompute,
    ) -> Result<SmartIndex<F, L>, IndexError> {
        open(fabric, compute).await
    }

    fn cached_bytes(compute: &SmartCompute) -> u64 {
        compute.cached_bytes()
    }
}

impl<L: Layout> Design<L> for PSmart {
    const NAME: &'static str = "p-smart";
    type Options = PSmartOptions<OwnedKey<L>>;
    type Compute = SmartCompute;
    type Index<F: Fabric> = SmartIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        options.smart.check_bounds()?;
        create::<F, L>(fabric, DesignId::Smart as u64 | DIVIDED).await
    }

    fn compute(options: &Self::Options) -> Result<SmartCompute, IndexError> {
        options.smart.check_bounds()?;
        let key = |key: &OwnedKey<L>| key_of::<L>(key.borrow());
        SmartCompute::new(options.smart, Some(options.boundaries.iter().map(key).collect()))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &SmartCompute,
    ) -> Result<SmartIndex<F, L>, IndexError> {
        open(fabric, compute).await
    }

    fn cached_bytes(compute: &SmartCompute) -> u64 {
        compute.cached_bytes()
    }
}

async fn create<F: Fabric, L: Layout>(fabric: &F, options: u64) -> Result<(), IndexError> {
    if fabric.memory_servers() > MAX_RADIX_SERVERS {
        return Err(IndexError::InvalidArgument("smart has at most 256 memory servers"));
    }
    for number in (0..fabric.memory_servers()).rev() {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        rpc.check_unclaimed(ServerId::new(number)).await?;
    }
    // The memory of a leaf, which was never used: a free slot.
    // The server checks that a page would fit there.
    let radix = RadixClient::<F, L>::new(fabric.clone(), L::page_words() as u64 * 8);
    let root = radix.take_leaf_on(ROOT_SERVER).await?;
    Ok(radix.rpc().claim_all(options, &[root]).await?)
}

async fn open<F: Fabric, L: Layout>(
    fabric: F,
    compute: &SmartCompute,
) -> Result<SmartIndex<F, L>, IndexError> {
    let rpc = RpcClient::<F, L>::new(fabric.clone());
    let (mut root, mut word) = (GlobalAddr::NULL, 0);
    for number in (0..fabric.memory_servers()).rev() {
        let (found, options) = rpc.claimed(ServerId::new(number), DesignId::Smart).await?;
        (root, word) = (found.root, options);
    }
    let is_divided = word & DIVIDED != 0;
    compute.all.check_open(&rpc, is_divided).await?;
    let (options, sides) = (compute.options(), compute.sides(fabric.compute_server()));
    let radix = RadixClient::new(fabric, options.chunk_bytes);
    let (combines, unsettled) = (options.combines, UnresolvedChanges::new());
    let form = RadixForm::of::<L>();
    Ok(SmartIndex { radix, sides, combines, is_divided, root, unsettled, form })
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    pub(super) fn fabric(&self) -> &F {
        self.radix.fabric()
    }

    pub(super) fn cache(&self, key: &[u8]) -> &SmartCache {
        &self.sides.of(key).cache
    }

    /// Settles doubts, and says so to the handles whose changes this one has executed.
    pub(super) async fn settle_doubts(&self) {
        self.radix.settle_doubts().await;
        if !self.has_doubts() {
            self.unsettled.settled();
        }
    }

    /// Whether operations of this handle have ended without a known outcome, for tests.
    pub fn has_doubts(&self) -> bool {
        self.radix.has_doubts()
    }
}

/// A key in the form in which the tree stores it.
fn key_of<L: Layout>(key: &L::Key) -> Octets {
    RadixForm::of::<L>().key(key.encoded().as_ref())
}

fn value_of<T: Encoded + ?Sized>(value: &T) -> Octets {
    Octets::from_slice(value.encoded().as_ref())
}

fn found_of<T: Encoded + ?Sized>(found: Octets) -> Result<OwnedForm<T>, IndexError> {
    T::decoded(found.into_vec()).ok_or(NO_KEY)
}

fn bound_of<L: Layout>(bound: &Bound<OwnedKey<L>>) -> Bound<Octets> {
    bound.as_ref().map(|key| key_of::<L>(key.borrow()))
}

impl<F: Fabric, L: Layout> RangeIndex for SmartIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    async fn get(&self, key: &L::Key) -> Result<Option<OwnedForm<L::Value>>, IndexError> {
        L::check_key(key)?;
        let found = self.value_of(&key_of::<L>(key)).await?;
        found.map(found_of::<L::Value>).transpose()
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedForm<L::Value>>, IndexError> {
        let value = |value: &L::Value| {
            L::check_record(edit.key, value)?;
            Ok::<_, IndexError>(value_of(value))
        };
        L::check_key(edit.key)?;
        let action = match edit.action {
            EditAction::Get => EditAction::Get,
            EditAction::Insert(new) => EditAction::Insert(value(new)?),
            EditAction::Update(new) => EditAction::Update(value(new)?),
            EditAction::Upsert(new) => EditAction::Upsert(value(new)?),
            EditAction::Remove => EditAction::Remove,
            EditAction::CompareExchange(old, new) => {
                EditAction::CompareExchange(value_of(old), value(new)?)
            }
        };
        let key = key_of::<L>(edit.key);
        let answer = match action {
            EditAction::Get => EditAnswer::from_lookup(self.value_of(&key).await?),
            action => self.change(&key, action).await?,
        };
        let found = answer.found.map(found_of::<L::Value>).transpose()?;
        Ok(EditAnswer { applied: answer.applied, found })
    }

    async fn multi_get<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<OwnedForm<L::Value>>>, IndexError> {
        keys.iter().try_for_each(|key| L::check_key(key.borrow()))?;
        let keys: Vec<Octets> = keys.iter().map(|key| key_of::<L>(key.borrow())).collect();
        let found = self.values_of(&keys).await?.into_iter();
        found.map(|found| found.map(found_of::<L::Value>).transpose()).collect()
    }

    async fn scan(
        &self,
        scan: &ScanRequest<OwnedForm<L::Key>>,
    ) -> Result<RecordsOf<Self>, IndexError> {
        let (lower, upper) = (bound_of::<L>(&scan.lower), bound_of::<L>(&scan.upper));
        let scan = ScanRequest { lower, upper, reverse: scan.reverse, limit: scan.limit };
        let records = self.records(&scan).await?.into_iter();
        let record = |(key, value): (Octets, Octets)| {
            let key = self.form.original(&key).ok_or(NO_KEY)?;
            Ok((L::Key::decoded(key).ok_or(NO_KEY)?, found_of::<L::Value>(value)?))
        };
        records.map(record).collect()
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<RecordOf<Self>, IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let record = |record: Result<RecordOf<Self>, IndexError>| {
            let (key, value) = record?;
            L::check_record(key.borrow(), value.borrow())?;
            Ok((key_of::<L>(key.borrow()), value_of::<L::Value>(value.borrow())))
        };
        self.load(source.map(record), fill).await
    }

    /// Returns at once: clients write every change through.
    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }

    /// Also returns [`IndexError::Contended`] while the client that executes a change of this
    /// handle together with its own has not settled it (smart.T3).
    async fn settle(&self) -> Result<(), IndexError> {
        self.radix.settle_all().await?;
        self.unsettled.settled();
        match self.unsettled.waits_for_others() {
            true => Err(RemoteError::Contended { retries: 0 }.into()),
            false => Ok(()),
        }
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for SmartIndex<F, L> {
    /// Settles doubts; nothing is collected (smart.N1).
    async fn collect(&self) -> Result<(), IndexError> {
        self.settle_doubts().await;
        Ok(())
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        Ok(self.radix.declare_dead(compute_server).await?)
    }
}
