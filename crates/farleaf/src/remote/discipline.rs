//! Which of the one-sided protocol's rules are kept.
//!
//! [`Sound`] keeps all of them; the others each break one, so that the simulator can show that its checkers
//! notice. The choice is made at compile time and costs the sound protocol nothing.

/// The rules.
pub trait Discipline: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// Readers check that their copy is of one piece.
    const CHECKS_SUM: bool = true;
    /// A new sibling is written before the page that points to it.
    const SIBLING_FIRST: bool = true;
}

/// The whole protocol.
#[derive(Clone, Copy, Debug)]
pub struct Sound;

impl Discipline for Sound {}

/// A planted bug: readers take what a READ brings, of one piece or not.
#[derive(Clone, Copy, Debug)]
pub struct SkipsChecksum;

impl Discipline for SkipsChecksum {
    const CHECKS_SUM: bool = false;
}

/// A planted bug: a split writes the page that points to the new sibling before the sibling.
#[derive(Clone, Copy, Debug)]
pub struct LinksBeforeSibling;

impl Discipline for LinksBeforeSibling {
    const SIBLING_FIRST: bool = false;
}
