//! Runs that go side by side, each on a thread of its own, with one output in order.
//!
//! *Invariant*: the output does not depend on the number of threads.
//!
//! *Thread safety*: runs share nothing; only the calling thread writes the output.

use std::io::{self, Write};
use std::sync::Mutex;
use std::thread;

/// Runs for each of several threads between two writes of output. More lose less time at the end of
/// a batch, fewer show progress earlier. A thread alone loses none, so it writes after each run.
const RUNS_EACH: usize = 8;

/// Calls `run` for each of `items`, on `jobs` threads, and writes to `out` what each call wrote, in
/// the order of `items`. `ended` gets each item with its result before the iterator is asked for
/// the next batch, and returns whether the output of this item counts.
///
/// # Errors
/// Those of `out` and of `run`.
///
/// # Panics
/// If `run` panics, or there are no jobs.
pub(crate) fn side_by_side<T: Send, R: Send>(
    jobs: usize,
    mut items: impl Iterator<Item = T>,
    run: impl Fn(&T, &mut Vec<u8>) -> io::Result<R> + Sync,
    mut ended: impl FnMut(&T, R) -> bool,
    out: &mut impl Write,
) -> io::Result<()> {
    assert!(jobs > 0, "without a thread, no run would be made");
    let together = if jobs == 1 { 1 } else { jobs * RUNS_EACH };
    loop {
        let batch: Vec<T> = items.by_ref().take(together).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let mut results: Vec<_> = batch.into_iter().map(|item| (item, None)).collect();
        let waiting = Mutex::new(results.iter_mut());
        let work = || {
            // Not `while let`, which would hold the lock during the run.
            loop {
                let next = waiting.lock().expect("no thread panics with the lock").next();
                let Some((item, result)) = next else { break };
                let mut text = Vec::new();
                *result = Some(run(item, &mut text).map(|ended| (ended, text)));
            }
        };
        thread::scope(|scope| {
            (1..jobs).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        for (item, result) in results {
            let (result, text) = result.expect("each item of the batch was run")?;
            if ended(&item, result) {
                out.write_all(&text)?;
            }
        }
        out.flush()?;
    }
}
