//! Generates the operations of one client.
//!
//! A stream is determined by its configuration, its run's number, its client's number and, only for
//! the distribution `latest`, by the keys that other clients have inserted so far. Drawing an
//! operation allocates nothing.
//!
//! *Invariants*
//! - stream.W1. The values that one run writes differ from each other.
//! - stream.W2. New keys differ from each other and from loaded ones ([`KeySpace`], keys.K2 and
//!   keys.K3).
//! - stream.W3. Runs of one configuration agree on the popularity of each key, but draw
//!   independently: a measurement does not repeat the keys that a warm-up fetched into a cache.
//!
//! *Thread safety*: a stream belongs to its client; all clients of a run share [`InsertedCounts`].

use super::distribution::{RankMapping, RankSampler};
use super::{Distribution, OperationKind, OperationMix, Permutation, ScanLength};
use crate::keys::KeySpace;
use crate::keys::mix64;
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_index::{LoopStep, ScanRequest};
use farleaf_page::{EditAction, LeafEdit};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::ops::Bound;

/// An operation for the driver to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkloadOperation {
    /// Looks a key up.
    Get { key: u64 },
    /// Inserts a key.
    Insert { key: u64, value: u64 },
    /// Changes the value of an existing key.
    Update { key: u64, value: u64 },
    /// Sets a key's value, whether or not the key exists.
    Upsert { key: u64, value: u64 },
    /// Removes a key.
    Remove { key: u64 },
    /// Changes a value if it is the expected one.
    CompareExchange { key: u64, expected: u64, new: u64 },
    /// Reads a value, then updates it.
    ReadModifyWrite { key: u64, value: u64 },
    /// Reads up to `limit` records, starting at `from`, descending if `reverse`.
    Scan { from: u64, limit: u32, reverse: bool },
    /// Reads all records from `from` up to, but not including, `below`.
    ScanInterval { from: u64, below: u64 },
    /// Looks up the keys in [`OperationStream::batch`].
    MultiGet,
}

impl WorkloadOperation {
    /// Whether it asks for records and changes nothing.
    #[inline]
    pub fn is_lookup(&self) -> bool {
        matches!(
            self,
            Self::Get { .. } | Self::Scan { .. } | Self::ScanInterval { .. } | Self::MultiGet
        )
    }

    /// The single-key operation to pass to the index; `None` for reads of several records, and for
    /// an operation in two steps.
    #[inline]
    pub fn edit(&self) -> Option<LeafEdit<&u64, &u64>> {
        let (key, action) = match self {
            Self::Get { key } => (key, EditAction::Get),
            Self::Insert { key, value } => (key, EditAction::Insert(value)),
            Self::Update { key, value } => (key, EditAction::Update(value)),
            Self::Upsert { key, value } => (key, EditAction::Upsert(value)),
            Self::Remove { key } => (key, EditAction::Remove),
            Self::CompareExchange { key, expected, new } => {
                (key, EditAction::CompareExchange(expected, new))
            }
            _ => return None,
        };
        Some(LeafEdit { key, action })
    }

    /// The operation as a step of the loop; `batch` holds the keys of a [`Self::MultiGet`].
    #[inline]
    pub fn step<'a>(&'a self, batch: &'a [u64]) -> LoopStep<'a, u64, u64> {
        match self {
            Self::ReadModifyWrite { key, value } => LoopStep::ReadModifyWrite(key, value),
            Self::Scan { from, limit, reverse } => {
                LoopStep::Scan(scan_from(*from, *limit, *reverse))
            }
            Self::ScanInterval { from, below } => LoopStep::Scan(ScanRequest::range(*from..*below)),
            Self::MultiGet => LoopStep::MultiGet(batch),
            change => match change.edit() {
                Some(edit) => LoopStep::Edit(edit),
                None => unreachable!("all other operations are on a single key"),
            },
        }
    }
}

/// A scan of up to `limit` records that starts at `from`.
fn scan_from(from: u64, limit: u32, reverse: bool) -> ScanRequest<u64> {
    let (lower, upper) = match reverse {
        false => (Bound::Included(from), Bound::Unbounded),
        true => (Bound::Unbounded, Bound::Included(from)),
    };
    ScanRequest { lower, upper, reverse, limit: limit as usize }
}

/// How many new keys each client has inserted. The distribution `latest` depends on it.
#[derive(Debug)]
pub struct InsertedCounts {
    /// One counter per client, each on its own cache lines.
    clients: Box<[Count]>,
    /// The number of the first new key.
    first: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl InsertedCounts {
    /// Creates counters of `clients` clients without insertions. New keys are numbered from
    /// `first`.
    ///
    /// # Panics
    /// If `clients` is 0.
    pub fn new(clients: usize, first: u64) -> Self {
        assert!(clients > 0, "a run has at least one client");
        Self { clients: (0..clients).map(|_| Count::default()).collect(), first }
    }

    /// The number of `client`'s insertion `position`. Consecutive numbers rotate through the
    /// clients.
    #[inline]
    fn number(&self, client: usize, position: u64) -> u64 {
        self.first + position * self.clients.len() as u64 + client as u64
    }
}

/// Deviations of the harnesses of papers from an [`OperationMix`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HarnessDeviations {
    /// Turns insertions into upserts. Keys are drawn from the loaded keys and this many keys after
    /// them, so most of them change an existing record.
    pub upserts_among_more: Option<u64>,
    /// Makes updates write the value that the key was loaded with.
    pub keeps_values: bool,
    /// Makes ascending scans read the key interval that, at the average spacing of keys, would
    /// contain the scan's number of records.
    pub scans_intervals: bool,
}

/// Configuration shared by all streams of a run.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// The operations and their weights.
    pub mix: OperationMix,
    /// The popularity of keys.
    pub distribution: Distribution,
    /// Makes popular keys neighbours, most popular first, instead of scattering them by a hash.
    pub clustered: bool,
    /// The loaded keys.
    pub keys: KeySpace,
    /// Seed of all randomness.
    pub seed: u64,
    /// Deviations that follow a paper's harness.
    pub harness: HarnessDeviations,
}

/// The stream of one client's operations.
#[derive(Debug)]
pub struct OperationStream {
    rng: Xoshiro256PlusPlus,
    operations: Box<[(OperationKind, u64)]>,
    total_weight: u64,
    ranks: RankSampler,
    places: RankMapping,
    latest: bool,
    /// Positions of new keys under `latest`: by a hash of their number, as in YCSB. This finds the
    /// newest records again without a list of them. Fills take the keys in this order, too.
    places_of_new: Permutation,
    keys: KeySpace,
    harness: HarnessDeviations,
    /// The distribution over the loaded keys and those that upserts may add.
    ranks_of_upserts: Option<(RankSampler, RankMapping)>,
    client: usize,
    inserted: Arc<InsertedCounts>,
    /// Number of new keys that this client has drawn.
    new_keys: u64,
    /// Number of keys that this client has filled.
    filled: u64,
    values: u64,
    batch: Vec<u64>,
    /// Number of positions by which popular keys have moved up.
    shifted: u64,
}

impl OperationStream {
    /// Creates the stream of client `client` in the first run. `inserted` must count that client.
    ///
    /// # Panics
    /// If the mix has no operations, or if `inserted` has no such client.
    pub fn new(config: &StreamConfig, client: usize, inserted: &Arc<InsertedCounts>) -> Self {
        Self::for_run(config, 0, client, inserted)
    }

    /// Creates the stream of client `client` in run `run`, counted over the runs on one index
    /// (stream.W3).
    ///
    /// # Panics
    /// Same as [`OperationStream::new`].
    pub fn for_run(
        config: &StreamConfig,
        run: u64,
        client: usize,
        inserted: &Arc<InsertedCounts>,
    ) -> Self {
        assert!(client < inserted.clients.len(), "client {client} is not part of this run");
        let mut total_weight = 0;
        let add = |(kind, weight): &(OperationKind, u32)| {
            total_weight += u64::from(*weight);
            (*kind, total_weight)
        };
        let operations: Box<[_]> = config.mix.operations.iter().map(add).collect();
        assert!(total_weight > 0, "a mix has at least one operation");
        let n = config.keys.len();
        let run_seed = if run == 0 { 0 } else { mix64(run << 32) };
        let scattered = Permutation::new(n, config.seed);
        let batch = operations.iter().map(|(kind, _)| match kind {
            OperationKind::MultiGet { keys } => *keys as usize,
            _ => 0,
        });
        Self {
            rng: Xoshiro256PlusPlus::seed_from_u64(
                mix64(config.seed) ^ mix64(!(client as u64)) ^ run_seed,
            ),
            batch: Vec::with_capacity(batch.max().unwrap_or(0)),
            operations,
            total_weight,
            ranks: RankSampler::new(config.distribution, n),
            places: match config.clustered {
                true => RankMapping::Clustered,
                false => RankMapping::Scattered(scattered),
            },
            latest: matches!(config.distribution, Distribution::Latest { .. }),
            places_of_new: Permutation::new(n, !config.seed),
            keys: config.keys.clone(),
            harness: config.harness,
            ranks_of_upserts: config.harness.upserts_among_more.map(|more| {
                let all = n.saturating_add(more);
                let places = match config.clustered {
                    true => RankMapping::Clustered,
                    false => RankMapping::Scattered(Permutation::new(all, config.seed)),
                };
                (RankSampler::new(config.distribution, all), places)
            }),
            client,
            inserted: Arc::clone(inserted),
            new_keys: 0,
            filled: 0,
            values: 0,
            shifted: 0,
        }
    }

    /// Moves all ranks up by this fraction of the keys, wrapping around at the end. The keys at
    /// that distance above the old popular keys become popular. Does not affect `latest`, where the
    /// newest keys are popular.
    pub fn shift_hotspot(&mut self, share: f64) {
        let n = self.keys.len();
        let by = (n as f64 * share).round() as u64;
        self.shifted = (self.shifted + by % n) % n;
    }

    /// Returns the next operation; `None` if it would insert a new key and the key space is full.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "`None` is not the end, as an iterator's is")]
    pub fn next(&mut self) -> Option<WorkloadOperation> {
        let kind = match &*self.operations {
            [(kind, _)] => *kind,
            several => {
                let drawn = self.rng.random_range(0..self.total_weight);
                several.iter().find(|(_, below)| drawn < *below).expect("within the total").0
            }
        };
        Some(match kind {
            OperationKind::Get => WorkloadOperation::Get { key: self.key() },
            OperationKind::Insert if self.ranks_of_upserts.is_some() => {
                WorkloadOperation::Upsert { key: self.upserted_key()?, value: self.new_value() }
            }
            OperationKind::Insert => {
                WorkloadOperation::Insert { key: self.new_key()?, value: self.new_value() }
            }
            OperationKind::Reinsert => {
                WorkloadOperation::Insert { key: self.key(), value: self.new_value() }
            }
            OperationKind::Update if self.harness.keeps_values => {
                let place = self.loaded_place();
                WorkloadOperation::Update {
                    key: self.keys.key(place),
                    value: self.keys.value(place),
                }
            }
            OperationKind::Update => {
                WorkloadOperation::Update { key: self.key(), value: self.new_value() }
            }
            OperationKind::Upsert => {
                WorkloadOperation::Upsert { key: self.key(), value: self.new_value() }
            }
            OperationKind::Remove => WorkloadOperation::Remove { key: self.key() },
            OperationKind::CompareExchange => {
                let place = self.loaded_place();
                let (key, expected) = (self.keys.key(place), self.keys.value(place));
                WorkloadOperation::CompareExchange { key, expected, new: self.new_value() }
            }
            OperationKind::ReadModifyWrite => {
                WorkloadOperation::ReadModifyWrite { key: self.key(), value: self.new_value() }
            }
            OperationKind::Scan { length, reverse } => {
                let limit = match length {
                    ScanLength::Fixed(records) => records,
                    ScanLength::UpTo(most) => self.rng.random_range(1..=most.max(1)),
                };
                let from = self.key();
                if self.harness.scans_intervals && !reverse {
                    let length = u64::from(limit).saturating_mul(self.keys.spacing());
                    WorkloadOperation::ScanInterval { from, below: from.saturating_add(length) }
                } else {
                    WorkloadOperation::Scan { from, limit, reverse }
                }
            }
            OperationKind::Fill => {
                let turn = self.filled * self.inserted.clients.len() as u64 + self.client as u64;
                self.filled += 1;
                let place = self.places_of_new.apply(turn % self.keys.len());
                WorkloadOperation::Upsert {
                    key: self.keys.key(place),
                    value: self.keys.value(place),
                }
            }
            OperationKind::ScanAll => {
                WorkloadOperation::Scan { from: self.keys.key(0), limit: u32::MAX, reverse: false }
            }
            OperationKind::MultiGet { keys } => {
                self.batch.clear();
                for _ in 0..keys {
                    let key = self.key();
                    self.batch.push(key);
                }
                WorkloadOperation::MultiGet
            }
        })
    }

    /// Whether an operation depends on which insertions have ended, so that it cannot be drawn
    /// until the previous one has ended.
    pub fn follows_insertions(&self) -> bool {
        self.latest
    }

    /// The keys of the [`WorkloadOperation::MultiGet`] just returned.
    pub fn batch(&self) -> &[u64] {
        &self.batch
    }

    /// Reports that the key of the [`WorkloadOperation::Insert`] just returned is now in the index,
    /// so that `latest` may draw it.
    #[inline]
    pub fn inserted(&self) {
        let count = &self.inserted.clients[self.client].0;
        count.store(self.new_keys, Ordering::Release);
    }

    /// A number above those of all this stream's new keys. A later run starts from the maximum over
    /// all clients.
    pub fn next_number(&self) -> u64 {
        self.inserted.number(0, self.new_keys)
    }

    #[inline]
    fn key(&mut self) -> u64 {
        if !self.latest {
            let place = self.loaded_place();
            return self.keys.key(place);
        }
        // Rank 0 is the newest record. The clients insert in turns and about equally often, so the
        // rank determines the client and how far back to go. Ranks beyond all insertions are loaded
        // keys.
        let rank = self.ranks.draw(&mut self.rng);
        let clients = self.inserted.clients.len() as u64;
        let (back, client) = (rank / clients, (rank % clients) as usize);
        let done = self.inserted.clients[client].0.load(Ordering::Acquire);
        if back < done
            && let Some(key) = self.numbered_key(client, done - 1 - back)
        {
            return key;
        }
        let place = self.places.of(rank.saturating_sub(done * clients));
        self.keys.key(place)
    }

    /// Draws a key from the loaded ones and those that follow them.
    fn upserted_key(&mut self) -> Option<u64> {
        let (ranks, places) = self.ranks_of_upserts.as_ref()?;
        let place = places.of(ranks.draw(&mut self.rng));
        let last = self.keys.len() - 1;
        match place.checked_sub(last) {
            None | Some(0) => Some(self.keys.key(place)),
            Some(beyond) => {
                self.keys.key(last).checked_add(beyond.checked_mul(self.keys.spacing())?)
            }
        }
    }

    #[inline]
    fn loaded_place(&mut self) -> u64 {
        let place = self.places.of(self.ranks.draw(&mut self.rng)) + self.shifted;
        let n = self.keys.len();
        if place < n { place } else { place - n }
    }

    #[inline]
    fn new_key(&mut self) -> Option<u64> {
        let position = self.new_keys;
        self.new_keys += 1;
        if self.latest {
            return self.numbered_key(self.client, position);
        }
        let place = self.loaded_place();
        self.keys.new_key(place, self.inserted.number(self.client, position))
    }

    #[inline]
    fn numbered_key(&self, client: usize, position: u64) -> Option<u64> {
        let number = self.inserted.number(client, position);
        self.keys.new_key(self.places_of_new.apply(number), number)
    }

    /// Combines the client's number with a count (stream.W1).
    #[inline]
    fn new_value(&mut self) -> u64 {
        self.values += 1;
        ((self.client as u64 + 1) << 44) | self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn config(mix: OperationMix, distribution: Distribution, n: u64) -> StreamConfig {
        StreamConfig {
            mix,
            distribution,
            clustered: false,
            keys: KeySpace::spread(n),
            seed: 1,
            harness: HarnessDeviations::default(),
        }
    }

    fn operations(config: &StreamConfig, client: usize, count: usize) -> Vec<WorkloadOperation> {
        let mut stream = OperationStream::new(config, client, &Arc::new(InsertedCounts::new(4, 0)));
        (0..count).filter_map(|_| stream.next()).collect()
    }

    #[test]
    fn the_clients_of_a_fill_take_each_key_once() {
        let config = config(OperationMix::fill(), Distribution::Uniform, 1000);
        let all: Vec<_> = (0..4).flat_map(|client| operations(&config, client, 250)).collect();
        let expected = |place| WorkloadOperation::Upsert {
            key: config.keys.key(place),
            value: config.keys.value(place),
        };
        assert_ne!(all, (0..1000).map(expected).collect::<Vec<_>>(), "the order is scattered");
        assert!((0..1000).all(|place| all.contains(&expected(place))));
        assert_eq!(operations(&config, 1, 251)[250], all[250], "then it begins again");
    }

    #[test]
    fn a_stream_is_a_function_of_its_seed() {
        let mix = OperationMix::named("write-intensive").unwrap();
        let config = config(mix, Distribution::Zipfian { theta: 0.99 }, 1000);
        let first = operations(&config, 0, 500);
        assert_eq!(first, operations(&config, 0, 500));
        assert_ne!(first, operations(&config, 1, 500));
        let other = StreamConfig { seed: 2, ..config };
        assert_ne!(first, operations(&other, 0, 500));
    }

    #[test]
    fn runs_draw_independently_from_the_same_popular_keys() {
        let keys_of = |run: u64, n: u64, draws: usize| {
            let mix = OperationMix::named("read-only").unwrap();
            let config = config(mix, Distribution::Zipfian { theta: 0.99 }, n);
            let inserted = Arc::new(InsertedCounts::new(1, 0));
            let mut stream = OperationStream::for_run(&config, run, 0, &inserted);
            let key = |operation| match operation {
                Some(WorkloadOperation::Get { key }) => key,
                other => panic!("{other:?}"),
            };
            (0..draws).map(|_| key(stream.next())).collect::<Vec<u64>>()
        };
        let seen: BTreeSet<u64> = keys_of(0, 1_000_000, 20_000).into_iter().collect();
        for run in [1, 2] {
            let next = keys_of(run, 1_000_000, 20_000);
            assert_ne!(keys_of(0, 1_000_000, 100)[..], next[..100]);
            // Expected: the sum over the ranks of p (1 - (1 - p)^20,000), 0.567.
            let again = next.iter().filter(|key| seen.contains(key)).count() as f64 / 20_000.0;
            assert!((0.54..0.60).contains(&again), "run {run}: {again} were asked for before");
        }
        let most_popular = |run| {
            let mut counts = BTreeMap::<u64, u32>::new();
            keys_of(run, 1000, 20_000).iter().for_each(|key| *counts.entry(*key).or_default() += 1);
            counts.into_iter().max_by_key(|(_, count)| *count).map(|(key, _)| key)
        };
        assert_eq!(most_popular(0), most_popular(1));
    }

    #[test]
    fn a_papers_harness_can_be_had() {
        let mix = OperationMix::new("all of them")
            .with(OperationKind::Insert, 1)
            .with(OperationKind::Update, 1)
            .with(OperationKind::scan(100), 1);
        let harness = HarnessDeviations {
            upserts_among_more: Some(500),
            keeps_values: true,
            scans_intervals: true,
        };
        let keys = KeySpace::dense(1000);
        let config =
            StreamConfig { keys: keys.clone(), harness, ..config(mix, Distribution::Uniform, 1) };
        let (mut old, mut new) = (0_u32, 0_u32);
        for operation in operations(&config, 0, 9_000) {
            match operation {
                WorkloadOperation::Upsert { key, .. } if key < 1000 => old += 1,
                WorkloadOperation::Upsert { key, .. } if key < 1500 => new += 1,
                WorkloadOperation::Update { key, value } => assert_eq!(value, keys.value(key)),
                WorkloadOperation::ScanInterval { from, below } => assert_eq!(below - from, 100),
                other => panic!("{other:?}"),
            }
        }
        let share = f64::from(new) / f64::from(old + new);
        assert!(old + new > 2_700 && (0.29..0.38).contains(&share), "a third is new: {share}");
    }

    #[test]
    fn kinds_come_by_their_weights() {
        let mix = OperationMix::named("read-intensive").unwrap();
        let all = operations(&config(mix, Distribution::Uniform, 1000), 0, 40_000);
        let gets = all.iter().filter(|one| matches!(one, WorkloadOperation::Get { .. })).count();
        assert!((37_700..38_300).contains(&gets), "{gets} of 40,000 are lookups");
    }

    #[test]
    fn popular_keys_are_scattered_or_clustered() {
        let mix = OperationMix::named("read-only").unwrap();
        let mut config = config(mix, Distribution::Zipfian { theta: 0.99 }, 10_000);
        let popular = |config: &StreamConfig| {
            let mut counts = BTreeMap::<u64, u64>::new();
            for operation in operations(config, 0, 50_000) {
                let WorkloadOperation::Get { key } = operation else { panic!("read-only") };
                *counts.entry(key).or_default() += 1;
            }
            let mut keys: Vec<(u64, u64)> = counts.iter().map(|(k, c)| (*c, *k)).collect();
            keys.sort_unstable_by(|a, b| b.cmp(a));
            keys.iter().take(10).map(|(_, key)| *key).collect::<Vec<_>>()
        };
        let scattered = popular(&config);
        let spread = scattered.iter().max().unwrap() - scattered.iter().min().unwrap();
        assert!(spread > u64::MAX / 4, "{scattered:?}");
        config.clustered = true;
        let clustered = popular(&config);
        assert_eq!(clustered[0], 0);
        assert!(*clustered.iter().max().unwrap() < config.keys.key(30), "{clustered:?}");
    }

    #[test]
    fn a_shift_moves_the_load_to_another_quarter() {
        let mix = OperationMix::named("write-intensive").unwrap();
        let mut config = config(mix, Distribution::Zipfian { theta: 0.99 }, 100_000);
        config.clustered = true;
        let mut stream = OperationStream::new(&config, 1, &Arc::new(InsertedCounts::new(4, 0)));
        let mut quarters = || {
            let mut counts = [0_u32; 4];
            for _ in 0..20_000 {
                match stream.next().unwrap() {
                    WorkloadOperation::Get { key } | WorkloadOperation::Update { key, .. } => {
                        counts[(key >> 62) as usize] += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            let shares = counts.map(|count| f64::from(count) / 20_000.0);
            stream.shift_hotspot(0.5);
            shares
        };
        let (before, after, back) = (quarters(), quarters(), quarters());
        // The first quarter of the ranks has (ln 25,000 + 0.58) / (ln 100,000 + 0.58), almost 0.89.
        for (shares, hot) in [(before, 0), (after, 2), (back, 0)] {
            assert!((0.86..0.92).contains(&shares[hot]), "quarter {hot}: {shares:?}");
            let next = shares[(hot + 1) % 4];
            let rest = 1.0 - shares[hot] - next;
            assert!(next > 0.04 && next < 0.08 && rest < 0.07, "{shares:?}");
        }
    }

    #[test]
    fn a_shift_of_scattered_keys_makes_others_popular() {
        let mix = OperationMix::named("read-only").unwrap();
        let config = config(mix, Distribution::Zipfian { theta: 1.3 }, 1000);
        let mut stream = OperationStream::new(&config, 0, &Arc::new(InsertedCounts::new(1, 0)));
        let mut most_popular = || {
            let mut counts = BTreeMap::<u64, u64>::new();
            for _ in 0..5_000 {
                let Some(WorkloadOperation::Get { key }) = stream.next() else {
                    panic!("read-only")
                };
                *counts.entry(key).or_default() += 1;
            }
            stream.shift_hotspot(0.25);
            *counts.iter().max_by_key(|(_, count)| **count).unwrap().0
        };
        let (before, after) = (most_popular(), most_popular());
        let moved = after.wrapping_sub(before);
        assert!(moved.abs_diff(1 << 62) < 1 << 55, "by a quarter, round the end: {moved:x}");
    }

    #[test]
    fn new_keys_and_values_never_meet() {
        let mix = OperationMix::named("insert-intensive").unwrap();
        let config = config(mix, Distribution::Zipfian { theta: 0.99 }, 100);
        let mut keys: BTreeSet<u64> = config.keys.records().map(|(key, _)| key).collect();
        let mut values = BTreeSet::new();
        for client in 0..4 {
            for operation in operations(&config, client, 5000) {
                if let WorkloadOperation::Insert { key, value } = operation {
                    assert!(keys.insert(key), "W2");
                    assert!(values.insert(value), "W1");
                }
            }
        }
        assert!(keys.len() > 9000);
    }

    #[test]
    fn latest_asks_for_what_was_just_inserted() {
        let mix = OperationMix::named("ycsb-d").unwrap();
        let config = config(mix.clone(), mix.distribution, 10_000);
        let inserted = Arc::new(InsertedCounts::new(2, 0));
        let mut streams = [0, 1].map(|client| OperationStream::new(&config, client, &inserted));
        let loaded: BTreeSet<u64> = config.keys.records().map(|(key, _)| key).collect();
        let mut present = loaded.clone();
        let (mut gets, mut of_new) = (0, 0);
        for step in 0..40_000 {
            let stream = &mut streams[step % 2];
            match stream.next().unwrap() {
                WorkloadOperation::Insert { key, .. } => {
                    assert!(present.insert(key));
                    stream.inserted();
                }
                WorkloadOperation::Get { key } => {
                    assert!(present.contains(&key), "only what is there is asked for");
                    gets += 1;
                    of_new += u64::from(step > 38_000 && !loaded.contains(&key));
                }
                other => panic!("{other:?}"),
            }
        }
        // At the end, 2,000 of 10,000 ranks are new keys, and by far the most popular ones.
        assert!(gets > 37_000 && of_new > 1_300, "{of_new} of the last 1,900 lookups");
        assert!(streams.iter().all(|stream| stream.next_number() >= 1_900));
    }

    #[test]
    fn batches_and_scans_have_their_lengths() {
        let mix = OperationMix::new("mine")
            .with(OperationKind::MultiGet { keys: 8 }, 1)
            .with(OperationKind::Scan { length: ScanLength::UpTo(10), reverse: true }, 1);
        let config = config(mix, Distribution::Uniform, 1000);
        let mut stream = OperationStream::new(&config, 0, &Arc::new(InsertedCounts::new(1, 0)));
        let mut lengths = BTreeSet::new();
        for _ in 0..500 {
            match stream.next().unwrap() {
                WorkloadOperation::MultiGet => assert_eq!(stream.batch().len(), 8),
                WorkloadOperation::Scan { limit, reverse, .. } => {
                    assert!(reverse && lengths.insert(limit) | true)
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lengths, (1..=10).collect());
    }
}
