//! The rules that DEX's clients keep, and some ways to break them: canaries, so that a checker which notices
//! nothing is known to be blind.
//!
//! *Thread safety*: types without values.

use std::fmt::Debug;

/// Which rules are kept.
pub trait Discipline: Copy + Debug + Default + Send + Sync + 'static {
    /// Whether a node is searched only if its fences cover the key.
    const CHECKS_FENCES: bool;
    /// Whether a node counts as clean only once its WRITE has completed (C14).
    const AWAITS_WRITE_BACK: bool;
    /// Whether the copy of a leaf goes that a memory server has changed.
    const DROPS_CHANGED_COPIES: bool = true;
    /// Whether who gives keys up waits for what is being brought of them (C20).
    const WAITS_FOR_MARKS: bool = true;
}

/// All of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sound;

impl Discipline for Sound {
    const CHECKS_FENCES: bool = true;
    const AWAITS_WRITE_BACK: bool = true;
}

/// A canary: descents believe their parents.
#[derive(Clone, Copy, Debug, Default)]
pub struct SkipsFences;

impl Discipline for SkipsFences {
    const CHECKS_FENCES: bool = false;
    const AWAITS_WRITE_BACK: bool = true;
}

/// A canary: a frame can be used again while its write-back is still in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreesFramesEarly;

impl Discipline for FreesFramesEarly {
    const CHECKS_FENCES: bool = true;
    const AWAITS_WRITE_BACK: bool = false;
}

/// A canary: the copy of a leaf stays that a memory server has changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepsChangedCopies;

impl Discipline for KeepsChangedCopies {
    const CHECKS_FENCES: bool = true;
    const AWAITS_WRITE_BACK: bool = true;
    const DROPS_CHANGED_COPIES: bool = false;
}

/// A canary: keys are given up while leaves of theirs are still being brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeavesInHaste;

impl Discipline for LeavesInHaste {
    const CHECKS_FENCES: bool = true;
    const AWAITS_WRITE_BACK: bool = true;
    const WAITS_FOR_MARKS: bool = false;
}
