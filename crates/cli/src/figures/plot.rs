//! Draws one SVG for each workload and placement of a figure.

use super::experiments::{Axis, Figure, Placement, Workload};
use super::{Point, Results};
use crate::plot::{Curve, Plot};
use std::path::Path;

/// Draws the figure's plots to `base-….svg`.
pub(super) fn draw(
    base: &Path,
    figure: &Figure,
    results: &Results,
    caption: &str,
) -> anyhow::Result<()> {
    for &placement in figure.placements {
        for (number, &workload) in figure.workloads.iter().enumerate() {
            let letter = char::from(b'a' + number as u8);
            let kind = format!("{placement:?}").to_lowercase();
            let path = format!("{}-{letter}-{kind}.svg", base.display());
            let title = format!("Figure {}-{letter}, {kind}: {}", figure.number, workload.name());
            let curves = plot(figure, placement, workload, results);
            let caption = caption.to_owned();
            Plot { title, caption, ..curves }.draw(Path::new(&path))?;
        }
    }
    Ok(())
}

fn plot(figure: &Figure, placement: Placement, workload: Workload, results: &Results) -> Plot {
    let curve = |design: &'static str| {
        let of_curve = |point: &&Point| {
            point.placement == placement && point.workload == workload && point.design == design
        };
        let points = results.0.iter().filter(of_curve);
        Curve {
            name: design.to_owned(),
            points: points.map(|point| (point.x, point.throughput)).collect(),
        }
    };
    Plot {
        title: String::new(),
        caption: String::new(),
        x: match figure.axis {
            Axis::Clients(_) => "clients",
            Axis::Records(_) => "data size",
            Axis::MemoryServers(_) => "memory servers",
        },
        y: "operations/s",
        curves: results.designs().map(curve).collect(),
        dots: true,
        marks: Vec::new(),
    }
}
