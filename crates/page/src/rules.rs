//! The protocol rules that a simulated cluster can be told to break, one at a time. Breaking a rule
//! plants a bug; a checker that detects none of these bugs does not work.
//!
//! Code asks its endpoint or its processor whether a rule is broken. An endpoint outside the
//! simulator answers by a look at what it is; a processor's answer is a constant there.
//!
//! *Thread safety*: constants.

use farleaf_fabric::Rule;

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRule {
    /// The rule, as code refers to it.
    pub rule: Rule,
    /// The name of the bug that breaks it.
    pub bug: &'static str,
    /// The invariant that it belongs to.
    pub invariant: &'static str,
    /// What the rule demands, in one sentence.
    pub text: &'static str,
}

impl KnownRule {
    /// The rule that the bug named `bug` breaks.
    pub fn with_bug(bug: &str) -> Option<&'static Self> {
        RULES.iter().find(|known| known.bug == bug)
    }
}

macro_rules! rules {
    ($($name:ident: $bug:literal, $invariant:literal, $text:literal;)*) => {
        #[expect(clippy::upper_case_acronyms, non_camel_case_types, reason = "they are named like the constants")]
        enum Number { $($name),* }

        $(#[doc = $text] pub const $name: Rule = Rule::new(Number::$name as u16);)*

        /// All rules that can be broken.
        pub const RULES: &[KnownRule] = &[
            $(KnownRule { rule: $name, bug: $bug, invariant: $invariant, text: $text }),*
        ];
    };
}

rules! {
    // Pages over one-sided verbs.
    OWN_ADDRESS: "ignores_own_address", "P1", "A page is accepted as the wanted node only if it contains that node's address.";
    CHECKSUMS: "skips_checksum", "V1", "A copy of a page is accepted only if its checksum matches.";
    POINTERS_AGE: "follows_old_pointers", "V2", "A page is discarded if its pointer is older than half of the grace period of freed nodes.";
    FREED_NODES_REST: "reuses_at_once", "V2", "A freed node is not reused before its grace period has passed.";
    VERSIONS_GO_ON: "restarts_versions", "V3", "The version of a node keeps rising when the node is reused.";
    DEAD_PAGES_REFUSED: "uses_dead_pages", "V4", "A page that is marked dead is not used.";
    LOCKED_AS_COPIED: "locks_whatever_is_there", "K1", "The CAS that locks a page expects word 0 of the copy to be changed.";
    LOCKS_RELEASED: "never_releases", "K3", "A page that did not change is unlocked by restoring its word 0.";
    DOUBTS_SETTLED: "leaves_doubts", "K4", "Later operations of a client settle pages that it may hold without knowing it.";
    LOCKS_SETTLED: "looks_without_reset", "F9", "After a CAS of unknown outcome the connection is reset before the word is read.";
    CHANGES_LOGGED: "commits_unlogged", "W1", "The log entry of a change is written before the change.";
    ENTRIES_AWAITED: "awaits_no_entry", "W1", "The log entry of a change of several pages has landed before the first page is written.";
    UNLOCK_LAST: "unlocks_first", "W2", "The word that unlocks a page lands after all its other words.";
    UNLOCK_ALONE: "unlocks_with_the_page", "W2", "The word that unlocks a page is written by a separate WRITE.";
    COMMITS_SETTLED: "commits_in_doubt", "W3", "A commit is finished before it is acknowledged.";
    SETTLED_AFTER_RESET: "settles_without_reset", "F9", "A commit in doubt is finished only after a reset, so that none of its WRITEs can still land.";
    SIBLING_FIRST: "links_before_sibling", "S2", "A new page is written before the page that points to it.";
    FRESH_SETTLED: "rewrites_without_reset", "N3", "A new page is rewritten only after a reset, so that no earlier WRITE of it can still land.";
    CHAIN_DECIDES: "believes_heads", "heads", "A leaf that a head lists is used only if the chain of siblings leads to it.";
    CHUNKS_ONCE: "gives_a_chunk_each_time", "A4", "A repeated request for a chunk gets the same chunk.";
    LEAVES_READ_ONCE: "scans_piecemeal", "leaves", "A scan takes the records of a leaf from one copy of it.";
    BLOCKS_FIRST: "refers_before_block", "blocks.X1", "A leaf refers to a block only once all of the block is written.";
    BLOCKS_REST: "frees_blocks_early", "blocks.X4", "A block that a leaf has lost is used again only after the leaf is in the pool and a grace period has passed.";
    REFERENCES_NOTED: "reclaims_blocks_of_leaves", "blocks.X10", "A block of a former life is free only if the scan has found no reference to it.";
    EDITS_DRAINED: "ends_rounds_early", "blocks.X11", "A round of looking for free blocks ends only when every edit that began before the end of its scan has ended.";
    CHUNKS_SHARED: "reclaims_shared_blocks", "blocks.X12", "Memory servers are told that chunks are shared before another compute server can have references to their blocks.";
    BLOCKS_CHECKED: "believes_blocks", "blocks.X5", "A block is accepted only if its check matches and the look at its leaf is recent.";
    // Leaves that are written entry by entry.
    ENTRIES_CHECKED: "reads_torn_entries_as_absent", "entries.N1", "A copy of a leaf is accepted only if the checks of all its entries match.";
    READ_UNDER_LOCK: "changes_an_older_copy", "entries.E1", "The holder of an entry lock acts on a copy that it has read since it took the lock.";
    ENTRIES_BEFORE_UNLOCK: "unlocks_before_the_entry", "entries.E2", "The WRITE that releases an entry lock is posted after the WRITEs of the entry.";
    HANDED_AFTER_WRITE: "hands_over_in_flight", "entries.E2", "An entry lock is handed over only after the WRITEs of the entry have completed.";
    ENTRIES_MENDED: "drops_torn_entries", "entries.E4", "An entry that a WRITE has left torn is mended to its old or its new record, not dropped.";
    VERSIONS_OR_LOCKS: "rereads_locked_changes_only", "entries.V1", "A copy of a leaf between two versions is refused if they differ, and if the lock is held.";
    LEAF_FENCES: "believes_cached_parents", "entrywise.C1", "A leaf that a cached node leads to is used only if its fences cover the key.";
    MOVES_VERSIONED: "moves_entries_in_place", "hops.P2", "A record changes its entry only together with the version of the page.";
    HOT_CHECKED: "believes_hot_entries", "hot.G1", "An entry that was guessed is used only if its check matches, with the version of the guess.";
    // Leaves of a radix tree.
    LEAVES_CHECKED: "uses_torn_leaves", "radix.B2", "A copy of a leaf is used only if its check matches.";
    LEAVES_LOCKED_AS_COPIED: "locks_another_version", "radix.L1", "The CAS that locks a leaf expects the version of the copy to be changed.";
    LEAF_UNLOCKED_LAST: "unlocks_before_the_value", "radix.L2", "The WRITE that unlocks a leaf lands after value and check.";
    LEAF_UNLOCKED_APART: "unlocks_with_the_value", "radix.L2", "A leaf is unlocked by a WRITE of its own.";
    VALUES_BEFORE_LIFE: "revives_before_the_value", "radix.L3", "Where a leaf becomes live, its value lands before its check.";
    LEAVES_MENDED: "drops_torn_leaves", "radix.L4", "A leaf that its dead holder has left torn is mended to its old or its new value, not dropped.";
    LEAVES_SETTLED: "forgets_late_writes", "K4", "After WRITEs of a leaf of unknown outcome, its client finds out whether they have landed.";
    ABSENCE_READ: "believes_cached_slots", "smart.N3", "A key counts as absent only by a node or a slot that the operation has read.";
    VALUE_BEFORE_CHECK: "names_unwritten_areas", "radix.B3", "The value of a byte string lands before the check that names its area.";
    GROUPS_CLOSED: "joins_reads_under_way", "smart.T1", "A lookup takes the result of a READ only if that was posted after the lookup began.";
    COMBINED_IN_ORDER: "answers_combined_changes_alike", "smart.T2", "Changes that are combined are answered as if one came after the other.";
    GROUPS_IN_DOUBT: "calls_unknown_changes_undone", "smart.T3", "If the outcome of combined changes is unknown, that of each of them is unknown.";
    CHANGES_IN_TURN: "changes_out_of_turn", "smart.O1", "In a divided tree, a leaf is changed only in a turn of its compute server.";
    FIRST_FREE_SLOT: "takes_any_free_slot", "smart.N2", "A new slot is the first free one of its node.";
    // Recovery from dead clients.
    DEAD_IF_DECLARED: "buries_the_living", "owners.O2", "A client counts as dead only if it was declared dead.";
    NUMBERS_AT_REST: "retires_in_doubt", "owners.O1", "A client's number is reused only when nothing is locked, logged or in flight under it.";
    RECOVERY_FENCES: "recovers_unfenced", "F10", "A dead client is fenced before its pages are recovered.";
    HELD_PAGES_FINISHED: "forgets_held_pages", "recovery", "A page of a log entry that is locked at the previous version is finished.";
    RELOCKED_PAGES_FINISHED: "forgets_relocked_pages", "recovery", "A page of a log entry that is locked at the entry's version is finished.";
    HALF_PAGES_FINISHED: "forgets_half_pages", "recovery", "A page of a log entry that is unlocked and half written is finished.";
    WHOLE_ENTRIES_FINISHED: "finishes_one_page", "R3", "All pages of a log entry are finished, in order.";
    UNTOUCHED_UNLOCKED: "leaves_untouched_locked", "R1", "A page that a dead client locked but did not write is unlocked.";
    SURVIVORS_LOG: "takes_over_unlogged", "recovery", "A survivor takes a page over only after it has written its own log entry.";
    SURVIVORS_AWAITED: "overtakes_survivors", "recovery", "A survivor waits for a page that another survivor is finishing before it finishes the next one.";
    // Collection.
    NEIGHBOURS_ONLY: "joins_strangers", "fine.G1", "Two nodes are merged only if no other node is between them.";
    LOSERS_FIRST: "writes_gainers_first", "fine.G2", "Of pages that change together, those that lose keys are written first.";
    FREED_ARE_DEAD: "frees_the_living", "fine.G3", "A node is marked dead before it is freed.";
    RECORDS_GO_FIRST: "keeps_records_of_leaves", "hybrid.G2", "The server's record of a leaf is removed before the leaf is merged away.";
    WHOLE_CHILD_ONLY: "collapses_split_child", "tree.G2", "A root takes the content of its only child only if that child has no sibling.";
    // A memory server's tree, and offloaded operations.
    VALIDATION: "skips_validation", "L3", "A read of a page is valid only if the page's version has not changed.";
    HAND_OVER_VALIDATED: "trusts_old_parents", "T1", "A parent is validated after its child's version was read.";
    RETIRED_NODES_REST: "frees_at_once", "E2", "A node of a memory server's tree is reused only two epochs after it was retired.";
    ONCE_PER_TICKET: "does_it_twice", "offloads.W1", "An offloaded change is made at most once per ticket.";
    OFFLOADS_DOUBT: "walks_anywhere", "offloads.W2", "An offloaded operation refuses a page with another address, level or range than expected.";
    // The cache.
    FENCES: "skips_fences", "D5", "A node is searched only if its fences cover the key.";
    GROUP_PARENT_VALIDATED: "descends_together_unvalidated", "D5", "Operations that descend together validate the parent after they have taken the child's version.";
    GROUP_VERSION_TAKEN: "forgets_versions_of_a_group", "D5", "Operations that descend together use a leaf only if its version is the one of the descent.";
    GROUP_SLOT_FRESH: "uses_stale_slots", "D5", "Operations that descend together fetch a leaf only if its parent has not changed since the search.";
    PARENT_LOOKED_AT: "marks_blindly", "C6", "A node is marked as being fetched only while its parent points to it.";
    CHANGED_COPIES_DROPPED: "keeps_changed_copies", "C6", "The cached copy of a leaf is dropped once a memory server has changed the leaf.";
    ANSWERS_AWAIT_WRITES: "answers_before_write", "ack.A1", "With `acknowledge = written`, a change is answered only when it is in the pool.";
    READS_AWAIT_WRITES: "reads_unwritten", "ack.A1", "With `acknowledge = written`, a lookup or scan that has seen a change is answered only when the change is in the pool.";
    HELD_CHANGES_AWAITED: "answers_for_held_nodes", "ack.A1", "With `acknowledge = written`, an answer waits for a node that is written only after its parent, even if the node is clean.";
    ONE_WRITE_AT_A_TIME: "overtakes_its_own_writes", "C13", "Two WRITEs of one page are never in flight together.";
    WRITE_BACK_AWAITED: "frees_frames_early", "C14", "A node counts as clean only once its WRITE has completed.";
    WRITES_SETTLED: "rewrites_pages_without_reset", "C15", "After a WRITE of unknown outcome the connection is reset before the page is written again.";
    FAILED_WRITES_KEPT: "forgets_failed_writes", "C15", "While a WRITE of a page may still land, the page is not written again.";
    DROPPED_WRITES_DOUBTED: "forgets_dropped_writes", "C15", "A WRITE that is dropped before its completion is in doubt.";
    DOUBTFUL_WRITES_SETTLED: "flushes_in_doubt", "C15", "A flush first settles WRITEs of unknown outcome.";
    READS_SETTLED: "reuses_landing_frames", "C17", "A frame is not reused while a READ may still land in it.";
    NONE_DETACHED: "offloads_above_orphans", "C18", "Nothing is offloaded while a hot node has no parent in its header.";
    OUTLINES_RENEWED: "keeps_old_outlines", "C29", "When a leaf leaves its frame, its outline is noted or forgotten.";
    OUTLINES_FORGOTTEN: "keeps_outlines_of_lost_leaves", "C30", "A compute server that gains keys first forgets all outlines of leaves.";
    VALUE_WRITES_MARKED: "forgets_value_writes", "C33", "A leaf stays marked until no WRITE of a value in it can land.";
    RECORDS_REMOVED: "keeps_changed_records", "C31", "A change first removes the hot record of its key.";
    RECORDS_UNCHANGED: "puts_old_records", "C31", "A record that was READ becomes a hot record only if no change of its bucket has begun since before the READ.";
    RECORDS_OWNED: "answers_by_lost_records", "C32", "A hot record counts only while its key is owned.";
    RECORDS_FORGOTTEN: "keeps_lost_records", "C32", "A compute server that gains keys first forgets all hot records.";
    MARKS_AWAITED: "leaves_in_haste", "C20", "Keys are given up only while none of their leaves is being fetched.";
    TURNS_TAKEN: "takes_no_turns", "C23", "An operation that has restarted too often in a small cache waits for its turn.";
    NODES_IN_DOUBT_LOST: "reuses_nodes_in_doubt", "C15", "A node is not reused while a WRITE may still land on it.";
    WORK_BELOW_HEEDED: "cools_above_work", "C19", "With offloading a node does not cool while one of its children is being brought or worked on.";
    MISSING_ASKED: "waits_for_the_missing", "C25", "An operation that does not get through asks memory servers that were missing whether they answer.";
    DOUBTS_SETTLED_ELSEWHERE: "settles_where_it_waits", "C26", "While a handle waits at one compute server, it settles its doubts at the others.";
    PARENTS_FIRST: "writes_losers_first", "C24", "A node that lost or gained keys is not written before its parent, even if the parent's WRITE fails.";
    AGES_NOTED: "forgets_ages", "C21", "A node that becomes dirty is queued for write-back by age.";
    // DEX.
    SHARED_LOCKED: "changes_shared_unlocked", "D1", "Shared nodes are changed only under the remote lock.";
    NEW_NODE_FIRST: "publishes_unwritten_nodes", "D2", "A node is written before a parent in the pool points to it.";
    GAINER_FIRST: "merges_without_gainer", "D2", "The node that gains keys is written before its parent.";
    GAINER_DIRTY: "leaves_gainer_clean", "D2", "When a merge fails half-way, the old content of the gaining node is written again.";
    LOSER_DIRTY: "leaves_loser_clean", "D2", "The node that loses keys is marked dirty, to be written back later.";
    SHARED_NOT_MERGED: "merges_shared_nodes", "D3", "Shared nodes are never merged.";
    NEWER_STAYS: "replaces_newer_copies", "D6", "A copy of a node never replaces a newer one.";
    LEAVES_STAY: "replaces_leaves", "D6", "A copy of an inner node never replaces a leaf that has taken over its page.";
    STRAYS_TRIMMED: "keeps_strays", "D7", "Keys outside a node's slot in its parent are removed when the node is fetched.";
    STAMPS_CHECKED: "believes_torn_leaves", "D8", "A leaf is rejected if its stamp does not match.";
    HEAP_FIRST: "writes_slots_first", "bytes.Y9", "The heap of a leaf is written before the words that refer to it.";
    LAYOUTS_MARKED: "writes_layouts_at_once", "bytes.Y9", "A leaf with a heap that was laid out anew has a wrong stamp while it is written.";
    SEPARATORS_ABOVE: "cuts_separators", "bytes.Y7", "A separator is above all keys of the page on its left.";
    PREFIXES_SHARED: "keeps_prefixes", "bytes.Y2", "The prefix of a merged page is what its new fences share.";
    PARENTS_ASKED: "splits_unasked", "layout.Y8", "A node is split only if its parent has room for the separator.";
    INNER_NODES_LOGGED: "skips_entries", "D9", "An exclusive inner node is written to the pool after its log entry.";
    LEAVES_LOGGED: "cuts_leaves", "ack.A2", "With `acknowledge = written`, a WRITE that a death could cut short, and so damage the leaf, lands behind a log entry.";
    LEAVES_MARKED: "stamps_leaves_at_once", "ack.A2", "A leaf that is written behind a log entry has that entry's mark until all of its words have landed.";
    MARKED_LEAVES_COMPLETED: "leaves_marked_leaves", "ack.A3", "A leaf with the mark of a log entry is completed before its keys are served.";
    SLOTS_PINNED: "frees_pinned_slots", "D9", "The log entry of a half-written node is kept until the node is whole.";
    FLUSH_WRITES: "flushes_nothing", "flush", "Changes acknowledged before a flush survive a crash.";
    MAPS_COVERED: "flushes_known_owners", "client.N5", "A flush covers every owner of a map that was not older than any when it began.";
    INCARNATIONS_COMPARED: "believes_other_incarnations", "client.N6", "A flush believes only the incarnation that has acknowledged the changes.";
    TICKETS_CLOSED: "asks_again_blindly", "offload.O1", "An offloaded change of unknown outcome is retried only after its ticket was closed.";
    // The write-ahead log.
    LOG_SPACE_TOLD: "overwrites_its_log", "log.L4", "The space of a record in the log is used again only when a durable batch has told that the record is in the pool.";
    ANSWERS_AWAIT_LOG: "answers_before_log", "log.L1", "With `acknowledge = written`, a change is answered only when its record and all earlier ones are durable.";
    READS_AWAIT_LOG: "reads_unlogged", "ack.A1", "With `acknowledge = written`, a lookup or scan that has seen a change is answered only when its record is durable.";
    FLUSHES_AWAIT_LOG: "flushes_unlogged", "log.L5", "A MemTable is flushed only once its records are durable, so that no older record of a key outlives a newer one in a table.";
    LEAVERS_END_RECORDS: "leaves_records", "log.L5", "A process that leaves a range of keys first ends its records of it by a barrier.";
    LOG_ENDS_LAST: "ends_its_log_early", "log.L7", "A dead life's log is ended only after its records are in tables.";
    // dLSM.
    FLUSHES_SETTLED: "flushes_unsettled", "memtable.Q7", "A MemTable is flushed only once all its numbers are settled.";
    BELOW_SETTLED: "decides_unsettled", "memtable.Q5", "An operation looks below a MemTable only once all older ones are settled.";
    SCANS_SETTLED: "scans_unsettled", "memtable.Q7", "A scan reads only once its bound is settled.";
    SNAPSHOT_HELD: "pins_without_snapshot", "memtable.Q7", "A scan holds a snapshot from its bound until it has pinned a version.";
    SNAPSHOTS_KEPT: "forgets_snapshots", "lsm.J5", "Flushes and merges keep the versions that snapshots see.";
    TOMBSTONES_KEPT: "drops_tombstones", "lsm.J6", "A tombstone is dropped only if no deeper level covers its key.";
    OLDEST_FLUSHED_FIRST: "flushes_newest_first", "lsm.V2", "MemTables become tables of level 0 in the order of their numbers.";
    OLDEST_MERGED_FIRST: "merges_newest_alone", "lsm.V4", "A merge of level 0 takes its oldest tables.";
    TABLES_LAND_FIRST: "publishes_unwritten_tables", "lsm.F1", "All WRITEs of a table have completed before a version has it.";
    EXTENTS_PINNED: "frees_pinned_tables", "lsm.K2", "The extents of a table are used again only when no version in use has it.";
    PROMISES_KEPT: "takes_promised_extents", "lsm.S1", "Merges leave the extents that are promised to the flushes of MemTables.";
    MERGED_PARTS_PINNED: "frees_merged_parts", "lsm.S3", "What a merge has taken of a table is given back only when no version in use has it.";
    STEPS_ONCE: "steps_twice", "lsm.J2", "A repeated step of a merge gets the reply of the first one, and merges nothing.";
    SHARD_EPOCHS: "heeds_late_edits", "lsm.H3", "A directory refuses changes of a shard's tables by a process of an earlier epoch.";
    EDITS_ONCE: "edits_twice", "lsm.V5", "A repeated change of a shard's tables gets the answer of the first one.";
    TABLES_LISTED: "publishes_unlisted_tables", "lsm.V6", "The directory has a change of the tables before the version has it.";
    ORPHANS_ONLY: "reclaims_listed_extents", "lsm.K5", "A process that opens a shard keeps the memory of all tables in its directory.";
    OWNERS_FENCED: "opens_unfenced", "lsm.H4", "A process that takes a shard over fences all compute servers of the process before.";
    MERGES_APART: "merges_overlapping", "lsm.V7", "Merges that run together write no key to the same level.";
    RANGES_MEET: "skips_boundary_keys", "lsm.J9", "The parts of a merge take all keys, also those at their bounds.";
    ONE_BOUND: "bounds_each_shard", "lsm.H6", "A scan sees all trees of a compute server as of one bound.";
    LEAVERS_DRAINED: "leaves_undrained", "lsm.H9", "A process leaves a shard only after the operations there have ended.";
    LEAVERS_FLUSHED: "leaves_unflushed", "lsm.H8", "A process leaves a shard only after all of its MemTables are flushed.";
    LEAVERS_SETTLED: "leaves_unsettled", "lsm.H8", "A process leaves a shard only after its flushes, merges and WRITEs there have ended.";
    LOANS_HELD: "forgets_loans", "lsm.L1", "A table that a shard has lent keeps its memory until every borrower has returned it.";
    LOANS_UNREAD: "returns_loans_in_use", "lsm.L2", "A borrowed table is returned only once nothing of the borrower can READ it any more.";
    SCANS_CLIPPED: "scans_lent_keys", "lsm.L3", "Of a table with keys beyond its shard's, only the shard's are seen.";
    DIVISIONS_SETTLED: "forgets_divisions", "lsm.L4", "After a division of unknown outcome, its epoch has ended before the process asks which shards there are.";
    RANGES_SETTLED: "covers_unsettled_ranges", "worker.WF1", "A compute server answers a flush only while it serves the whole range that its map gives it.";
    LEAVING_COVERED: "flushes_kept_shards", "lsm.L6", "A flush covers the shards that the process has not left yet.";
    PIECES_REREAD: "believes_an_old_map", "lsm.L5", "A process that gets shards asks first which ones there are.";
    NUMBERS_RAISED: "keeps_numbers", "lsm.H10", "A process that opens a shard gives later versions higher numbers than all that are there.";
    JOBS_CLOSED: "forgets_jobs", "lsm.J3", "The extents lent to a job that was given up are used again only after its close.";
    // Moving keys, and lives.
    BOUNDARY_LOOKED_AT: "trusts_the_plan", "H1", "Before it gives keys up, a compute server checks again that a leaf begins at the boundary.";
    GIVEN_UP_CLEAN: "gives_up_dirty_nodes", "H2", "A node is clean before another compute server owns its keys.";
    OLD_COPIES_DROPPED: "keeps_old_copies", "H2", "A copy of a shared node is dropped before the node counts as exclusive.";
    OLD_READS_AWAITED: "takes_over_in_haste", "H2", "A compute server that takes keys over first waits for its earlier READs.";
    LOST_KEYS_LEFT: "restructures_lost_keys", "H3", "A node is restructured only by a compute server that owns part of its range.";
    ONE_MOVE: "admits_second_mover", "H4", "Only one move of keys runs at a time.";
    RECORD_RAISED: "begins_life_silently", "record.MR2", "A compute server raises the map record's version before it begins a life.";
    RECORD_DECIDES: "serves_again_unasked", "record.MR2", "A compute server serves released keys again only after its put has ended the move.";
    TAKEN_AFTER_PUT: "serves_before_the_put", "record.MR1", "A compute server serves keys that it takes over only after its put of the new map.";
    RELEASED_BEFORE_PUT: "serves_released_keys", "record.MR1", "A compute server stops serving keys before it puts their move into the map record.";
    LIVES_UNDO_LOADS: "loads_past_new_lives", "record.MR3", "A bulk load replaces the tree only at the version of the map record that it read before any compute server halted.";
    RESUMED_DECIDED: "resumes_undecided", "record.MR3", "A halted compute server resumes only at a version of the map record at which no load can replace the tree.";
    REPLACEMENT_AWAITED: "begins_in_a_replacement", "record.MR4", "No life begins while another compute server is replacing the tree.";
    REPLACEMENT_SETTLED: "ends_replacements_early", "record.MR4", "The next life of a builder ends its replacement only after it has finished what the former life left of it.";
    REDIRECTS_FOLLOWED: "ignores_redirects", "client.N3", "A redirected client adopts the newer map of the compute server that redirected it.";
    EPOCHS_COMPARED: "goes_by_an_old_map", "Q2", "A compute server accepts operations by its newest map.";
    DEAD_FENCED: "serves_before_fence", "over.T1", "A dead compute server is fenced at all memory servers before another one takes its keys over.";
    RIGHTS_AWAITED: "serves_before_rights_end", "over.T1", "A taker waits after the last fence until the dead compute server's right to answer has ended.";
    ANSWERED_BY_RIGHT: "answers_without_right", "over.T2", "A compute server answers only within its right, checked after the read.";
    DEAD_CHUNKS_STRUCK: "keeps_chunks_listed", "over.T5", "A taker strikes the dead compute server's chunks off the lists before it serves leaves that refer to them.";
    FORMER_LIFE_FENCED: "begins_unfenced", "lives", "A former life of a compute server is fenced before the next one accesses the pool.";
    FORMER_LIFE_DECLARED: "declares_nobody_dead", "lives", "A former life of a compute server is declared dead before the next one serves.";
    FORMER_CHANGES_FINISHED: "leaves_logged_changes", "lives", "Changes of shared nodes that a former life logged are finished.";
    HALF_WRITTEN_MENDED: "leaves_half_written_nodes", "D9", "Nodes that a former life left half written are completed.";
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
        assert_eq!(KnownRule::with_bug("skips_fences").map(|known| known.rule), Some(FENCES));
        assert_eq!(KnownRule::with_bug("nope"), None);
    }
}
