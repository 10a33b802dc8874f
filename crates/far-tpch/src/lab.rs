//! What everything is compared with: tables and answers in DRAM, and rounds of all queries.

use crate::TpchWork;
use crate::answers;
use crate::data::{self, TpchTable};
use crate::engine::{QueryAnswer, QueryEngine, cells};
use crate::far::{CostMark, FarEngine, MIB, WorkCost};
use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

/// Tables and answers that everything is compared with.
pub(crate) struct ReferenceLab {
    pub(crate) tables: Vec<TpchTable>,
    pub(crate) near: QueryEngine,
    pub(crate) queries: Vec<u8>,
    pub(crate) expected: Vec<QueryAnswer>,
    scale: f64,
    warm_up: u32,
    pub(crate) rounds: u32,
    progress: ProgressBar,
}

/// The costs of all queries, by round.
pub(crate) type Rounds = Vec<Vec<WorkCost>>;

impl ReferenceLab {
    pub(crate) async fn new(work: &TpchWork) -> Result<Self> {
        ensure!((0.001..=100.0).contains(&work.scale), "use a scale factor from 0.001 to 100");
        let progress = ProgressBar::new_spinner();
        progress.set_style(ProgressStyle::with_template("{elapsed_precise} {wide_msg}")?);
        let tell = |name: &str| {
            progress.set_message(format!("making table {name}"));
            progress.tick();
        };
        let tables = data::generate(work.scale, tell)?;
        let near = QueryEngine::new(&tables, None, None)?;
        let queries = work.queries.clone().unwrap_or_else(|| (1..=22).collect());
        let mut expected = Vec::new();
        for number in &queries {
            progress.set_message(format!("query {number} in DRAM"));
            progress.tick();
            let answer = cells(&near.ask(*number).await?)?;
            if work.scale == 1.0 {
                answers::check(*number, &answer)?;
            }
            expected.push(answer);
        }
        if work.scale == 1.0 {
            println!("all {} answers in DRAM are those of TPC-H", queries.len());
        }
        let TpchWork { scale, warm_up, rounds, .. } = *work;
        Ok(Self { tables, near, queries, expected, scale, warm_up, rounds, progress })
    }

    /// What is measured.
    pub(crate) fn scope(&self) -> String {
        let bytes = self.tables.iter().map(TpchTable::bytes).sum::<usize>() as f64 / MIB;
        let (scale, queries, rounds) = (self.scale, self.queries.len(), self.rounds);
        format!(
            "scale factor {scale}, {bytes:.0} MiB of tables, {queries} queries, {rounds} rounds"
        )
    }

    /// Shows what is being done.
    pub(crate) fn tell(&self, what: String) {
        self.progress.set_message(what);
        self.progress.tick();
    }

    /// Prints something.
    pub(crate) fn print(&self, text: &str) {
        self.progress.suspend(|| println!("{text}"));
    }

    /// Runs all queries once, and compares their answers. The tables' allocator is not used
    /// meanwhile, so its metadata is not accessed, wherever it is.
    pub(crate) async fn round(&self, far: Option<&FarEngine>) -> Result<Vec<WorkCost>> {
        let place = if far.is_some() { "far memory" } else { "DRAM" };
        let engine = far.map_or(&self.near, |far| &far.engine);
        let counts = || far.map_or(Ok(Default::default()), FarEngine::counts);
        let stats = || far.map(|far| far.arena.stats()).transpose();
        let mut costs = Vec::new();
        for (number, expected) in self.queries.iter().zip(&self.expected) {
            self.tell(format!("query {number} in {place}"));
            let (stats_before, before, began) = (stats()?, counts()?, CostMark::now());
            let answer = engine.ask(*number).await?;
            let (cost, after) = (began.cost(), counts()?);
            costs.push(WorkCost {
                tables: after[0].since(&before[0]),
                intermediates: after[1].since(&before[1]),
                ..cost
            });
            let unequal = format!("query {number} has another answer in {place}");
            ensure!(cells(&answer)? == *expected, unequal);
            ensure!(stats()? == stats_before, "query {number} has used the tables' allocator");
        }
        Ok(costs)
    }

    /// The costs of each engine, the first of which is in DRAM. They take turns, after rounds that
    /// do not count.
    pub(crate) async fn measure(&self, fars: &[&FarEngine]) -> Result<Vec<Rounds>> {
        let mut costs = vec![Rounds::new(); fars.len() + 1];
        for round in 0..self.warm_up + self.rounds {
            let mut all = vec![self.round(None).await?];
            for far in fars {
                all.push(self.round(Some(far)).await?);
            }
            if round >= self.warm_up {
                costs.iter_mut().zip(all).for_each(|(rounds, costs)| rounds.push(costs));
            }
        }
        Ok(costs)
    }

    /// Ends the display of progress.
    pub(crate) fn finish(&self) {
        self.progress.finish_and_clear();
        println!("\npeak memory of the process: {}", peak_memory());
    }
}

/// The most memory that the process had, by the kernel's count.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or("unknown", str::trim).to_owned()
}

/// The median, and zero of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The median over rounds of what a round costs.
pub(crate) fn median_of(rounds: &Rounds, cost: impl Fn(&WorkCost) -> f64) -> f64 {
    median(rounds.iter().map(|round| round.iter().map(&cost).sum()).collect())
}

/// The mean of a round of a count.
pub(crate) fn mean(rounds: &Rounds, count: impl Fn(&WorkCost) -> f64) -> f64 {
    rounds.iter().flatten().map(count).sum::<f64>() / rounds.len() as f64
}

/// The ratio of the times of two engines, as an interval of 95% around the geometric mean over all
/// queries and rounds.
pub(crate) fn ratio(rounds: &Rounds, base: &Rounds) -> String {
    let pairs = rounds.iter().flatten().zip(base.iter().flatten());
    let logs: Vec<_> = pairs.map(|(cost, base)| (cost.ms / base.ms).ln()).collect();
    let count = logs.len() as f64;
    if logs.len() < 2 {
        return "one time only".to_owned();
    }
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = 1.96 * (variance / count).sqrt();
    format!("{:.3} to {:.3}", (mean - half).exp(), (mean + half).exp())
}
