//! `farleaf torture`: clients change a running cluster while its servers are killed and stopped.
//! Then every operation must be explained: the history of each key is checked for linearizability
//! by the simulator's checker.
//!
//! *Thread safety*: each client has a thread of its own. The calling thread injects the faults.

mod faults;
mod lines;
#[cfg(test)]
mod model_tests;
mod verdict;
mod workload;

use super::client::{OperationTimeout, locate};
use super::{ClusterLocation, duration};
use crate::heartbeat::Heartbeat;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use farleaf_cluster::catalog::{Catalog, open};
use farleaf_cluster::client::ClusterConnection;
use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::launch::{LauncherFolder, ServerKind};
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_cluster::records::CatalogKeys;
use farleaf_cluster::status::ClusterStatus;
use farleaf_cluster::stop::StopSignal;
use farleaf_cluster::with_layout;
use farleaf_command_line::output::{JsonTarget, grouped};
use farleaf_command_line::{units, usage};
use farleaf_index::{ByName, IndexError, RangeIndex, ScanRequest};
use farleaf_page::NamedLayout;
use faults::{FaultInjector, FaultSchedule};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use verdict::{TortureVerdict, judge};
use workload::{ContentsRead, TortureNames, TortureRun};

/// Options of `farleaf torture`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farleaf cluster --dir /tmp/farleaf --transport tcp --memory-servers 1 \
    --compute-servers 2 --restart --max-restarts 60\n  farleaf torture --dir /tmp/farleaf --seconds 60 --kill compute\n\n\
    The index must be empty; `farleaf client clear` empties it. The last line is `N operations, K kills, \
    U unknown, 0 lost: linearizable`, or says how many keys have operations that no order explains. \
    Ctrl-C ends the clients early; what they have done is checked.\n\n\
    Exit codes: 0 linearizable, 1 not, or the cluster does not serve, 2 invalid command line or file, or an index \
    that is not empty."
)]
pub(crate) struct TortureArguments {
    /// Torture the cluster in this folder of `farleaf cluster`
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// Use the cluster of this name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// Run the clients for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    seconds: Duration,
    /// Run this many clients, each with its own connections
    #[arg(long, value_name = "N", default_value = "8", value_parser = units::limited::<usize>(1, 64))]
    clients: usize,
    /// Use this many keys, spread evenly over all keys
    #[arg(long, value_name = "N", default_value = "1000", value_parser = units::limited::<u64>(1, 100_000))]
    keys: u64,
    /// Kill servers of these kinds (compute, memory), 0.1 to 3 lease terms apart; the cluster needs
    /// --restart, but for compute servers whose keys others take over
    #[arg(long, value_name = "KIND,KIND", value_delimiter = ',', value_parser = server_kind)]
    kill: Vec<ServerKind>,
    /// Stop servers of these kinds for 0.1 to 3 lease terms
    #[arg(long, value_name = "KIND,KIND", value_delimiter = ',', value_parser = server_kind)]
    stop: Vec<ServerKind>,
    /// Seed the random numbers of clients and faults
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    seed: u64,
    /// Write the history to this file, one JSON object per operation and line, or with `-` to
    /// stdout (the rest then goes to stderr)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    timeout: OperationTimeout,
}

/// How long the servers may take to serve again after the last fault.
const SERVE_WITHIN: Duration = Duration::from_secs(60);
/// How much longer than an operation's deadline the last operations may take, on a busy machine.
const CLIENT_MARGIN: Duration = Duration::from_secs(15);
/// Poll interval of these waits, and of the schedule of faults.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often gets, scans and the count are compared. A change of unknown outcome may come between
/// them.
const MAX_COMPARISONS: usize = 3;
/// Pause between two comparisons.
const COMPARISON_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of unexplained keys that are shown.
const MAX_SHOWN: usize = 3;

/// Parses a kind of servers.
fn server_kind(text: &str) -> Result<ServerKind, String> {
    let kinds = [ServerKind::Compute, ServerKind::Memory];
    let kind = kinds.into_iter().find(|kind| kind.to_string() == text);
    kind.ok_or_else(|| "expected compute or memory".to_owned())
}

/// A cluster whose catalog answers.
struct TorturedCluster {
    catalog: Arc<dyn Catalog>,
    keys: CatalogKeys,
}

impl TorturedCluster {
    fn status(&self) -> Result<ClusterStatus, String> {
        ClusterStatus::read(&*self.catalog, &self.keys).map_err(|error| error.to_string())
    }

    /// Waits until the cluster serves, with a new process for each killed server.
    fn await_serving(&self, faults: &FaultInjector) -> Result<(), String> {
        let (clock, never) = (MonotonicClock::start(), StopSignal::default());
        let mut missing = String::new();
        while clock.elapsed() < SERVE_WITHIN {
            let why = match self.status() {
                Ok(standing) => {
                    let not_yet = faults.not_restarted(&standing);
                    not_yet.or_else(|| standing.missing().into_iter().next())
                }
                Err(error) => Some(error),
            };
            match why {
                None => return Ok(()),
                Some(why) => missing = why,
            }
            never.wait(POLL_INTERVAL);
        }
        Err(format!(
            "the cluster does not serve {} s after the end: {missing}",
            SERVE_WITHIN.as_secs()
        ))
    }
}

/// Runs clients against a cluster and checks what they saw. Returns whether it is linearizable.
pub(crate) fn run(arguments: &TortureArguments) -> anyhow::Result<bool> {
    let place = ClusterLocation::of_folder(&arguments.dir, &arguments.cluster);
    let located = locate(&place, &arguments.timeout, 64)?;
    let folder = LauncherFolder(arguments.dir.clone());
    let launcher = folder.launcher()?;
    let is_compute = |kind: &ServerKind| *kind == ServerKind::Compute;
    let goes_on = launcher.takeover && arguments.kill.iter().all(is_compute);
    if !arguments.kill.is_empty() && !launcher.restart && !goes_on {
        let dir = arguments.dir.display();
        return usage(format!(
            "--kill needs a cluster that restarts servers: the one in {dir} was started without --restart"
        ));
    }
    let (address, token) = place.find()?;
    let cluster = TorturedCluster { catalog: open(&address, &token)?, keys: place.keys()? };
    let standing = cluster.status().map_err(anyhow::Error::msg)?;
    if let Some(first) = standing.missing().first() {
        bail!("the cluster does not serve: {first}");
    }
    if standing.compute.is_empty() {
        bail!("the cluster has no compute servers, and so no index");
    }
    let schedule = FaultSchedule {
        kill: arguments.kill.clone(),
        stop: arguments.stop.clone(),
        seed: arguments.seed,
    };
    let faults = FaultInjector::new(folder, launcher, schedule, &standing);
    with_layout!(located.layout(), L => {
        torture::<L>(arguments, &cluster, located.connect()?, faults)
    })
}

fn torture<L: ClusterLayout + NamedLayout>(
    arguments: &TortureArguments,
    cluster: &TorturedCluster,
    connection: ClusterConnection<L>,
    mut faults: FaultInjector,
) -> anyhow::Result<bool> {
    let stop = StopSignal::on_signals().context("cannot catch signals")?;
    let is_empty = connection.run(async |client| {
        let first = client.scan(&ScanRequest::range(..).limit(1)).await?;
        Ok::<_, IndexError>(first.is_empty())
    });
    if !is_empty.context("cannot read the index")? {
        return usage(format!(
            "the index is not empty, and torture changes only an index of its own: empty it with \
             `farleaf client --dir {} clear`",
            arguments.dir.display()
        ));
    }
    let json = JsonTarget::open(arguments.json.as_deref())?;
    let heartbeat = Heartbeat::begin("torture");
    let bar = heartbeat.bar("torture", None);
    let run = Arc::new(TortureRun::new(arguments.keys, arguments.seed, arguments.seconds));
    let connection = Arc::new(connection);
    let clients = {
        let (connection, run, clients) =
            (Arc::clone(&connection), Arc::clone(&run), arguments.clients);
        let thread = std::thread::Builder::new().name("clients".to_owned());
        thread.spawn(move || {
            connection.run_all(clients, async |client, number| {
                run.work(&ByName::<L, _, _>::with(client, TortureNames), number).await;
                Ok::<_, IndexError>(())
            })
        })
    };
    let clients = clients.context("cannot start the clients' thread")?;
    while run.elapsed() < arguments.seconds && !clients.is_finished() {
        faults.advance(run.elapsed());
        bar.set_message(format!("{}, {}", run.progress(), faults.progress()));
        if stop.wait(POLL_INTERVAL) {
            break;
        }
    }
    faults.end();
    run.end();
    bar.set_message(format!("waiting for the last operations, {}", faults.progress()));
    let stuck = await_clients(&clients, arguments.timeout.seconds());
    if stuck.is_none() {
        let outcomes = clients.join().map_err(|_| anyhow!("a client's thread has failed"))?;
        outcomes.into_iter().collect::<Result<Vec<_>, _>>().context("cannot run the clients")?;
    }

    bar.set_message("waiting until the cluster serves again");
    let mut trouble = cluster.await_serving(&faults).err();
    if trouble.is_none() {
        bar.set_message("reading every key");
        let read = connection.run(async |client| {
            read_all_ways(&run, &ByName::<L, _, _>::with(client, TortureNames), arguments.clients)
                .await
        });
        match read.context("cannot read the keys") {
            Ok((contents, difference)) => {
                json.say(&contents.summary())?;
                trouble = difference;
            }
            Err(error) => trouble = Some(farleaf_command_line::output::causes(&error)),
        }
    }
    // A client that still waits uses the recorder.
    let history = if stuck.is_none() { run.take() } else { run.so_far() };
    let trouble = stuck.or(trouble);
    bar.set_message("checking the history");
    lines::write(&history, json_writer(&json)?)?;
    let verdict = judge(&history);
    bar.finish_and_clear();
    drop(heartbeat);
    conclude(&json, &run, &faults, &verdict, trouble)
}

/// Waits until all clients have ended. Says so if they do not: every operation has a deadline.
fn await_clients<T>(clients: &JoinHandle<T>, deadline: Duration) -> Option<String> {
    let (clock, never) = (MonotonicClock::start(), StopSignal::default());
    let within = deadline + CLIENT_MARGIN;
    while !clients.is_finished() {
        if clock.elapsed() > within {
            let (deadline, within) = (deadline.as_secs_f64(), within.as_secs_f64());
            return Some(format!(
                "clients have not ended after {within} s, and the deadline of an operation is {deadline} s"
            ));
        }
        never.wait(POLL_INTERVAL);
    }
    None
}

/// Reads every key by get and by scans in both directions. Also returns how they differ, if they
/// still do at the last comparison.
async fn read_all_ways(
    run: &TortureRun,
    index: &impl RangeIndex<Key = u64, Value = u64>,
    number: usize,
) -> Result<(ContentsRead, Option<String>), IndexError> {
    let never = StopSignal::default();
    let mut left = MAX_COMPARISONS;
    loop {
        let contents = run.read_all(index, number).await?;
        let difference = contents.difference();
        left -= 1;
        if difference.is_none() || left == 0 {
            return Ok((contents, difference));
        }
        never.wait(COMPARISON_PAUSE);
    }
}

/// Where the history goes, if anywhere.
fn json_writer(json: &JsonTarget) -> anyhow::Result<Option<Box<dyn std::io::Write>>> {
    Ok(match json {
        JsonTarget::None => None,
        JsonTarget::Stdout => Some(Box::new(std::io::stdout().lock())),
        JsonTarget::File(file, path) => {
            let file =
                file.try_clone().with_context(|| format!("cannot write {}", path.display()))?;
            Some(Box::new(file))
        }
    })
}

/// Prints what was found; returns whether all is well.
fn conclude(
    json: &JsonTarget,
    run: &TortureRun,
    faults: &FaultInjector,
    verdict: &TortureVerdict,
    trouble: Option<String>,
) -> anyhow::Result<bool> {
    if let Some(paced) = run.paced() {
        json.say(&paced)?;
    }
    json.say(&format!("{}; {}", faults.progress(), run.dropped()))?;
    for explanation in verdict.explanations.iter().take(MAX_SHOWN) {
        json.say(explanation)?;
    }
    if let Some(more) = verdict.explanations.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
        json.say(&format!("{} more are not shown", grouped(more as u64)))?;
    }
    if let Some(trouble) = &trouble {
        json.say(trouble)?;
    }
    json.say(&verdict.last_line(faults.kills(), trouble.is_some()))?;
    if verdict.operations == 0 {
        bail!("no operation was answered: {}", run.last_error());
    }
    Ok(verdict.holds() && trouble.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: TortureArguments,
    }

    fn parsed(words: &[&str]) -> Result<TortureArguments, String> {
        let line = ["torture", "--dir", "/d"].iter().chain(words);
        Line::try_parse_from(line).map(|line| line.arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let arguments = parsed(&["--seconds", "3"]).unwrap();
        assert_eq!((arguments.clients, arguments.keys, arguments.seed), (8, 1000, 1));
        assert_eq!(arguments.seconds, Duration::from_secs(3));
        assert!(arguments.kill.is_empty() && arguments.stop.is_empty());
        let both = parsed(&["--seconds", "3", "--kill", "compute,memory", "--stop", "compute"]);
        let both = both.unwrap();
        assert_eq!(both.kill, [ServerKind::Compute, ServerKind::Memory]);
        assert_eq!(both.stop, [ServerKind::Compute]);
    }

    #[test]
    fn bad_arguments_are_refused() {
        for (words, why) in [
            (&[][..], "--seconds"),
            (&["--seconds", "0"], "expected a number of seconds"),
            (&["--seconds", "-1"], "-1"),
            (&["--seconds", "1", "--kill", "disk"], "expected compute or memory"),
            (&["--seconds", "1", "--kill", "compute,"], "expected compute or memory"),
            (&["--seconds", "1", "--stop", "Memory"], "expected compute or memory"),
            (&["--seconds", "1", "--clients", "0"], "0 is not in 1..=64"),
            (&["--seconds", "1", "--clients", "65"], "65 is not in 1..=64"),
            (&["--seconds", "1", "--keys", "0"], "0 is not in 1..=100000"),
            (&["--seconds", "1", "--seed", "x"], "expected a whole number"),
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.contains(why), "{words:?}: {error}");
        }
    }
}
