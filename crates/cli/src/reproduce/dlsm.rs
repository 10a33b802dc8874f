//! The experiments of Wang et al., *dLSM: An LSM-Based Index for Memory Disaggregation* (ICDE
//! 2023). They need the design, so each statement is listed and none is run.

use super::experiment::{Claim, Figure, Paper, Scale, Size};

/// The rows to reproduce from the dLSM paper.
pub(super) const DLSM: Paper = Paper {
    name: "dlsm",
    citation: "Wang et al., dLSM: An LSM-Based Index for Memory Disaggregation (ICDE 2023)",
    sizes: &[
        Size { scale: Scale::Small, keys: 1_000_000, operations: 300_000, warm_up: 0 },
        Size { scale: Scale::Medium, keys: 10_000_000, operations: 2_000_000, warm_up: 0 },
        Size { scale: Scale::Paper, keys: 100_000_000, operations: 2_000_000, warm_up: 0 },
    ],
    figures: &[
        Figure::statements(
            "7",
            "Figure 7: random writes",
            &[needs("1.8 to 11.7 × Sherman, bulk load and normal mode")],
        ),
        Figure::statements("8", "Figure 8: random reads", &[needs("up to 12.5% below Sherman")]),
        Figure::statements(
            "10",
            "Figure 10: mixes of reads and writes",
            &[needs("8 shards bring 1.7 ×")],
        ),
        Figure::statements("11", "Figure 11: full scans", &[needs("1.8 × Sherman")]),
        Figure::statements(
            "12",
            "Figure 12: compaction near the data",
            &[needs("throughput rises with the memory server's cores")],
        ),
        Figure::statements(
            "13",
            "Figure 13: byte-addressable tables",
            &[needs("60% more reads than with blocks")],
        ),
        Figure::statements(
            "14",
            "Figure 14: 16 compute and 16 memory servers",
            &[needs("throughput scales with the servers")],
        ),
    ],
};

const fn needs(statement: &'static str) -> Claim {
    Claim::unsaid(statement, "no experiment runs `dlsm` with the settings of this figure yet")
}
