//! The policy that decides which keys should move so that no compute server has much more load than
//! the others. It only decides; `balancer.rs` moves keys.
//!
//! It looks at the load of a time window and at the map, and proposes moves between neighbours, or
//! to a compute server that owns nothing. So load spreads by diffusion. Lu et al. (DEX, §4) leave
//! this to future work.
//!
//! *Invariants*
//! - balance.B1. A move reduces the load of the busier of its two compute servers by at least
//!   `least_gain` of the mean. So under a steady load, moves come to an end (the sum of the squares
//!   decreases), and a range that cannot be split usefully, because one key or leaf makes up most
//!   of it, stays where it is.
//! - balance.B2. Nothing moves until some compute server has been above the threshold in `windows`
//!   consecutive windows, nor in the `rest_windows` after a move. Keys do not move back within
//!   `no_return_windows`. Hysteresis: balancing begins above `threshold` and ends below `calm`.
//! - balance.B3. A load that cannot be improved is left alone until the load of some compute server
//!   has changed by `change` of the mean. A proposal that fails is repeated after a pause that
//!   doubles each time.
//!
//! *Thread safety*: a plain value.

use super::{PartitionMap, SampledLoad};
use crate::BalanceOptions;
use crate::OwnedRange;
use std::collections::{BTreeMap, BTreeSet};

/// Longest pause after failed proposals, in windows.
const MAX_PAUSE: u64 = 64;

/// After this many attempts without a useful move, the policy leaves the loads alone.
const FRUITLESS: u32 = 3;

/// Maximum number of proposals at a time. For each one, the balancer has to read a leaf.
const MAX_PROPOSALS: usize = 4;

/// A move that would reduce the imbalance between two compute servers.
#[derive(Clone, Debug, PartialEq)]
pub struct MoveProposal<K> {
    /// The compute server that releases the keys.
    pub from: u16,
    /// The compute server that takes them over.
    pub to: u16,
    /// The approximate position of the new boundary.
    pub near: K,
    /// Whether the keys below the boundary move; otherwise those at or above it do.
    lower: bool,
}

/// The balancing policy, with the history of windows and moves that it needs.
#[derive(Clone, Debug)]
pub struct BalancePolicy<K> {
    options: BalanceOptions,
    /// Number of windows seen.
    now: u64,
    /// For each compute server, the number of consecutive windows above the threshold.
    above: BTreeMap<u16, u32>,
    rest_until: u64,
    pause: u64,
    /// Whether balancing has begun and not ended.
    active: bool,
    /// Attempts without a useful move since balancing began or keys last moved.
    fruitless: u32,
    /// The loads, relative to the mean, when balancing last gave up before they were below `calm`.
    settled: Option<Vec<f64>>,
    /// The window in which keys last moved from one compute server to another.
    moves: BTreeMap<(u16, u16), u64>,
    /// The loads of the last window.
    loads: Vec<SampledLoad<K>>,
    mean: f64,
    /// Compute servers without keys that take part whatever the options say.
    returned: BTreeSet<u16>,
}

impl<K: Clone + Ord> BalancePolicy<K> {
    /// Creates a policy that has seen no window.
    pub fn new(options: BalanceOptions) -> Self {
        Self {
            options,
            now: 0,
            above: BTreeMap::new(),
            rest_until: 0,
            pause: 1,
            active: false,
            fruitless: 0,
            settled: None,
            moves: BTreeMap::new(),
            loads: Vec::new(),
            mean: 0.0,
            returned: BTreeSet::new(),
        }
    }

    /// Sets the compute servers without keys that take part whatever the options say.
    pub(super) fn returned(&mut self, servers: BTreeSet<u16>) {
        self.returned = servers;
    }

    /// Evaluates a window: the load of each compute server, by number. Returns alternative moves,
    /// best first. Empty if nothing should move.
    pub fn look(
        &mut self,
        map: &PartitionMap<K>,
        mut loads: Vec<SampledLoad<K>>,
    ) -> Vec<MoveProposal<K>> {
        self.now += 1;
        let total: u64 = loads.iter().map(|load| load.samples).sum();
        // Shortly after a move, caches are cold, and some samples are from the previous map.
        if total < self.options.least_samples.max(1) || self.now < self.rest_until {
            return Vec::new();
        }
        for (number, load) in loads.iter_mut().enumerate() {
            let range = map.range_of(number as u16);
            load.keys.retain(|key| range.has(key));
        }
        self.loads = loads;
        let spares = (0..self.loads.len() as u16).filter(|server| !map.owners().contains(server));
        let takes_part = |server: &u16| self.options.uses_spares || self.returned.contains(server);
        let returned = spares.clone().filter(|server| self.returned.contains(server)).count();
        let spare = spares.clone().find(takes_part);
        let takes_part = match self.options.uses_spares {
            true => self.loads.len(),
            false => map.owners().len() + returned,
        };
        self.mean = total as f64 / takes_part.max(1) as f64;
        if self.is_settled() {
            return Vec::new();
        }
        let threshold = if self.active { self.options.calm } else { self.options.threshold };
        for owner in map.owners() {
            let is_above = self.load(*owner) > threshold * self.mean;
            let above = self.above.entry(*owner).or_default();
            *above = if is_above { above.saturating_add(1) } else { 0 };
        }
        self.above.retain(|server, _| map.owners().contains(server));
        if self.above.values().all(|windows| *windows == 0) {
            (self.active, self.fruitless, self.pause) = (false, 0, 1);
        }
        if self.above.values().all(|windows| *windows < self.options.windows.max(1)) {
            return Vec::new();
        }
        self.active = true;
        let (proposals, waits) = self.proposals(map, spare);
        // If keys only have to wait until they may move back, the loads are not settled.
        if proposals.is_empty() && !waits {
            self.refused();
        }
        proposals
    }

    /// Whether the loads are still those that could not be improved.
    fn is_settled(&mut self) -> bool {
        let differs = |settled: &Vec<f64>| {
            let mut loads = settled.iter().zip(&self.loads);
            let change = self.options.change;
            settled.len() != self.loads.len()
                || loads.any(|(then, now)| (now.samples as f64 / self.mean - then).abs() > change)
        };
        if self.settled.as_ref().is_some_and(differs) {
            self.settled = None;
        }
        self.settled.is_some()
    }

    /// Proposes moves from the busiest compute server to a spare one or to a neighbour, starting
    /// with the less busy neighbour. If that server cannot release keys, tries the next busiest.
    /// Also returns whether keys have to wait until they may move back.
    fn proposals(&self, map: &PartitionMap<K>, spare: Option<u16>) -> (Vec<MoveProposal<K>>, bool) {
        let owners = map.owners();
        let by_load = |a: &u16, b: &u16| self.load(*a).total_cmp(&self.load(*b));
        let mut givers: Vec<(usize, u16)> = owners.iter().copied().enumerate().collect();
        givers.sort_by(|(_, a), (_, b)| by_load(b, a));
        let (mut proposals, mut waits) = (Vec::new(), false);
        for (place, from) in givers {
            if self.load(from) <= self.mean {
                break;
            }
            let below = place.checked_sub(1).map(|place| (owners[place], true));
            let above = owners.get(place + 1).map(|owner| (*owner, false));
            let mut takers: Vec<(u16, bool)> = below.into_iter().chain(above).collect();
            takers.sort_by(|(a, _), (b, _)| by_load(a, b));
            takers.splice(0..0, spare.map(|spare| (spare, false)));
            for (to, lower) in takers {
                let split = self.best_split(from, to, lower, &map.range_of(from));
                match split {
                    Some(_) if self.has_just_moved(to, from) => waits = true,
                    Some(near) => proposals.push(MoveProposal { from, to, near, lower }),
                    None => {}
                }
            }
        }
        proposals.truncate(MAX_PROPOSALS);
        (proposals, waits)
    }

    /// Picks the best boundary among the fences of leaves near the proposal's key. `None` if the
    /// gain would be too small at all of them (balance.B1).
    pub fn choose(
        &self,
        proposal: &MoveProposal<K>,
        range: &OwnedRange<K>,
        fences: impl IntoIterator<Item = K>,
    ) -> Option<K> {
        let MoveProposal { from, to, lower, .. } = *proposal;
        let inside = fences.into_iter().filter(|fence| *fence > range.low && range.has(fence));
        let larger = |fence: &K| self.larger_after(from, to, lower, fence);
        let best = inside.min_by(|a, b| larger(a).total_cmp(&larger(b)))?;
        self.is_enough(from, larger(&best)).then_some(best)
    }

    /// Records that keys have moved (balance.B2).
    pub fn moved(&mut self, from: u16, to: u16) {
        self.moves.insert((from, to), self.now);
        self.rest_until = self.now + 1 + u64::from(self.options.rest_windows);
        self.above.clear();
        (self.pause, self.fruitless) = (1, 0);
    }

    /// Records that no proposal was worthwhile at the fences of actual leaves (balance.B3).
    pub fn refused(&mut self) {
        self.fruitless += 1;
        if self.fruitless >= FRUITLESS {
            let parts = self.loads.iter().map(|load| load.samples as f64 / self.mean);
            self.settled = Some(parts.collect());
            (self.active, self.fruitless) = (false, 0);
            self.above.clear();
        }
    }

    /// Records that a proposed move failed (balance.B3).
    pub fn failed(&mut self) {
        self.rest_until = self.now + 1 + self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.above.clear();
    }

    fn load(&self, server: u16) -> f64 {
        self.loads.get(usize::from(server)).map_or(0.0, |load| load.samples as f64)
    }

    fn has_just_moved(&self, from: u16, to: u16) -> bool {
        let last = self.moves.get(&(from, to));
        last.is_some_and(|last| self.now - last <= self.options.no_return_windows)
    }

    /// The sampled key at which a boundary splits the load most evenly. `None` if the gain would be
    /// too small.
    fn best_split(&self, from: u16, to: u16, lower: bool, range: &OwnedRange<K>) -> Option<K> {
        let keys = &self.loads.get(usize::from(from))?.keys;
        let mut candidates: Vec<&K> = keys.iter().filter(|key| **key > range.low).collect();
        candidates.dedup();
        // As the boundary moves up, the remaining load changes in one direction. So the larger of
        // the two loads first falls and then rises.
        let surplus = |key: &K| {
            let (stays, gets) = self.after(from, to, lower, key);
            if lower { gets - stays } else { stays - gets }
        };
        let place = candidates.partition_point(|key| surplus(key) < 0.0);
        let larger = |key: &K| self.larger_after(from, to, lower, key);
        let around = candidates.get(place.saturating_sub(1)..(place + 1).min(candidates.len()))?;
        let best = around.iter().min_by(|a, b| larger(a).total_cmp(&larger(b)))?;
        self.is_enough(from, larger(best)).then(|| (*best).clone())
    }

    /// The loads of the two compute servers with a boundary at `key`.
    fn after(&self, from: u16, to: u16, lower: bool, key: &K) -> (f64, f64) {
        let Some(SampledLoad { keys, .. }) = self.loads.get(usize::from(from)) else {
            return (0.0, 0.0);
        };
        let below = keys.partition_point(|sample| sample < key) as f64;
        let going = if lower { below } else { keys.len() as f64 - below };
        let moves = self.load(from) * going / (keys.len().max(1)) as f64;
        (self.load(from) - moves, self.load(to) + moves)
    }

    fn larger_after(&self, from: u16, to: u16, lower: bool, key: &K) -> f64 {
        let (stays, gets) = self.after(from, to, lower, key);
        stays.max(gets)
    }

    fn is_enough(&self, from: u16, larger_after: f64) -> bool {
        larger_after <= self.load(from) - self.options.least_gain * self.mean
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::partition::LoadSamples;
    use farleaf_page::Fixed8;

    /// Keys per leaf in the model.
    const LEAF: u64 = 42;

    /// A model of a cluster: a map, and keys that are requested with given weights.
    struct BalanceModel {
        map: PartitionMap<u64>,
        servers: u16,
        policy: BalancePolicy<u64>,
        sums: Vec<f64>,
        random: u64,
        moves: Vec<(u16, u16)>,
    }

    impl BalanceModel {
        fn new(owners: u16, spares: u16, seed: u64, weights: Vec<f64>) -> Self {
            let each = weights.len() as u64 / LEAF / u64::from(owners) * LEAF;
            let boundaries = (1..u64::from(owners)).map(|number| number * each).collect();
            let mut model = Self {
                map: PartitionMap::new::<Fixed8>(1, boundaries).unwrap(),
                servers: owners + spares,
                policy: BalancePolicy::new(BalanceOptions::default()),
                sums: Vec::new(),
                random: seed,
                moves: Vec::new(),
            };
            model.asks_for(&weights);
            model
        }

        fn asks_for(&mut self, weights: &[f64]) {
            let mut sum = 0.0;
            self.sums = weights.iter().map(|weight| (sum += weight, sum).1).collect();
        }

        /// A random number from 0 to 1 (splitmix64).
        fn draw(&mut self) -> f64 {
            self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.random;
            z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ z >> 31) as f64 / u64::MAX as f64
        }

        fn share(&self, server: u16) -> f64 {
            if !self.map.owners().contains(&server) {
                return 0.0;
            }
            let OwnedRange { low, high } = self.map.range_of(server);
            let before = |key: u64| match key {
                0 => 0.0,
                key => self.sums[(key as usize).min(self.sums.len()) - 1],
            };
            let high = high.unwrap_or(self.sums.len() as u64);
            (before(high) - before(low)) / self.sums[self.sums.len() - 1]
        }

        fn busiest(&self) -> f64 {
            (0..self.servers).map(|server| self.share(server)).fold(0.0, f64::max)
        }

        /// Runs windows of 3,000 samples each. Boundaries move to fences of leaves.
        fn run(&mut self, windows: u32) -> usize {
            let before = self.moves.len();
            for _ in 0..windows {
                let samples: Vec<LoadSamples<u64>> =
                    (0..self.servers).map(|_| LoadSamples::default()).collect();
                for _ in 0..3_000 {
                    let drawn = self.draw() * self.sums[self.sums.len() - 1];
                    let place = self.sums.partition_point(|sum| *sum <= drawn);
                    let key = place.min(self.sums.len() - 1) as u64;
                    samples[usize::from(self.map.owner_of(&key))].note(&key);
                }
                let loads = samples.iter().map(LoadSamples::take).collect();
                let proposals = self.policy.look(&self.map, loads);
                let chosen = proposals.iter().find_map(|proposal| {
                    let low = proposal.near / LEAF * LEAF;
                    let range = self.map.range_of(proposal.from);
                    let at = self.policy.choose(proposal, &range, [low, low + LEAF])?;
                    Some((proposal.from, proposal.to, at))
                });
                if let Some((from, to, at)) = chosen {
                    self.map = self.map.after(&self.map.plan(from, to, Some(&at)).unwrap());
                    self.policy.moved(from, to);
                    self.moves.push((from, to));
                } else if !proposals.is_empty() {
                    self.policy.refused();
                }
            }
            self.moves.len() - before
        }
    }

    fn zipf(keys: u64, theta: f64, from: u64) -> Vec<f64> {
        let rank = |key: u64| (key + keys - from) % keys + 1;
        (0..keys).map(|key| (rank(key) as f64).powf(-theta)).collect()
    }

    #[test]
    fn a_hotspot_is_spread_and_stays_spread() {
        for seed in 0..3 {
            let keys = 200_000;
            let mut model = BalanceModel::new(4, 0, seed, zipf(keys, 0.9, 0));
            assert!(model.busiest() > 0.6, "{}", model.busiest());
            let spreading = model.run(60);
            assert!(model.busiest() < 0.35, "{} after {:?}", model.busiest(), model.moves);
            assert!((2..=10).contains(&spreading), "{:?}", model.moves);
            assert_eq!(model.run(150), 0, "it is spread: {:?}", model.moves);
            // Now the hotspot is elsewhere.
            model.asks_for(&zipf(keys, 0.9, keys / 2));
            assert!(model.busiest() > 0.6, "{}", model.busiest());
            let again = model.run(100);
            assert!(model.busiest() < 0.35, "{} after {:?}", model.busiest(), model.moves);
            assert!((2..=14).contains(&again), "{:?}", model.moves);
            assert_eq!(model.run(150), 0, "it is spread: {:?}", model.moves);
        }
    }

    /// The hotspot moves to a compute server that has just received keys, which may not move back
    /// yet. The policy once mistook this for a load that cannot be improved, and stopped moving
    /// keys.
    #[test]
    fn a_hotspot_that_shifts_right_after_a_move_is_spread_too() {
        for windows in 20..40 {
            let keys = 200_000;
            let mut model = BalanceModel::new(4, 0, 1, zipf(keys, 0.9, 0));
            model.run(windows);
            model.asks_for(&zipf(keys, 0.9, keys / 2));
            model.run(80);
            assert!(model.busiest() < 0.35, "{windows}: {} {:?}", model.busiest(), model.moves);
        }
    }

    #[test]
    fn nothing_moves_under_a_load_that_is_even() {
        for seed in 0..3 {
            let mut model = BalanceModel::new(4, 0, seed, vec![1.0; 84_000]);
            assert_eq!(model.run(150), 0, "{:?}", model.moves);
            // A server with a quarter more load than the others does not justify a move.
            let weight = |key| if key < 21_000 { 1.25 } else { 1.0 };
            model.asks_for(&(0..84_000).map(weight).collect::<Vec<_>>());
            assert_eq!(model.run(150), 0, "{:?}", model.moves);
        }
    }

    #[test]
    fn one_key_that_is_most_of_it_makes_nothing_go_to_and_fro() {
        for seed in 0..3 {
            for hot in [30_u64, 21_000, 50_000, 83_999] {
                let mut weights = vec![1.0; 84_000];
                weights[hot as usize] = 84_000.0;
                let mut model = BalanceModel::new(4, 0, seed, weights);
                let moves = model.run(150);
                assert!(moves <= 6, "{hot}: {:?}", model.moves);
                assert!(model.moves.iter().all(|(from, to)| !model.moves.contains(&(*to, *from))));
                assert_eq!(model.run(150), 0, "{hot}: {:?}", model.moves);
            }
        }
    }

    #[test]
    fn a_steady_zipf_whose_hottest_leaf_is_heavy_comes_to_rest() {
        for seed in 0..3 {
            // The first leaf has nearly half of the load.
            let mut model = BalanceModel::new(4, 1, seed, zipf(84_000, 1.15, 0));
            assert!(model.run(100) <= 8, "{:?}", model.moves);
            let busiest = model.busiest();
            assert_eq!(model.run(150), 0, "{:?}", model.moves);
            assert!(busiest < 0.6, "the leaf is alone: {busiest}");
        }
    }

    #[test]
    fn who_owns_nothing_gets_a_part_if_it_may() {
        let mut model = BalanceModel::new(3, 1, 1, zipf(84_000, 0.8, 0));
        model.run(60);
        assert!(model.map.owners().contains(&3) && model.busiest() < 0.35, "{:?}", model.moves);
        let mut model = BalanceModel::new(3, 1, 1, zipf(84_000, 0.8, 0));
        model.policy.options.uses_spares = false;
        model.run(60);
        assert!(!model.map.owners().contains(&3), "{:?}", model.moves);
    }

    /// A compute server whose keys were taken over, and no other one without keys.
    #[test]
    fn who_has_returned_gets_keys_again() {
        let mut model = BalanceModel::new(2, 2, 1, vec![1.0; 84_000]);
        model.policy.options.uses_spares = false;
        assert_eq!(model.run(40), 0);
        model.policy.returned(BTreeSet::from([3]));
        model.run(60);
        assert!(model.map.owners().contains(&3) && !model.map.owners().contains(&2));
    }

    #[test]
    fn a_window_is_not_enough() {
        let mut policy = BalancePolicy::new(BalanceOptions::default());
        let map = PartitionMap::new::<Fixed8>(1, vec![1_000]).unwrap();
        let busy = SampledLoad { samples: 1_000, keys: (0..1_000).collect::<Vec<u64>>() };
        let idle = SampledLoad { samples: 10, keys: vec![2_000; 10] };
        let even = || vec![idle.clone(), idle.clone()];
        let loads = || vec![busy.clone(), idle.clone()];
        assert_eq!(policy.look(&map, loads()), []);
        assert_eq!(policy.look(&map, even()), [], "too few samples say nothing");
        let proposals = policy.look(&map, loads());
        let expected = MoveProposal { from: 0, to: 1, near: 505, lower: false };
        assert_eq!(proposals, [expected], "half of what the two do is moved away");
        policy.failed();
        assert_eq!(policy.look(&map, loads()), []);
        let waits = (0..200).filter(|_| {
            let proposes = !policy.look(&map, loads()).is_empty();
            if proposes {
                policy.failed();
            }
            proposes
        });
        assert!((3..=8).contains(&waits.count()), "less and less often");
    }
}
