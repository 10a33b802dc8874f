//! Plots drawn as SVG: curves with axes, marks and a legend on the side, and bars for tables.

use anyhow::{Context, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

const SIZE: (u32, u32) = (800, 440);
/// Minimum width of the legend next to the curves. The constants below are the width of the
/// legend's line with its gaps, and the width of a letter.
const LEGEND: u32 = 150;
const LEGEND_LINE: u32 = 30;
const LETTER: u32 = 6;
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

/// How an axis places values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum AxisScale {
    /// From 0, in equal steps.
    #[default]
    Linear,
    /// By the logarithm, with ticks at powers of the base.
    Log(f64),
}

impl AxisScale {
    /// The range that shows `values`, extended by the factor `room`. If it starts at 0, it ends at
    /// `least` or above.
    fn range(self, values: impl Iterator<Item = f64>, room: f64, least: f64) -> Range<f64> {
        match self {
            Self::Linear => 0.0..(values.fold(0.0, f64::max) * room).max(least),
            Self::Log(base) => {
                let places = values.filter(|value| self.has_place(*value));
                let ends = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
                let (low, high) = match places.fold((f64::INFINITY, 0.0), ends) {
                    (low, high) if low <= high => (low / room, high * room),
                    _ => (1.0, base),
                };
                // Ticks are powers of the base, and an axis needs at least two.
                let (from, to) = (low.log(base), high.log(base));
                match to.floor() - from.ceil() >= 1.0 {
                    true => low..high,
                    false => base.powf(from.floor())..base.powf(to.ceil().max(from.floor() + 1.0)),
                }
            }
        }
    }

    fn has_place(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.0)
    }
}

/// The axes of a plot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlotAxes {
    pub(crate) x: AxisScale,
    pub(crate) y: AxisScale,
    /// The end of the y axis, for bounded values.
    pub(crate) top: Option<f64>,
}

/// A plot of curves.
#[derive(Clone, Debug)]
pub(crate) struct CurvePlot {
    /// The title above the plot.
    pub(crate) title: String,
    /// The caption below the title: the conditions of the measurement.
    pub(crate) caption: String,
    /// Label of the x axis.
    pub(crate) x: &'static str,
    /// Label of the y axis, which shows rates.
    pub(crate) y: &'static str,
    /// How the axes place values.
    pub(crate) axes: PlotAxes,
    /// Points from left to right; if there are more curves than colours, colours repeat.
    pub(crate) curves: Vec<PlotCurve>,
    /// Whether points are drawn as dots.
    pub(crate) dots: bool,
    /// Marked positions on the x axis, with their labels.
    pub(crate) marks: Vec<(f64, String)>,
}

/// One curve.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlotCurve {
    /// The name in the legend.
    pub(crate) name: String,
    /// The points that the curve connects.
    pub(crate) points: Vec<(f64, f64)>,
    /// Position, lowest and highest value of points that were measured several times.
    pub(crate) spans: Vec<(f64, f64, f64)>,
    /// Points from the paper, drawn as hollow marks.
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

impl CurvePlot {
    /// Writes the plot to a file.
    pub(crate) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        self.write(path).with_context(|| format!("cannot draw {}", path.display()))
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw_titles(&area, &self.title, &self.caption).map_err(failed)?;
        let (_, below) = area.split_vertically(TITLES);
        let (left, legend) = below.split_horizontally(SIZE.0 - self.legend_width());
        let [x, y] = [self.x_range(), self.y_range()];
        let linear = |range: &Range<f64>| range.clone();
        let log = |range: &Range<f64>, base| range.clone().log_scale().base(base);
        match (self.axes.x, self.axes.y) {
            (AxisScale::Linear, AxisScale::Linear) => {
                self.draw_curves(&left, linear(&x), linear(&y))
            }
            (AxisScale::Linear, AxisScale::Log(base)) => {
                self.draw_curves(&left, linear(&x), log(&y, base))
            }
            (AxisScale::Log(base), AxisScale::Linear) => {
                self.draw_curves(&left, log(&x, base), linear(&y))
            }
            (AxisScale::Log(of_x), AxisScale::Log(of_y)) => {
                self.draw_curves(&left, log(&x, of_x), log(&y, of_y))
            }
        }?;
        self.draw_legend(&legend).map_err(failed)?;
        area.present().map_err(failed)
    }

    /// The range of the x axis.
    fn x_range(&self) -> Range<f64> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        self.axes.x.range(points.map(|point| point.0), 1.05, 1e-9)
    }

    /// The range of the y axis.
    fn y_range(&self) -> Range<f64> {
        let heights = self.curves.iter().flat_map(|PlotCurve { points, spans, stated, .. }| {
            let drawn = points.iter().chain(stated).map(|point| point.1);
            drawn.chain(spans.iter().flat_map(|span| [span.1, span.2]))
        });
        match self.axes.top {
            Some(top) => 0.0..top,
            None => self.axes.y.range(heights, HEADROOM, 1.0),
        }
    }

    /// The width of the legend, which lies next to the curves and never over them.
    fn legend_width(&self) -> u32 {
        let longest = self.curves.iter().map(|curve| curve.name.chars().count()).max();
        (LEGEND_LINE + LETTER * longest.unwrap_or(0) as u32).clamp(LEGEND, SIZE.0 / 2)
    }

    fn draw_curves<B: DrawingBackend, X, Y>(
        &self,
        area: &DrawingArea<B, Shift>,
        x: X,
        y: Y,
    ) -> anyhow::Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|value| match value {
                large if *large >= 10_000.0 => rate(*large),
                // Ticks are sums of steps, so round: 0.30000000000000004 becomes 0.3.
                value => ((value * 1e9).round() / 1e9).to_string(),
            })
            .y_label_formatter(&|value| rate(*value))
            .draw()
            .map_err(failed)?;
        let (right, top) = (self.x_range().end, self.y_range().end);
        for (number, (at, label)) in self.marks.iter().enumerate() {
            let tick = PathElement::new([(*at, 0.0), (*at, top)], BLACK.stroke_width(1));
            chart.draw_series([tick]).map_err(failed)?;
            // Put the label on the side of its mark where there is room, at a height that the
            // previous label does not use.
            let side = if *at > right * 0.7 { HPos::Right } else { HPos::Left };
            let height = top * (0.04 + 0.05 * (number % 4) as f64);
            let label = Text::new(format!(" {label} "), (*at, height), small(side));
            chart.draw_series([label]).map_err(failed)?;
        }
        // A logarithmic axis cannot show zeros.
        let has_place = |&(x, y): &(f64, f64)| self.axes.x.has_place(x) && self.axes.y.has_place(y);
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let points = || curve.points.iter().copied().filter(has_place);
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2))).map_err(failed)?;
            if self.dots {
                let dots = points().map(|at| Circle::new(at, 3, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
            let span = |&(x, low, high): &(f64, f64, f64)| {
                PathElement::new([(x, low), (x, high)], colour.stroke_width(1))
            };
            let spans = curve.spans.iter().filter(|(x, low, _)| has_place(&(*x, *low)));
            chart.draw_series(spans.map(span)).map_err(failed)?;
            let hollow = |at: (f64, f64)| Circle::new(at, 5, colour.stroke_width(2));
            let stated = curve.stated.iter().copied().filter(has_place);
            chart.draw_series(stated.map(hollow)).map_err(failed)?;
        }
        Ok(())
    }

    fn draw_legend<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        for (number, (curve, colour)) in self.curves.iter().zip(COLOURS.iter().cycle()).enumerate()
        {
            let y = 20 + 18 * number as i32;
            area.draw(&PathElement::new([(0, y), (18, y)], colour.stroke_width(2)))?;
            area.draw(&Text::new(curve.name.clone(), (24, y), small(HPos::Left)))?;
        }
        Ok(())
    }
}

fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("{error}")
}

/// The style of small text that is aligned to this side.
fn small(side: HPos) -> TextStyle<'static> {
    ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center))
}

/// Height of title and caption.
const TITLES: u32 = 52;

/// Font sizes of a title: a title that is too long for the plot gets a smaller font. A letter is
/// about half as wide as high.
const TITLE_SIZES: RangeInclusive<usize> = 10..=17;

fn draw_titles<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    caption: &str,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let centred = Pos::new(HPos::Center, VPos::Center);
    let middle = area.dim_in_pixel().0 as i32 / 2;
    let size = (2 * area.dim_in_pixel().0 as usize) / title.chars().count().max(1);
    let size = size.clamp(*TITLE_SIZES.start(), *TITLE_SIZES.end()) as u32;
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(centred);
    area.draw(&Text::new(title.to_owned(), (middle, 18), style))?;
    let style = ("sans-serif", 12).into_font().color(&COLOURS[5]).pos(centred);
    area.draw(&Text::new(caption.to_owned(), (middle, 40), style))
}

/// A column of a table, drawn as bars.
#[derive(Clone, Debug)]
pub(crate) struct BarColumn {
    /// The title above the plot.
    pub(crate) title: String,
    /// The caption below the title: the conditions of the measurement.
    pub(crate) caption: String,
    /// The bars from top to bottom: name, length, and the value as text.
    pub(crate) bars: Vec<(String, f64, String)>,
}

impl BarColumn {
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
        for (number, (name, length, figure)) in self.bars.iter().enumerate() {
            let top = BARS_TOP + BAR * number as i32;
            let (middle, end) = (top + BAR / 2, BAR_NAME + (length / longest * room) as i32);
            let corners = [(BAR_NAME, top + 4), (end, top + BAR - 4)];
            area.draw(&Rectangle::new(corners, COLOURS[0].filled()))?;
            area.draw(&Text::new(name.clone(), (BAR_NAME - 8, middle), small(HPos::Right)))?;
            area.draw(&Text::new(figure.clone(), (end + 6, middle), small(HPos::Left)))?;
        }
        area.present()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(axes: PlotAxes, curves: &[(&str, &[(f64, f64)])]) -> CurvePlot {
        let curve = |(name, points): &(&str, &[(f64, f64)])| PlotCurve {
            name: (*name).to_owned(),
            points: points.to_vec(),
            ..PlotCurve::default()
        };
        CurvePlot {
            title: "title".to_owned(),
            caption: "caption".to_owned(),
            x: "x",
            y: "y",
            axes,
            curves: curves.iter().map(curve).collect(),
            dots: true,
            marks: Vec::new(),
        }
    }

    /// The text of the file, by elements.
    fn drawn(name: &str, draw: impl FnOnce(&Path) -> anyhow::Result<()>) -> Vec<String> {
        let path = format!("farleaf-{}-{name}.svg", std::process::id());
        let path = std::env::temp_dir().join(path);
        draw(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text.split("\n<").map(str::to_owned).collect()
    }

    fn attribute(element: &str, name: &str) -> f64 {
        let text =
            element.split(&format!(" {name}=\"")).nth(1).unwrap_or_else(|| panic!("{element}"));
        text.split('"').next().unwrap().parse().unwrap()
    }

    /// The centres of the dots of an SVG.
    fn dots(elements: &[String]) -> Vec<(f64, f64)> {
        let circles = elements.iter().filter(|element| element.starts_with("circle"));
        circles.map(|circle| (attribute(circle, "cx"), attribute(circle, "cy"))).collect()
    }

    /// The position of a text and whether there is one.
    fn text_at(elements: &[String], text: &str) -> Option<(f64, f64)> {
        let element = elements.iter().find(|element| {
            element.starts_with("text") && element.contains(&format!("\n{text}"))
        })?;
        Some((attribute(element, "x"), attribute(element, "y")))
    }

    #[test]
    fn a_logarithmic_axis_has_equal_steps_for_equal_ratios() {
        let points = [(1.0, 10.0), (4.0, 1_000.0), (16.0, 100_000.0)];
        let log = PlotAxes { x: AxisScale::Log(2.0), y: AxisScale::Log(10.0), top: None };
        let elements = drawn("log", |path| plot(log, &[("a", &points)]).draw(path));
        let [first, second, third] = dots(&elements)[..] else { panic!("{elements:?}") };
        assert!((second.0 - first.0 - (third.0 - second.0)).abs() <= 1.0, "{first:?} {third:?}");
        assert!((second.1 - first.1 - (third.1 - second.1)).abs() <= 1.0, "{first:?} {third:?}");
        for tick in ["2", "8", "10.0", "1.0 k", "100.0 k"] {
            assert!(text_at(&elements, tick).is_some(), "{tick}: {elements:?}");
        }

        let linear =
            drawn("linear", |path| plot(PlotAxes::default(), &[("a", &points)]).draw(path));
        let [first, second, third] = dots(&linear)[..] else { panic!("{linear:?}") };
        let (near, far) = (second.0 - first.0, third.0 - second.0);
        assert!((far / near - 4.0).abs() < 0.1, "12 and 3 units: {near} and {far}");
    }

    #[test]
    fn zeros_have_no_place_on_a_logarithmic_axis() {
        let log = PlotAxes { y: AxisScale::Log(10.0), ..PlotAxes::default() };
        let points = [(1.0, 0.0), (2.0, f64::NAN), (3.0, 5.0)];
        let elements = drawn("zeros", |path| plot(log, &[("a", &points)]).draw(path));
        assert_eq!(dots(&elements).len(), 1);
        // Even a single value needs two ticks.
        assert!(text_at(&elements, "1.0").is_some() && text_at(&elements, "10.0").is_some());
        let empty = drawn("empty", |path| plot(log, &[("a", &[(1.0, 0.0)])]).draw(path));
        assert_eq!(dots(&empty), []);
    }

    #[test]
    fn a_legend_lies_beside_the_curves_however_long_its_names() {
        let name = "one queue, two sockets (× 3), and then some more words";
        let points = [(0.0, 1.0), (100.0, 3.0)];
        let elements = drawn("legend", |path| {
            plot(PlotAxes::default(), &[("a", &points), (name, &points)]).draw(path)
        });
        let (x, _) = text_at(&elements, name).unwrap();
        let rightmost = dots(&elements).iter().map(|dot| dot.0).fold(0.0, f64::max);
        assert!(x > rightmost, "{x} {rightmost}");
        let end = x + f64::from(LETTER) * name.chars().count() as f64;
        assert!(end <= f64::from(SIZE.0), "{end}");
    }

    #[test]
    fn stated_points_are_hollow_and_the_top_can_be_fixed() {
        let axes = PlotAxes { top: Some(1.0), ..PlotAxes::default() };
        let mut plot = plot(axes, &[("a", &[(1.0, 0.25), (2.0, 0.5)])]);
        plot.curves[0].stated.push((1.0, 0.5));
        let elements = drawn("stated", |path| plot.draw(path));
        let circles: Vec<_> = elements.iter().filter(|e| e.starts_with("circle")).collect();
        let hollow: Vec<_> = circles.iter().filter(|c| c.contains("fill=\"none\"")).collect();
        assert_eq!((circles.len(), hollow.len()), (3, 1), "{circles:?}");
        // Half of the axis is as far from the top as from the bottom.
        let (quarter, half) = (attribute(circles[0], "cy"), attribute(circles[1], "cy"));
        let (_, top) = text_at(&elements, "1.0").unwrap();
        assert!((half - top - 2.0 * (quarter - half)).abs() < 8.0, "{top} {half} {quarter}");
    }

    #[test]
    fn a_long_title_has_smaller_letters() {
        let size = |title: &str| {
            let bars =
                BarColumn { title: title.to_owned(), caption: String::new(), bars: Vec::new() };
            let elements = drawn(&format!("title-{}", title.len()), |path| bars.draw(path));
            let text = elements.iter().find(|element| element.contains(title)).unwrap();
            attribute(text, "font-size")
        };
        assert!(size(&"word ".repeat(28)) < size("short"));
    }
}
