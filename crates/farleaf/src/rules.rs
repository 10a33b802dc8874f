//! The rules that a simulated cluster can be told to break, one at a time: planted bugs. A checker that notices none of them
//! is known to be blind.
//!
//! Code asks its fabric, or its processor, whether a rule is broken here; everywhere but in the simulator the answer is a
//! constant no, and costs nothing.
//!
//! *Thread safety*: constants.

use farleaf_fabric::Rule;

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRule {
    /// What code asks for.
    pub rule: Rule,
    /// What the bug is called that breaks it.
    pub bug: &'static str,
    /// The invariant that it belongs to.
    pub invariant: &'static str,
    /// The rule.
    pub text: &'static str,
}

impl KnownRule {
    /// The rule that the bug of this name breaks.
    pub fn of_bug(bug: &str) -> Option<&'static Self> {
        RULES.iter().find(|known| known.bug == bug)
    }
}

macro_rules! rules {
    ($($name:ident: $bug:literal, $invariant:literal, $text:literal;)*) => {
        #[expect(clippy::upper_case_acronyms, non_camel_case_types, reason = "they are named like the constants")]
        enum Number { $($name),* }

        $(#[doc = $text] pub(crate) const $name: Rule = Rule::new(Number::$name as u16);)*

        /// All of them.
        pub const RULES: &[KnownRule] = &[
            $(KnownRule { rule: $name, bug: $bug, invariant: $invariant, text: $text }),*
        ];
    };
}

rules! {
    FENCES: "skips_fences", "D5", "A node is searched only if its fences cover the key.";
    WRITE_BACK_AWAITED: "frees_frames_early", "C14", "A node counts as clean only once its WRITE has completed.";
    CHANGED_COPIES_DROPPED: "keeps_changed_copies", "C6", "The copy of a leaf goes that a memory server has changed.";
    MARKS_AWAITED: "leaves_in_haste", "C20", "Keys are given up only when no leaf of theirs is being brought.";
    STRAYS_TRIMMED: "keeps_strays", "D7", "What a node has beyond its slot in its parent is taken out when it is brought.";
    STAMPS_CHECKED: "believes_torn_leaves", "D8", "A leaf whose stamp does not fit is refused.";
    INNER_NODES_LOGGED: "skips_entries", "D9", "An exclusive inner node goes to the pool after a log entry.";
    CHECKSUMS: "skips_checksum", "V1", "A copy of a page counts only if its checksum says that it is of one piece.";
    SIBLING_FIRST: "links_before_sibling", "S2", "A new page is written before the page that points to it.";
    VALIDATION: "skips_validation", "L3", "What was read of a page counts only if its version has not changed.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rule_is_there_once() {
        let bugs: BTreeSet<_> = RULES.iter().map(|known| known.bug).collect();
        let numbers: BTreeSet<_> = RULES.iter().map(|known| known.rule).collect();
        assert_eq!((bugs.len(), numbers.len()), (RULES.len(), RULES.len()));
        assert_eq!(KnownRule::of_bug("skips_fences").map(|known| known.rule), Some(FENCES));
        assert_eq!(KnownRule::of_bug("nope"), None);
    }
}
