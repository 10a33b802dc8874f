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
    // Pages over one-sided verbs.
    OWN_ADDRESS: "ignores_own_address", "P1", "A page that was read is the node looked for only if it names its own address.";
    CHECKSUMS: "skips_checksum", "V1", "A copy of a page counts only if its checksum says that it is of one piece.";
    POINTERS_AGE: "follows_old_pointers", "V2", "No pointer is followed that is older than half of the time that freed nodes rest.";
    FREED_NODES_REST: "reuses_at_once", "V2", "A freed node is not used again before it has rested.";
    VERSIONS_GO_ON: "restarts_versions", "V3", "The versions of a node go on when it is used again.";
    DEAD_PAGES_REFUSED: "uses_dead_pages", "V4", "A page that was read is used only if it is not dead.";
    LOCKED_AS_COPIED: "locks_whatever_is_there", "K1", "The CAS that locks a page expects the word of the copy that is changed.";
    LOCKS_RELEASED: "never_releases", "K3", "A page that did not change is let go of by putting its word back.";
    DOUBTS_SETTLED: "leaves_doubts", "K4", "A page that a client may hold without knowing it is looked after by its later operations.";
    LOCKS_SETTLED: "looks_without_reset", "F9", "After a CAS of unknown outcome the connection is reset before the word is read.";
    CHANGES_LOGGED: "commits_unlogged", "W1", "The log entry of a change is written before the change.";
    ENTRIES_AWAITED: "awaits_no_entry", "W1", "The log entry of a change on several servers has landed before the change begins.";
    UNLOCK_LAST: "unlocks_first", "W2", "The word that unlocks a page lands after all others.";
    UNLOCK_ALONE: "unlocks_with_the_page", "W2", "The word that unlocks a page is a WRITE of its own.";
    COMMITS_SETTLED: "commits_in_doubt", "W3", "A commit is finished before it is acknowledged.";
    SETTLED_AFTER_RESET: "settles_without_reset", "F9", "A commit in doubt is finished only after nothing of it can land any more.";
    SIBLING_FIRST: "links_before_sibling", "S2", "A new page is written before the page that points to it.";
    FRESH_SETTLED: "rewrites_without_reset", "N3", "A new page is written again only after nothing of the last attempt can land any more.";
    CHAIN_DECIDES: "believes_heads", "heads", "A leaf that a head lists counts only if the chain leads to it.";
    CHUNKS_ONCE: "gives_a_chunk_each_time", "A4", "A request for a chunk that is sent again gets the same chunk.";
    LEAVES_READ_ONCE: "scans_piecemeal", "leaves", "A scan takes the records of a leaf from one copy of it.";
    // What a client leaves behind that dies.
    DEAD_IF_DECLARED: "buries_the_living", "O2 (owners)", "A client is dead only if it was declared dead.";
    NUMBERS_AT_REST: "retires_in_doubt", "O1 (owners)", "A client's number goes to another only when nothing is locked, logged or on its way under it.";
    RECOVERY_FENCES: "recovers_unfenced", "F10", "A dead client is shut out before its pages are touched.";
    HELD_PAGES_FINISHED: "forgets_held_pages", "recovery", "A page of an entry that is locked at the version before is finished.";
    RELOCKED_PAGES_FINISHED: "forgets_relocked_pages", "recovery", "A page of an entry that is locked at its version is finished.";
    HALF_PAGES_FINISHED: "forgets_half_pages", "recovery", "A page of an entry that is not locked and not of one piece is finished.";
    WHOLE_ENTRIES_FINISHED: "finishes_one_page", "R3", "All pages of an entry are finished, in their order.";
    UNTOUCHED_UNLOCKED: "leaves_untouched_locked", "R1", "A page that a dead client locked and did not touch is unlocked.";
    SURVIVORS_LOG: "takes_over_unlogged", "recovery", "A survivor takes a page over after an entry of its own.";
    SURVIVORS_AWAITED: "overtakes_survivors", "recovery", "A page that another survivor is finishing is waited for before the next one.";
    // Collection.
    NEIGHBOURS_ONLY: "joins_strangers", "G1", "Two nodes are joined only if nothing is between them.";
    LOSERS_FIRST: "writes_gainers_first", "G2", "Of pages that change together those that lose keys are written first.";
    FREED_ARE_DEAD: "frees_the_living", "G3", "A node is dead before it is freed.";
    RECORDS_GO_FIRST: "keeps_records_of_leaves", "G2", "The server's record of a leaf is gone before the leaf is merged away.";
    WHOLE_CHILD_ONLY: "collapses_split_child", "G1", "A root takes the content of its child only if that is all there is.";
    // A memory server's tree, and walks.
    VALIDATION: "skips_validation", "L3", "What was read of a page counts only if its version has not changed.";
    HAND_OVER_VALIDATED: "trusts_old_parents", "T1", "A parent is validated after its child's version was taken.";
    RETIRED_NODES_REST: "frees_at_once", "E2", "A node of a memory server's tree is used again two epochs after it was retired.";
    ONCE_PER_TICKET: "does_it_twice", "W1 (walks)", "A change is made at most once for each ticket.";
    WALKS_DOUBT: "walks_anywhere", "W2 (walks)", "A walk refuses a page of another address, level or range.";
    // The cache.
    FENCES: "skips_fences", "D5", "A node is searched only if its fences cover the key.";
    PARENT_LOOKED_AT: "marks_blindly", "C6", "A node is marked for being brought only while its parent points to it.";
    CHANGED_COPIES_DROPPED: "keeps_changed_copies", "C6", "The copy of a leaf goes that a memory server has changed.";
    ONE_WRITE_AT_A_TIME: "overtakes_its_own_writes", "C13", "Two WRITEs of one page are never in flight together.";
    WRITE_BACK_AWAITED: "frees_frames_early", "C14", "A node counts as clean only once its WRITE has completed.";
    WRITES_SETTLED: "rewrites_pages_without_reset", "C15", "After a WRITE of unknown outcome the connection is reset before the page is written again.";
    FAILED_WRITES_KEPT: "forgets_failed_writes", "C15", "A page whose WRITE may still land is not written again before that is settled.";
    DROPPED_WRITES_DOUBTED: "forgets_dropped_writes", "C15", "A WRITE that is not waited for to its end is in doubt.";
    DOUBTFUL_WRITES_SETTLED: "flushes_in_doubt", "C15", "A flush settles WRITEs of unknown outcome first.";
    READS_SETTLED: "reuses_landing_frames", "C17", "A frame that a READ may still land in is used for nothing else.";
    NONE_DETACHED: "offloads_above_orphans", "C18", "Nothing is offloaded while a hot node names no parent.";
    MARKS_AWAITED: "leaves_in_haste", "C20", "Keys are given up only when no leaf of theirs is being brought.";
    TURNS_TAKEN: "takes_no_turns", "C23", "Who has lost too often in a small cache goes on only in its turn.";
    WORK_BELOW_HEEDED: "cools_above_work", "C19", "With offloading a node does not cool while one of its children is being brought or worked on.";
    MISSING_ASKED: "waits_for_the_missing", "C25", "An operation that does not get through asks memory servers that were missing whether they answer.";
    NODES_IN_DOUBT_LOST: "reuses_nodes_in_doubt", "C15", "A node that a WRITE may still land on is not used again.";
    DOUBTS_SETTLED_ELSEWHERE: "settles_where_it_waits", "C26", "A handle that waits at one compute server settles its doubts at the others.";
    PARENTS_FIRST: "writes_losers_first", "C24", "A node that lost or gained keys is not written before its parent, whatever becomes of that.";
    AGES_NOTED: "forgets_ages", "C21", "A node that becomes dirty is queued by age.";
    // DEX.
    SHARED_LOCKED: "changes_shared_unlocked", "D1", "Shared nodes are changed only under the remote lock.";
    NEW_NODE_FIRST: "publishes_unwritten_nodes", "D2", "A node is written before a parent in the pool points to it.";
    GAINER_FIRST: "merges_without_gainer", "D2", "The node that gains keys is written before its parent.";
    GAINER_DIRTY: "leaves_gainer_clean", "D2", "When a merge fails half-way, the gainer's old content replaces what was written.";
    LOSER_DIRTY: "leaves_loser_clean", "D2", "The node that loses keys is written back later.";
    SHARED_NOT_MERGED: "merges_shared_nodes", "D3", "Shared nodes are never merged.";
    NEWER_STAYS: "replaces_newer_copies", "D6", "A copy never replaces a newer one.";
    STRAYS_TRIMMED: "keeps_strays", "D7", "What a node has beyond its slot in its parent is taken out when it is brought.";
    STAMPS_CHECKED: "believes_torn_leaves", "D8", "A leaf whose stamp does not fit is refused.";
    INNER_NODES_LOGGED: "skips_entries", "D9", "An exclusive inner node goes to the pool after a log entry.";
    SLOTS_PINNED: "frees_pinned_slots", "D9", "The log entry of a half written node stays until the node is whole.";
    FLUSH_WRITES: "flushes_nothing", "flush", "What was acknowledged before a flush survives a crash.";
    TICKETS_CLOSED: "asks_again_blindly", "O1", "A change of unknown outcome is asked for again only after its ticket was closed.";
    // Keys that move, and lives.
    BOUNDARY_LOOKED_AT: "trusts_the_plan", "H1", "Who gives keys up looks once more whether leaves begin at the boundary.";
    GIVEN_UP_CLEAN: "gives_up_dirty_nodes", "H2", "A node is clean before another owns its keys.";
    OLD_COPIES_DROPPED: "keeps_old_copies", "H2", "A copy of a shared node is dropped before it counts as exclusive.";
    OLD_READS_AWAITED: "takes_over_in_haste", "H2", "Who takes keys over waits for READs that were posted before.";
    LOST_KEYS_LEFT: "restructures_lost_keys", "H3", "A node is restructured only by who owns a part of it.";
    ONE_MOVE: "admits_second_mover", "H4", "One move of keys at a time.";
    EPOCHS_COMPARED: "goes_by_an_old_map", "Q2", "An operation is accepted by the newest map of its compute server.";
    FORMER_LIFE_FENCED: "begins_unfenced", "lives", "A former life is shut out before the next one touches anything.";
    FORMER_LIFE_DECLARED: "declares_nobody_dead", "lives", "A former life is declared dead before the next one serves.";
    FORMER_CHANGES_FINISHED: "leaves_logged_changes", "lives", "What a former life had logged of shared nodes is finished.";
    HALF_WRITTEN_MENDED: "leaves_half_written_nodes", "D9", "The inner nodes that a former life left half written are completed.";
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
