//! The map from keys to memory servers.
//!
//! *Invariant*: every key has exactly one server. *Thread safety*: immutable.

use crate::wire::TreeShare;
use farleaf_fabric::ServerId;
use farleaf_page::Layout;
use thiserror::Error;

/// Why shares do not cover the key space exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BadShares(pub &'static str);

/// How keys are divided among memory servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitioning<K> {
    /// By a hash: even for any keys, but a scan must query every server.
    Hash,
    /// By ranges: server `i` holds the keys from boundary `i - 1`, inclusive, to boundary `i`,
    /// exclusive.
    Range {
        /// Strictly ascending, above the smallest key; one fewer than there are servers.
        boundaries: Vec<K>,
    },
}

impl<K: Clone + Ord> Partitioning<K> {
    /// Each server's share.
    ///
    /// # Errors
    /// [`BadShares`] if there are too few or too many boundaries, or if they do not ascend
    /// strictly.
    pub fn shares<L: Layout<Key: ToOwned<Owned = K>>>(
        &self,
        servers: u16,
    ) -> Result<Vec<TreeShare<K>>, BadShares> {
        match self {
            Self::Hash => Ok(vec![TreeShare::Hash { servers }; usize::from(servers)]),
            Self::Range { boundaries } => {
                if boundaries.len() + 1 != usize::from(servers) {
                    let what = "range partitioning takes one boundary less than there are servers";
                    return Err(BadShares(what));
                }
                let lows = std::iter::once(L::min_key()).chain(boundaries.iter().cloned());
                let highs = boundaries.iter().cloned().map(Some).chain(std::iter::once(None));
                let shares: Vec<_> =
                    lows.zip(highs).map(|(low, high)| TreeShare::Range { low, high }).collect();
                let ascends = |share: &TreeShare<K>| match share {
                    TreeShare::Range { low, high } => high.as_ref().is_none_or(|high| low < high),
                    TreeShare::Hash { .. } => true,
                };
                if !shares.iter().all(ascends) {
                    let what = "the boundaries of a range partitioning ascend strictly";
                    return Err(BadShares(what));
                }
                Ok(shares)
            }
        }
    }
}

/// The servers' shares, in a form for looking up keys.
#[derive(Clone, Debug)]
pub enum ShareMap<K> {
    /// The server is the hash modulo the number of servers.
    Hash {
        /// The number of servers.
        servers: u16,
    },
    /// Consecutive ranges, in the order of the servers.
    Range {
        /// The lowest key of each server but the first.
        boundaries: Vec<K>,
    },
}

impl<K: Clone + Ord> ShareMap<K> {
    /// Builds the map from the servers' shares.
    ///
    /// # Errors
    /// [`BadShares`] if the shares do not cover the key space exactly.
    pub fn from_shares<L: Layout<Key: ToOwned<Owned = K>>>(
        shares: Vec<TreeShare<K>>,
    ) -> Result<Self, BadShares> {
        let misfit = BadShares("the memory servers' shares do not fit together");
        let servers = u16::try_from(shares.len()).map_err(|_| misfit)?;
        if servers > 0 && shares.iter().all(|share| *share == TreeShare::Hash { servers }) {
            return Ok(Self::Hash { servers });
        }
        let mut boundaries = Vec::new();
        let mut expected = Some(L::min_key());
        for share in shares {
            let TreeShare::Range { low, high } = share else { return Err(misfit) };
            if expected.replace(low.clone()) != Some(low) {
                return Err(misfit);
            }
            boundaries.extend(high.clone());
            expected = high;
        }
        // Only the last share has no upper bound.
        if expected.is_some() || boundaries.len() + 1 != usize::from(servers) {
            return Err(misfit);
        }
        Ok(Self::Range { boundaries })
    }

    /// The server that holds `key`.
    #[inline]
    pub fn server_of<L: Layout<Key: ToOwned<Owned = K>>>(&self, key: &L::Key) -> ServerId {
        let number = match self {
            Self::Hash { servers } => L::hash(key) % u64::from(*servers),
            Self::Range { boundaries } => {
                boundaries.partition_point(|low| L::key(low) <= key) as u64
            }
        };
        ServerId::new(number as u16)
    }

    /// All servers.
    pub fn servers(&self) -> impl DoubleEndedIterator<Item = ServerId> + use<K> {
        let count = match self {
            Self::Hash { servers } => *servers,
            Self::Range { boundaries } => boundaries.len() as u16 + 1,
        };
        (0..count).map(ServerId::new)
    }
}
