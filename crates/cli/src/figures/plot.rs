//! Draws one SVG for each workload and placement of a figure.

use super::experiments::{Axis, Figure, Placement, Workload};
use super::{Point, Results};
use anyhow::{Context, anyhow};
use plotters::prelude::*;
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

/// Writes `base-….svg`.
pub(super) fn draw(base: &Path, figure: &Figure, results: &Results) -> anyhow::Result<()> {
    for &placement in figure.placements {
        for (number, &workload) in figure.workloads.iter().enumerate() {
            let letter = char::from(b'a' + number as u8);
            let kind = format!("{placement:?}").to_lowercase();
            let path = format!("{}-{letter}-{kind}.svg", base.display());
            draw_one(&path, figure, placement, workload, results)
                .with_context(|| format!("cannot draw {path}"))?;
        }
    }
    Ok(())
}

fn draw_one(
    path: &str,
    figure: &Figure,
    placement: Placement,
    workload: Workload,
    results: &Results,
) -> anyhow::Result<()> {
    let here = |point: &&Point| point.placement == placement && point.workload == workload;
    let points: Vec<&Point> = results.0.iter().filter(here).collect();
    let most = |value: fn(&Point) -> f64| points.iter().map(|p| value(p)).fold(0.0, f64::max);
    let (right, top) = (most(|point| point.x) * 1.05, most(|point| point.throughput) * 1.1);
    let failed = |error: &dyn std::fmt::Display| anyhow!("{error}");

    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let title = format!("Figure {}: {} ({placement:?})", figure.number, workload.name());
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..right.max(1e-9), 0.0..top.max(1.0))
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .x_desc(match figure.axis {
            Axis::Clients(_) => "clients",
            Axis::Records(_) => "data size",
            Axis::MemoryServers(_) => "memory servers",
        })
        .y_desc("operations/s")
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| super::rate(*value))
        .draw()
        .map_err(|error| failed(&error))?;
    for (design, colour) in results.designs().zip(COLOURS) {
        let curve =
            || points.iter().filter(|point| point.design == design).map(|p| (p.x, p.throughput));
        chart
            .draw_series(LineSeries::new(curve(), colour.stroke_width(2)))
            .map_err(|error| failed(&error))?
            .label(design)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart
            .draw_series(curve().map(|at| Circle::new(at, 3, colour.filled())))
            .map_err(|error| failed(&error))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|error| failed(&error))?;
    area.present().map_err(|error| failed(&error))
}
