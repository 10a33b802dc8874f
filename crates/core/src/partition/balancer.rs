//! The task that balances load: it takes the samples of each window, asks the policy, and moves
//! keys accordingly.
//!
//! *Thread safety*: belongs to its handle's thread. Run only one for an index: two would undo each
//! other's moves.

use super::{BalancePolicy, RoutedIndex};
use crate::index::{IndexError, RangeIndex, Reshaped};
use crate::page::Layout;
use farleaf_fabric::Fabric;

/// Longest sleep, in nanoseconds. It bounds how late the task notices that it should end.
const NAP_NS: u64 = 10_000_000;

/// A balancer of one index.
#[derive(Debug)]
pub struct Balancer<'a, F: Fabric, L: Layout> {
    index: &'a RoutedIndex<F, L>,
    policy: BalancePolicy<L::Key>,
}

impl<'a, F: Fabric, L: Layout> Balancer<'a, F, L> {
    /// Creates a balancer that has seen no load, with the options of the index.
    pub fn new(index: &'a RoutedIndex<F, L>) -> Self {
        Self { index, policy: BalancePolicy::new(index.pool.options().balance.clone()) }
    }

    /// Balances until `ended`. Reports every move and every failed attempt to `report`. After a
    /// failed attempt nothing has moved, and the next attempt comes later.
    pub async fn run(
        &mut self,
        ended: impl Fn() -> bool,
        report: impl Fn(Result<Reshaped, IndexError>),
    ) {
        let fabric = self.index.pages.fabric();
        let window_ns = self.index.pool.options().balance.window_ns.max(1);
        self.index.pool.servers().iter().for_each(|server| drop(server.samples().take()));
        let mut due_ns = fabric.now_ns() + window_ns;
        while !ended() {
            let now_ns = fabric.now_ns();
            if now_ns < due_ns {
                fabric.sleep((due_ns - now_ns).min(NAP_NS)).await;
                continue;
            }
            // What cannot be settled now is tried again in the next window.
            let _ = self.index.settle().await;
            if let Some(outcome) = self.look().await.transpose() {
                report(outcome);
            }
            due_ns = fabric.now_ns() + window_ns;
        }
    }

    /// Takes the samples since the last call, and moves keys if that is useful.
    ///
    /// # Errors
    /// Those of [`RoutedIndex::move_keys`]. Nothing has moved then.
    pub async fn look(&mut self) -> Result<Option<Reshaped>, IndexError> {
        let index = self.index;
        let (map, servers) = (index.pool.map(), index.pool.servers());
        let loads = servers.iter().map(|server| server.samples().take()).collect();
        let proposals = self.policy.look(&map, loads);
        for proposal in &proposals {
            let giver = &index.parts[usize::from(proposal.from)].index;
            let fences = giver.fences(&proposal.near).await.map(|(low, high)| {
                let range = map.range_of(proposal.from);
                self.policy.choose(proposal, &range, [Some(low), high].into_iter().flatten())
            });
            let moved = match fences {
                Ok(None) => continue,
                Ok(Some(at)) => index.move_keys(proposal.from, proposal.to, Some(&at)).await,
                Err(error) => Err(error.into()),
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
