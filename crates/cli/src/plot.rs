//! Curves with axes, a legend beside them and marks; and bars, for tables. Drawn as SVG.

use anyhow::{Context, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Display;
use std::path::Path;

const SIZE: (u32, u32) = (800, 440);
/// What the legend has of the width, beside the curves.
const LEGEND: u32 = 150;
/// What the highest point has above it, as a multiple of it.
const HEADROOM: f64 = 1.1;
/// A bar with the space to the next, and the room for its name and for its figure.
const BAR: i32 = 26;
const BAR_NAME: i32 = 260;
const BAR_FIGURE: i32 = 110;
/// The room for title and caption above bars.
const BARS_TOP: i32 = 64;
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
    /// Above everything: what the file is called, and what it shows.
    pub(crate) title: String,
    /// Below it: what it was measured on.
    pub(crate) caption: String,
    /// What the x axis says.
    pub(crate) x: &'static str,
    /// What the y axis says: rates.
    pub(crate) y: &'static str,
    /// From the left to the right; with more curves than colours, these start again.
    pub(crate) curves: Vec<Curve>,
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
        let top = (points().map(|point| point.1).fold(0.0, f64::max) * HEADROOM).max(1.0);

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
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2))).map_err(failed)?;
            if self.dots {
                let dots = points().map(|at| Circle::new(at, 3, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
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

/// The height of title and caption.
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
    /// Above everything: what the file is called, and what it shows.
    pub(crate) title: String,
    /// Below it: what it was measured on.
    pub(crate) caption: String,
    /// From top to bottom: a name, how long the bar is, and the figure as it is written.
    pub(crate) bars: Vec<(String, f64, String)>,
}

impl Bars {
    /// Writes the file.
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
