//! READs and WRITEs of pages, and what follows: from one copy or another, to all of them.
//!
//! *Invariants*: far.C2, far.P4 and far.G3, and one more.
//! - far.G5. A WRITE has succeeded only if all whole copies of the chunk have it. A copy that has
//!   missed it is not whole from then on, unless there is no other.
//!
//! *Thread safety*: as for the pager.

use super::{Pager, PendingWork, TransferJob, UNPLACED};
use crate::FarError;
use crate::memory::PageAccessProvider;
use crate::space::ChunkSpace;
use crate::table::{Fill, PageState};
use crate::transfer::{FIRST_WAIT_NS, MAX_WAIT_NS, TransferDirection, TransferFailure};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use futures_util::future::join_all;
use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;

/// Minimum number of attempts for each copy, because a copy on a dead server can use up the whole
/// time limit.
const MIN_ROUNDS: u32 = 4;

impl<F: Fabric, M: PageAccessProvider + 'static, S: ChunkSpace<F>> Pager<F, M, S> {
    pub(super) fn fill(&self, state: &mut PendingWork, run: Range<u32>) -> TransferJob {
        state.reads += 1;
        state.stats.reads += 1;
        let pager = self.clone();
        Box::pin(async move {
            let (server, read) = pager.read(&run).await;
            pager.end_fill(run, server, read);
        })
    }

    /// Reads the pages from one of their copies. Returns the server that they came from, or the one
    /// that failed last.
    async fn read(&self, run: &Range<u32>) -> (ServerId, Result<(), TransferFailure>) {
        let (chunks, transfers) = (&self.0.chunks, &self.0.transfers);
        let began_ns = transfers.fabric().now_ns();
        let (mut wait_ns, mut rounds) = (FIRST_WAIT_NS, 0);
        loop {
            let whole: Vec<_> = chunks.copies(run.start).collect();
            let first = *whole.first().expect("a remote page has a place");
            let works = |at: &&GlobalAddr| !transfers.has_failed(at.server());
            let mut copies: Vec<_> = whole.iter().filter(works).copied().collect();
            if whole.len() == 1 || copies.len() == 1 {
                let at = copies.first().copied().unwrap_or(first);
                let read = transfers.run(TransferDirection::In, at, || self.buffer(run)).await;
                let Err(failed) = &read else { return (at.server(), read) };
                self.await_stray(run, at.server(), failed, whole.len() == 1).await;
                if whole.len() == 1 {
                    return (at.server(), read);
                }
                // The only copy on a working server has failed, too: try each copy once more.
                copies.clear();
            }
            let is_hopeless = copies.is_empty();
            if is_hopeless {
                copies = whole;
            }
            copies.sort_by_key(|at| transfers.avoids(at.server()));
            let mut outcome = (first.server(), Ok(()));
            for at in &copies {
                outcome = (at.server(), transfers.read_once(*at, || self.buffer(run)).await);
                let Err(failed) = &outcome.1 else { return outcome };
                self.await_stray(run, at.server(), failed, false).await;
                if let TransferFailure::Gone(_) = failed {
                    chunks.lose_copy(run.start, at.server());
                }
            }
            if chunks.copies(run.start).count() == 1 {
                // What is gone on one server may come back on the other one.
                continue;
            }
            rounds += 1;
            let give_up_ns = began_ns.saturating_add(transfers.patience_ns());
            let is_late = rounds >= MIN_ROUNDS && transfers.fabric().now_ns() >= give_up_ns;
            if is_hopeless || is_late || self.0.state.borrow().is_stopping {
                copies.iter().for_each(|at| transfers.give_up(at.server()));
                return outcome;
            }
            transfers.fabric().sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(MAX_WAIT_NS);
        }
    }

    /// Waits until a READ that was given up can no longer take effect: until then it owns the
    /// memory of its pages (P4). Meanwhile their touches fail, those that begin later too (G3). If
    /// there is another copy to be read, they fail only when that has taken too long.
    async fn await_stray(
        &self,
        run: &Range<u32>,
        server: ServerId,
        failed: &TransferFailure,
        is_last: bool,
    ) {
        let transfers = &self.0.transfers;
        let may_land = || transfers.is_any_astray() && transfers.is_unsettled(server);
        if !may_land() {
            return;
        }
        let pages = run.end - run.start;
        {
            let state = &mut *self.0.state.borrow_mut();
            (state.reads, state.astray) = (state.reads - 1, state.astray + pages);
        }
        let mut wait_ns = FIRST_WAIT_NS;
        let patience_ns = if is_last { 0 } else { transfers.patience_ns() };
        let fails_from_ns = transfers.fabric().now_ns().saturating_add(patience_ns);
        loop {
            {
                let state = &mut *self.0.state.borrow_mut();
                let fails = transfers.fabric().now_ns() >= fails_from_ns;
                for page in run.clone().filter(|_| fails) {
                    state.fail(page, failed.of(page, server));
                    state.wake(page);
                }
                state.notify();
                if state.is_stopping {
                    break;
                }
            }
            if transfers.settle(server).await.is_ok() || !may_land() {
                break;
            }
            transfers.fabric().sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(MAX_WAIT_NS);
            if !may_land() {
                break;
            }
        }
        let state = &mut *self.0.state.borrow_mut();
        (state.reads, state.astray) = (state.reads + 1, state.astray - pages);
    }

    fn end_fill(&self, run: Range<u32>, server: ServerId, read: Result<(), TransferFailure>) {
        let state = &mut *self.0.state.borrow_mut();
        state.reads -= 1;
        if let Err(TransferFailure::Gone(cause)) = &read {
            state.gone.insert(server.number(), cause.clone());
        }
        for page in run.clone() {
            let fill = match &read {
                Ok(()) => Fill::Read,
                Err(TransferFailure::Unreachable(_)) => Fill::Failed,
                Err(TransferFailure::Gone(_)) => Fill::Gone,
            };
            let is_awaited = state.touching.contains_key(&page);
            if !state.table.filled(page, fill, is_awaited) {
                self.0.memory.remove(page..page + 1);
            }
            match &read {
                // A page that was discarded meanwhile is zeros, whatever happened to the READ.
                Err(failed) if state.table.state(page) != PageState::Empty => {
                    state.fail(page, failed.of(page, server));
                }
                _ => drop(state.failures.remove(&page)),
            }
            state.wake(page);
        }
        match read {
            Ok(()) => state.stats.bytes_in += self.run_bytes(&run) as u64,
            Err(_) => state.stats.failed_fills += u64::from(run.end - run.start),
        }
        state.wake_room();
        self.make_room(state);
        state.notify();
    }

    pub(super) fn leave(&self, state: &mut PendingWork, run: Range<u32>) -> TransferJob {
        let bytes = self.run_bytes(&run);
        let mut servers = self.targets(run.start);
        let writes = self.writes_to(&servers);
        state.writes += writes;
        self.begin_write(state, &servers, bytes);
        let pager = self.clone();
        Box::pin(async move {
            let mut placed = Ok(());
            if servers == [UNPLACED] {
                let (chunks, transfers) = (&pager.0.chunks, &pager.0.transfers);
                // Other pages leave meanwhile.
                let make_room = || pager.0.state.borrow_mut().notify();
                placed = chunks.place(transfers, run.start, make_room).await.map(drop);
                if placed.is_ok() {
                    // It still counts as one without a place: these go one by one.
                    let more = pager.targets(run.start);
                    pager.begin_write(&mut pager.0.state.borrow_mut(), &more, bytes);
                    servers.extend(more);
                }
            }
            let written = match placed {
                Ok(()) => pager.write(&run, &servers).await,
                Err(error) => Err(error),
            };
            {
                let state = &mut *pager.0.state.borrow_mut();
                state.writes -= writes;
                for server in servers {
                    *state.write_bytes.entry(server).or_default() -= bytes;
                }
            }
            pager.end_leave(run, written);
        })
    }

    /// Counts a WRITE to each of these servers (G4).
    fn begin_write(&self, state: &mut PendingWork, servers: &[u32], bytes: usize) {
        for &server in servers {
            *state.write_bytes.entry(server).or_default() += bytes;
            if servers.len() > 1
                && let Ok(number) = u16::try_from(server)
            {
                self.0.transfers.begin_probe(ServerId::new(number));
            }
        }
    }

    /// Writes the pages to all copies (G5), of which those not on `servers` are not tried if there
    /// are others. Returns the number of copies that have them.
    async fn write(&self, run: &Range<u32>, servers: &[u32]) -> Result<usize, FarError> {
        let (chunks, transfers, page) = (&self.0.chunks, &self.0.transfers, run.start);
        // At most two rounds: in the second one only one copy is left, and it is tried.
        loop {
            let copies: Vec<_> = chunks.copies(page).collect();
            let is_target = |at: &GlobalAddr| servers.contains(&u32::from(at.server().number()));
            let tries_all = !copies.iter().any(is_target);
            let mut tried = copies.clone();
            tried.retain(|at| tries_all || is_target(at));
            self.0.state.borrow_mut().stats.writes += tried.len() as u64;
            let written = join_all(tried.iter().map(async |at| {
                let written = transfers.run(TransferDirection::Out, *at, || self.buffer(run)).await;
                written.map_err(|failed| failed.of(page, at.server()))
            }))
            .await;
            let has = |at: &GlobalAddr| {
                tried.iter().zip(&written).any(|(to, written)| to == at && written.is_ok())
            };
            if copies.iter().any(has) {
                let missed = copies.iter().filter(|at| !has(at));
                missed.for_each(|at| chunks.lose_copy(page, at.server()));
            }
            // Another WRITE may have made one that has missed this one the last whole copy.
            if chunks.copies(page).all(|at| has(&at)) {
                return Ok(written.iter().filter(|it| it.is_ok()).count());
            }
            if let Some(failure) = written.into_iter().find_map(Result::err) {
                return Err(failure);
            }
        }
    }

    fn end_leave(&self, run: Range<u32>, written: Result<usize, FarError>) {
        let state = &mut *self.0.state.borrow_mut();
        self.end_leaving(state, &run, written.is_ok());
        match written {
            Ok(copies) => state.stats.bytes_out += (copies * self.run_bytes(&run)) as u64,
            Err(error) => {
                state.stats.failed_write_backs += u64::from(run.end - run.start);
                state.stuck = Some(error);
                // Pages that have yet to begin would only fail in turn.
                let server = self.server_of(run.start);
                let queued = std::mem::take(&mut state.leaving);
                let is_same = |run: &Range<u32>| self.server_of(run.start) == server;
                let (same, others) = queued.into_iter().partition(is_same);
                state.leaving = others;
                let same: VecDeque<_> = same;
                same.iter().for_each(|run| self.end_leaving(state, run, false));
                // Touches without a slot must look whether anything can still leave.
                state.room.values().for_each(Waker::wake_by_ref);
            }
        }
        state.wake_room();
        self.make_room(state);
        state.notify();
    }

    fn end_leaving(&self, state: &mut PendingWork, run: &Range<u32>, is_written: bool) {
        for page in run.clone() {
            let is_awaited = state.touching.contains_key(&page);
            if state.table.left(page, is_written, is_awaited) {
                state.stats.kept += u64::from(is_written);
            } else {
                self.0.memory.remove(page..page + 1);
                state.stats.write_backs += u64::from(is_written);
            }
            state.wake(page);
        }
    }
}
