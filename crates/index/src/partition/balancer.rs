//! The task that balances load: it takes the samples of each window, asks the policy, and moves
//! keys accordingly.
//!
//! *Thread safety*: belongs to its handle's thread. Run only one per index: two would undo each
//! other's moves.

use super::{BalancePolicy, PartitionMap, SampledLoad};
use crate::{BalanceOptions, IndexError, ReshapeCost};
use farleaf_fabric::Fabric;
use std::collections::BTreeMap;
use std::future::Future;

/// Longest sleep, in nanoseconds. It limits how long the task takes to notice that it should end.
const POLL_INTERVAL_NS: u64 = 10_000_000;
/// How long a compute server has to be back, without keys, until it gets some again.
const BACK_FOR_NS: u64 = 10_000_000_000;

/// The compute servers that a balancer moves keys between.
pub trait BalanceTarget {
    /// The endpoint's type.
    type Fabric: Fabric;
    /// The type of keys.
    type Key: Clone + Ord;

    /// The endpoint, for its clock.
    fn fabric(&self) -> &Self::Fabric;

    /// The newest known map.
    fn newest_map(&self) -> PartitionMap<Self::Key>;

    /// Settles unknown outcomes, as far as possible now.
    fn settle_all(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Takes the load of each compute server since the last call, by number. `None` if an owner of
    /// keys does not answer.
    fn loads(&self) -> impl Future<Output = Option<Vec<SampledLoad<Self::Key>>>>;

    /// Whether a compute server is there, as far as is known.
    fn is_present(&self, compute_server: u16) -> bool {
        let _ = compute_server;
        true
    }

    /// The fences of the leaf of `key`, which `owner` owns.
    fn fences(
        &self,
        owner: u16,
        key: &Self::Key,
    ) -> impl Future<Output = Result<(Self::Key, Option<Self::Key>), IndexError>>;

    /// Moves the keys beyond the boundary nearest to `at`.
    fn move_keys(
        &self,
        from: u16,
        to: u16,
        at: &Self::Key,
    ) -> impl Future<Output = Result<ReshapeCost, IndexError>>;
}

/// A balancer of one index.
#[derive(Debug)]
pub struct Balancer<'a, T: BalanceTarget> {
    target: &'a T,
    window_ns: u64,
    policy: BalancePolicy<T::Key>,
    /// The owners of keys when one of them did not answer.
    missed: Vec<u16>,
    /// Those of them whose keys others have taken over, and for how many windows each has been
    /// back.
    lost: BTreeMap<u16, u64>,
}

impl<'a, T: BalanceTarget> Balancer<'a, T> {
    /// Creates a balancer that has seen no load.
    pub fn new(target: &'a T, options: BalanceOptions) -> Self {
        let (missed, lost) = (Vec::new(), BTreeMap::new());
        let window_ns = options.window_ns.max(1);
        Self { target, window_ns, policy: BalancePolicy::new(options), missed, lost }
    }

    /// Balances until `ended` returns true. Reports every move and every failed attempt to
    /// `report`. After a failed attempt, nothing has moved and the next attempt is delayed.
    pub async fn run(
        &mut self,
        ended: impl Fn() -> bool,
        report: impl Fn(Result<ReshapeCost, IndexError>),
    ) {
        let fabric = self.target.fabric();
        drop(self.target.loads().await);
        let mut due_ns = fabric.now_ns() + self.window_ns;
        while !ended() {
            let now_ns = fabric.now_ns();
            if now_ns < due_ns {
                fabric.sleep((due_ns - now_ns).min(POLL_INTERVAL_NS)).await;
                continue;
            }
            // If something cannot be settled now, the next window tries again.
            self.target.settle_all().await;
            if let Some(outcome) = self.look().await.transpose() {
                report(outcome);
            }
            due_ns = fabric.now_ns() + self.window_ns;
        }
    }

    /// A compute server whose keys others have taken over gets some again when it is back. One that
    /// was drained does not: it answered until its keys had left.
    fn note_returned(&mut self, map: &PartitionMap<T::Key>) {
        for server in std::mem::take(&mut self.missed) {
            self.lost.entry(server).or_default();
        }
        self.lost.retain(|server, _| !map.owners().contains(server));
        for (server, windows) in &mut self.lost {
            *windows = if self.target.is_present(*server) { *windows + 1 } else { 0 };
        }
        let wanted = BACK_FOR_NS.div_ceil(self.window_ns);
        let returned = self.lost.iter().filter(|(_, windows)| **windows >= wanted);
        self.policy.returned(returned.map(|(server, _)| *server).collect());
    }

    /// Takes the samples since the last call, and moves keys if that is useful.
    ///
    /// # Errors
    /// Those of [`BalanceTarget::move_keys`]; nothing has moved in that case.
    pub async fn look(&mut self) -> Result<Option<ReshapeCost>, IndexError> {
        let (target, map) = (self.target, self.target.newest_map());
        // A server that does not answer looks idle, but must not receive keys.
        let Some(loads) = target.loads().await else {
            self.missed = map.owners().to_vec();
            return Ok(None);
        };
        self.note_returned(&target.newest_map());
        let proposals = self.policy.look(&map, loads);
        for proposal in &proposals {
            let fences = target.fences(proposal.from, &proposal.near).await.map(|(low, high)| {
                let range = map.range_of(proposal.from);
                self.policy.choose(proposal, &range, [Some(low), high].into_iter().flatten())
            });
            let moved = match fences {
                Ok(None) => continue,
                Ok(Some(at)) => target.move_keys(proposal.from, proposal.to, &at).await,
                Err(error) => Err(error),
            };
            return match moved {
                Ok(moved) => {
                    self.policy.moved(proposal.from, proposal.to);
                    Ok(Some(moved))
                }
                Err(error) => {
                    self.policy.failed();
                    Err(error)
                }
            };
        }
        if !proposals.is_empty() {
            self.policy.refused();
        }
        Ok(None)
    }
}
