//! What is measured, and the tables of it.

use crate::far::{FarEngine, MIB, WorkCost};
use crate::lab::{ReferenceLab, Rounds, mean, median, median_of, ratio};
use crate::report::{Output, Sheet};
use crate::{Batches, FaultChoice, Setting, TableOrder, TpchPlace, TpchTransport, TpchWork};
use anyhow::{Result, ensure};
use clap::ValueEnum;

/// The figures.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub(crate) enum TpchFigure {
    /// Page size and retained address space: the paper's figure 5.
    Pages,
    /// Places of metadata: its share, queries and migration; the paper's figures 6 and 7.
    Places,
    /// What is done with batches before the engine gets them.
    Batches,
    /// Reading ahead, with either layout.
    Ahead,
    /// The size of the buffer.
    Buffers,
    /// A buffer that has room for all pages.
    Full,
    /// Transports.
    Transports,
    /// What queries make in far memory as well.
    Intermediates,
}

fn median_ms(rounds: &Rounds) -> f64 {
    median_of(rounds, |cost| cost.ms)
}

fn cpu_ms(rounds: &Rounds) -> f64 {
    median_of(rounds, |cost| cost.cpu_ms)
}

impl ReferenceLab {
    fn far(&self, setting: Setting) -> Result<FarEngine> {
        self.tell(format!("copying the tables: {setting:?}"));
        FarEngine::new(setting, &self.tables)
    }

    /// A figure: a line for each setting, each measured in turns with DRAM alone. Returns the MiB
    /// moved and the times of DRAM's time, by setting.
    async fn figure(
        &self,
        output: &Output,
        (name, title): (&str, &str),
        settings: &[(String, Setting)],
    ) -> Result<Vec<(f64, f64)>> {
        let head = [
            "",
            "misses",
            "pages ahead",
            "MiB moved",
            "ms",
            "times DRAM",
            "CPU, times DRAM",
            "MiB of space",
        ];
        let mut sheet = Sheet::new(name, title.to_owned(), &head);
        let mut points = Vec::new();
        for (label, setting) in settings {
            let far = self.far(*setting)?;
            let costs = self.measure(&[&far]).await?;
            let moved = mean(&costs[1], WorkCost::moved_mib);
            let times = median_ms(&costs[1]) / median_ms(&costs[0]);
            sheet.lines.push(vec![
                label.clone(),
                format!("{:.0}", mean(&costs[1], WorkCost::misses)),
                format!("{:.0}", mean(&costs[1], WorkCost::ahead)),
                format!("{moved:.0}"),
                format!("{:.0}", median_ms(&costs[1])),
                format!("{times:.2}"),
                format!("{:.2}", cpu_ms(&costs[1]) / cpu_ms(&costs[0])),
                format!("{:.0}", far.arena.stats()?.reached_bytes as f64 / MIB),
            ]);
            points.push((moved, times));
        }
        self.print(&sheet.text());
        output.write(&sheet, "times DRAM")?;
        Ok(points)
    }

    async fn pages(&self, output: &Output) -> Result<()> {
        const PAGES: [usize; 5] = [4, 16, 64, 256, 1024];
        let (mut moved, mut times) = (Vec::new(), Vec::new());
        for (name, retain) in [("no retain", false), ("retain", true)] {
            let label = |page| (format!("{page} KiB"), Setting { retain, ..output.usual(page) });
            let settings = PAGES.map(label);
            let title = format!("page size, {name} (figure 5)");
            let file = if retain { "pages-retain" } else { "pages" };
            let points = self.figure(output, (file, &title), &settings).await?;
            let at = || PAGES.iter().map(|page| *page as f64).zip(&points);
            moved.push((name.to_owned(), at().map(|(x, (moved, _))| (x, *moved)).collect()));
            times.push((name.to_owned(), at().map(|(x, (_, times))| (x, *times)).collect()));
        }
        output.curves("pages-moved", "Bytes moved over the page size", "MiB", moved)?;
        output.curves("pages-times", "Time over the page size", "times DRAM", times)
    }

    /// Where metadata is: queries and migration, all places in turns.
    async fn places(&self, output: &Output, page: usize) -> Result<()> {
        let places = [TpchPlace::Together, TpchPlace::Separated, TpchPlace::Pinned];
        let far = |metadata| self.far(Setting { metadata, ..output.usual(page) });
        let fars = places.into_iter().map(far).collect::<Result<Vec<_>>>()?;
        let fars: Vec<_> = fars.iter().collect();
        let costs = self.measure(&fars).await?;
        let title = format!("places of metadata, pages of {page} KiB (figures 6 and 7)");
        let head = [
            "metadata",
            "% of data",
            "migration: touches",
            "ms",
            "queries: misses",
            "MiB moved",
            "query ms",
            "times together, 95%",
        ];
        let mut sheet = Sheet::new(&format!("places-{page}"), title, &head);
        for ((place, far), rounds) in places.iter().zip(fars).zip(&costs[1..]) {
            sheet.lines.push(vec![
                format!("{place:?}").to_lowercase(),
                format!("{:.3}", far.metadata_percent()?),
                far.migration.tables.touches.to_string(),
                format!("{:.0}", far.migration.ms),
                format!("{:.0}", mean(rounds, WorkCost::misses)),
                format!("{:.0}", mean(rounds, WorkCost::moved_mib)),
                format!("{:.0}", median_ms(rounds)),
                ratio(rounds, &costs[1]),
            ]);
        }
        self.print(&sheet.text());
        output.write(&sheet, "query ms")
    }

    /// All pages stay in the buffer, so nothing faults after the migration and the first round.
    async fn full(&self, output: &Output) -> Result<()> {
        let title = "a buffer of 100%, pages of 64 KiB: CPU time, times DRAM".to_owned();
        let head = ["batches", "rounds", "median", "least", "most", "touches", "time, times DRAM"];
        let mut sheet = Sheet::new("full", title, &head);
        for batches in [Batches::Fault, Batches::Load] {
            let far = self.far(Setting { batches, buffer: 100, ..output.usual(64) })?;
            let costs = self.measure(&[&far]).await?;
            let cpu = |round: &Vec<WorkCost>| round.iter().map(|cost| cost.cpu_ms).sum::<f64>();
            let mut ratios: Vec<_> =
                costs[1].iter().zip(&costs[0]).map(|(far, near)| cpu(far) / cpu(near)).collect();
            let touches = mean(&costs[1], |cost| cost.tables.touches as f64);
            ensure!(
                mean(&costs[1], WorkCost::misses) == 0.0,
                "a page was read although all are local"
            );
            ensure!(batches == Batches::Load || touches == 0.0, "a page has faulted");
            ratios.sort_by(f64::total_cmp);
            sheet.lines.push(vec![
                format!("{batches:?}").to_lowercase(),
                ratios.len().to_string(),
                format!("{:.3}", median(ratios.clone())),
                format!("{:.3}", ratios.first().unwrap_or(&0.0)),
                format!("{:.3}", ratios.last().unwrap_or(&0.0)),
                format!("{touches:.0}"),
                format!("{:.3}", median_ms(&costs[1]) / median_ms(&costs[0])),
            ]);
        }
        self.print(&sheet.text());
        output.write(&sheet, "median")
    }

    async fn run(&self, figure: TpchFigure, output: &Output) -> Result<()> {
        let usual = output.usual(64);
        let name = format!("{figure:?}").to_lowercase();
        let (title, settings) = match figure {
            TpchFigure::Pages => return self.pages(output).await,
            TpchFigure::Places => {
                self.places(output, 4).await?;
                return self.places(output, 256).await;
            }
            TpchFigure::Full => return self.full(output).await,
            TpchFigure::Batches => {
                let all = [Batches::Load, Batches::Copy, Batches::Fault];
                let line = |batches| (format!("{batches:?}"), Setting { batches, ..usual });
                ("what is done with each batch", all.map(line).to_vec())
            }
            TpchFigure::Ahead => {
                let mut lines = Vec::new();
                let layouts = [TableOrder::Batches, TableOrder::Columns];
                let each = [4, 16, 64].into_iter();
                for (page, layout) in each.flat_map(|page| layouts.map(|layout| (page, layout))) {
                    for no_ahead in [true, false] {
                        let how = if no_ahead { "on demand" } else { "read ahead" };
                        let batches = Batches::Fault;
                        let setting = Setting { no_ahead, batches, layout, ..output.usual(page) };
                        lines.push((format!("{page} KiB, {layout:?}, {how}"), setting));
                    }
                }
                ("reading ahead, batches by faults only", lines)
            }
            TpchFigure::Buffers => {
                let line = |buffer| (format!("{buffer}%"), Setting { buffer, ..usual });
                ("local memory in percent of the tables", [10, 20, 50, 100].map(line).to_vec())
            }
            TpchFigure::Transports => {
                let all = [TpchTransport::Local, TpchTransport::Tcp, TpchTransport::Shm];
                let line = |transport| (format!("{transport:?}"), Setting { transport, ..usual });
                ("transports, a buffer of 20%", all.map(line).to_vec())
            }
            TpchFigure::Intermediates => {
                let both = [("near", false), ("far", true)];
                let line = |(name, intermediates): (&str, _)| {
                    (name.to_owned(), Setting { intermediates, ..usual })
                };
                ("what queries make, from 64 KiB on", both.map(line).to_vec())
            }
        };
        let title = match figure {
            TpchFigure::Ahead => title.to_owned(),
            _ => format!("{title}, pages of 64 KiB"),
        };
        self.figure(output, (&name, &title), &settings).await.map(drop)
    }
}

/// One setting, query by query.
pub(crate) async fn run(work: &TpchWork, setting: Setting) -> Result<()> {
    let lab = ReferenceLab::new(work).await?;
    let far = lab.far(setting)?;
    let costs = lab.measure(&[&far]).await?;
    let head = [
        "query",
        "rows",
        "ms in DRAM",
        "ms far",
        "ratio",
        "CPU ratio",
        "misses",
        "ahead",
        "MiB moved",
    ];
    let title = format!("{}; {}; {setting:?}", lab.scope(), far.arena.mode());
    let mut sheet = Sheet::new("run", title, &head);
    let mut add = |query: String, rows: String, pick: &dyn Fn(&Vec<WorkCost>) -> Vec<WorkCost>| {
        let near: Rounds = costs[0].iter().map(pick).collect();
        let rounds: Rounds = costs[1].iter().map(pick).collect();
        sheet.lines.push(vec![
            query,
            rows,
            format!("{:.1}", median_ms(&near)),
            format!("{:.1}", median_ms(&rounds)),
            format!("{:.2}", median_ms(&rounds) / median_ms(&near)),
            format!("{:.2}", cpu_ms(&rounds) / cpu_ms(&near)),
            format!("{:.0}", mean(&rounds, WorkCost::misses)),
            format!("{:.0}", mean(&rounds, WorkCost::ahead)),
            format!("{:.1}", mean(&rounds, WorkCost::moved_mib)),
        ]);
    };
    for (place, number) in lab.queries.iter().enumerate() {
        let rows = lab.expected[place].len().to_string();
        add(number.to_string(), rows, &|round| vec![round[place]]);
    }
    add("all".into(), String::new(), &|round| round.clone());
    println!("{}", sheet.text());
    let [tables, intermediates] = far.counts()?;
    println!(
        "all answers are those in DRAM. Copying took {:.0} ms and {} touches; metadata is {:.3}% of the data; \
         {} of {} pages were local at most",
        far.migration.ms,
        far.migration.tables.touches,
        far.metadata_percent()?,
        tables.peak_resident,
        tables.buffer_pages,
    );
    if setting.intermediates {
        println!(
            "intermediates: {} touches, {:.0} MiB moved, {} discarded pages not written back, {} of {} pages local at most",
            intermediates.touches,
            (intermediates.bytes_in + intermediates.bytes_out) as f64 / MIB,
            intermediates.write_backs_saved,
            intermediates.peak_resident,
            intermediates.buffer_pages,
        );
    }
    lab.finish();
    Ok(())
}

/// All queries over each transport by each provider, with answers equal to those in DRAM.
pub(crate) async fn check(work: &TpchWork, setting: Setting) -> Result<()> {
    let lab = ReferenceLab::new(work).await?;
    let head = ["transport", "faults", "equal answers", "misses", "MiB moved", "ms", "local pages"];
    let mut sheet = Sheet::new("check", lab.scope(), &head);
    for transport in [TpchTransport::Local, TpchTransport::Tcp, TpchTransport::Shm] {
        for provider in [FaultChoice::Userfaultfd, FaultChoice::Signal] {
            let far = lab.far(Setting { transport, provider: Some(provider), ..setting })?;
            // One round is enough: an answer is equal or not.
            let costs = vec![lab.round(Some(&far)).await?];
            let stats = far.arena.far_stats()?;
            ensure!(stats.peak_resident <= stats.buffer_pages, "the buffer was exceeded");
            sheet.lines.push(vec![
                format!("{transport:?}").to_lowercase(),
                far.arena.mode().to_string(),
                format!("{} of {}", costs[0].len(), lab.queries.len()),
                format!("{:.0}", mean(&costs, WorkCost::misses)),
                format!("{:.0}", mean(&costs, WorkCost::moved_mib)),
                format!("{:.0}", median_ms(&costs)),
                format!("{} of {}", stats.peak_resident, stats.buffer_pages),
            ]);
        }
    }
    println!("{}", sheet.text());
    lab.finish();
    Ok(())
}

/// The times in DRAM alone.
pub(crate) async fn dram(work: &TpchWork) -> Result<()> {
    let lab = ReferenceLab::new(work).await?;
    let costs = lab.measure(&[]).await?;
    println!("{}: {:.0} ms, {:.0} ms of CPU", lab.scope(), median_ms(&costs[0]), cpu_ms(&costs[0]));
    lab.finish();
    Ok(())
}

/// All figures, or some.
pub(crate) async fn all(work: &TpchWork, only: &[TpchFigure], output: Output) -> Result<()> {
    let lab = ReferenceLab::new(work).await?;
    let output = Output { caption: format!("{}, {:?}", lab.scope(), output.layout), ..output };
    lab.print(&output.caption);
    for figure in TpchFigure::value_variants() {
        if only.is_empty() || only.contains(figure) {
            lab.run(*figure, &output).await?;
        }
    }
    lab.finish();
    if only.is_empty() {
        println!(
            "not reproduced: TPC-DS, whose 47 queries are not written here, and figure 9, which \
             needs a second NUMA node"
        );
    }
    Ok(())
}
