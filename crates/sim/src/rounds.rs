//! A round of a run whose compute servers die.
//!
//! *Thread safety*: a run is one thread.

use crate::client::RunBoard;
use crate::death::DeathAt;
use crate::scenario::Scenario;
use farleaf_fabric::RpcService;
use farleaf_fabric::sim::{LastWords, SimCluster};
use farleaf_history::History;
use farleaf_history::checker::{CheckVerdict, check};
use std::collections::BTreeMap;

/// Runs `clients` on an index with these contents, until the `dying` compute servers die; without
/// a death, to the end. Checks the history, adds it to `board` and returns it.
pub(crate) fn play_round<S: RpcService>(
    sim: &SimCluster<S>,
    scenario: &Scenario,
    board: &RunBoard,
    (dying, death, contents): (&[u16], Option<DeathAt>, BTreeMap<u64, u64>),
    clients: impl FnOnce(&RunBoard),
) -> Result<History, String> {
    // Without a death, WRITEs are also counted.
    let DeathAt { write, last_words } =
        death.unwrap_or(DeathAt { write: u64::MAX, last_words: LastWords::Some });
    sim.kill_compute_servers_at_write(dying.to_vec(), write, last_words);
    let round_board = RunBoard::for_round(scenario, contents);
    clients(&round_board);
    let left = sim.call_off_death();
    let history = round_board.recorder.take();
    board.recorder.append(&history);
    board.add_counts(&round_board, left.is_none());
    match check(&history) {
        CheckVerdict::Holds => {}
        CheckVerdict::Violated(report) => return Err(report),
        CheckVerdict::GaveUp(why) => return Err(format!("the checkers gave up: {why}")),
    }
    match round_board.fault() {
        Some(fault) => Err(fault),
        None => Ok(history),
    }
}
