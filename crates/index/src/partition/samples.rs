//! Sampled load of a compute server: the number of operations, and a random selection of their
//! keys.
//!
//! Each handle counts its own operations and reports only one in many, so that operations do not
//! contend for a cache line. Memory is bounded even if the samples are never taken.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{Mutex, lock};

/// Number of keys kept per window.
const KEPT: usize = 1024;

/// The samples of one compute server since they were last taken.
#[derive(Debug)]
pub struct LoadSamples<K>(Mutex<Reservoir<K>>);

#[derive(Debug)]
struct Reservoir<K> {
    seen: u64,
    keys: Vec<K>,
    random: u64,
}

/// The sampled load of one compute server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledLoad<K> {
    /// Number of sampled operations.
    pub samples: u64,
    /// The keys of some of them, ascending. A frequent key occurs several times.
    pub keys: Vec<K>,
}

impl<K> Default for SampledLoad<K> {
    fn default() -> Self {
        Self { samples: 0, keys: Vec::new() }
    }
}

impl<K> Default for LoadSamples<K> {
    fn default() -> Self {
        Self(Mutex::new(Reservoir { seen: 0, keys: Vec::new(), random: 0x9E37_79B9_7F4A_7C15 }))
    }
}

impl<K: Clone + Ord> LoadSamples<K> {
    /// Records a sampled operation on `key`.
    #[cold]
    pub fn note<Q: ?Sized + ToOwned<Owned = K>>(&self, key: &Q) {
        let mut reservoir = lock(&self.0);
        reservoir.seen += 1;
        if reservoir.keys.len() < KEPT {
            reservoir.keys.push(key.to_owned());
            return;
        }
        // The n-th sample replaces a kept one with probability KEPT / n (Vitter's algorithm R).
        let mut random = reservoir.random;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        reservoir.random = random;
        let place = (random % reservoir.seen) as usize;
        if let Some(kept) = reservoir.keys.get_mut(place) {
            *kept = key.to_owned();
        }
    }

    /// Returns the load since the last call and starts a new window.
    pub fn take(&self) -> SampledLoad<K> {
        let (samples, mut keys) = {
            let mut reservoir = lock(&self.0);
            (std::mem::take(&mut reservoir.seen), std::mem::take(&mut reservoir.keys))
        };
        keys.sort_unstable();
        SampledLoad { samples, keys }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn all_operations_have_the_same_chance_to_be_kept() {
        let samples = LoadSamples::default();
        (0..100_000_u64).for_each(|key| samples.note(&key));
        let load = samples.take();
        assert_eq!((load.samples, load.keys.len()), (100_000, KEPT));
        assert!(load.keys.is_sorted());
        for quarter in 0..4 {
            let within = |key: &&u64| (quarter * 25_000..(quarter + 1) * 25_000).contains(*key);
            let kept = load.keys.iter().filter(within).count();
            assert!((KEPT / 5..KEPT * 3 / 10).contains(&kept), "{kept} of quarter {quarter}");
        }
        assert_eq!(samples.take(), SampledLoad::default());
    }
}
