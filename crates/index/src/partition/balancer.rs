//! The task that balances load: it takes the samples of each window, asks the policy, and moves
//! keys accordingly.
//!
//! *Thread safety*: belongs to its handle's thread. Run only one per index: two would undo each
//! other's moves.

use super::{BalancePolicy, PartitionMap, SampledLoad};
use crate::{BalanceOptions, IndexError, ReshapeCost};
use farleaf_fabric::Fabric;
use std::future::Future;

/// Longest sleep, in nanoseconds. It limits how long the task takes to notice that it should end.
const POLL_INTERVAL_NS: u64 = 10_000_000;

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
}

impl<'a, T: BalanceTarget> Balancer<'a, T> {
    /// Creates a balancer that has seen no load.
    pub fn new(target: &'a T, options: BalanceOptions) -> Self {
        Self { target, window_ns: options.window_ns.max(1), policy: BalancePolicy::new(options) }
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

    /// Takes the samples since the last call, and moves keys if that is useful.
    ///
    /// # Errors
    /// Those of [`BalanceTarget::move_keys`]; nothing has moved in that case.
    pub async fn look(&mut self) -> Result<Option<ReshapeCost>, IndexError> {
        let (target, map) = (self.target, self.target.newest_map());
        // A server that does not answer looks idle, but must not receive keys.
        let Some(loads) = target.loads().await else { return Ok(None) };
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
