//! The experiments as data: what each figure of the paper varies, and the results that its text
//! reports.
//!
//! Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast RDMA-capable
//! Networks* (SIGMOD 2019), §6. The paper loads 100 M records. Here the number of records is an
//! option, and scans select the same shares of the records as in the paper.

use super::Results;

/// A client's workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Workload {
    /// A: uniform point queries.
    Points,
    /// B: range queries that select this share of the records.
    Ranges(f64),
    /// C and D: point queries and this percentage of insertions.
    Inserts(u32),
}

impl Workload {
    /// The name in tables and file names.
    pub(super) fn name(self) -> String {
        match self {
            Self::Points => "A: points".to_owned(),
            Self::Ranges(share) => format!("B: ranges of {share}"),
            Self::Inserts(percent) if percent < 50 => format!("C: {percent}% inserts"),
            Self::Inserts(percent) => format!("D: {percent}% inserts"),
        }
    }
}

/// The parameter that a figure varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Axis {
    /// Number of clients, at most forty per compute server; four memory servers.
    Clients(&'static [u16]),
    /// Number of loaded records, as a multiple of the option; 240 clients, four memory servers.
    Records(&'static [f64]),
    /// Number of memory servers; 120 clients.
    MemoryServers(&'static [u16]),
}

/// Distribution of the records over the memory servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    Even,
    /// 80, 12, 5 and 3 percent on four servers; with another number of servers, 80 percent on the
    /// first.
    Skewed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) number: u32,
    pub(super) title: &'static str,
    pub(super) axis: Axis,
    pub(super) placements: &'static [Placement],
    pub(super) workloads: &'static [Workload],
    pub(super) claims: &'static [Claim],
}

/// A claim of the paper about a figure.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) text: &'static str,
    /// Whether the claim holds in these results; `None` if the designs that it concerns were not
    /// run.
    pub(super) holds: fn(&Results) -> Option<bool>,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text)
    }
}

const CLIENTS: Axis = Axis::Clients(&[20, 40, 80, 120, 160, 200, 240]);
const A: Workload = Workload::Points;
const B3: Workload = Workload::Ranges(0.001);
const B2: Workload = Workload::Ranges(0.01);
const B1: Workload = Workload::Ranges(0.1);
const C: Workload = Workload::Inserts(5);
const D: Workload = Workload::Inserts(50);
use Placement::{Even, Skewed};

/// All figures that can be drawn. Figure 9 shows the network traffic of figure 7's runs.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        number: 7,
        title: "throughput, skewed data",
        axis: CLIENTS,
        placements: &[Skewed],
        workloads: &[A, B3, B2, B1],
        claims: &[
            Claim {
                text: "points: hybrid is above coarse from 40 clients on",
                holds: |r| r.above("hybrid", "coarse", Skewed, A, 40..=240),
            },
            Claim {
                text: "points: fine is below hybrid under low load (20 clients)",
                holds: |r| r.above("hybrid", "fine", Skewed, A, 20..=20),
            },
            Claim {
                text: "points: coarse stops growing (240 clients less than 1.2 x 40 clients)",
                holds: |r| r.growth("coarse", Skewed, A, 40, 240).map(|growth| growth < 1.2),
            },
            Claim {
                text: "ranges of 0.01: fine and hybrid are above coarse from 80 clients on",
                holds: |r| {
                    let fine = r.above("fine", "coarse", Skewed, B2, 80..=240)?;
                    Some(fine && r.above("hybrid", "coarse", Skewed, B2, 80..=240)?)
                },
            },
        ],
    },
    Figure {
        number: 8,
        title: "throughput, uniform data",
        axis: CLIENTS,
        placements: &[Even],
        workloads: &[A, B3, B2, B1],
        claims: &[
            Claim {
                text: "points: with 20 clients coarse is at least as good as hybrid",
                holds: |r| r.above("coarse", "hybrid", Even, A, 20..=20),
            },
            Claim {
                text: "points: with 120 clients and more hybrid is above coarse",
                holds: |r| r.above("hybrid", "coarse", Even, A, 120..=240),
            },
            Claim {
                text: "points: fine is below hybrid at every load",
                holds: |r| r.above("hybrid", "fine", Even, A, 20..=240),
            },
            Claim {
                text: "ranges of 0.01: fine is within a quarter of hybrid at 240 clients",
                holds: |r| {
                    let fine = r.throughput("fine", Even, B2, 240.0)?;
                    Some(fine > 0.75 * r.throughput("hybrid", Even, B2, 240.0)?)
                },
            },
        ],
    },
    Figure {
        number: 10,
        title: "varying data size, 240 clients",
        axis: Axis::Records(&[0.1, 1.0, 4.0]),
        placements: &[Even],
        workloads: &[A, B1],
        claims: &[Claim {
            text: "points: forty times the data costs every design less than a half",
            holds: |r| {
                let growth = |design| r.growth_of(design, Even, A, 0.1, 4.0);
                let growths: Vec<f64> = r.designs().filter_map(growth).collect();
                (!growths.is_empty()).then(|| growths.iter().all(|growth| *growth > 0.5))
            },
        }],
    },
    Figure {
        number: 11,
        title: "varying memory servers, 120 clients",
        axis: Axis::MemoryServers(&[1, 2, 4, 8]),
        placements: &[Even, Skewed],
        workloads: &[A, B2],
        claims: &[
            Claim {
                text: "ranges, skewed: fine makes use of more servers (8 at least twice 2)",
                holds: |r| r.growth_of("fine", Skewed, B2, 2.0, 8.0).map(|growth| growth > 2.0),
            },
            Claim {
                text: "points, uniform: coarse makes use of more servers (4 at least 1.7 x 2)",
                holds: |r| r.growth_of("coarse", Even, A, 2.0, 4.0).map(|growth| growth > 1.7),
            },
            Claim {
                text: "points, skewed: coarse does not (8 less than 1.3 x 2)",
                holds: |r| r.growth_of("coarse", Skewed, A, 2.0, 8.0).map(|growth| growth < 1.3),
            },
        ],
    },
    Figure {
        number: 12,
        title: "throughput with inserts, uniform data",
        axis: CLIENTS,
        placements: &[Even],
        workloads: &[C, D],
        claims: &[
            Claim {
                text: "5% inserts: hybrid is above coarse from 120 clients on",
                holds: |r| r.above("hybrid", "coarse", Even, C, 120..=240),
            },
            Claim {
                text: "50% inserts: below 140 clients hybrid is above fine",
                holds: |r| r.above("hybrid", "fine", Even, D, 20..=120),
            },
            Claim {
                text: "50% inserts: with 160 clients and more fine overtakes hybrid and coarse",
                holds: |r| {
                    let hybrid = r.above("fine", "hybrid", Even, D, 160..=240)?;
                    Some(hybrid && r.above("fine", "coarse", Even, D, 160..=240)?)
                },
            },
        ],
    },
];
