//! `farleaf move`, `farleaf drain` and `farleaf balance`: move keys between the compute servers of
//! a running cluster. Operations on the moving keys wait meanwhile.

use super::ClusterLocation;
use super::client::{OperationTimeout, locate};
use anyhow::{Context, bail};
use clap::Args;
use farleaf_cluster::balance::balance_until;
use farleaf_cluster::client::{ClusterClient, ClusterConnection, LocatedCluster};
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_cluster::logging::{self, LogLevel};
use farleaf_cluster::stop::StopSignal;
use farleaf_cluster::text::{Notation, Textual};
use farleaf_cluster::with_layout;
use farleaf_command_line::units;
use farleaf_index::client::drain_to;
use farleaf_index::partition::BalanceTarget;
use farleaf_index::{IndexError, RangeIndex, ReshapeCost, ScanRequest};
use farleaf_page::OwnedKey;
use farleaf_pool::wire::ErrorCode;
use futures_util::future::{Either, select};
use indicatif::ProgressBar;
use std::io::Write;
use std::ops::Bound;
use std::pin::pin;
use std::time::Duration;

/// How long to retry a move while other keys are moving or leaves merge at the boundary, and the
/// pause between attempts.
const PATIENCE_NS: u64 = 2_000_000_000;
const PAUSE_NS: u64 = 100_000_000;
/// Number of records per request when counting keys.
const COUNTED_PER_BATCH: usize = 1000;

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
    timeout: MoveTimeout,
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
    timeout: MoveTimeout,
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
    timeout: MoveTimeout,
    /// Log to stderr at this level: off, error, warn, info, debug or trace [default: $FARLEAF_LOG,
    /// or info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogLevel>,
}

/// The time until a move has to end.
#[derive(Clone, Copy)]
struct MoveDeadline {
    after: Duration,
    at_ns: u64,
}

impl MoveDeadline {
    fn from_now<L: ClusterLayout>(client: &ClusterClient<L>, after: Duration) -> Self {
        use farleaf_fabric::Fabric as _;
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Self { after, at_ns: client.fabric().now_ns().saturating_add(after_ns) }
    }

    /// The outcome of `work`, or `late` if it does not end by the deadline.
    async fn bounds<L: ClusterLayout, T>(
        self,
        client: &ClusterClient<L>,
        work: impl Future<Output = Result<T, IndexError>>,
        late: impl FnOnce() -> String,
    ) -> anyhow::Result<T> {
        use farleaf_fabric::Fabric as _;
        let left_ns = self.at_ns.saturating_sub(client.fabric().now_ns());
        match select(pin!(work), pin!(client.fabric().sleep(left_ns))).await {
            Either::Left((outcome, _)) => Ok(outcome?),
            Either::Right(_) => {
                let seconds = self.after.as_secs_f64();
                bail!("{} within --deadline-seconds {seconds}", late())
            }
        }
    }
}

/// What is said of a move that has not ended by its deadline.
fn is_unknown() -> String {
    "it is not known whether the keys have moved, which `farleaf status` shows: nothing was heard"
        .to_owned()
}

/// How long a move may take.
#[derive(Clone, Debug, Args)]
struct MoveTimeout {
    /// Give up a move after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::duration)]
    deadline_seconds: Duration,
}

impl MoveTimeout {
    fn locate(&self, place: &ClusterLocation) -> anyhow::Result<LocatedCluster> {
        locate(place, &OperationTimeout::new(self.deadline_seconds), 64)
    }
}

/// The boundary key if `percent` of the keys of `from` move: the first key that stays behind,
/// counted from the end of the range that faces the taker. `None` if all move.
async fn boundary<L: ClusterLayout>(
    client: &ClusterClient<L>,
    from: u16,
    to: u16,
    percent: u8,
    counted: &ProgressBar,
) -> Result<Option<OwnedKey<L>>, IndexError> {
    let map = client.newest_map();
    // Report an impossible move before counting.
    map.plan(from, to, None)?;
    if percent == 100 {
        return Ok(None);
    }
    let range = map.range_of(from);
    let upper = range.high.map_or(Bound::Unbounded, Bound::Excluded);
    let mut keys = Vec::new();
    let mut lower = Bound::Included(range.low);
    loop {
        let scan = ScanRequest::range((lower, upper.clone())).limit(COUNTED_PER_BATCH);
        let records = client.scan(&scan).await?;
        let is_full = records.len() == COUNTED_PER_BATCH;
        keys.extend(records.into_iter().map(|(key, _)| key));
        counted.set_position(keys.len() as u64);
        match keys.last() {
            Some(last) if is_full => lower = Bound::Excluded(last.clone()),
            _ => break,
        }
    }
    let place = |owner: u16| map.owners().iter().position(|other| *other == owner);
    let goes_down = place(to).is_some_and(|to| Some(to) < place(from));
    let moving = keys.len() * usize::from(percent) / 100;
    let first = if goes_down { moving } else { keys.len() - moving };
    let what = "there are too few keys to move a part of them";
    keys.get(first).cloned().map(Some).ok_or(IndexError::InvalidArgument(what))
}

/// Moves keys. Retries while another move or a merge prevents this.
async fn move_patiently<L: ClusterLayout>(
    client: &ClusterClient<L>,
    from: u16,
    to: u16,
    near: Option<&L::Key>,
) -> Result<ReshapeCost, IndexError> {
    use farleaf_fabric::Fabric as _;
    let until_ns = client.fabric().now_ns() + PATIENCE_NS;
    loop {
        let outcome = client.move_keys(from, to, near).await;
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

fn tell<L: ClusterLayout>(
    client: &ClusterClient<L>,
    from: u16,
    to: u16,
    moved: &ReshapeCost,
) -> anyhow::Result<()> {
    let map = client.newest_map();
    let range = map.range_of(to);
    let text = |key: &OwnedKey<L>| L::key(key).text(Notation::Escaped);
    let high = range.high.as_ref().map_or(String::new(), text);
    writeln!(
        std::io::stdout(),
        "keys moved from compute server {from} to {to} in {:.1} ms: {to} owns {}..{high} in map epoch {}",
        moved.took_ns as f64 / 1e6,
        text(&range.low),
        map.epoch()
    )?;
    Ok(())
}

/// Runs `farleaf move`.
pub(crate) fn move_keys(arguments: &MoveArguments) -> anyhow::Result<()> {
    let MoveArguments { from, to, percent, .. } = *arguments;
    let located = arguments.timeout.locate(&arguments.place)?;
    let within = arguments.timeout.deadline_seconds;
    with_layout!(located.layout(), L => {
        move_part::<L>(&located.connect()?, (from, to), percent, within)
    })
}

fn move_part<L: ClusterLayout>(
    connection: &ClusterConnection<L>,
    (from, to): (u16, u16),
    percent: u8,
    within: Duration,
) -> anyhow::Result<()> {
    connection.run(async |client| -> anyhow::Result<()> {
        let deadline = MoveDeadline::from_now(&client, within);
        let moved = async {
            let counted = farleaf_command_line::output::bar("keys counted", None);
            let counting = boundary::<L>(&client, from, to, percent, &counted);
            let late = || {
                let counted = farleaf_command_line::output::grouped(counted.position());
                format!("nothing has moved: only {counted} keys were counted")
            };
            let near = deadline.bounds(&client, counting, late).await;
            counted.finish_and_clear();
            let near = near?;
            let near = near.as_ref().map(L::key);
            let moving = move_patiently::<L>(&client, from, to, near);
            deadline.bounds(&client, moving, is_unknown).await
        };
        let moved = moved.await.with_context(|| format!("cannot move keys from {from} to {to}"))?;
        tell::<L>(&client, from, to, &moved)
    })
}

/// Runs `farleaf drain`.
pub(crate) fn drain(arguments: &DrainArguments) -> anyhow::Result<()> {
    let located = arguments.timeout.locate(&arguments.place)?;
    let within = arguments.timeout.deadline_seconds;
    with_layout!(located.layout(), L => drain_one::<L>(&located.connect()?, arguments.number, within))
}

fn drain_one<L: ClusterLayout>(
    connection: &ClusterConnection<L>,
    number: u16,
    within: Duration,
) -> anyhow::Result<()> {
    connection.run(async |client| -> anyhow::Result<()> {
        let map = client.newest_map();
        if !map.owners().contains(&number) {
            writeln!(std::io::stdout(), "compute server {number} owns no keys")?;
            return Ok(());
        }
        let Some(to) = drain_to(&map, number) else {
            bail!("compute server {number} owns all keys: there is no other to move them to");
        };
        let moving = move_patiently::<L>(&client, number, to, None);
        let deadline = MoveDeadline::from_now(&client, within);
        let moved = deadline.bounds(&client, moving, is_unknown).await;
        let moved = moved.with_context(|| format!("cannot drain compute server {number}"))?;
        tell::<L>(&client, number, to, &moved)
    })
}

/// Runs `farleaf balance`.
pub(crate) fn balance(arguments: &BalanceArguments) -> anyhow::Result<()> {
    let level = LogLevel::choose(arguments.log);
    logging::start(level.map_err(farleaf_cluster::config::ConfigError::Settings)?);
    let stop = StopSignal::on_signals().context("cannot catch signals")?;
    // If the cluster cannot be found, fail. If it goes away later, wait for it.
    let locate = || arguments.timeout.locate(&arguments.place);
    let located = locate()?;
    with_layout!(located.layout(), L => {
        drop(located.connect::<L>()?);
        balance_until(|| Ok::<_, anyhow::Error>(locate()?.connect::<L>()?), &stop);
    });
    Ok(())
}
