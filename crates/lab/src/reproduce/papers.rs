//! Reads the papers' files in `papers/`, one TOML file for each paper.
//!
//! `docs/reproducing.md` describes them. A file names what repeats: texts, and groups of panels,
//! rows and positions. Here these are put in, lists of values are expanded, and references are
//! resolved. A reference to nothing, an unknown key and a name that is used twice are errors.

use super::analysis::{CURVES, FORMULAS, NamedFunction};
use super::experiment::{
    AxisPosition, BYTES, COUNT, ClaimRule, ClaimValue, FigurePanel, FigurePosition, FigureRow,
    FigureShape, NEAR, PaperClaim, PaperFigure, PaperFigures, PaperSizes, RATIO, ReportMetric,
    RunScale,
};
use crate::plot::{AxisScale, PlotAxes};
use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::LazyLock;

const FILES: [(&str, &str); 4] = [
    ("dex", include_str!("papers/dex.toml")),
    ("trees", include_str!("papers/trees.toml")),
    ("dlsm", include_str!("papers/dlsm.toml")),
    ("allocator", include_str!("papers/allocator.toml")),
];

/// The papers, in the order of [`super::PaperName`]. The files are part of the program, and a test
/// reads them all.
pub(super) static PAPERS: LazyLock<Vec<PaperFigures>> = LazyLock::new(|| {
    let read = |(name, text): (&str, &str)| {
        read(text).unwrap_or_else(|error| panic!("papers/{name}.toml: {error:#}"))
    };
    FILES.map(read).into()
});

/// A paper's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperFile {
    name: String,
    citation: String,
    /// Options of all points.
    #[serde(default)]
    options: String,
    sizes: PaperSizes,
    /// Texts that options and reasons name as `{name}`.
    #[serde(default)]
    texts: BTreeMap<String, String>,
    #[serde(default)]
    panels: BTreeMap<String, Vec<FigurePanel>>,
    #[serde(default)]
    rows: BTreeMap<String, Vec<FigureRow>>,
    #[serde(default)]
    positions: BTreeMap<String, Vec<PositionEntry>>,
    figures: Vec<FigureEntry>,
}

/// A figure. With panels it has points, with curves it is computed, else it only has claims.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureEntry {
    id: String,
    title: String,
    #[serde(default)]
    options: String,
    #[serde(default)]
    panels: Vec<FigureListItem<FigurePanel>>,
    #[serde(default)]
    rows: Vec<FigureListItem<FigureRow>>,
    #[serde(default)]
    x: String,
    /// The base of a logarithmic axis.
    x_log: Option<f64>,
    y_log: Option<f64>,
    #[serde(default)]
    positions: Vec<FigureListItem<PositionEntry>>,
    /// What a plot shows, and what a claim compares if it names no metric.
    #[serde(default)]
    metric: ReportMetric,
    /// One of [`CURVES`].
    curves: Option<String>,
    #[serde(default)]
    claims: Vec<ClaimEntry>,
}

/// An element of a figure's list: a group by its name, or an element of its own.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected the name of a group, or a table with known fields")]
enum FigureListItem<T> {
    Group(String),
    Own(T),
}

/// Positions: all combinations of the values. Without `x`, it is the number of all threads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PositionEntry {
    x: Option<OneOrMore<f64>>,
    servers: OneOrMore<u16>,
    threads: OneOrMore<u16>,
    /// `{x}` is the position.
    #[serde(default)]
    options: String,
    #[serde(default)]
    skewed: String,
    keys: Option<f64>,
    #[serde(default)]
    real: bool,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn values(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::More(values) => values,
        }
    }
}

/// The statement, what is measured, and what the paper has.
#[derive(Debug, Deserialize)]
struct ClaimEntry(String, MeasuredEntry, StatedEntry);

/// A metric of a point, divided by that of another one if there is `over`. A coordinate can be left
/// out if the figure has one only, and the metric if it is the figure's.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct MeasuredEntry {
    /// One of [`FORMULAS`], and nothing else.
    formula: Option<String>,
    metric: Option<ReportMetric>,
    panel: Option<String>,
    row: Option<String>,
    /// One position, or the ends of the range over which the smallest ratio counts.
    x: Option<OneOrMore<f64>>,
    over: Option<OtherPoint>,
}

/// The coordinates in which the other point differs.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct OtherPoint {
    panel: Option<String>,
    row: Option<String>,
    x: Option<f64>,
}

/// The paper's value with its rule, or only the reason why there is none.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StatedEntry {
    count: Option<f64>,
    bytes: Option<f64>,
    near: Option<f64>,
    ratio: Option<f64>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    from: Option<RunScale>,
    because: String,
}

impl StatedEntry {
    fn rules(&self) -> Vec<ClaimRule> {
        let within = |value: Option<f64>, share| value.map(|value| ClaimRule::Within(value, share));
        let rules = [
            within(self.count, COUNT),
            within(self.bytes, BYTES),
            within(self.near, NEAR),
            self.ratio.map(|ratio| ClaimRule::Factor(ratio, RATIO)),
            self.at_least.map(ClaimRule::AtLeast),
            self.at_most.map(ClaimRule::AtMost),
        ];
        rules.into_iter().flatten().collect()
    }
}

/// Reads a paper's file.
fn read(text: &str) -> anyhow::Result<PaperFigures> {
    let file: PaperFile = toml::from_str(text)?;
    let figure =
        |entry: &FigureEntry| file.figure(entry).with_context(|| format!("figure {}", entry.id));
    let figures = file.figures.iter().map(figure).collect::<anyhow::Result<Vec<_>>>()?;
    unique("figure", figures.iter().map(|figure| &figure.id))?;
    Ok(PaperFigures { name: file.name, citation: file.citation, sizes: file.sizes, figures })
}

impl PaperFile {
    fn figure(&self, entry: &FigureEntry) -> anyhow::Result<PaperFigure> {
        let mut panels = spliced(&entry.panels, &self.panels)?;
        for panel in &mut panels {
            panel.options = self.filled(&panel.options, None)?;
        }
        let mut rows = spliced(&entry.rows, &self.rows)?;
        for row in &mut rows {
            row.options = self.filled(&row.options, None)?;
            if row.design.is_empty() {
                row.design.clone_from(&row.name);
            }
        }
        let mut positions = Vec::new();
        for position in spliced(&entry.positions, &self.positions)? {
            self.expand(&position, &mut positions)?;
        }
        unique("panel", panels.iter().map(|panel| &panel.name))?;
        unique("row", rows.iter().map(|row| &row.name))?;
        unique("position", positions.iter().map(|at| at.x))?;
        let lists = [panels.is_empty(), rows.is_empty(), positions.is_empty()];
        let shape = match (lists, &entry.curves) {
            ([false, false, false], None) => FigureShape::Lines(entry.metric),
            ([true, true, true], None) => FigureShape::Statements,
            ([true, true, true], Some(name)) => FigureShape::Closed(named("curve", name, &CURVES)?),
            _ => bail!("it has panels, rows and positions, or none of them, or curves"),
        };
        let axis = |log: Option<f64>| log.map_or(AxisScale::Linear, AxisScale::Log);
        let mut figure = PaperFigure {
            id: entry.id.clone(),
            title: entry.title.clone(),
            options: self.filled(&format!("{} {}", self.options, entry.options), None)?,
            panels,
            rows,
            x: entry.x.clone(),
            positions,
            axes: PlotAxes { x: axis(entry.x_log), y: axis(entry.y_log), top: None },
            shape,
            claims: Vec::new(),
        };
        let claim = |ClaimEntry(statement, measured, stated): &ClaimEntry| {
            self.claim(statement, measured, stated, &figure)
                .with_context(|| format!("claim `{statement}`"))
        };
        figure.claims = entry.claims.iter().map(claim).collect::<anyhow::Result<_>>()?;
        unique("claim", figure.claims.iter().map(|claim| &claim.statement))?;
        Ok(figure)
    }

    /// Adds the positions of an entry.
    fn expand(
        &self,
        entry: &PositionEntry,
        positions: &mut Vec<AxisPosition>,
    ) -> anyhow::Result<()> {
        for &servers in entry.servers.values() {
            for &threads in entry.threads.values() {
                let all = [f64::from(servers) * f64::from(threads)];
                for &x in entry.x.as_ref().map_or(&all[..], OneOrMore::values) {
                    positions.push(AxisPosition {
                        x,
                        compute_servers: servers,
                        threads,
                        options: self.filled(&entry.options, Some(x))?,
                        skewed: entry.skewed.clone(),
                        keys: entry.keys.unwrap_or(1.0),
                        real: entry.real,
                    });
                }
            }
        }
        Ok(())
    }

    fn claim(
        &self,
        statement: &str,
        measured: &MeasuredEntry,
        stated: &StatedEntry,
        figure: &PaperFigure,
    ) -> anyhow::Result<PaperClaim> {
        let (value, rule) = match stated.rules()[..] {
            [rule] => (value(measured, figure)?, rule),
            [] if *measured == MeasuredEntry::default() && !stated.because.is_empty() => {
                (ClaimValue::Unsaid, ClaimRule::AtLeast(0.0))
            }
            [] => bail!("a claim without the paper's value measures nothing and has a reason"),
            _ => bail!("it has more than one of the paper's values"),
        };
        Ok(PaperClaim {
            statement: statement.to_owned(),
            value,
            rule,
            least: stated.from.unwrap_or(RunScale::Small),
            because: self.filled(&stated.because, None)?,
        })
    }

    /// Replaces `{name}` by the text of this name, and `{x}` by the position.
    fn filled(&self, text: &str, x: Option<f64>) -> anyhow::Result<String> {
        let mut parts = text.split('{');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('}').context("a `{` has no `}`")?;
            match (name, x) {
                ("x", Some(x)) => filled += &x.to_string(),
                _ => filled += self.texts.get(name).with_context(|| unknown("text", &name))?,
            }
            filled += rest;
        }
        Ok(filled)
    }
}

/// What a claim compares, with its points.
fn value(measured: &MeasuredEntry, figure: &PaperFigure) -> anyhow::Result<ClaimValue> {
    let MeasuredEntry { formula, metric, panel, row, x, over } = measured;
    if let Some(name) = formula {
        let alone = MeasuredEntry { formula: formula.clone(), ..MeasuredEntry::default() };
        ensure!(*measured == alone, "a formula has no point");
        return Ok(ClaimValue::Closed(named("formula", name, &FORMULAS)?));
    }
    let metric = metric.unwrap_or(figure.metric());
    let panels: Vec<_> = figure.panels.iter().map(|panel| panel.name.clone()).collect();
    let rows: Vec<_> = figure.rows.iter().map(|row| row.name.clone()).collect();
    let xs: Vec<f64> = figure.positions.iter().map(|at| at.x).collect();
    let spot = |panel: Option<&String>, row: Option<&String>, x: Option<&f64>| {
        anyhow::Ok(FigurePosition {
            panel: chosen("panel", panel, &panels)?,
            row: chosen("row", row, &rows)?,
            x: chosen("position", x, &xs)?,
        })
    };
    match (x.as_ref().map_or(&[][..], OneOrMore::values), over) {
        ([from, to], Some(OtherPoint { panel: None, row: Some(other), x: None })) if from <= to => {
            let FigurePosition { panel, row, x: from } =
                spot(panel.as_ref(), row.as_ref(), Some(from))?;
            let FigurePosition { row: other, x: to, .. } =
                spot(Some(&panel), Some(other), Some(to))?;
            Ok(ClaimValue::Least { metric, panel, rows: [row, other], from, to })
        }
        (x @ ([] | [_]), over) => {
            let first = spot(panel.as_ref(), row.as_ref(), x.first())?;
            let Some(other) = over else { return Ok(ClaimValue::Of(metric, first)) };
            let second = spot(
                other.panel.as_ref().or(Some(&first.panel)),
                other.row.as_ref().or(Some(&first.row)),
                other.x.as_ref().or(Some(&first.x)),
            )?;
            ensure!(first != second, "a point is compared with itself");
            Ok(ClaimValue::Ratio(metric, first, second))
        }
        _ => bail!("a range of positions has two ends and is over another row"),
    }
}

/// The coordinate, or the only one that the figure has.
fn chosen<T: PartialEq + Clone + Display>(
    what: &str,
    given: Option<&T>,
    all: &[T],
) -> anyhow::Result<T> {
    match (given, all) {
        (Some(given), _) if all.contains(given) => Ok(given.clone()),
        (Some(given), _) => bail!(unknown(what, given)),
        (None, [only]) => Ok(only.clone()),
        (None, _) => bail!("it names no {what}, and its figure has {}", all.len()),
    }
}

/// The elements of a figure's list, with those of its groups.
fn spliced<T: Clone>(
    items: &[FigureListItem<T>],
    groups: &BTreeMap<String, Vec<T>>,
) -> anyhow::Result<Vec<T>> {
    let mut all = Vec::new();
    for item in items {
        match item {
            FigureListItem::Own(own) => all.push(own.clone()),
            FigureListItem::Group(name) => {
                all.extend_from_slice(groups.get(name).with_context(|| unknown("group", name))?);
            }
        }
    }
    Ok(all)
}

/// The function of this name.
fn named<T>(what: &str, name: &str, all: &[NamedFunction<T>]) -> anyhow::Result<fn() -> T> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, function)| *function).with_context(|| unknown(what, &name))
}

fn unknown(what: &str, name: &dyn Display) -> String {
    format!("there is no {what} `{name}`")
}

fn unique<T: PartialEq + Display>(
    what: &str,
    names: impl Iterator<Item = T>,
) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for name in names {
        ensure!(!seen.contains(&name), "two have the {what} `{name}`");
        seen.push(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_file_is_read_and_uses_what_it_names() {
        let names = super::super::PaperName::value_variants().iter();
        let names = names.map(|name| name.to_possible_value().unwrap().get_name().to_owned());
        assert!(PAPERS.iter().map(|paper| paper.name.clone()).eq(names));
        for (name, text) in FILES {
            let file: PaperFile = toml::from_str(text).unwrap();
            for used in file.texts.keys() {
                assert!(text.contains(&format!("{{{used}}}")), "{name}: {used}");
            }
            let groups = file.panels.keys().chain(file.rows.keys()).chain(file.positions.keys());
            for group in groups {
                assert!(text.contains(&format!("\"{group}\"")), "{name}: {group}");
            }
        }
    }

    /// The example of the page about these files.
    fn example() -> &'static str {
        let page = include_str!("../../../../docs/reproducing.md");
        page.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0
    }

    #[test]
    fn groups_texts_and_lists_of_values_are_expanded() {
        let paper = read(example()).unwrap();
        let figure = &paper.figures[0];
        let rows = figure.rows.iter().map(|row| (&*row.name, &*row.design, row.uncached));
        let expected =
            [("DEX", "dex", false), ("fine", "fine", true), ("Sherman", "sherman", false)];
        assert!(rows.eq(expected));
        let positions = figure.positions.iter();
        let positions = positions.map(|at| (at.x, at.compute_servers, at.threads, &*at.options));
        let threads = [(2.0, 1, 2, ""), (36.0, 1, 36, ""), (72.0, 2, 36, "")];
        let caches = [(8.0, 2, 36, "--cache-each 8"), (16.5, 2, 36, "--cache-each 16.5")];
        assert!(positions.eq(threads.into_iter().chain(caches)));
        let claims = format!("{:?}", figure.claims);
        for expected in [
            r#"Ratio(Throughput, FigurePosition { panel: "read-only", row: "DEX", x: 36.0 }, FigurePosition { panel: "read-only", row: "fine", x: 36.0 })"#,
            r#"Least { metric: Throughput, panel: "read-only", rows: ["DEX", "Sherman"], from: 2.0, to: 72.0 }"#,
            r#"Of(Reads, FigurePosition { panel: "read-only", row: "Sherman", x: 72.0 }), rule: Within(1.0, 0.05)"#,
            r#"because: "for bytes: virtual time"#,
        ] {
            assert!(claims.contains(expected), "{expected}: {claims}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_refused() {
        for (right, wrong, expected) in [
            ("title = \"Table", "titel = \"Table", "unknown field `titel`"),
            ("id = \"t1\"", "id = \"6\"", "two have the figure `6`"),
            ("{ name = \"Sherman\"", "{ nom = \"Sherman\"", "a table with known fields"),
            ("{ name = \"Sherman\"", "{ name = \"DEX\"", "two have the row `DEX`"),
            ("[\"designs\"", "[\"design\"", "figure 6: there is no group `design`"),
            ("{locks}", "{lock}", "claim `one READ`: there is no text `lock`"),
            ("{locks}", "{locks", "a `{` has no `}`"),
            ("[\"one READ\"", "[\"DEX is above Sherman\"", "two have the claim"),
            ("[8, 16.5]", "[8, 72]", "two have the position `72`"),
            ("[8, 16.5]", "\"8\"", "a table with known fields"),
            ("x = \"threads", "curves = \"none\" # ", "panels, rows and positions, or none"),
            ("\"reads\"", "\"read\"", "unknown variant `read`"),
            ("\"fanout\"", "\"fan\"", "figure t1: claim `fanout M`: there is no formula `fan`"),
            ("{ formula", "{ x = 1, formula", "a formula has no point"),
            ("row = \"Sherman\", x = 72", "row = \"SMART\", x = 72", "there is no row `SMART`"),
            ("row = \"Sherman\", x = 72", "x = 72", "it names no row, and its figure has 3"),
            ("x = 36, over", "x = 35, over", "there is no position `35`"),
            ("x = [2, 72]", "x = [2, 73]", "DEX is above Sherman`: there is no position `73`"),
            ("x = [2, 72]", "x = [2, 36, 72]", "a range of positions has two ends"),
            ("over = { row = \"fine\" }", "over = {}", "a point is compared with itself"),
            ("{ count = 42 }", "{ count = 42, ratio = 1 }", "more than one of the paper's values"),
            ("{ count = 42 }", "{}", "a claim without the paper's value"),
            ("{ count = 42 }", "{ counts = 42 }", "unknown field `counts`"),
        ] {
            assert!(example().contains(right), "{right}");
            let error = format!("{:#}", read(&example().replace(right, wrong)).unwrap_err());
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
