//! dLSM and fjall as engines.
//!
//! *Thread safety*: an engine may be used by several threads.

use super::records::WrittenRecords;
use super::{EmptyEngine, EngineSizes};
use anyhow::{Context, ensure};
use farleaf_dlsm::{Dlsm, DlsmOptions, LsmShard};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::{AnyFabric, Cluster, Provider, RpcService, ServerId};
use farleaf_index::{Design, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use fjall::compaction::Leveled;
use fjall::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use std::ops::Bound;
use std::time::Duration;
use tempfile::TempDir;

type EngineLayout = Bytes<128>;

/// Words of a page of the system.
const PAGE_WORDS: usize = 512;

/// Threads of an engine that flush and merge.
pub(super) const WORKERS: usize = 2;

/// Bits for a key in the Bloom filters of other engines.
pub(super) const BLOOM_BITS: f32 = 10.0;

/// Records that one call of a scan of dLSM returns.
const SCANNED_PER_BATCH: usize = 10_000;

/// dLSM over a memory server of this process. Its writers flush and merge.
pub(super) struct InMemory {
    cluster: <LocalConfig as Provider>::Cluster<MemoryServer<EngineLayout>>,
    tree: Arc<LsmShard>,
}

impl InMemory {
    pub(super) fn new(sizes: &EngineSizes) -> anyhow::Result<Self> {
        let options = DlsmOptions::with_table_bytes(sizes.table_bytes);
        // Merges write before they free.
        let pool_bytes = (sizes.data_bytes * 4 + (1 << 30)).next_multiple_of(1 << 21);
        let config = MemoryServerConfig { pool_bytes: pool_bytes as usize, ..Default::default() };
        let server = MemoryServer::<EngineLayout>::new(ServerId::new(0), &config)?;
        // The memory of a memory server is registered, and so there, before anything is written. An
        // operation that changes nothing would be compiled to a load, which gets no memory.
        for page in server.region().words().iter().step_by(PAGE_WORDS) {
            page.fetch_xor(1, Ordering::Relaxed);
            page.fetch_xor(1, Ordering::Relaxed);
        }
        let cluster = LocalConfig::default().start(vec![Arc::new(server)]);
        let created = cluster.run_one(|fabric| {
            let options = &options;
            async move { <Dlsm as Design<EngineLayout>>::create(&fabric, options).await }
        });
        created?;
        let tree = <Dlsm as Design<EngineLayout>>::compute(&options)?;
        Ok(Self { cluster, tree })
    }

    /// Runs `work` on handles of `threads` threads.
    fn on_threads(
        &self,
        threads: usize,
        work: impl AsyncFn(&DlsmHandle, usize) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<()> {
        let ended = self.cluster.run(&vec![0; threads], async |fabric, thread| {
            let index = <Dlsm as Design<EngineLayout>>::open(fabric, &self.tree).await?;
            work(&index, thread).await
        });
        ended.into_iter().try_for_each(|ended| ended.context("a client has died")?)
    }
}

type DlsmHandle = <Dlsm as Design<EngineLayout>>::Index<AnyFabric>;

impl EmptyEngine for InMemory {
    fn fill(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()> {
        self.on_threads(threads, async |index, thread| {
            for place in records.share(thread, threads) {
                index.upsert(records.key(place), &records.value(place)).await?;
            }
            Ok(())
        })?;
        self.on_threads(1, async |index, _| Ok(index.flush().await?))
    }

    fn get(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()> {
        self.on_threads(threads, async |index, thread| {
            for place in records.lookups(thread, threads) {
                let value = index.get(records.key(place)).await?;
                records.check(place, &value.context("not found")?)?;
            }
            Ok(())
        })
    }

    fn scan(&self, records: &WrittenRecords) -> anyhow::Result<()> {
        self.on_threads(1, async |index, _| {
            let mut scanned = records.scanned();
            loop {
                let last = Bound::Excluded(scanned.last().to_vec());
                let scan = ScanRequest::range((last, Bound::Unbounded)).limit(SCANNED_PER_BATCH);
                let found = index.scan(&scan).await?;
                for (key, value) in &found {
                    scanned.see(key, value)?;
                }
                if found.len() < SCANNED_PER_BATCH {
                    return scanned.end();
                }
            }
        })
    }

    fn merge(&self, records: &WrittenRecords) -> anyhow::Result<()> {
        let before = self.tree.counts().merged_bytes;
        self.on_threads(1, async |index, _| Ok(index.collect().await?))?;
        let merged = self.tree.counts().merged_bytes - before;
        ensure!(merged >= records.bytes(), "only {merged} bytes were merged");
        Ok(())
    }
}

/// fjall with all files in memory (`/dev/shm`) and a cache that holds all blocks. It always writes
/// a journal, here without flushing it for each write; threads of its own flush and merge.
pub(super) struct Fjall {
    records: Keyspace,
    database: Database,
    _folder: TempDir,
}

impl Fjall {
    pub(super) fn new(sizes: &EngineSizes) -> anyhow::Result<Self> {
        let folder = folder_in_memory()?;
        // With a single worker, its queue of messages can fill up with its own, and it hangs. Of
        // several, the first one only flushes: it puts requests to merge back into the queue, and
        // spins while no other worker is idle.
        const FLUSHES_ONLY: usize = 1;
        // By default, filters of level 0 have some 19 bits for a key.
        let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(BLOOM_BITS));
        let database = Database::builder(folder.path())
            .worker_threads(WORKERS + FLUSHES_ONLY)
            .cache_size(sizes.data_bytes * 4 + (64 << 20))
            .manual_journal_persist(true)
            .open()?;
        let records = database.keyspace("records", || {
            let levels = Leveled::default().with_table_target_size(sizes.table_bytes);
            KeyspaceCreateOptions::default()
                .max_memtable_size(sizes.table_bytes)
                .compaction_strategy(std::sync::Arc::new(levels))
                .filter_policy(FilterPolicy::all(filter))
                .index_block_pinning_policy(PinningPolicy::all(true))
                .filter_block_pinning_policy(PinningPolicy::all(true))
                .manual_journal_persist(true)
        })?;
        Ok(Self { records, database, _folder: folder })
    }

    /// Waits until its threads have nothing to do.
    fn settle(&self) -> anyhow::Result<()> {
        until_idle(|| {
            let (flushes, merges) =
                (self.database.outstanding_flushes(), self.database.active_compactions());
            Ok(flushes + merges == 0)
        })
    }
}

/// Waits until an engine has been idle at several looks, one after the other.
pub(super) fn until_idle(is_idle: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    const STEP: Duration = Duration::from_millis(2);
    const LOOKS: u32 = 10;
    let mut idle = 0;
    while idle < LOOKS {
        idle = if is_idle()? { idle + 1 } else { 0 };
        pause(STEP);
    }
    Ok(())
}

/// A folder in memory.
pub(super) fn folder_in_memory() -> anyhow::Result<TempDir> {
    TempDir::new_in("/dev/shm").context("the other engines need files in /dev/shm")
}

#[expect(clippy::disallowed_methods, reason = "the engine's threads run in real time")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Runs `work` on `threads` threads.
pub(super) fn on_threads(
    threads: usize,
    work: impl Fn(usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let start = |thread| {
            let work = &work;
            scope.spawn(move || work(thread))
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("no engine panics"))
    })
}

impl EmptyEngine for Fjall {
    fn fill(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()> {
        on_threads(threads, |thread| {
            for place in records.share(thread, threads) {
                self.records.insert(records.key(place), records.value(place))?;
            }
            Ok(())
        })?;
        self.records.rotate_memtable_and_wait()?;
        self.settle()
    }

    fn get(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()> {
        on_threads(threads, |thread| {
            for place in records.lookups(thread, threads) {
                let value = self.records.get(records.key(place))?;
                records.check(place, &value.context("not found")?)?;
            }
            Ok(())
        })
    }

    fn scan(&self, records: &WrittenRecords) -> anyhow::Result<()> {
        let mut scanned = records.scanned();
        for record in self.records.iter() {
            let (key, value) = record.into_inner()?;
            scanned.see(&key, &value)?;
        }
        scanned.end()
    }

    fn merge(&self, _records: &WrittenRecords) -> anyhow::Result<()> {
        Ok(self.records.major_compact()?)
    }
}
