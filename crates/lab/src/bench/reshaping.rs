//! Changes to the cluster during a run, such as moves of keys: their options and their part of the
//! report.

use super::arguments::BenchArguments;
use crate::designs::DesignName;
use farleaf_bench::driver::{PlannedChange, Reshaping, TopologyChange};
use farleaf_bench::report::Report;
use farleaf_bench::units::duration;
use farleaf_command_line::output::{self, grouped};
use farleaf_command_line::usage;
use farleaf_index::BalanceOptions;
use std::fmt::Write as _;

/// The changes that the options request.
pub(super) fn of(arguments: &BenchArguments) -> anyhow::Result<Reshaping> {
    let BenchArguments { compute_servers, memory_servers, .. } = arguments;
    let BenchArguments { spare_compute_servers, spare_memory_servers, .. } = arguments;
    let added = arguments.add_memory_server_at.iter();
    let added = added.map(|at| PlannedChange { at: *at, change: TopologyChange::AddMemoryServer });
    let changes: Vec<PlannedChange> = arguments.moves.iter().copied().chain(added).collect();
    let asks = arguments.balance || !changes.is_empty();
    let asks = asks || spare_compute_servers + spare_memory_servers > 0;
    if asks && arguments.index != DesignName::Dex {
        return usage(
            "--balance, --move, --add-memory-server-at and the spare servers need --index dex",
        );
    }
    if spare_memory_servers >= memory_servers {
        return usage(format!(
            "--spare-memory-servers {spare_memory_servers} leaves none of {memory_servers} memory servers"
        ));
    }
    if arguments.add_memory_server_at.len() > usize::from(*spare_memory_servers) {
        return usage("--add-memory-server-at needs as many --spare-memory-servers");
    }
    let all = compute_servers + spare_compute_servers;
    for planned in &changes {
        if let TopologyChange::Move { from, to, .. } = planned.change
            && (from >= all || to >= all || from == to)
        {
            return usage(format!(
                "--move {from}:{to}: compute servers are numbered from 0 to {}, with the spare ones",
                all - 1
            ));
        }
    }
    let spare_compute_servers = *spare_compute_servers;
    let write_back = arguments.background;
    Ok(Reshaping { spare_compute_servers, balance: arguments.balance, write_back, changes })
}

/// Options of the balancer.
pub(super) fn balance(arguments: &BenchArguments) -> BalanceOptions {
    let mut options = BalanceOptions::default();
    if let Some(ms) = arguments.balance_window_ms {
        options.window_ns = (ms * 1e6) as u64;
    }
    options
}

/// Describes the load of each compute server, and the changes.
pub(super) fn summary(report: &Report) -> String {
    let mut text = String::new();
    let shares = &report.compute_server_shares;
    if shares.len() > 1 {
        let shares: Vec<String> =
            shares.iter().map(|share| format!("{:.1}%", share * 100.0)).collect();
        let _ = write!(text, "\nshares of compute servers: {}", shares.join(", "));
    }
    for change in &report.changes {
        let by = if change.by_balancer { "balance" } else { "order" };
        let _ = write!(text, "\n{:>10}  {by}: ", duration(change.at_ns));
        let _ = match change.moved {
            Some((from, to)) => write!(
                text,
                "keys moved from {from} to {to} in {}, {} bytes written by {} WRITEs",
                duration(change.took_ns),
                grouped(change.bytes_written),
                grouped(change.writes)
            ),
            None => write!(text, "{}", change.what),
        };
    }
    text
}

/// Warns about requested changes that did not happen.
pub(super) fn warn(report: &Report, arguments: &BenchArguments) {
    for change in report.changes.iter().filter(|change| !change.done) {
        output::note(&format!("warning: {}", change.what));
    }
    let ordered = arguments.moves.len() + arguments.add_memory_server_at.len();
    let came = report.changes.iter().filter(|change| !change.by_balancer).count();
    if came < ordered {
        output::note(&format!(
            "warning: the run had ended before {} of the changes",
            ordered - came
        ));
    }
}
