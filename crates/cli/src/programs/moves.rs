//! `farleaf move`, `farleaf drain` and `farleaf balance`: move keys between the compute servers of
//! a running cluster. Operations on the moving keys wait meanwhile.

use super::ClusterLocation;
use super::client::{Patience, connect};
use crate::units;
use anyhow::{Context, bail};
use clap::Args;
use farleaf_cluster::balance::balance_until;
use farleaf_cluster::client::{Client, Connection};
use farleaf_cluster::logging::{self, Level};
use farleaf_cluster::stop::Stop;
use farleaf_core::client::drain_to;
use farleaf_core::index::{IndexError, RangeIndex, Reshaped, Scan};
use farleaf_core::partition::BalanceTarget;
use farleaf_core::wire::ErrorCode;
use std::io::Write;
use std::ops::Bound;
use std::time::Duration;

/// How long to retry a move while other keys are moving or leaves merge at the boundary, and the
/// pause between attempts.
const PATIENCE_NS: u64 = 2_000_000_000;
const PAUSE_NS: u64 = 100_000_000;
/// Records per request while keys are counted.
const COUNTED_TOGETHER: usize = 1000;

/// Options of `farleaf move`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farleaf move --dir /tmp/farleaf 0 1 25\n\nThe two compute servers must own neighbouring \
    ranges, or the second owns nothing. Exit codes: 0 the keys have moved, 1 they have not, 2 invalid command line."
)]
pub(crate) struct MoveArguments {
    #[command(flatten)]
    place: ClusterLocation,
    #[command(flatten)]
    patience: LongPatience,
    /// Move keys away from the compute server of this number
    from: u16,
    /// Move them to the compute server of this number
    to: u16,
    /// Move this share of the keys of FROM, in percent; counts them first unless all move
    #[arg(default_value = "100", value_parser = units::limited::<u8>(1, 100))]
    percent: u8,
}

/// Options of `farleaf drain`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farleaf drain --dir /tmp/farleaf 1\n\nThe keys go to a neighbour. The compute server runs \
    on without keys, and can be stopped. Exit codes: 0 it owns no keys, 1 it still owns some, 2 invalid command line."
)]
pub(crate) struct DrainArguments {
    #[command(flatten)]
    place: ClusterLocation,
    #[command(flatten)]
    patience: LongPatience,
    /// Move all keys away from the compute server of this number
    number: u16,
}

/// Options of `farleaf balance`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farleaf balance --dir /tmp/farleaf\n\nRun one for a cluster; `farleaf cluster --balance` \
    runs one by itself. It ends on SIGTERM and SIGINT."
)]
pub(crate) struct BalanceArguments {
    #[command(flatten)]
    place: ClusterLocation,
    #[command(flatten)]
    patience: LongPatience,
    /// Log to stderr at this level: off, error, warn, info, debug or trace [default: $FARLEAF_LOG,
    /// or info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<Level>,
}

/// How long a move may take.
#[derive(Clone, Debug, Args)]
struct LongPatience {
    /// Give up a move after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::duration)]
    deadline_seconds: Duration,
}

impl LongPatience {
    fn connect(&self, place: &ClusterLocation) -> anyhow::Result<Connection> {
        connect(place, &Patience::new(self.deadline_seconds), 64)
    }
}

/// The first key, counted from the end of the range that faces the taker, that stays behind when
/// `percent` of the keys of `from` move; `None` if all move.
async fn boundary(
    client: &Client,
    from: u16,
    to: u16,
    percent: u8,
) -> Result<Option<u64>, IndexError> {
    let map = client.newest_map();
    // Reports a move that is impossible before counting.
    map.plan(from, to, None)?;
    if percent == 100 {
        return Ok(None);
    }
    let range = map.range_of(from);
    let upper = range.high.map_or(Bound::Unbounded, Bound::Excluded);
    let mut keys = Vec::new();
    let mut lower = Bound::Included(range.low);
    loop {
        let scan = Scan::range((lower, upper)).limit(COUNTED_TOGETHER);
        let records = client.scan(&scan).await?;
        keys.extend(records.iter().map(|(key, _)| *key));
        match records.last() {
            Some((last, _)) if records.len() == COUNTED_TOGETHER => lower = Bound::Excluded(*last),
            _ => break,
        }
    }
    let place = |owner: u16| map.owners().iter().position(|other| *other == owner);
    let goes_down = place(to).is_some_and(|to| Some(to) < place(from));
    let moving = keys.len() * usize::from(percent) / 100;
    let first = if goes_down { moving } else { keys.len() - moving };
    let what = "there are too few keys to move a part of them";
    keys.get(first).copied().map(Some).ok_or(IndexError::InvalidArgument(what))
}

/// Moves keys. Retries while another move or a merge prevents it.
async fn move_patiently(
    client: &Client,
    from: u16,
    to: u16,
    near: Option<u64>,
) -> Result<Reshaped, IndexError> {
    use farleaf_fabric::Fabric as _;
    let until_ns = client.fabric().now_ns() + PATIENCE_NS;
    loop {
        let outcome = client.move_keys(from, to, near.as_ref()).await;
        let is_in_the_way = matches!(
            outcome,
            Err(IndexError::Contended { .. }
                | IndexError::NotServed { code: ErrorCode::Unavailable, .. })
        );
        if !is_in_the_way || client.fabric().now_ns() >= until_ns {
            return outcome;
        }
        client.fabric().sleep(PAUSE_NS).await;
    }
}

fn tell(client: &Client, from: u16, to: u16, moved: &Reshaped) -> anyhow::Result<()> {
    let map = client.newest_map();
    let range = map.range_of(to);
    let high = range.high.map_or(String::new(), |high| high.to_string());
    writeln!(
        std::io::stdout(),
        "keys moved from compute server {from} to {to} in {:.1} ms: {to} owns {}..{high} in map epoch {}",
        moved.took_ns as f64 / 1e6,
        range.low,
        map.epoch()
    )?;
    Ok(())
}

/// Runs `farleaf move`.
pub(crate) fn move_keys(arguments: &MoveArguments) -> anyhow::Result<()> {
    let MoveArguments { from, to, percent, .. } = *arguments;
    let connection = arguments.patience.connect(&arguments.place)?;
    connection.run(async |client| -> anyhow::Result<()> {
        let moved = async {
            let near = boundary(&client, from, to, percent).await?;
            move_patiently(&client, from, to, near).await
        };
        let moved = moved.await.with_context(|| format!("cannot move keys from {from} to {to}"))?;
        tell(&client, from, to, &moved)
    })
}

/// Runs `farleaf drain`.
pub(crate) fn drain(arguments: &DrainArguments) -> anyhow::Result<()> {
    let number = arguments.number;
    let connection = arguments.patience.connect(&arguments.place)?;
    connection.run(async |client| -> anyhow::Result<()> {
        let map = client.newest_map();
        if !map.owners().contains(&number) {
            writeln!(std::io::stdout(), "compute server {number} owns no keys")?;
            return Ok(());
        }
        let Some(to) = drain_to(&map, number) else {
            bail!("compute server {number} owns all keys: there is no other to move them to");
        };
        let moved = move_patiently(&client, number, to, None).await;
        let moved = moved.with_context(|| format!("cannot drain compute server {number}"))?;
        tell(&client, number, to, &moved)
    })
}

/// Runs `farleaf balance`.
pub(crate) fn balance(arguments: &BalanceArguments) -> anyhow::Result<()> {
    let level = Level::choose(arguments.log);
    logging::start(level.map_err(farleaf_cluster::config::ConfigError::Settings)?);
    let stop = Stop::on_signals().context("cannot catch signals")?;
    // A cluster that cannot be found is an error. If it goes away later, wait for it.
    drop(arguments.patience.connect(&arguments.place)?);
    balance_until(|| arguments.patience.connect(&arguments.place), &stop);
    Ok(())
}
