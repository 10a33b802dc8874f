//! What is measured, and the tables of it.

use crate::answers;
use crate::data::{self, Table};
use crate::engine::{Answer, Engine, cells};
use crate::far::{Cost, Far, MIB, now_ms};
use crate::{Place, Setting, Transport, Work};
use anyhow::{Result, ensure};
use comfy_table::presets::ASCII_MARKDOWN;
use farleaf_far_alloc::FarArena;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;

/// Tables and answers that everything is compared with.
struct Lab {
    tables: Vec<Table>,
    near: Engine,
    queries: Vec<u8>,
    expected: Vec<Answer>,
    rounds: u32,
    progress: ProgressBar,
}

/// The costs of all queries, by round.
type Rounds = Vec<Vec<Cost>>;

fn total_ms(round: &[Cost]) -> f64 {
    round.iter().map(|cost| cost.ms).sum()
}

/// The median, and zero of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn median_ms(rounds: &Rounds) -> f64 {
    median(rounds.iter().map(|round| total_ms(round)).collect())
}

/// The mean of a round of a count.
fn mean(rounds: &Rounds, count: impl Fn(&Cost) -> f64) -> f64 {
    rounds.iter().flatten().map(count).sum::<f64>() / rounds.len() as f64
}

fn table(head: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head.to_vec());
    table
}

impl Lab {
    async fn new(work: &Work) -> Result<Self> {
        ensure!((0.001..=100.0).contains(&work.scale), "use a scale factor from 0.001 to 100");
        let progress = ProgressBar::new_spinner();
        progress.set_style(ProgressStyle::with_template("{elapsed_precise} {wide_msg}")?);
        let tell = |name: &str| {
            progress.set_message(format!("making table {name}"));
            progress.tick();
        };
        let tables = data::generate(work.scale, tell)?;
        let near = Engine::new(&tables, None)?;
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
        Ok(Self { tables, near, queries, expected, rounds: work.rounds, progress })
    }

    fn bytes(&self) -> usize {
        self.tables.iter().map(Table::bytes).sum()
    }

    fn far(&self, setting: Setting) -> Result<Far> {
        self.progress.set_message(format!("copying the tables: {setting:?}"));
        self.progress.tick();
        Far::new(setting, &self.tables)
    }

    /// Runs all queries once, and compares their answers.
    async fn round(&self, engine: &Engine, arena: Option<&Arc<FarArena>>) -> Result<Vec<Cost>> {
        let far = || arena.map_or(Ok(Default::default()), |arena| arena.far_stats());
        let mut costs = Vec::new();
        for (number, expected) in self.queries.iter().zip(&self.expected) {
            let place = if arena.is_some() { "far memory" } else { "DRAM" };
            self.progress.set_message(format!("query {number} in {place}"));
            self.progress.tick();
            let (before, began_ms) = (far()?, now_ms());
            let answer = engine.ask(*number).await?;
            let ms = now_ms() - began_ms;
            costs.push(Cost { far: far()?.since(&before), ms });
            ensure!(cells(&answer)? == *expected, "query {number} has another answer in {place}");
        }
        Ok(costs)
    }

    /// The costs of each engine, the first of which is in DRAM. They take turns, after a round that
    /// does not count.
    async fn measure(&self, fars: &[&Far]) -> Result<Vec<Rounds>> {
        let mut costs = vec![Rounds::new(); fars.len() + 1];
        for round in 0..=self.rounds {
            let near = self.round(&self.near, None).await?;
            let mut all = vec![near];
            for far in fars {
                all.push(self.round(&far.engine, Some(&far.arena)).await?);
            }
            if round > 0 {
                costs.iter_mut().zip(all).for_each(|(rounds, costs)| rounds.push(costs));
            }
        }
        Ok(costs)
    }

    /// A figure: a line for each setting, each measured in turns with DRAM alone.
    async fn figure(&self, title: &str, settings: &[(String, Setting)]) -> Result<()> {
        let mut lines =
            table(&["", "misses", "pages ahead", "MiB moved", "ms", "times DRAM", "MiB of space"]);
        for (label, setting) in settings {
            let far = self.far(*setting)?;
            let costs = self.measure(&[&far]).await?;
            lines.add_row(vec![
                label.clone(),
                format!("{:.0}", mean(&costs[1], |cost| cost.far.fills as f64)),
                format!("{:.0}", mean(&costs[1], |cost| cost.far.fills_ahead as f64)),
                format!("{:.0}", mean(&costs[1], Cost::moved_mib)),
                format!("{:.0}", median_ms(&costs[1])),
                format!("{:.2}", median_ms(&costs[1]) / median_ms(&costs[0])),
                format!("{:.0}", far.arena.stats()?.reached_bytes as f64 / MIB),
            ]);
        }
        self.progress.suspend(|| println!("\n{title}\n{lines}"));
        Ok(())
    }

    /// Where metadata is: queries and migration, all places in turns.
    async fn places(&self, setting: Setting) -> Result<()> {
        let places = [Place::Together, Place::Separated, Place::Pinned];
        let far = |metadata| self.far(Setting { metadata, ..setting });
        let fars = places.into_iter().map(far).collect::<Result<Vec<_>>>()?;
        let fars: Vec<_> = fars.iter().collect();
        let costs = self.measure(&fars).await?;
        let mut lines = table(&[
            "metadata",
            "% of data",
            "migration: touches",
            "ms",
            "queries: misses",
            "MiB moved",
            "ms",
            "times together, 95%",
        ]);
        for ((place, far), rounds) in places.iter().zip(fars).zip(&costs[1..]) {
            lines.add_row(vec![
                format!("{place:?}").to_lowercase(),
                format!("{:.2}", far.metadata_percent()?),
                far.migration.far.touches.to_string(),
                format!("{:.0}", far.migration.ms),
                format!("{:.0}", mean(rounds, |cost| cost.far.fills as f64)),
                format!("{:.0}", mean(rounds, Cost::moved_mib)),
                format!("{:.0}", median_ms(rounds)),
                ratio(rounds, &costs[1]),
            ]);
        }
        let title = format!("places of metadata, pages of {} KiB (figures 6 and 7)", setting.page);
        self.progress.suspend(|| println!("\n{title}\n{lines}"));
        Ok(())
    }
}

/// The ratio of the times of two engines, as an interval of 95% around the geometric mean over all
/// queries and rounds.
fn ratio(rounds: &Rounds, base: &Rounds) -> String {
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

/// One setting, query by query.
pub(crate) async fn run(work: &Work, setting: Setting) -> Result<()> {
    let lab = Lab::new(work).await?;
    let far = lab.far(setting)?;
    let costs = lab.measure(&[&far]).await?;
    let mut lines =
        table(&["query", "rows", "ms in DRAM", "ms far", "ratio", "misses", "ahead", "MiB moved"]);
    let mut add = |query: String, rows: String, pick: &dyn Fn(&Vec<Cost>) -> Vec<Cost>| {
        let near: Rounds = costs[0].iter().map(pick).collect();
        let rounds: Rounds = costs[1].iter().map(pick).collect();
        lines.add_row(vec![
            query,
            rows,
            format!("{:.1}", median_ms(&near)),
            format!("{:.1}", median_ms(&rounds)),
            format!("{:.2}", median_ms(&rounds) / median_ms(&near)),
            format!("{:.0}", mean(&rounds, |cost| cost.far.fills as f64)),
            format!("{:.0}", mean(&rounds, |cost| cost.far.fills_ahead as f64)),
            format!("{:.1}", mean(&rounds, Cost::moved_mib)),
        ]);
    };
    for (place, number) in lab.queries.iter().enumerate() {
        let rows = lab.expected[place].len().to_string();
        add(number.to_string(), rows, &|round| vec![round[place]]);
    }
    add("all".into(), String::new(), &|round| round.clone());
    lab.progress.finish_and_clear();
    println!(
        "scale factor {}, {:.0} MiB of tables by {}; {:?}\n{lines}",
        work.scale,
        lab.bytes() as f64 / MIB,
        far.arena.mode(),
        setting,
    );
    println!(
        "all answers are those in DRAM. Copying took {:.0} ms and {} touches; metadata is {:.2}% of the data; \
         {} of {} pages were local at most",
        far.migration.ms,
        far.migration.far.touches,
        far.metadata_percent()?,
        far.arena.far_stats()?.peak_resident,
        far.arena.far_stats()?.buffer_pages,
    );
    Ok(())
}

/// All figures.
pub(crate) async fn all(work: &Work) -> Result<()> {
    let lab = Lab::new(work).await?;
    println!(
        "scale factor {}, {:.0} MiB of tables, {} queries, {} rounds",
        work.scale,
        lab.bytes() as f64 / MIB,
        lab.queries.len(),
        work.rounds
    );
    let usual = Setting {
        metadata: Place::Separated,
        page: 256,
        buffer: 20,
        retain: false,
        decay: 0,
        transport: Transport::Tcp,
        faults_only: false,
    };
    let mut pages = Vec::new();
    for page in [4, 16, 64, 256, 1024] {
        for retain in [false, true] {
            let how = if retain { "retain" } else { "no retain" };
            pages.push((format!("{page} KiB, {how}"), Setting { page, retain, ..usual }));
        }
    }
    lab.figure("page size and retain (figure 5)", &pages).await?;
    let only = [4, 64].map(|page| {
        let label = format!("{page} KiB, by faults only");
        (label, Setting { page, faults_only: true, ..usual })
    });
    lab.figure("no batch is asked for before it is read", &only).await?;
    let buffers = [10, 20, 50, 100, 130];
    let buffers =
        buffers.map(|buffer| (format!("{buffer}%"), Setting { buffer, page: 64, ..usual }));
    lab.figure("local memory in percent of the tables, pages of 64 KiB", &buffers).await?;
    let transports = [Transport::Local, Transport::Tcp, Transport::Shm].map(|transport| {
        (format!("{transport:?}").to_lowercase(), Setting { transport, page: 64, ..usual })
    });
    lab.figure("transports, pages of 64 KiB", &transports).await?;
    for page in [4, 256] {
        lab.places(Setting { page, ..usual }).await?;
    }
    lab.progress.finish_and_clear();
    println!(
        "\nnot reproduced: TPC-DS, whose 47 queries are not written here, and figure 9, which needs a \
         second NUMA node"
    );
    Ok(())
}
