//! Plots drawn as SVG: curves with axes, marks and a legend on the side, and bars for tables.

use anyhow::{Context, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Display;
use std::path::Path;

const SIZE: (u32, u32) = (800, 440);
/// Width of the legend next to the curves.
const LEGEND: u32 = 150;
/// Upper end of the y axis, as a multiple of the highest point.
const HEADROOM: f64 = 1.1;
/// Height of a bar including the gap to the next; below, the widths for its name and its value.
const BAR: i32 = 26;
const BAR_NAME: i32 = 260;
const BAR_FIGURE: i32 = 110;
/// Height of title and caption above bars.
const BARS_TOP: i32 = 64;
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(90, 90, 90),
];

/// A plot of curves. Both axes start at 0.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// The title above the plot.
    pub(crate) title: String,
    /// The caption below the title: the conditions of the measurement.
    pub(crate) caption: String,
    /// Label of the x axis.
    pub(crate) x: &'static str,
    /// Label of the y axis, which shows rates.
    pub(crate) y: &'static str,
    /// Points from left to right; if there are more curves than colours, colours repeat.
    pub(crate) curves: Vec<Curve>,
    /// Whether points are drawn as dots.
    pub(crate) dots: bool,
    /// Marked positions on the x axis, with their labels.
    pub(crate) marks: Vec<(f64, String)>,
}

/// One curve.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// The name in the legend.
    pub(crate) name: String,
    /// The points that the curve connects.
    pub(crate) points: Vec<(f64, f64)>,
    /// Position, lowest and highest value of points that were measured several times.
    pub(crate) spans: Vec<(f64, f64, f64)>,
    /// Points that others state, drawn as hollow marks.
    pub(crate) stated: Vec<(f64, f64)>,
}

/// Formats operations per second with three digits.
pub(crate) fn rate(throughput: f64) -> String {
    match throughput {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.1}"),
    }
}

impl Plot {
    /// Writes the plot to a file.
    pub(crate) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        self.write(path).with_context(|| format!("cannot draw {}", path.display()))
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        fn failed(error: impl Display) -> anyhow::Error {
            anyhow!("{error}")
        }
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let right = points().map(|point| point.0).fold(0.0, f64::max) * 1.05;
        let heights = self.curves.iter().flat_map(|Curve { points, spans, stated, .. }| {
            let drawn = points.iter().chain(stated).map(|point| point.1);
            drawn.chain(spans.iter().map(|span| span.2))
        });
        let top = (heights.fold(0.0, f64::max) * HEADROOM).max(1.0);

        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw_titles(&area, &self.title, &self.caption).map_err(failed)?;
        let (_, below) = area.split_vertically(TITLES);
        let (left, legend) = below.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&left)
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
            // Ticks are sums of steps, so round: 0.30000000000000004 becomes 0.3.
            .x_label_formatter(&|value| ((value * 1e9).round() / 1e9).to_string())
            .y_label_formatter(&|value| rate(*value))
            .draw()
            .map_err(failed)?;
        for (number, (at, label)) in self.marks.iter().enumerate() {
            let tick = PathElement::new([(*at, 0.0), (*at, top)], BLACK.stroke_width(1));
            chart.draw_series([tick]).map_err(failed)?;
            // Put the label on the side of its mark where there is room, at a height that the
            // previous label does not use.
            let side = if *at > right * 0.7 { HPos::Right } else { HPos::Left };
            let style = ("sans-serif", 12).into_font().color(&BLACK);
            let style = style.pos(Pos::new(side, VPos::Center));
            let height = top * (0.04 + 0.05 * (number % 4) as f64);
            let label = Text::new(format!(" {label} "), (*at, height), style);
            chart.draw_series([label]).map_err(failed)?;
        }
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let points = || curve.points.iter().copied();
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2))).map_err(failed)?;
            if self.dots {
                let dots = points().map(|at| Circle::new(at, 3, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
            let span = |&(x, low, high): &(f64, f64, f64)| {
                PathElement::new([(x, low), (x, high)], colour.stroke_width(1))
            };
            chart.draw_series(curve.spans.iter().map(span)).map_err(failed)?;
            let hollow = |at: &(f64, f64)| Circle::new(*at, 5, colour.stroke_width(2));
            chart.draw_series(curve.stated.iter().map(hollow)).map_err(failed)?;
        }
        let style = ("sans-serif", 12).into_font().color(&BLACK);
        let style = style.pos(Pos::new(HPos::Left, VPos::Center));
        for (number, (curve, colour)) in self.curves.iter().zip(COLOURS.iter().cycle()).enumerate()
        {
            let y = 20 + 18 * number as i32;
            let line = PathElement::new([(0, y), (18, y)], colour.stroke_width(2));
            legend.draw(&line).map_err(failed)?;
            legend.draw(&Text::new(curve.name.clone(), (24, y), style.clone())).map_err(failed)?;
        }
        area.present().map_err(failed)
    }
}

/// Height of title and caption.
const TITLES: u32 = 52;

fn draw_titles<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    title: &str,
    caption: &str,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let centred = Pos::new(HPos::Center, VPos::Center);
    let middle = area.dim_in_pixel().0 as i32 / 2;
    let style = ("sans-serif", 17).into_font().color(&BLACK).pos(centred);
    area.draw(&Text::new(title.to_owned(), (middle, 18), style))?;
    let style = ("sans-serif", 12).into_font().color(&COLOURS[5]).pos(centred);
    area.draw(&Text::new(caption.to_owned(), (middle, 40), style))
}

/// A column of a table as bars.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    /// The title above the plot.
    pub(crate) title: String,
    /// The caption below the title: the conditions of the measurement.
    pub(crate) caption: String,
    /// The bars from top to bottom: name, length, and the value as text.
    pub(crate) bars: Vec<(String, f64, String)>,
}

impl Bars {
    /// Writes the plot to a file.
    pub(crate) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        self.write(path)
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("cannot draw {}", path.display()))
    }

    fn write(&self, path: &Path) -> Result<(), impl Display> {
        let height = BARS_TOP + BAR * self.bars.len() as i32 + 16;
        let area = SVGBackend::new(path, (SIZE.0, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        draw_titles(&area, &self.title, &self.caption)?;
        let longest = self.bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
        let room = f64::from(SIZE.0 as i32 - BAR_NAME - BAR_FIGURE);
        let text = |side| {
            let style = ("sans-serif", 12).into_font().color(&BLACK);
            style.pos(Pos::new(side, VPos::Center))
        };
        for (number, (name, length, figure)) in self.bars.iter().enumerate() {
            let top = BARS_TOP + BAR * number as i32;
            let (middle, end) = (top + BAR / 2, BAR_NAME + (length / longest * room) as i32);
            let corners = [(BAR_NAME, top + 4), (end, top + BAR - 4)];
            area.draw(&Rectangle::new(corners, COLOURS[0].filled()))?;
            area.draw(&Text::new(name.clone(), (BAR_NAME - 8, middle), text(HPos::Right)))?;
            area.draw(&Text::new(figure.clone(), (end + 6, middle), text(HPos::Left)))?;
        }
        area.present()
    }
}
