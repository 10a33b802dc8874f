//! Runs against a model of an index that fails, forgets and damages values as it is told to: what
//! the clients record, and what the verdict on it is.

use super::verdict::judge;
use super::workload::{TortureNames, TortureRun};
use farleaf_cluster::stop::StopSignal;
use farleaf_fabric::{FabricError, ServerId, Uncertainty, now_or_never};
use farleaf_index::{
    ByName, EditAction, EditAnswer, IndexError, KeyedRecords, LeafEdit, Naming, RangeIndex,
    ScanRequest,
};
use farleaf_page::{Bytes, NamedLayout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

/// A correct index of one thread, but for its faults.
#[derive(Default)]
struct FaultyModel {
    records: RefCell<BTreeMap<u64, u64>>,
    operations: Cell<u64>,
    /// Every operation of such a number fails with this error.
    fails: Option<(u64, IndexError)>,
    /// Every upsert of such a number is acknowledged and not done.
    forgets: Option<u64>,
    /// Scans leave out the first record.
    skips: bool,
}

impl FaultyModel {
    fn count(&self) -> Result<u64, IndexError> {
        let number = self.operations.get() + 1;
        self.operations.set(number);
        match &self.fails {
            Some((every, error)) if number.is_multiple_of(*every) => Err(error.clone()),
            _ => Ok(number),
        }
    }
}

impl RangeIndex for FaultyModel {
    type Key = u64;
    type Value = u64;

    async fn get(&self, key: &u64) -> Result<Option<u64>, IndexError> {
        self.count()?;
        Ok(self.records.borrow().get(key).copied())
    }

    async fn execute(&self, edit: LeafEdit<&u64, &u64>) -> Result<EditAnswer<u64>, IndexError> {
        let number = self.count()?;
        let mut records = self.records.borrow_mut();
        let found = records.get(edit.key).copied();
        let becomes = match edit.action {
            EditAction::Insert(value) if found.is_none() => Some(Some(*value)),
            EditAction::Update(value) if found.is_some() => Some(Some(*value)),
            EditAction::Upsert(value) => Some(Some(*value)),
            EditAction::Remove if found.is_some() => Some(None),
            EditAction::CompareExchange(expected, new) if found == Some(*expected) => {
                Some(Some(*new))
            }
            _ => None,
        };
        let forgets = |every: u64| number.is_multiple_of(every);
        let is_forgotten =
            matches!(edit.action, EditAction::Upsert(_)) && self.forgets.is_some_and(forgets);
        match becomes.filter(|_| !is_forgotten) {
            Some(Some(value)) => _ = records.insert(*edit.key, value),
            Some(None) => _ = records.remove(edit.key),
            None => {}
        }
        Ok(EditAnswer { applied: becomes.is_some(), found })
    }

    async fn scan(&self, scan: &ScanRequest<u64>) -> Result<KeyedRecords<u64, u64>, IndexError> {
        self.count()?;
        let records = self.records.borrow();
        let range = records.range((scan.lower, scan.upper)).map(|(key, value)| (*key, *value));
        let mut found: Vec<_> = range.collect();
        if scan.reverse {
            found.reverse();
        }
        let first = usize::from(self.skips && found.len() > 1);
        Ok(found.into_iter().skip(first).take(scan.limit).collect())
    }

    async fn bulk_load_from(
        &self,
        _source: impl Iterator<Item = Result<(u64, u64), IndexError>>,
        _fill: f64,
    ) -> Result<u64, IndexError> {
        Ok(0)
    }

    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }
}

/// Runs one client for a while, and reads everything at the end.
fn run_on(model: &FaultyModel) -> (TortureRun, Option<String>) {
    let run = TortureRun::new(40, 1, Duration::from_secs(1));
    std::thread::scope(|scope| {
        let run = &run;
        let ends = scope.spawn(move || {
            // From 1,000 on the count has a comma.
            let is_enough = |said: String| said.split(' ').next().is_some_and(|n| n.contains(','));
            while !is_enough(run.progress()) && run.elapsed() < Duration::from_secs(20) {
                StopSignal::default().wait(Duration::from_millis(1));
            }
            run.end();
        });
        now_or_never(run.work(model, 0));
        ends.join().unwrap();
    });
    let difference = now_or_never(run.read_all(model, 1)).unwrap().difference();
    (run, difference)
}

#[test]
fn a_correct_index_is_linearizable() {
    let (run, difference) = run_on(&FaultyModel::default());
    assert_eq!(difference, None);
    let history = run.take();
    let verdict = judge(&history);
    assert!(verdict.holds(), "{verdict:?}");
    let line = verdict.last_line(3, false);
    assert!(line.ends_with(" operations, 3 kills, 0 unknown, 0 lost: linearizable"), "{line}");
    let line = verdict.last_line(3, true);
    assert!(line.ends_with("0 lost: linearizable, but not well at the end"), "{line}");
}

#[test]
fn a_lost_change_is_found_and_named() {
    let (run, _) = run_on(&FaultyModel { forgets: Some(50), ..FaultyModel::default() });
    let verdict = judge(&run.take());
    assert!(!verdict.holds());
    let line = verdict.last_line(0, false);
    assert!(line.ends_with(" lost: not linearizable") && !line.contains(" 0 lost"), "{line}");
    let first = &verdict.explanations[0];
    assert!(first.contains("is not linearizable") && first.contains("upsert"), "{first}");
}

#[test]
fn a_scan_that_misses_a_key_is_found() {
    let (run, difference) = run_on(&FaultyModel { skips: true, ..FaultyModel::default() });
    let difference = difference.unwrap();
    assert!(difference.ends_with("absent by a scan upwards"), "{difference}");
    let verdict = judge(&run.take());
    assert!(!verdict.holds());
    assert!(verdict.explanations.iter().any(|why| why.contains("missed key")), "{verdict:?}");
}

/// The model never does what it gives no answer for, which is one of the two possible outcomes.
#[test]
fn unknown_changes_stay_open_and_unknown_reads_are_dropped() {
    let unknown = IndexError::Indeterminate(FabricError::Indeterminate {
        server: ServerId::new(0),
        why: Uncertainty::TimedOut,
    });
    let (run, _) = run_on(&FaultyModel { fails: Some((7, unknown)), ..FaultyModel::default() });
    assert!(!run.dropped().ends_with(" 0 reads without an answer"), "{}", run.dropped());
    let history = run.take();
    let uncertain = history.operations.iter().filter(|operation| operation.outcome.is_uncertain());
    let ends: Vec<u64> = uncertain.map(|operation| operation.span().1).collect();
    assert!(ends.len() > 10 && ends.iter().all(|end| *end == u64::MAX), "{ends:?}");
    let verdict = judge(&history);
    assert!(verdict.holds(), "{verdict:?}");
    // A fast machine does so many operations that their number has a comma.
    let line = verdict.last_line(0, false).replace(',', "");
    assert!(line.contains(&format!(" {} unknown 0 lost", ends.len())), "{line}");
}

#[test]
fn what_failed_without_effect_is_dropped() {
    let failed = IndexError::Contended { retries: 3 };
    let (run, _) = run_on(&FaultyModel { fails: Some((100, failed)), ..FaultyModel::default() });
    assert!(!run.dropped().contains(" 0 operations that failed"), "{}", run.dropped());
    let history = run.take();
    assert!(history.operations.iter().all(|operation| operation.outcome.is_answer()));
    assert!(judge(&history).holds());
}

/// A damaged value is a violation, not a panic.
#[test]
fn what_no_client_has_written_has_a_name() {
    type SmallBytes = Bytes<128>;
    let name = |value: &[u8]| Naming::<SmallBytes>::name_of_value(&TortureNames, value);
    let value = SmallBytes::value_named(0x1_0000_0007);
    assert_eq!(name(&value), Some(0x1_0000_0007));
    let damaged = [&value[..value.len() - 1], b"?"].concat();
    assert_eq!(name(&damaged), Some(u64::MAX));
    let key = Naming::<SmallBytes>::name_of_key(&TortureNames, b"no key of ours at all");
    assert_eq!(key, Some(u64::MAX));
    // Numbers are their own names.
    let index = ByName::<farleaf_page::Fixed8, _, _>::with(FaultyModel::default(), TortureNames);
    assert_eq!(now_or_never(index.get(&3)), Ok(None));
}
