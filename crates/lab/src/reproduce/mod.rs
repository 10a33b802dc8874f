//! `farleaf-lab reproduce`: repeats the papers' experiments and reports which of their statements
//! hold.
//!
//! Experiments are data (`dex.rs`, `trees.rs`, `dlsm.rs`, `allocator.rs`) with a common structure
//! (`experiment.rs`). `points.rs` turns them into command lines, `runner.rs` runs these as
//! processes, `claims.rs` judges the results, and `report.rs` writes them.
//!
//! *Invariants*
//! - reproduce.R1. The report depends only on the options and the reports of the points: a run that
//!   was interrupted and continued writes the same bytes.
//! - reproduce.R2. Anything that did not run is listed with its reason and never judged.

mod allocator;
mod analysis;
mod claims;
mod dex;
mod dlsm;
mod experiment;
mod points;
mod report;
mod runner;
mod trees;

use anyhow::Context;
use claims::{ClaimVerdict, JudgedClaim, judge};
use clap::{Args, ValueEnum};
use experiment::{PaperFigure, PaperFigures, RunScale, RunSize};
use farleaf_command_line::units;
use farleaf_command_line::usage;
use points::{MeasuredPoint, PointSelection};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;

const PAPERS: &[&PaperFigures] = &[&dex::DEX, &trees::TREES, &dlsm::DLSM, &allocator::ALLOCATOR];

/// The papers that can be reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PaperName {
    /// DEX (Lu et al., VLDB 2024)
    Dex,
    /// Coarse, fine and hybrid (Ziegler et al., SIGMOD 2019)
    Trees,
    /// dLSM (Wang et al., ICDE 2023)
    Dlsm,
    /// Allocator metadata (Weisgut et al.); lists what cannot be run
    Allocator,
}

/// Options of `farleaf-lab reproduce`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each point is a line of `farleaf-lab bench`, run as a process of its own. A statement `holds` if \
                        counts are within 5%, bytes within 12% and ratios within a factor of 1.5 of the paper's, and \
                        orderings are exact.\n\n\
                        Exit codes: 0 success, 1 failure or, with --strict, a statement that differs, 2 invalid \
                        command line."
)]
pub(crate) struct ReproduceArguments {
    /// Reproduce this paper [default: all]
    #[arg(value_enum)]
    paper: Option<PaperName>,
    #[command(flatten)]
    options: ExperimentOptions,
}

/// Options of a run of any experiment.
#[derive(Debug, Args)]
pub(crate) struct ExperimentOptions {
    /// Make only these figures, such as `8` or `11a`, and `t2` for a table
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    figure: Vec<String>,
    /// Run only these designs
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    design: Vec<String>,
    /// Load as many records as this: dex 2M, 20M or 200M, trees 200k, 2M or 100M, dlsm 200k, 1M or
    /// 100M
    #[arg(long, value_enum, default_value = "small")]
    scale: RunScale,
    /// Run this many points side by side
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<usize>(1, 256))]
    jobs: usize,
    /// Seed the random numbers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    seed: u64,
    /// Run each point with this many consecutive seeds, and take the median
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u64>(1, 100))]
    seeds: u64,
    /// Load this many records instead of the scale's
    #[arg(long, value_name = "N", value_parser = units::positive)]
    keys: Option<u64>,
    /// Measure this many operations of a point instead of the scale's, after twice as many
    #[arg(long, value_name = "N", value_parser = units::positive)]
    operations: Option<u64>,
    /// Replay this trace for the figure `trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Run the points that need real threads too, on this machine
    #[arg(long)]
    real_threads: bool,
    /// Continue a run that was interrupted
    #[arg(long)]
    resume: bool,
    /// Fail if a statement differs
    #[arg(long)]
    strict: bool,
    /// Write the report, the data and the command lines to this folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl ExperimentOptions {
    /// `reproduce trees` with these options.
    pub(crate) fn figures(self) -> ReproduceArguments {
        ReproduceArguments { paper: Some(PaperName::Trees), options: self }
    }
}

/// The design that an ablation takes apart.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AblatedDesign {
    /// Partitions, caches and offloading of DEX
    Dex,
    /// Tables, indexes and the place of merges of dLSM
    Lsm,
}

/// Options of `farleaf-lab ablation`.
#[derive(Debug, Args)]
pub(crate) struct Ablation {
    /// Take this design apart
    #[arg(long, value_enum, default_value = "dex")]
    part: AblatedDesign,
    #[command(flatten)]
    options: ExperimentOptions,
}

impl Ablation {
    /// `reproduce` of the part's paper, limited to these figures if the options name none.
    pub(crate) fn figures(self) -> ReproduceArguments {
        let Self { part, mut options } = self;
        let (paper, figures): (_, &[&str]) = match part {
            AblatedDesign::Dex => (PaperName::Dex, &["8", "9", "12", "trace"]),
            AblatedDesign::Lsm => (PaperName::Dlsm, &["11", "12", "13"]),
        };
        if options.figure.is_empty() {
            options.figure = figures.iter().map(|id| (*id).to_owned()).collect();
        }
        ReproduceArguments { paper: Some(paper), options }
    }
}

/// A figure with its points and judged claims.
#[derive(Debug)]
struct FigureOutcome {
    paper: &'static PaperFigures,
    figure: &'static PaperFigure,
    points: Vec<MeasuredPoint>,
    /// Why points were left out.
    skipped: Vec<String>,
    judged: Vec<JudgedClaim>,
}

/// Runs the experiments; `false` if a statement differs and the options are strict.
pub(crate) fn run(arguments: &ReproduceArguments) -> anyhow::Result<bool> {
    let selected = selected(arguments)?;
    let arguments = &arguments.options;
    check_designs(arguments, &selected)?;
    if let Some(trace) = &arguments.trace
        && !trace.is_file()
    {
        return usage(format!("there is no trace {}", trace.display()));
    }
    let folder = arguments.out.join("points");
    let has_points = std::fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some());
    if has_points && !arguments.resume {
        let out = arguments.out.display();
        return usage(format!(
            "{out} has points of another run: add --resume, or use another --out"
        ));
    }
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot make the folder {}", arguments.out.display()))?;

    let mut outcomes = Vec::new();
    for (paper, figure) in selected {
        let selection = PointSelection {
            size: size(paper, arguments),
            seeds: (arguments.seed..arguments.seed + arguments.seeds).collect(),
            designs: &arguments.design,
            trace: arguments.trace.as_deref(),
            real_threads: arguments.real_threads,
        };
        let (points, skipped) = points::points(figure, &selection);
        outcomes.push(FigureOutcome { paper, figure, points, skipped, judged: Vec::new() });
    }
    let there = outcomes.iter().flat_map(|outcome| &outcome.points).filter(|p| !p.is_missing);
    let lines: BTreeSet<String> = there.flat_map(|point| point.lines.clone()).collect();
    let reports = runner::run(&lines, &folder, arguments.jobs)?;
    for outcome in &mut outcomes {
        for point in outcome.points.iter_mut().filter(|point| !point.is_missing) {
            point.reports = point.lines.iter().map(|line| reports[line].clone()).collect();
        }
        let judged = |claim| judge(claim, &outcome.points, arguments.scale);
        outcome.judged = outcome.figure.claims.iter().map(judged).collect();
    }
    report::write(&outcomes, arguments)?;
    writeln!(std::io::stdout().lock(), "{}", report::summary(&outcomes))?;
    let differs =
        outcomes.iter().flat_map(|o| &o.judged).any(|j| j.verdict == ClaimVerdict::Differs);
    Ok(!(arguments.strict && differs))
}

/// The figures that the options select.
fn selected(
    arguments: &ReproduceArguments,
) -> anyhow::Result<Vec<(&'static PaperFigures, &'static PaperFigure)>> {
    let papers: Vec<&'static PaperFigures> = match arguments.paper {
        Some(name) => vec![PAPERS[name as usize]],
        None => PAPERS.to_vec(),
    };
    let all: Vec<_> = papers
        .iter()
        .flat_map(|paper| paper.figures.iter().map(move |figure| (*paper, figure)))
        .collect();
    if let Some(unknown) =
        arguments.options.figure.iter().find(|id| all.iter().all(|(_, figure)| figure.id != **id))
    {
        let ids: Vec<&str> = all.iter().map(|(_, figure)| figure.id).collect();
        return usage(format!("there is no figure `{unknown}`: there are {}", ids.join(", ")));
    }
    let asked = |(_, figure): &(_, &PaperFigure)| {
        arguments.options.figure.is_empty()
            || arguments.options.figure.iter().any(|id| id == figure.id)
    };
    Ok(all.into_iter().filter(asked).collect())
}

fn check_designs(
    arguments: &ExperimentOptions,
    selected: &[(&'static PaperFigures, &'static PaperFigure)],
) -> anyhow::Result<()> {
    let mut known: Vec<&str> =
        selected.iter().flat_map(|(_, figure)| figure.rows).map(|row| row.design).collect();
    known.sort_unstable();
    known.dedup();
    match arguments.design.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => {
            usage(format!("no figure has the design `{name}`: they have {}", known.join(", ")))
        }
        None => Ok(()),
    }
}

fn size(paper: &PaperFigures, arguments: &ExperimentOptions) -> RunSize {
    let mut size = *paper
        .sizes
        .iter()
        .find(|size| size.scale == arguments.scale)
        .expect("every paper has every scale");
    size.keys = arguments.keys.unwrap_or(size.keys);
    if let Some(operations) = arguments.operations {
        (size.operations, size.warm_up) = (operations, 2 * operations);
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::ClaimValue;

    /// A claim about a point that is in no figure would never be judged.
    #[test]
    fn every_claim_is_about_points_of_its_figure() {
        for (paper, figure) in PAPERS.iter().flat_map(|p| p.figures.iter().map(move |f| (p, f))) {
            let has = |(panel, row, x): (&str, &str, f64)| {
                assert!(
                    figure.panels.iter().any(|p| p.name == panel)
                        && figure.rows.iter().any(|r| r.name == row)
                        && figure.xs.iter().any(|at| at.x == x),
                    "{} {}: {panel}, {row}, {x}",
                    paper.name,
                    figure.id
                );
            };
            for claim in figure.claims {
                match claim.value {
                    ClaimValue::Of(_, spot) => has(spot),
                    ClaimValue::Ratio(_, over, under) => {
                        has(over);
                        has(under);
                    }
                    ClaimValue::Least { panel, rows, from, to, .. } => {
                        rows.iter()
                            .for_each(|row| [from, to].iter().for_each(|x| has((panel, row, *x))));
                    }
                    ClaimValue::Closed(_) | ClaimValue::Unsaid => (),
                }
            }
        }
    }

    #[test]
    fn every_paper_has_every_scale_and_unique_figures() {
        for paper in PAPERS {
            assert!(
                RunScale::value_variants()
                    .iter()
                    .all(|s| paper.sizes.iter().any(|p| p.scale == *s))
            );
            let ids: BTreeSet<&str> = paper.figures.iter().map(|figure| figure.id).collect();
            assert_eq!(ids.len(), paper.figures.len(), "{}", paper.name);
        }
    }
}
