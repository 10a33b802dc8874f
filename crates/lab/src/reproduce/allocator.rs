//! Weisgut et al., *Separated Allocator Metadata in Disaggregated In-Memory Databases: Friend or
//! Foe?*: figures of page faults under TPC-H and TPC-DS, which this command does not run.
//! `docs/far-memory.md` has those that the examples of `crates/far-alloc` run.

use super::experiment::{PaperClaim, PaperFigure, PaperFigures, RunScale, RunSize};

/// The rows to reproduce from the paper about allocators.
pub(super) const ALLOCATOR: PaperFigures = PaperFigures {
    name: "allocator",
    citation: "Weisgut et al., Separated Allocator Metadata in Disaggregated In-Memory Databases: Friend or Foe?",
    sizes: &[
        RunSize { scale: RunScale::Small, keys: 1_000_000, operations: 300_000, warm_up: 0 },
        RunSize { scale: RunScale::Medium, keys: 10_000_000, operations: 300_000, warm_up: 0 },
        RunSize { scale: RunScale::Paper, keys: 100_000_000, operations: 300_000, warm_up: 0 },
    ],
    figures: &[PaperFigure::statements(
        "5-9",
        "Figures 5 to 9: where an allocator keeps its metadata",
        &[PaperClaim::unsaid(
            "where the metadata lies changes page faults and run time of TPC-H and TPC-DS",
            "needs a heap on far memory under a database system; the differences reported are within noise",
        )],
    )],
};
