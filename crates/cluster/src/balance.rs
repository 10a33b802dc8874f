//! Balances the load of a cluster's compute servers, as one of its clients.
//!
//! *Thread safety*: [`balance_until`] occupies one thread.

use crate::client::ClusterConnection;
use crate::layouts::ClusterLayout;
use crate::stop::StopSignal;
use farleaf_index::partition::Balancer;
use farleaf_index::{BalanceOptions, IndexError, ReshapeCost};
use std::fmt::Display;
use std::time::Duration;

/// Pause before another attempt to connect.
const RECONNECT: Duration = Duration::from_secs(1);

/// Balances until `stop` is raised. Retries if the cluster cannot be reached. Run only one balancer
/// per cluster: two would undo each other's moves.
pub fn balance_until<L: ClusterLayout, E: Display>(
    connect: impl Fn() -> Result<ClusterConnection<L>, E>,
    stop: &StopSignal,
) {
    let report = |outcome: Result<ReshapeCost, IndexError>| match outcome {
        Ok(ReshapeCost { moved, took_ns, .. }) => {
            let (from, to) = moved.unwrap_or_default();
            let took = Duration::from_nanos(took_ns);
            tracing::info!("keys moved from busy compute server {from} to {to} in {took:.1?}");
        }
        Err(error) => tracing::warn!("cannot move keys from a busy compute server: {error}"),
    };
    while !stop.is_raised() {
        let outcome = connect().map_err(|error| error.to_string()).and_then(|connection| {
            let balanced = connection.run(async |client| -> Result<(), IndexError> {
                let mut balancer = Balancer::new(&client, BalanceOptions::for_processes());
                balancer.run(|| stop.is_raised(), report).await;
                Ok(())
            });
            balanced.map_err(|error| error.to_string())
        });
        if let Err(why) = outcome {
            tracing::debug!("cannot balance: {why}");
            stop.wait(RECONNECT);
        }
    }
}
