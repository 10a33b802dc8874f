//! `farleaf-lab bench`: one design, one workload or trace, one report.

mod arguments;
mod form;
mod model;
mod moments;
mod options;
mod over_time;
mod plan;
mod ports;
mod reshaping;

pub(crate) use arguments::BenchArguments;

use crate::designs;
use arguments::LoadName;
use farleaf_bench::driver::{KeyValueForm, NumberForm, Testbed, WorkAmount, memory_servers};
use farleaf_bench::report::Report;
use farleaf_bench::strings::StringForm;
use farleaf_bench::table::table;
use farleaf_bench::timeline::chart;
use farleaf_command_line::exit::check_errors;
use farleaf_command_line::output::{self, JsonTarget, bar, grouped};
use farleaf_index::{AnyDesign, Naming, ScanRequest};
use farleaf_page::CHOSEN;
use form::KeysAndValues;
use plan::{BenchPlan, MeasuredWork};
use ports::PortLimit;

/// Runs the benchmark and prints its report.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    if arguments.help_options {
        print!("{}", options::page());
        return Ok(());
    }
    let plan = BenchPlan::new(arguments)?;
    let mut json = JsonTarget::open(arguments.json.as_deref())?;
    let folder = arguments.timeline.as_deref().map(over_time::TimelineFolder::make).transpose()?;
    if plan.ignores_cache {
        output::note(&format!("note: the design `{}` has no cache to size", plan.report.index));
    }
    let report = plan.run()?;
    json.say(&summary(&report))?;
    if let designs::FabricConfig::Sim(config) = &plan.fabric
        && let Some(limit) = PortLimit::of(&config.network, &report)
    {
        json.say(&limit.to_string())?;
    }
    if let (Some(folder), Some(timeline)) = (folder, &report.timeline) {
        json.say(&format!("\n{}", chart(timeline)))?;
        let (title, caption) = titles(&report);
        folder.write(timeline, (&title, &caption))?;
    }
    json.write(&report.to_json())?;
    over_time::warn(&report, plan.interval);
    reshaping::warn(&report, arguments);
    warn_of_misses(&report);
    check_errors(&report)
}

impl BenchPlan {
    fn run(&self) -> anyhow::Result<Report> {
        #[cfg(feature = "verbs")]
        if let designs::FabricConfig::Verbs(config) = &self.fabric {
            // The region must stay in place as long as the device can access it.
            let bytes = self.pool_bytes.saturating_mul(self.report.memory_servers.into());
            farleaf_fabric_verbs::probe(&config.device, bytes)?;
        }
        match &self.form {
            KeysAndValues::Numbers => {
                self.run_on(&designs::design(self.design, &self.index), NumberForm)
            }
            KeysAndValues::Strings(strings) => self.run_strings(strings),
        }
    }

    fn run_strings(&self, strings: &StringForm<CHOSEN>) -> anyhow::Result<Report> {
        let options = self.index.named(|number| strings.key_named(number));
        // In virtual time, checking all results is free.
        let form = match self.fabric {
            designs::FabricConfig::Sim(_) => strings.clone(),
            _ => strings.clone().undecoded(),
        };
        self.run_on(&designs::design(self.design, &options), form)
    }

    /// Runs the plan on a design.
    fn run_on<O: KeyValueForm>(
        &self,
        design: &AnyDesign<O::Layout>,
        form: O,
    ) -> anyhow::Result<Report> {
        let plan = self;
        let services = memory_servers(plan.report.memory_servers, plan.pool_bytes)?;
        let mut testbed = Testbed::start_with(&self.fabric, services, design, form)?;
        let mut report = plan.report.clone();
        let measured = match &plan.work {
            MeasuredWork::Trace(operations, loaded) => {
                if let Some(keys) = loaded {
                    let loading = bar("load", Some(keys.len()));
                    let load_ns = testbed.load(keys, report.fill, &|done| loading.inc(done))?;
                    report.load_seconds = load_ns as f64 / 1e9;
                    loading.finish_and_clear();
                }
                let bar = bar("replay", Some(operations.len() as u64));
                let measured = testbed.replay(operations, &|done| bar.inc(done))?;
                bar.finish_and_clear();
                report.keys = testbed.scan(&ScanRequest::range(..))?.len() as u64;
                measured
            }
            MeasuredWork::Workload(run) => {
                let loading = bar("load", Some(run.stream.keys.len()));
                match plan.load {
                    LoadName::Bulk => {
                        let loaded = &|done| loading.inc(done);
                        let load_ns = testbed.load(&run.stream.keys, report.fill, loaded)?;
                        report.load_seconds = load_ns as f64 / 1e9;
                    }
                    LoadName::Random => testbed.fill(run, &|done| loading.inc(done))?,
                    LoadName::None => {}
                }
                loading.finish_and_clear();
                if let Some(warm_up) = plan.warm_up {
                    let filling = bar("first warm-up", Some(warm_up));
                    let amount = WorkAmount::Operations(warm_up);
                    let filler = run.only(amount);
                    testbed.measure(&filler, &|done| filling.inc(done))?;
                    filling.finish_and_clear();
                }
                let total = match run.amount {
                    WorkAmount::Operations(operations) => Some(operations + operations / 20),
                    WorkAmount::Nanoseconds(_) => None,
                };
                let running = bar("warm-up and measurement", total);
                let measured = testbed.measure(run, &|done| running.inc(done))?;
                running.finish_and_clear();
                if report.fabric != "sim" {
                    report.harness_cpu_ns_per_operation = Some(testbed.harness_cpu_ns(run)?);
                }
                measured
            }
        };
        let records = testbed.records().max(report.keys);
        let mut report =
            report.with_measurement(&measured).with_cached_bytes(testbed.cached_bytes());
        if plan.latencies {
            report = report.with_latencies(&measured);
        }
        Ok(report.with_memory(&testbed.usage(), testbed.local_bytes(), records))
    }
}

/// Share of lookups that must find a record for a run to say something about lookups.
const MIN_FOUND: f64 = 0.5;

/// Warns if most lookups found nothing.
fn warn_of_misses(report: &Report) {
    if report.found_ratio.is_none_or(|found| found >= MIN_FOUND) {
        return;
    }
    let why = match report.trace_start.as_deref() {
        Some("empty") => "the replay started from an empty index: --trace-start loaded",
        Some(_) => "the trace removes what it then asks for",
        None => "the index does not have the keys that they ask for",
    };
    let found = of_lookups(report);
    output::note(&format!("warning: {found}, so the costs are mostly those of absent keys; {why}"));
}

/// Says which share of the lookups found something.
fn of_lookups(report: &Report) -> String {
    match report.found_ratio {
        Some(found) => {
            format!("{:.2} % of {} lookups found a record", found * 100.0, grouped(report.lookups))
        }
        None => "no lookups".to_owned(),
    }
}

/// The title of a timeline, and its caption, which describe the run and its setup.
fn titles(report: &Report) -> (String, String) {
    let Report { index, workload, distribution, fabric, seed, .. } = report;
    let title = format!("timeline: {index} on {workload} ({distribution})");
    (title, format!("{fabric} fabric, seed {seed}, {} keys", grouped(report.keys)))
}

fn summary(report: &Report) -> String {
    let Report { compute_servers, threads, memory_servers, .. } = report;
    let cost = &report.per_operation;
    format!(
        "{} on {} ({}{}), {} keys, {} operations in {:.3} s{}, seed {}\n\
         {} fabric, {compute_servers} compute x {threads} threads, {memory_servers} memory servers, {} \
         partitioning{}\n{}\n\
         bytes per operation: {:.1} read, {:.1} written, {:.1} by RPC; retries {:.4}; misses {}; {}\n\
         memory pool: {} bytes, {:.1} per key{}",
        report.index,
        report.workload,
        report.distribution,
        report.trace_start.as_ref().map_or(String::new(), |start| format!(", {start} at first")),
        grouped(report.keys),
        grouped(report.operations),
        report.seconds,
        of_processors(report),
        report.seed,
        report.fabric,
        report.partitioning,
        report.placement_level.map_or(String::new(), |level| format!(", placement level {level}")),
        table(std::slice::from_ref(report)),
        cost.bytes_read,
        cost.bytes_written,
        cost.rpc_bytes,
        cost.retries,
        grouped(report.misses),
        of_lookups(report),
        grouped(report.memory.pool_bytes_allocated),
        report.memory.pool_bytes_per_key,
        of_cache(report),
    ) + &of_blocks(report)
        + &reshaping::summary(report)
}

/// Describes the processor time of the clients, if it is known.
fn of_processors(report: &Report) -> String {
    let each = report.batch.map_or(String::new(), |batch| format!(" in calls of up to {batch}"));
    let harness = report
        .harness_cpu_ns_per_operation
        .map_or(String::new(), |ns| format!(", of which {ns:.0} ns for the benchmark itself"));
    match report.cpu_ns_per_operation {
        Some(ns) => format!("{each} ({ns:.0} ns of processor time each{harness})"),
        None => each,
    }
}

/// Describes the cache, if the design has one.
fn of_cache(report: &Report) -> String {
    if report.cache_bytes_per_compute_server == 0 {
        return String::new();
    }
    let cache = &report.cache;
    format!(
        "\ncaches: {} bytes each, {} used in all; leaf hit ratio {:.4} ({:.4} of the leaves were cooling)\n\
         per operation: {:.4} leaf misses ({:.4} by a window) and {:.4} inner misses, {:.4} hot records, {:.4} reheated, {:.4} evicted, {:.4} written back, \
         {:.4} written through, {:.4} offloaded and {:.4} refused",
        grouped(report.cache_bytes_per_compute_server),
        grouped(cache.bytes_used),
        cache.hit_ratio,
        cache.cooling_hits,
        cache.leaf_misses,
        cache.leaf_windows,
        cache.inner_misses,
        cache.record_hits,
        cache.reheats,
        cache.evictions,
        cache.write_backs,
        cache.write_throughs,
        cache.offloads,
        cache.offload_refusals,
    )
}

/// The part of value blocks in the report, if there are some.
fn of_blocks(report: &Report) -> String {
    let Some(blocks) = &report.blocks else { return String::new() };
    let longer = grouped(blocks.inline_bytes);
    if blocks.cache_bytes == 0 {
        return format!("\nblocks of values over {longer} bytes: {:.4} read", blocks.misses);
    }
    format!(
        "\nblocks of values over {longer} bytes: {} % of the caches, {} bytes in all; hit ratio {:.4} \
         ({:.4} hits and {:.4} misses per operation)",
        blocks.cache_percent,
        grouped(blocks.cache_bytes),
        blocks.hit_ratio,
        blocks.hits,
        blocks.misses,
    )
}
