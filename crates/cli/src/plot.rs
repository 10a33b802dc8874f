//! Curves with axes, a legend and marks, drawn as SVG.

use anyhow::{Context, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Display;
use std::path::Path;

const SIZE: (u32, u32) = (640, 420);
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(90, 90, 90),
];

/// What is drawn. Both axes start at 0.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Above everything.
    pub(crate) title: String,
    /// What the x axis says.
    pub(crate) x: &'static str,
    /// What the y axis says: rates.
    pub(crate) y: &'static str,
    /// From the left to the right; with more curves than colours, these start again.
    pub(crate) curves: Vec<Curve>,
    /// How high the y axis is, in times of the highest point: curves that begin high need room for the legend.
    pub(crate) headroom: f64,
    /// Whether points are seen as such.
    pub(crate) dots: bool,
    /// Where on the x axis something happened, and what.
    pub(crate) marks: Vec<(f64, String)>,
}

/// One curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// What the legend calls it.
    pub(crate) name: String,
    /// Where it goes through.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A number of operations a second, to three digits.
pub(crate) fn rate(throughput: f64) -> String {
    match throughput {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.1}"),
    }
}

impl Plot {
    /// Writes the file.
    pub(crate) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        self.write(path).with_context(|| format!("cannot draw {}", path.display()))
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        fn failed(error: impl Display) -> anyhow::Error {
            anyhow!("{error}")
        }
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let right = points().map(|point| point.0).fold(0.0, f64::max) * 1.05;
        let top = (points().map(|point| point.1).fold(0.0, f64::max) * self.headroom).max(1.0);

        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right.max(1e-9), 0.0..top)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .light_line_style(TRANSPARENT)
            // Ticks are sums of steps: 0.30000000000000004 is 0.3.
            .x_label_formatter(&|value| ((value * 1e9).round() / 1e9).to_string())
            .y_label_formatter(&|value| rate(*value))
            .draw()
            .map_err(failed)?;
        for (number, (at, label)) in self.marks.iter().enumerate() {
            let tick = PathElement::new([(*at, 0.0), (*at, top)], BLACK.stroke_width(1));
            chart.draw_series([tick]).map_err(failed)?;
            // Beside its tick, where there is room, and not where the mark before has its own.
            let side = if *at > right * 0.7 { HPos::Right } else { HPos::Left };
            let style = ("sans-serif", 12).into_font().color(&BLACK);
            let style = style.pos(Pos::new(side, VPos::Center));
            let height = top * (0.04 + 0.05 * (number % 4) as f64);
            let label = Text::new(format!(" {label} "), (*at, height), style);
            chart.draw_series([label]).map_err(failed)?;
        }
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let points = || curve.points.iter().copied();
            chart
                .draw_series(LineSeries::new(points(), colour.stroke_width(2)))
                .map_err(failed)?
                .label(&curve.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            if self.dots {
                let dots = points().map(|at| Circle::new(at, 3, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)
    }
}
