//! Figures as tables on the terminal, CSV files and plots.

use crate::plot::{AxisScale, BarColumn, CurvePlot, PlotAxes, PlotCurve};
use crate::{Setting, TableOrder};
use anyhow::{Context, Result};
use comfy_table::presets::ASCII_MARKDOWN;
use std::fs;
use std::path::PathBuf;

/// A figure as a table: its first column names the lines.
pub(crate) struct Sheet {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) head: Vec<&'static str>,
    pub(crate) lines: Vec<Vec<String>>,
}

impl Sheet {
    pub(crate) fn new(name: &str, title: String, head: &[&'static str]) -> Self {
        Self { name: name.to_owned(), title, head: head.to_vec(), lines: Vec::new() }
    }

    /// The table as text.
    pub(crate) fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(self.head.clone());
        table.add_rows(self.lines.clone());
        format!("\n{}\n{table}", self.title)
    }

    fn csv(&self) -> String {
        let line = |cells: Vec<&str>| {
            let quoted = cells.iter().map(|cell| format!("\"{}\"", cell.replace('"', "\"\"")));
            quoted.collect::<Vec<_>>().join(",") + "\n"
        };
        let lines = self.lines.iter().map(|cells| line(cells.iter().map(String::as_str).collect()));
        line(self.head.clone()) + &lines.collect::<String>()
    }

    /// Bars of the column with this head.
    fn bars(&self, head: &str, caption: &str) -> Option<BarColumn> {
        let column = self.head.iter().position(|it| *it == head)?;
        let bar = |line: &Vec<String>| {
            Some((line[0].clone(), line[column].parse().ok()?, line[column].clone()))
        };
        let bars = self.lines.iter().map(bar).collect::<Option<_>>()?;
        Some(BarColumn {
            title: format!("{}: {head}", self.title),
            caption: caption.to_owned(),
            bars,
        })
    }
}

/// Where figures go besides the terminal.
pub(crate) struct Output {
    pub(crate) folder: Option<PathBuf>,
    /// The order of the tables in far memory.
    pub(crate) layout: TableOrder,
    /// The conditions of all measurements.
    pub(crate) caption: String,
}

impl Output {
    /// The setting that figures vary.
    pub(crate) fn usual(&self, page: usize) -> Setting {
        Setting { layout: self.layout, ..Setting::usual(page) }
    }

    /// Writes the sheet, and bars of one of its columns.
    pub(crate) fn write(&self, sheet: &Sheet, head: &str) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = folder.join(format!("{}.csv", sheet.name));
        fs::write(&file, sheet.csv())
            .with_context(|| format!("cannot write {}", file.display()))?;
        let bars = sheet.bars(head, &self.caption);
        bars.map_or(Ok(()), |bars| bars.draw(&folder.join(format!("{}.svg", sheet.name))))
    }

    /// Draws curves over the page size in KiB.
    pub(crate) fn curves(
        &self,
        name: &str,
        title: &str,
        y: &'static str,
        curves: Vec<(String, Vec<(f64, f64)>)>,
    ) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let curve = |(name, points)| PlotCurve { name, points, ..PlotCurve::default() };
        let plot = CurvePlot {
            title: title.to_owned(),
            caption: self.caption.clone(),
            x: "page in KiB",
            y,
            axes: PlotAxes { x: AxisScale::Log(4.0), ..PlotAxes::default() },
            curves: curves.into_iter().map(curve).collect(),
            dots: true,
            marks: Vec::new(),
        };
        plot.draw(&folder.join(format!("{name}.svg")))
    }
}
