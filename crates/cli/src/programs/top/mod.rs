//! `farleaf top`: shows the load of a cluster live.
//!
//! A separate thread reads the catalog, and the servers are asked concurrently, each with a
//! timeout. So a catalog or server that does not answer does not prevent the others from being
//! shown.

mod draw;
mod figures;

use super::ClusterLocation;
use super::terminal::{AlternateScreen, SingleKeyMode};
use anyhow::Context;
use clap::Args;
use farleaf_cluster::catalog::{Catalog, open};
use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::scrape::Scraper;
use farleaf_cluster::status::ClusterStatus;
use farleaf_cluster::stop::StopSignal;
use farleaf_command_line::output::causes;
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use figures::{ClusterSample, look, rows};
use std::io::{IsTerminal, Read, Write};
use std::time::Duration;

/// Options of `farleaf top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf top --dir /tmp/farleaf\n  farleaf top --dir /tmp/farleaf --once\n\nIt reads every \
    server's /metrics, so start servers with --metrics. In a terminal q, Ctrl-C and SIGTERM end it.\n\nop/s: \
    operations of clients for a compute server, requests for a memory server. hits: leaves found in the cache. \
    remote/op, bytes/op: remote operations, and their bytes, for each operation of a client."
)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    place: ClusterLocation,
    /// Refresh after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one interval and end
    #[arg(long)]
    once: bool,
    /// Print this many intervals and end [default: 1, in a terminal unlimited]
    #[arg(long, value_name = "N", conflicts_with = "once", value_parser = farleaf_command_line::units::positive)]
    iterations: Option<u64>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = super::duration(text)?;
    match interval >= Duration::from_millis(100) {
        true => Ok(interval),
        false => Err("expected at least 0.1 seconds".to_owned()),
    }
}

/// The minimum and maximum wait for servers and the catalog, at any interval.
const MIN_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The last known state of the catalog.
#[derive(Clone, Debug)]
struct LastCatalogState {
    standing: ClusterStatus,
    /// When it was read, in nanoseconds.
    at_ns: u64,
    /// Why it could not be read since then.
    trouble: Option<String>,
}

fn read(
    place: &ClusterLocation,
    opened: &mut Option<Arc<dyn Catalog>>,
) -> anyhow::Result<ClusterStatus> {
    let catalog = match opened.take() {
        Some(catalog) => catalog,
        None => {
            let (address, token) = place.find()?;
            open(&address, &token)?
        }
    };
    let standing = ClusterStatus::read(&*catalog, &place.keys()?)?;
    // Reconnect after an error: the catalog may have moved.
    *opened = Some(catalog);
    Ok(standing)
}

/// Reads the catalog repeatedly; returns after the first read.
fn watch(
    place: &ClusterLocation,
    every: Duration,
    clock: MonotonicClock,
    stop: &StopSignal,
) -> anyhow::Result<Arc<Mutex<LastCatalogState>>> {
    let mut opened = None;
    let standing = read(place, &mut opened)?;
    let first = LastCatalogState { standing, at_ns: clock.now_ns(), trouble: None };
    let known = Arc::new(Mutex::new(first));
    let (place, stop, shared) = (place.clone(), stop.clone(), Arc::clone(&known));
    let work = move || {
        while !stop.wait(every) {
            let outcome = read(&place, &mut opened);
            let mut known = lock(&shared);
            match outcome {
                Ok(standing) => {
                    *known = LastCatalogState { standing, at_ns: clock.now_ns(), trouble: None };
                }
                Err(error) => known.trouble = Some(causes(&error)),
            }
        }
    };
    // The thread may be blocked in a read when the program ends, so it is never joined.
    start_thread("catalog".into(), work)?;
    Ok(known)
}

/// Ends the program when the user types `q`.
fn listen(stop: &StopSignal) -> anyhow::Result<()> {
    let stop = stop.clone();
    let work = move || {
        let keys = std::io::stdin().lock().bytes().map_while(Result::ok);
        for key in keys {
            if key == b'q' || key == b'Q' {
                return stop.raise();
            }
        }
    };
    start_thread("keys".into(), work)?;
    Ok(())
}

/// Shows the load of a cluster until the program is told to end.
pub(crate) fn run(arguments: &TopArguments) -> anyhow::Result<()> {
    let stop = StopSignal::on_signals().context("cannot catch signals")?;
    let (clock, every) = (MonotonicClock::start(), arguments.interval);
    let within = every.clamp(MIN_WAIT, MAX_WAIT);
    let known = watch(&arguments.place, every, clock, &stop)?;
    let scraper = Scraper::new().context("cannot start the thread that asks servers")?;
    let is_live = std::io::stdout().is_terminal() && !arguments.once;
    let mut left = match arguments.iterations {
        None if is_live => u64::MAX,
        iterations => iterations.unwrap_or(1),
    };
    let screen = is_live.then(AlternateScreen::begin).transpose()?;
    let keys = screen.as_ref().and_then(|_| SingleKeyMode::begin());
    if keys.is_some() {
        listen(&stop)?;
    }
    let mut before = ClusterSample::new();
    let mut is_first = true;
    while left > 0 && !stop.is_raised() {
        let began = clock.elapsed();
        let LastCatalogState { standing, at_ns, trouble } = lock(&known).clone();
        let now = look(&scraper, &standing, within);
        if is_live || !is_first {
            let age_s = clock.now_ns().saturating_sub(at_ns) / 1_000_000_000;
            let is_old = age_s > 2 * (every.as_secs() + MAX_WAIT.as_secs());
            let late = is_old.then(|| "no answer".to_owned());
            let trouble =
                trouble.or(late).map(|why| format!("{why}; showing its state of {age_s} s ago"));
            // Without a terminal, all of a server's figures are in one line.
            let width = screen.as_ref().map_or(usize::MAX, AlternateScreen::columns);
            let rows = rows(&standing, &before, &now);
            let text = draw::text(&standing, trouble.as_deref(), &rows, width);
            match &screen {
                Some(screen) => screen.show(&text)?,
                None => {
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "{text}")?;
                    out.flush()?;
                }
            }
        }
        left -= u64::from(!is_first);
        (before, is_first) = (now, false);
        if left > 0 {
            stop.wait(every.saturating_sub(clock.elapsed().saturating_sub(began)));
        }
    }
    Ok(())
}
