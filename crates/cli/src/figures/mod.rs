//! `farleaf figures`: runs the paper's experiments on the simulator with every design. Prints
//! tables, writes CSV, draws SVG, and reports whether each of the paper's claims holds.

mod experiments;
mod plot;

use crate::bench::{NUMBERS_IN_PAGE, memory_servers, pool_bytes};
use crate::designs::{self, DesignName, FabricConfig, IndexOptions, PartitioningName, Task};
use crate::output::{bar, grouped};
use crate::plot::rate;
use crate::{units, usage};
use anyhow::Context;
use clap::{Args, ValueEnum};
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use experiments::{Axis, FIGURES, Figure, Placement, Workload};
use farleaf_bench::driver::{Amount, Reshaping, Run, Testbed};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::{Distribution, Harness, Mix, OperationKind, StreamConfig};
use farleaf_core::cache::CacheOptions;
use farleaf_core::index::Design;
use farleaf_core::index::dex::{DexOptions, EntryWeights, spreading_level};
use farleaf_core::page::Fixed8;
use farleaf_fabric::Provider;
use farleaf_fabric::sim::SimConfig;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Options of `farleaf figures`.
#[derive(Debug, Args)]
#[command(
    after_help = "The figures are 7, 8, 10, 11 and 12 of Ziegler et al. (SIGMOD 2019); 9 is the network's \
                        part of 7, in its CSV.\n\n\
                        Exit codes: 0 success, 1 failure, 2 invalid command line."
)]
pub(crate) struct Arguments {
    /// Make only these figures
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    figure: Vec<u32>,
    /// Run only these designs [default: those of the paper]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    index: Vec<DesignName>,
    /// Load this many records, unless the figure varies them (the paper has 100M)
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    keys: u64,
    /// Seed the random numbers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    seed: u64,
    /// Write CSV and SVG files to this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// One point of one curve.
#[derive(Clone, Debug)]
struct Point {
    design: &'static str,
    placement: Placement,
    workload: Workload,
    x: f64,
    throughput: f64,
    p50_ns: u64,
    p99_ns: u64,
    network_gb_per_s: f64,
    remote_operations: f64,
    errors: u64,
}

/// All points of one figure.
#[derive(Clone, Debug, Default)]
struct Results(Vec<Point>);

impl Results {
    fn throughput(
        &self,
        design: &str,
        placement: Placement,
        workload: Workload,
        x: f64,
    ) -> Option<f64> {
        let same = |point: &&Point| {
            point.design == design
                && point.placement == placement
                && point.workload == workload
                && point.x == x
        };
        self.0.iter().find(same).map(|point| point.throughput)
    }

    /// Whether one design is at least as good as another at every number of clients in the range.
    fn above(
        &self,
        better: &str,
        worse: &str,
        placement: Placement,
        workload: Workload,
        clients: RangeInclusive<u16>,
    ) -> Option<bool> {
        let (low, high) = (f64::from(*clients.start()), f64::from(*clients.end()));
        let inside = |point: &&Point| {
            point.design == better
                && point.placement == placement
                && point.workload == workload
                && (low..=high).contains(&point.x)
        };
        let compare = |point: &Point| {
            Some(point.throughput >= self.throughput(worse, placement, workload, point.x)?)
        };
        let verdicts: Option<Vec<bool>> = self.0.iter().filter(inside).map(compare).collect();
        verdicts.filter(|verdicts| !verdicts.is_empty()).map(|all| all.into_iter().all(|v| v))
    }

    fn growth(
        &self,
        design: &str,
        placement: Placement,
        workload: Workload,
        from: u16,
        to: u16,
    ) -> Option<f64> {
        self.growth_of(design, placement, workload, from.into(), to.into())
    }

    fn growth_of(
        &self,
        design: &str,
        placement: Placement,
        workload: Workload,
        from: f64,
        to: f64,
    ) -> Option<f64> {
        let first = self.throughput(design, placement, workload, from)?;
        Some(self.throughput(design, placement, workload, to)? / first)
    }

    /// The designs that have points, without duplicates.
    fn designs(&self) -> impl Iterator<Item = &'static str> {
        let mut seen: Vec<&'static str> = Vec::new();
        for point in &self.0 {
            if !seen.contains(&point.design) {
                seen.push(point.design);
            }
        }
        seen.into_iter()
    }
}

/// Runs the figures.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let known = |number: &u32| FIGURES.iter().any(|figure| figure.number == *number);
    if let Some(unknown) = arguments.figure.iter().find(|number| !known(number)) {
        return usage(format!("there is no figure {unknown}: there are 7, 8, 10, 11 and 12"));
    }
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let asked =
        |figure: &&Figure| arguments.figure.is_empty() || arguments.figure.contains(&figure.number);
    for figure in FIGURES.iter().filter(asked) {
        let results = measure(figure, arguments)?;
        writeln!(std::io::stdout().lock(), "{}", summary(figure, &results))?;
        if let Some(folder) = &arguments.out {
            let base = folder.join(format!("figure-{:02}", figure.number));
            write_csv(&base.with_extension("csv"), &results)?;
            let Arguments { keys, seed, .. } = arguments;
            let caption = format!("sim fabric, seed {seed}, {} keys", grouped(*keys));
            plot::draw(&base, figure, &results, &caption)?;
        }
    }
    Ok(())
}

fn measure(figure: &Figure, arguments: &Arguments) -> anyhow::Result<Results> {
    let distributed = DesignName::value_variants()
        .iter()
        .filter(|name| !matches!(name, DesignName::Local | DesignName::Dex));
    let designs: Vec<DesignName> = match &*arguments.index {
        [] => distributed.copied().collect(),
        asked => asked.to_vec(),
    };
    let settings = settings(figure, arguments.keys);
    let count = settings.len() * designs.len();
    let bar = bar(&format!("figure {}", figure.number), Some(count as u64));
    let mut results = Results::default();
    for setting in &settings {
        for design in &designs {
            results.0.push(setting.measure(*design, arguments.seed)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

/// The parameters of one point, for all designs.
#[derive(Clone, Debug)]
struct Setting {
    placement: Placement,
    workload: Workload,
    x: f64,
    clients: u16,
    memory_servers: u16,
    keys: u64,
}

fn settings(figure: &Figure, keys: u64) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &placement in figure.placements {
        for &workload in figure.workloads {
            let setting =
                Setting { placement, workload, x: 0.0, clients: 240, memory_servers: 4, keys };
            match figure.axis {
                Axis::Clients(counts) => settings.extend(counts.iter().map(|&clients| Setting {
                    x: clients.into(),
                    clients,
                    ..setting
                })),
                Axis::Records(factors) => settings.extend(factors.iter().map(|&factor| Setting {
                    x: factor,
                    keys: (keys as f64 * factor) as u64,
                    ..setting
                })),
                Axis::MemoryServers(counts) => settings.extend(counts.iter().map(|&servers| {
                    Setting { x: servers.into(), clients: 120, memory_servers: servers, ..setting }
                })),
            }
        }
    }
    settings
}

/// The paper's compute servers run forty clients each.
const CLIENTS_PER_COMPUTE_SERVER: u16 = 40;

impl Setting {
    fn weights(&self) -> Vec<u64> {
        let servers = usize::from(self.memory_servers);
        match (self.placement, servers) {
            (Placement::Even, _) | (_, 1) => vec![1; servers],
            (Placement::Skewed, 4) => vec![80, 12, 5, 3],
            (Placement::Skewed, _) => {
                let rest = servers as u64 - 1;
                std::iter::once(80 * rest).chain(std::iter::repeat_n(20, servers - 1)).collect()
            }
        }
    }

    fn mix(&self) -> Mix {
        let mix = Mix::new(self.workload.name());
        match self.workload {
            Workload::Points => mix.with(OperationKind::Get, 1),
            Workload::Ranges(share) => {
                let records = (self.keys as f64 * share).round().max(1.0) as u32;
                mix.with(OperationKind::scan(records), 1)
            }
            Workload::Inserts(percent) => {
                mix.with(OperationKind::Get, 100 - percent).with(OperationKind::Insert, percent)
            }
        }
    }

    /// Enough operations for a steady state, and few enough for the simulator.
    fn operations(&self) -> u64 {
        let each = match self.workload {
            Workload::Points | Workload::Inserts(_) => 200,
            Workload::Ranges(share) => (0.2 / share) as u64,
        };
        u64::from(self.clients) * each.clamp(2, 100)
    }

    fn measure(&self, design: DesignName, seed: u64) -> anyhow::Result<Point> {
        let keys = KeySpace::spread(self.keys);
        let weights = self.weights();
        let options = IndexOptions {
            partitioning: PartitioningName::Range,
            boundaries: keys.boundaries(&weights),
            dex: DexOptions {
                placement_level: spreading_level::<Fixed8>(
                    self.keys,
                    EntryWeights::default(),
                    FILL,
                    self.memory_servers,
                ),
                ..DexOptions::with_boundaries(Vec::new(), CacheOptions::default())
            },
            single_pool_bytes: pool_bytes(
                self.keys,
                NUMBERS_IN_PAGE,
                FILL,
                self.operations(),
                &[1],
            )?,
        };
        let compute_servers = self.clients.div_ceil(CLIENTS_PER_COMPUTE_SERVER);
        let run = Run {
            stream: StreamConfig {
                mix: self.mix(),
                distribution: Distribution::Uniform,
                clustered: false,
                keys,
                seed,
                harness: Harness::default(),
            },
            compute_servers,
            threads: self.clients / compute_servers,
            amount: Amount::Operations(self.operations()),
            shift: None,
            timeline: None,
            batch: 1,
            own_keys: false,
            reshaping: Reshaping::default(),
        };
        let pool_bytes = pool_bytes(self.keys, NUMBERS_IN_PAGE, FILL, self.operations(), &weights)?;
        let fabric = FabricConfig::Sim(Box::new(SimConfig { seed, ..SimConfig::default() }));
        let task = Measure { setting: self, design: design.name(), run, pool_bytes };
        designs::run(design, &options, &fabric, task)
    }
}

/// Fill of loaded pages.
const FILL: f64 = 0.7;

struct Measure<'a> {
    setting: &'a Setting,
    design: &'static str,
    run: Run,
    pool_bytes: usize,
}

impl Task for Measure<'_> {
    type Output = anyhow::Result<Point>;

    fn run<D: Design<Fixed8>, P: Provider>(
        self,
        provider: &P,
        options: &D::Options,
    ) -> anyhow::Result<Point> {
        let Setting { placement, workload, x, memory_servers: servers, .. } = *self.setting;
        let services = memory_servers(servers, self.pool_bytes)?;
        let mut testbed = Testbed::<D, P>::start(provider, services, options)?;
        testbed.load(&self.run.stream.keys, FILL, &|_| {})?;
        let measured = testbed.measure(&self.run, &|_| {})?;
        let seconds = measured.elapsed_ns.max(1) as f64 / 1e9;
        let operations = measured.operations as f64;
        Ok(Point {
            design: self.design,
            placement,
            workload,
            x,
            throughput: operations / seconds,
            p50_ns: measured.latency_ns.value_at_quantile(0.5),
            p99_ns: measured.latency_ns.value_at_quantile(0.99),
            network_gb_per_s: measured.counters.bytes() as f64 / seconds / 1e9,
            remote_operations: measured.counters.remote_operations() as f64 / operations,
            errors: measured.errors,
        })
    }
}

fn summary(figure: &Figure, results: &Results) -> String {
    let mut text = format!("Figure {}: {}\n", figure.number, figure.title);
    let axis = match figure.axis {
        Axis::Clients(_) => "clients",
        Axis::Records(_) => "data size",
        Axis::MemoryServers(_) => "memory servers",
    };
    for &placement in figure.placements {
        for &workload in figure.workloads {
            let designs: Vec<_> = results.designs().collect();
            let mut table = Table::new();
            table.load_style(UTF8_FULL_CONDENSED);
            table.set_header(std::iter::once(axis).chain(designs.iter().copied()));
            let here = |point: &&Point| point.placement == placement && point.workload == workload;
            let mut xs: Vec<f64> = results.0.iter().filter(here).map(|point| point.x).collect();
            xs.dedup();
            for x in xs {
                let cell = |design: &&str| {
                    results.throughput(design, placement, workload, x).map(rate).unwrap_or_default()
                };
                table.add_row(std::iter::once(x.to_string()).chain(designs.iter().map(cell)));
            }
            let placement = format!("{placement:?}").to_lowercase();
            let _ =
                writeln!(text, "{}, {placement} placement, operations/s\n{table}", workload.name());
        }
    }
    let errors: u64 = results.0.iter().map(|point| point.errors).sum();
    if errors > 0 {
        let _ = writeln!(text, "{errors} operations failed");
    }
    for claim in figure.claims {
        let verdict = match (claim.holds)(results) {
            Some(true) => "holds",
            Some(false) => "DIFFERS",
            None => "not run",
        };
        let _ = writeln!(text, "  {verdict:8} {}", claim.text);
    }
    text
}

fn write_csv(path: &Path, results: &Results) -> anyhow::Result<()> {
    let mut text = String::from(
        "design,placement,workload,x,operations_per_s,p50_ns,p99_ns,network_gb_per_s,\
         remote_operations_per_operation,errors\n",
    );
    for point in &results.0 {
        let _ = writeln!(
            text,
            "{},{:?},{},{},{:.1},{},{},{:.4},{:.4},{}",
            point.design,
            point.placement,
            point.workload.name(),
            point.x,
            point.throughput,
            point.p50_ns,
            point.p99_ns,
            point.network_gb_per_s,
            point.remote_operations,
            point.errors,
        );
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
