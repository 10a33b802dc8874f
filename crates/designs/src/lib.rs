//! The index designs, compiled: each once for each layout that programs use.
//!
//! A design is generic over its pages and its endpoint, so it is compiled where it is named with
//! both. Programs that offer all designs name them here alone, and use them as objects
//! ([`AnyDesign`]): an edit in a design compiles the design, this crate and the programs' links.
//!
//! *Thread safety*: plain functions.

#![forbid(unsafe_code)]

use farleaf_dex::Dex;
use farleaf_dex::blocks::DexWithBlocks;
use farleaf_dlsm::{Dlsm, ShardedDlsm};
use farleaf_index::{AnyCompute, AnyDesign, Design};
use farleaf_page::{Bytes, CHOSEN, Entries8, Fixed8, Layout};
use farleaf_trees::chime::Chime;
use farleaf_trees::coarse::Coarse;
use farleaf_trees::fine::Fine;
use farleaf_trees::hybrid::Hybrid;
use farleaf_trees::sherman::{PSherman, Sherman};
use farleaf_trees::smart::{PSmart, Smart};

/// A layout for which this crate has compiled design `D`.
pub trait CompiledDesign<D: Design<Self>>: Layout {
    /// The design with these options.
    fn design(options: D::Options) -> AnyDesign<Self>;

    /// The compute side of an index of the design, to open more handles.
    fn compute(compute: D::Compute) -> AnyCompute<Self>;
}

macro_rules! compile {
    ($layout:ty: $($design:ty),+ $(,)?) => {$(
        impl CompiledDesign<$design> for $layout {
            fn design(options: <$design as Design<Self>>::Options) -> AnyDesign<Self> {
                AnyDesign::of::<$design>(options)
            }

            fn compute(compute: <$design as Design<Self>>::Compute) -> AnyCompute<Self> {
                AnyCompute::of::<$design>(compute)
            }
        }
    )+};
}

// Benchmarks: numbers in pages of 1 KiB.
compile!(Fixed8: Coarse, Fine, Hybrid, Sherman, PSherman, Chime, Smart, PSmart, Dex);
compile!(Fixed8: Dlsm, ShardedDlsm);
// Simulations: numbers in pages of any size.
compile!(Fixed8<CHOSEN>: Coarse, Fine, Hybrid, Smart, PSmart, Dex, Dlsm, ShardedDlsm);
compile!(Entries8<CHOSEN>: Sherman);
compile!(Entries8<CHOSEN, true>: Chime);
// Both: byte strings, and values in blocks.
compile!(Bytes<CHOSEN>: Coarse, Fine, Hybrid, Sherman, PSherman, Chime, Smart, PSmart, Dex);
compile!(Bytes<CHOSEN>: Dlsm, ShardedDlsm, DexWithBlocks);
