//! Mutation testing: which scenarios should show which planted bug, and the search for it.
//!
//! [`farleaf_page::rules`] lists the rules that code can be told to break. This table names the
//! scenarios that should reveal each broken rule: registered ones, or random ones of a kind. A test
//! fails for any rule that does not occur here exactly once. `docs/internals/mutants.md` has the
//! commands.
//!
//! *Thread safety*: constants and plain functions.

use crate::random::{ScenarioKind, random_scenario};
use crate::run::{RunOutcome, run_seed};
use crate::scenario::{Canary, Scenario, ScenarioError};
use farleaf_page::rules::KnownRule;

/// A planted bug, and the scenarios that should show it.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name in [`farleaf_page::rules`].
    pub bug: &'static str,
    /// Registered scenarios, and kinds of random ones such as `random-dex-lossy`; tried in turn.
    pub shown_by: &'static [&'static str],
    /// Why no run can show the bug; empty if a run can.
    pub survives: &'static str,
}

/// How a planted bug was caught.
#[derive(Clone, Debug)]
pub struct MutantCatch {
    /// Number of runs until it was caught.
    pub runs: u64,
    /// The scenario that caught it.
    pub scenario: String,
    /// The seed that caught it.
    pub seed: u64,
    /// The violation report.
    pub report: String,
}

impl Mutant {
    /// Runs the scenarios in turn, with seeds starting at `seed`, until the bug is caught or after
    /// `most` runs.
    ///
    /// # Errors
    /// [`ScenarioError`] if the table names an unknown scenario.
    pub fn hunt(&self, seed: u64, most: u64) -> Result<Option<MutantCatch>, ScenarioError> {
        let canary = KnownRule::with_bug(self.bug).map(Canary);
        let places: Vec<MutantPlace> =
            self.shown_by.iter().map(|name| MutantPlace::of(name)).collect::<Result<_, _>>()?;
        for (run, place) in (0..most).zip(places.iter().cycle()) {
            let seed = seed.wrapping_add(run);
            let scenario = match place {
                MutantPlace::Registered(scenario) => (**scenario).clone(),
                MutantPlace::Random(kind) => random_scenario(*kind, seed),
            };
            let scenario = Scenario { canary, ..scenario };
            if let RunOutcome::Violation(report) = run_seed(&scenario, seed).outcome
                && holds_without_bug(&scenario, seed)
            {
                return Ok(Some(MutantCatch {
                    runs: run + 1,
                    scenario: scenario.name,
                    seed,
                    report,
                }));
            }
        }
        Ok(None)
    }
}

/// Whether the run passes without the scenario's planted bug, which shows that the bug caused the
/// violation.
pub(crate) fn holds_without_bug(scenario: &Scenario, seed: u64) -> bool {
    let sound = Scenario { canary: None, ..scenario.clone() };
    !matches!(run_seed(&sound, seed).outcome, RunOutcome::Violation(_))
}

enum MutantPlace {
    Registered(Box<Scenario>),
    Random(ScenarioKind),
}

impl MutantPlace {
    fn of(name: &str) -> Result<Self, ScenarioError> {
        match name.strip_prefix("random-").and_then(ScenarioKind::of) {
            Some(kind) => Ok(Self::Random(kind)),
            None => Ok(Self::Registered(Box::new(Scenario::registered(name)?))),
        }
    }
}

const fn seen(bug: &'static str, shown_by: &'static [&'static str]) -> Mutant {
    Mutant { bug, shown_by, survives: "" }
}

const fn unseen(
    bug: &'static str,
    shown_by: &'static [&'static str],
    survives: &'static str,
) -> Mutant {
    Mutant { bug, shown_by, survives }
}

/// What a published program does, and the planted bug that does the same here.
#[derive(Clone, Copy, Debug)]
pub struct AsPublished {
    /// Its name in the command.
    pub name: &'static str,
    /// The planted bug, and the scenario of the same design that shows it.
    pub mutant: Mutant,
    /// What the program does, in one sentence.
    pub does: &'static str,
}

/// Protocols of published programs that the checkers refute.
pub const AS_PUBLISHED: &[AsPublished] = &[
    AsPublished {
        name: "sherman-versions",
        mutant: seen("reads_torn_entries_as_absent", &["canary-sherman-torn-entry"]),
        does: "Sherman takes an entry whose two versions of 4 bits differ for an absent one",
    },
    AsPublished {
        name: "dex-sherman-and",
        mutant: seen("rereads_locked_changes_only", &["canary-sherman-locked-changes"]),
        does: "the copy of Sherman that DEX is compared with reads a leaf again only if its version has changed and its lock is held",
    },
    AsPublished {
        name: "smart-rear-lock",
        mutant: seen("unlocks_with_the_value", &["canary-smart-one-write"]),
        does: "SMART frees a leaf's lock in the WRITE that changes the leaf",
    },
    AsPublished {
        name: "smart-stale-writeback",
        mutant: seen("locks_another_version", &["canary-smart-other-version"]),
        does: "SMART writes back what it has read of a leaf before it has locked it",
    },
];

/// The planted bugs.
pub const MUTANTS: &[Mutant] = &[
    unseen(
        "ignores_own_address",
        &["random-fine-slow", "random-hybrid-slow", "random-dex-slow"],
        "nothing writes a page's content to another address, and what is no page fails the checksum: the rule guards against pointers that are wrong themselves",
    ),
    seen("skips_checksum", &["canary-fine-skipped-checksum", "canary-hybrid-skipped-checksum"]),
    unseen(
        "follows_old_pointers",
        &["random-fine-paused", "random-hybrid-paused"],
        "a node that was used again shows other fences or another level, and is refused for them",
    ),
    unseen(
        "reuses_at_once",
        &["random-fine-slow", "random-hybrid-slow"],
        "the same, and its versions go on (V3), so that no lock by an old copy succeeds",
    ),
    seen("refers_before_block", &["dex-blocks-faults"]),
    seen("reclaims_blocks_of_leaves", &["processes-blocks-lives"]),
    unseen(
        "ends_rounds_early",
        &["processes-blocks-lives", "processes-blocks-lives-moves"],
        "an edit reports what its leaf has lost before the next step of a round, unless it then waits for a merge of leaves; no run had one with a block of a former life at that moment, also with READs up to 3 ms late",
    ),
    seen("reclaims_shared_blocks", &["processes-blocks-lives-moves"]),
    seen("frees_blocks_early", &["processes-blocks-moves", "processes-blocks-die"]),
    seen("believes_blocks", &["dex-blocks-slow-reads"]),
    seen("restarts_versions", &["hybrid-late-locks"]),
    seen("uses_dead_pages", &["hybrid-slow-collect", "random-fine-slow", "random-hybrid-slow"]),
    seen("locks_whatever_is_there", &["random-fine-slow", "random-hybrid-slow"]),
    seen("never_releases", &["random-fine-slow", "random-hybrid-slow"]),
    seen("leaves_doubts", &["dex-doubt", "random-fine-lossy", "random-hybrid-lossy"]),
    seen("looks_without_reset", &["random-fine-lossy", "random-hybrid-lossy", "random-dex-lossy"]),
    seen("commits_unlogged", &["random-fine-deaths", "random-hybrid-deaths"]),
    unseen(
        "awaits_no_entry",
        &["fine-dying-collectors", "random-fine-deaths"],
        "the entry is on the first page's server, and goes over the same connection before that page, which is awaited before the next (F3); only a reset between the two posts would tell, and they are posted at once unless buffers have run out",
    ),
    seen("unlocks_first", &["random-fine-slow", "random-hybrid-slow"]),
    seen(
        "unlocks_with_the_page",
        &["random-fine-slow", "random-hybrid-slow", "random-fine-paused"],
    ),
    seen("commits_in_doubt", &["random-fine-lossy", "random-hybrid-lossy"]),
    seen("settles_without_reset", &["random-fine-lossy", "random-hybrid-lossy"]),
    seen("links_before_sibling", &["canary-fine-parent-first", "canary-hybrid-parent-first"]),
    unseen(
        "rewrites_without_reset",
        &["random-fine-lossy", "random-hybrid-lossy"],
        "all attempts go over one connection, on which none lands after a later one (F3); and after the last attempt nobody uses the node any more",
    ),
    unseen(
        "believes_heads",
        &["random-fine-slow"],
        "a leaf that was read during the scan and begins where the last one ended is a valid answer for its keys, whether the chain leads to it now or not",
    ),
    seen(
        "reads_torn_entries_as_absent",
        &["canary-sherman-torn-entry", "canary-chime-torn-window"],
    ),
    seen("changes_an_older_copy", &["canary-sherman-older-copy", "canary-chime-older-copy"]),
    seen("unlocks_before_the_entry", &["canary-sherman-early-unlock"]),
    seen("hands_over_in_flight", &["canary-sherman-early-hand-over"]),
    seen("drops_torn_entries", &["canary-sherman-dropped-entry", "canary-chime-dropped-entry"]),
    seen("rereads_locked_changes_only", &["canary-sherman-locked-changes"]),
    seen(
        "believes_cached_parents",
        &["canary-sherman-cached-parents", "canary-chime-cached-parents"],
    ),
    seen("moves_entries_in_place", &["canary-chime-moved-entry"]),
    seen("believes_hot_entries", &["canary-chime-hot-entry"]),
    seen("uses_torn_leaves", &["canary-smart-torn-leaf"]),
    seen("locks_another_version", &["canary-smart-other-version"]),
    seen("unlocks_before_the_value", &["canary-smart-early-unlock"]),
    seen("unlocks_with_the_value", &["canary-smart-one-write"]),
    seen("revives_before_the_value", &["canary-smart-early-life"]),
    seen("drops_torn_leaves", &["canary-smart-dropped-leaf"]),
    seen("forgets_late_writes", &["canary-smart-late-writes"]),
    seen("names_unwritten_areas", &["canary-smart-unwritten-area"]),
    seen("believes_cached_slots", &["canary-smart-cached-slots"]),
    seen("joins_reads_under_way", &["canary-smart-joined-reads"]),
    seen("answers_combined_changes_alike", &["canary-smart-alike"]),
    seen("calls_unknown_changes_undone", &["canary-smart-undone-changes"]),
    seen("changes_out_of_turn", &["canary-smart-out-of-turn"]),
    seen("takes_any_free_slot", &["canary-smart-any-slot"]),
    seen("scans_piecemeal", &["fine-one-leaf", "hybrid-one-leaf"]),
    seen("cools_above_work", &["dex-offload", "dex-offload-shared", "dex-grows-offload"]),
    unseen(
        "waits_for_the_missing",
        &["random-dex-memory"],
        "the operation ends all the same, later and as contended, which runs that lose a memory server allow",
    ),
    seen("buries_the_living", &["random-fine-slow", "random-hybrid-slow"]),
    seen("retires_in_doubt", &["dex-handles-in-doubt"]),
    seen("settles_where_it_waits", &["dex-doubts-elsewhere"]),
    seen("forgets_dropped_writes", &["random-dex-lossy"]),
    seen("gives_a_chunk_each_time", &["dex-doubts-elsewhere"]),
    seen("recovers_unfenced", &["random-fine-buried", "random-hybrid-buried"]),
    seen("forgets_held_pages", &["random-fine-deaths", "random-hybrid-deaths"]),
    unseen(
        "forgets_relocked_pages",
        &["random-fine-deaths", "random-hybrid-deaths"],
        "only who takes over an unlocked page that is half written locks it at that version, and there is none (W2)",
    ),
    unseen(
        "forgets_half_pages",
        &["random-fine-deaths", "random-hybrid-deaths"],
        "a page that is locked is written by two WRITEs, of which the second unlocks it (W2): an unlocked page of an entry is whole",
    ),
    seen("finishes_one_page", &["fine-slow-collectors-die"]),
    seen("leaves_untouched_locked", &["random-fine-deaths", "random-hybrid-deaths"]),
    seen("takes_over_unlogged", &["fine-dying-collectors"]),
    seen("joins_strangers", &["random-fine-slow", "random-hybrid-slow", "random-coarse-slow"]),
    seen("writes_gainers_first", &["fine-slow-gainers"]),
    seen("frees_the_living", &["random-fine-slow", "random-hybrid-slow", "random-coarse-slow"]),
    seen("keeps_records_of_leaves", &["random-hybrid-slow"]),
    seen("collapses_split_child", &["random-fine-slow", "random-coarse-slow"]),
    seen("skips_validation", &["canary-skipped-validation"]),
    unseen(
        "trusts_old_parents",
        &["random-coarse-slow"],
        "who came by an old parent is sent to the right neighbour, or back, by the node's own fences",
    ),
    unseen(
        "frees_at_once",
        &["random-coarse-slow"],
        "whoever is at a node validates its version, which goes on when it is used again; only on real threads can a word be read that is half of each",
    ),
    seen("does_it_twice", &["dex-offload-faults", "random-dex-lossy"]),
    unseen(
        "walks_anywhere",
        &["dex-moves-offload", "dex-grows-offload", "dex-offload-faults"],
        "a walk is asked for only below what its compute server owns alone and has marked (C18, C20), so that it fits; one that comes late finds its ticket closed (O1), or is a lookup that nobody waits for",
    ),
    seen("skips_fences", &["canary-dex-skipped-fences"]),
    seen("marks_blindly", &["random-dex-slow"]),
    seen("keeps_changed_copies", &["canary-dex-kept-copy"]),
    seen("cuts_leaves", &["dex-written-torn"]),
    seen("stamps_leaves_at_once", &["dex-written-torn"]),
    seen("leaves_marked_leaves", &["dex-written-torn"]),
    seen("answers_before_write", &["dex-written"]),
    seen("reads_unwritten", &["dex-written-reads"]),
    unseen(
        "answers_for_held_nodes",
        &["processes-written-lossy"],
        "a death must come between the failed WRITE of a parent and the next one, after a lookup of a key that has moved with an unwritten change",
    ),
    seen("overtakes_its_own_writes", &["random-dex-slow"]),
    seen("frees_frames_early", &["canary-dex-early-free"]),
    seen("rewrites_pages_without_reset", &["random-dex-lossy"]),
    seen("forgets_failed_writes", &["dex-late-failed-writes"]),
    seen("flushes_in_doubt", &["random-dex-cut"]),
    seen("reuses_landing_frames", &["random-dex-lossy"]),
    seen("offloads_above_orphans", &["dex-offload-shared", "random-dex-slow"]),
    seen("leaves_in_haste", &["canary-dex-left-in-haste"]),
    seen("keeps_old_outlines", &["dex-windows"]),
    seen("keeps_outlines_of_lost_leaves", &["dex-windows-moves"]),
    unseen(
        "forgets_value_writes",
        &["dex-windows-lossy", "dex-windows-groups"],
        "the WRITE must be late, the reset must fail, and before the next one of the same endpoint the records of the leaf must shift and be written",
    ),
    seen("keeps_changed_records", &["dex-records"]),
    seen("puts_old_records", &["dex-records"]),
    unseen(
        "answers_by_lost_records",
        &["dex-records-moves", "processes-records"],
        "a compute server adopts the map of a move that it gives keys away in at once, and its router then refuses them",
    ),
    seen("keeps_lost_records", &["dex-records-moves"]),
    seen("takes_no_turns", &["dex-crowded-cache", "random-dex-slow"]),
    seen("reuses_nodes_in_doubt", &["dex-late-writes-to-new-nodes"]),
    seen("writes_losers_first", &["random-dex-cut"]),
    seen("forgets_ages", &["dex-crash-old-changes"]),
    seen("changes_shared_unlocked", &["random-dex-slow"]),
    seen("publishes_unwritten_nodes", &["random-dex-slow"]),
    seen("merges_without_gainer", &["random-dex-slow", "random-dex-crash"]),
    seen("leaves_gainer_clean", &["random-dex-lossy", "random-dex-cut"]),
    seen("leaves_loser_clean", &["random-dex-slow"]),
    seen("merges_shared_nodes", &["random-dex-slow"]),
    seen("replaces_newer_copies", &["random-dex-slow"]),
    seen("replaces_leaves", &["dex-moves-slow-reads"]),
    seen("keeps_strays", &["canary-dex-kept-strays"]),
    seen("writes_slots_first", &["dex-bytes-crash"]),
    seen("writes_layouts_at_once", &["dex-bytes-crash-torn"]),
    seen("cuts_separators", &["dex-bytes-churn", "fine-bytes-churn", "coarse-bytes-churn"]),
    seen("keeps_prefixes", &["dex-bytes-churn", "fine-bytes-churn", "coarse-bytes-churn"]),
    seen("splits_unasked", &["dex-bytes-churn", "dex-bytes-moves"]),
    seen("believes_torn_leaves", &["canary-dex-believed-torn-leaf"]),
    seen("skips_entries", &["canary-dex-unlogged-inner-node"]),
    seen("frees_pinned_slots", &["random-dex-cut"]),
    seen("flushes_nothing", &["random-dex-slow", "random-dex-crash"]),
    seen("asks_again_blindly", &["dex-offload-faults", "random-dex-lossy"]),
    unseen(
        "trusts_the_plan",
        &["dex-moves-churn", "random-dex-slow"],
        "in the simulator nothing happens between the look that finds the boundary and the step that gives the keys up; only on real threads can leaves merge in between",
    ),
    seen("gives_up_dirty_nodes", &["dex-moves", "random-dex-slow"]),
    seen("keeps_old_copies", &["dex-moves", "random-dex-slow"]),
    seen("takes_over_in_haste", &["dex-moves-slow-reads"]),
    seen("restructures_lost_keys", &["dex-moves-churn", "random-dex-slow"]),
    seen("admits_second_mover", &["dex-two-movers", "random-dex-slow"]),
    seen("begins_life_silently", &["processes-late-puts"]),
    seen("serves_again_unasked", &["processes-record-fails"]),
    seen("serves_before_the_put", &["processes-die-for-long", "processes-record-fails"]),
    seen("serves_released_keys", &["processes-moves"]),
    seen("takes_promised_extents", &["canary-dlsm-promised-extents"]),
    seen("frees_merged_parts", &["canary-dlsm-freed-parts"]),
    seen("loads_past_new_lives", &["canary-processes-past-new-lives"]),
    unseen(
        "resumes_undecided",
        &["processes-bulk-dies", "processes-restart-in-halt"],
        "a server would have to resume between the builder's read of the record and its put, which no scenario provokes yet",
    ),
    seen("begins_in_a_replacement", &["canary-processes-life-in-replacement"]),
    seen("ends_replacements_early", &["canary-processes-replacement-ended-early"]),
    seen("ignores_redirects", &["processes-moves"]),
    unseen(
        "goes_by_an_old_map",
        &["random-dex-slow"],
        "a leaf is brought only while its keys are owned, so that an operation that comes too late is sent on all the same",
    ),
    seen("descends_together_unvalidated", &["dex-groups", "random-dex-slow"]),
    seen("forgets_versions_of_a_group", &["dex-groups", "random-dex-slow"]),
    seen("uses_stale_slots", &["dex-groups-hot"]),
    seen("flushes_unsettled", &["canary-dlsm-flushed-unsettled"]),
    seen("decides_unsettled", &["canary-dlsm-decided-unsettled"]),
    unseen(
        "scans_unsettled",
        &["dlsm-snapshots"],
        "a write that is under way at the bound has not ended, and later writes have numbers above the bound: a scan that misses it is a snapshot of a moment before it; only two reads at one bound could differ",
    ),
    seen("pins_without_snapshot", &["canary-dlsm-pinned-late"]),
    seen("forgets_snapshots", &["canary-dlsm-forgotten-snapshots"]),
    seen("drops_tombstones", &["canary-dlsm-dropped-tombstones"]),
    seen("flushes_newest_first", &["canary-dlsm-newest-first"]),
    seen("merges_newest_alone", &["canary-dlsm-merged-alone"]),
    seen("publishes_unwritten_tables", &["canary-dlsm-unwritten-tables"]),
    seen("frees_pinned_tables", &["canary-dlsm-freed-tables"]),
    unseen(
        "steps_twice",
        &["dlsm-near-faults", "random-dlsm-lossy"],
        "a reply that is lost has the descriptions of outputs: without them the extents of the next ones are taken for theirs, whose footers show it, and the compute side merges again; the last step is refused twice",
    ),
    unseen(
        "heeds_late_edits",
        &["dlsm-takeover-late"],
        "the fence that follows at once stops late changes, too; a test of the directory sends one",
    ),
    seen("edits_twice", &["canary-dlsm-edits-twice"]),
    seen("publishes_unlisted_tables", &["canary-dlsm-unlisted-tables"]),
    seen("reclaims_listed_extents", &["canary-dlsm-reclaimed-tables"]),
    unseen(
        "opens_unfenced",
        &["dlsm-takeover-late"],
        "a process that has died has few WRITEs in flight, and the extents of those are seldom used again while they are; a test with a process that lives on shows it",
    ),
    seen("merges_overlapping", &["canary-dlsm-overlapping-merges"]),
    seen("skips_boundary_keys", &["canary-dlsm-skipped-boundary"]),
    seen("bounds_each_shard", &["canary-dlsm-bounds-each-shard"]),
    seen("forgets_jobs", &["canary-dlsm-forgotten-jobs"]),
    seen("leaves_undrained", &["canary-dlsm-left-undrained"]),
    seen("leaves_unflushed", &["canary-dlsm-left-unflushed"]),
    seen("leaves_unsettled", &["canary-dlsm-left-unsettled"]),
    seen("forgets_loans", &["canary-dlsm-forgotten-loans"]),
    seen("returns_loans_in_use", &["canary-dlsm-loans-in-use"]),
    seen("scans_lent_keys", &["canary-dlsm-lent-keys"]),
    seen("forgets_divisions", &["canary-dlsm-forgotten-divisions"]),
    seen("believes_an_old_map", &["canary-dlsm-old-map"]),
    seen("flushes_known_owners", &["canary-flush-known-owners"]),
    seen("believes_other_incarnations", &["canary-flush-other-incarnations"]),
    seen("covers_unsettled_ranges", &["canary-flush-unsettled-ranges"]),
    unseen(
        "flushes_kept_shards",
        &["processes-flush-dlsm"],
        "a process would have to die within microseconds: after another thread's flush, and before the leave flushes the same MemTables",
    ),
    seen("keeps_numbers", &["canary-dlsm-kept-numbers"]),
    seen("overwrites_its_log", &["processes-written-dlsm-small-log"]),
    seen("answers_before_log", &["processes-written-dlsm-die", "takeover-dlsm"]),
    seen("reads_unlogged", &["processes-written-dlsm-slow-log"]),
    seen("flushes_unlogged", &["processes-written-dlsm-slow-log"]),
    seen("leaves_records", &["processes-written-dlsm-moves"]),
    seen("ends_its_log_early", &["processes-written-dlsm-moves", "takeover-dlsm"]),
    seen("serves_before_fence", &["takeover-returns"]),
    seen("serves_before_rights_end", &["takeover-zombies"]),
    seen("answers_without_right", &["takeover-stale-reads"]),
    unseen(
        "overtakes_survivors",
        &["fine-slow-collectors-die"],
        "two survivors would have to finish a change of several pages of one dead client at once; 3,200 runs do not show it any more",
    ),
    unseen(
        "keeps_chunks_listed",
        &["takeover-blocks"],
        "the dead server would have to return, free a block of a taken leaf and use it again; no scenario provokes it yet",
    ),
    seen("begins_unfenced", &["dex-late-former-life"]),
    seen("declares_nobody_dead", &["random-dex-crash", "dex-crash-shared"]),
    seen("leaves_logged_changes", &["random-dex-crash", "dex-crash-shared"]),
    seen("leaves_half_written_nodes", &["dex-crash-torn", "random-dex-crash"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_page::rules::RULES;
    use std::collections::BTreeSet;

    #[test]
    fn what_programs_do_has_a_bug_and_a_name_of_its_own() {
        let names: BTreeSet<_> = AS_PUBLISHED.iter().map(|published| published.name).collect();
        assert_eq!(names.len(), AS_PUBLISHED.len());
        for published in AS_PUBLISHED {
            let Mutant { bug, shown_by, .. } = published.mutant;
            let known = MUTANTS.iter().find(|mutant| mutant.bug == bug);
            let design =
                published.name.split('-').find(|name| matches!(*name, "sherman" | "smart"));
            for name in shown_by {
                let is_shown = known.is_some_and(|known| known.shown_by.contains(name));
                let is_of_it = design.is_some_and(|design| name.contains(design));
                assert!(is_shown && is_of_it, "{}: {name}", published.name);
            }
        }
    }

    #[test]
    fn every_rule_is_there_once_and_every_scenario_exists() {
        let bugs: BTreeSet<_> = MUTANTS.iter().map(|mutant| mutant.bug).collect();
        let rules: BTreeSet<_> = RULES.iter().map(|rule| rule.bug).collect();
        assert_eq!(bugs.len(), MUTANTS.len(), "none is there twice");
        assert_eq!(bugs, rules);
        for mutant in MUTANTS {
            assert!(!mutant.shown_by.is_empty(), "{}", mutant.bug);
            for name in mutant.shown_by {
                assert!(MutantPlace::of(name).is_ok(), "{}: {name}", mutant.bug);
            }
        }
    }
}
