//! Runs every scenario with a few seeds, and checks that it passes, that it is repeatable, and that
//! it shows what it is meant to show.

use farleaf_history::{ClientAction, OperationOutcome};
use farleaf_sim::{
    DeathAt, DeathSchedule, RunOutcome, SCENARIOS, Scenario, Seeds, run_and_keep, run_command,
    run_mutants, run_random, run_seed, run_with_death,
};

const SEEDS: std::ops::Range<u64> = 1..6;

fn plain() -> impl Iterator<Item = &'static str> {
    SCENARIOS.iter().map(|(name, _)| *name).filter(|name| !name.starts_with("canary-"))
}

#[test]
fn every_file_is_registered_and_fits() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    let registered: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, registered, "scenarios/ and the registry, in alphabetical order");
    for (name, text) in SCENARIOS {
        let scenario = Scenario::parse(name, text).unwrap();
        let is_canary = scenario.canary.is_some();
        assert_eq!(name.starts_with("canary-"), is_canary, "{name}");
        assert!(!scenario.description.is_empty(), "{name}");
    }
}

#[test]
fn every_scenario_holds_and_most_operations_are_answered() {
    for name in plain() {
        let scenario = Scenario::registered(name).unwrap();
        let (mut operations, mut answered) = (0, 0);
        for seed in SEEDS {
            let report = run_seed(&scenario, seed);
            assert_eq!(report.outcome, RunOutcome::Ok, "{name}, seed {seed}");
            operations += report.operations;
            answered += report.answered;
        }
        // A run in which nothing succeeds violates nothing, but proves nothing.
        assert!(answered * 10 > operations * 6, "{name}: {answered} of {operations} answered");
    }
}

/// The lengths of byte strings differ from run to run, so they need more seeds than numbers.
#[test]
fn scenarios_over_byte_strings_hold() {
    for name in plain().filter(|name| name.contains("-bytes-")) {
        let scenario = Scenario::registered(name).unwrap();
        for seed in 100..130 {
            assert_eq!(run_seed(&scenario, seed).outcome, RunOutcome::Ok, "{name}, seed {seed}");
        }
    }
}

/// Seeds that once showed a bug, with a description of the bug.
const ONCE_WRONG: [(&str, u64, &str); 14] = [
    (
        "dlsm-workers-server-dies",
        1,
        "background tasks whose merges failed took the right to merge from one another, and writers without room never learned of the failure: endless loop",
    ),
    (
        "dex-moves-offload",
        703,
        "a stale copy of a freed inner node hid a leaf of keys taken over: endless loop (H2)",
    ),
    (
        "dex-moves",
        21165,
        "a split of a shared node was committed after its keys had been given up (H3)",
    ),
    ("dex-moves-churn", 20500, "the same, and no operation gave up: endless loop (H3)"),
    (
        "dex-crash-shared",
        16,
        "the others' recovery of a dead life fenced the next one, which already served (partition/life.rs)",
    ),
    (
        "dex-crash-sweep",
        290,
        "leaves were merged below a foreign node that had not been trimmed when its keys came (D7)",
    ),
    (
        "dex-crash-sweep",
        20_000_008,
        "a freed node was read again, and hid the node that had replaced it (H2)",
    ),
    (
        "hybrid-slow-collect",
        12_300_003,
        "a collector moved records into a leaf that another collector had merged away (V4)",
    ),
    (
        "dex-ghost-node",
        77_100_010,
        "a node that the giver had freed came back, and was written over its next use (H2)",
    ),
    ("dex-balance-faults", 918_273_662, "the same"),
    (
        "dex-two-movers",
        77_100_004,
        "a mover that was refused the right to move keys ended the right of its holder (H4)",
    ),
    (
        "dex-doubt",
        99_100_002,
        "one unknown outcome of a lock kept a client off a shared page forever (K4)",
    ),
    ("dex-doubt", 78, "a node that its former holder had not finished yet counted as damaged (D9)"),
    (
        "fine-server-dies",
        918_273_818,
        "five operations that gave up in succession counted as an endless loop",
    ),
];

/// The same for random scenarios, by kind.
const RANDOM_ONCE_WRONG: [(&str, u64, &str); 16] = [
    (
        "dlsm",
        850_000_067,
        "a memory server that did not answer for a while was taken for a full one, and a write refused",
    ),
    (
        "all",
        410_008_199,
        "the inspector compared pool and index while a request of a dead client was still on its way",
    ),
    (
        "all",
        330_000_906,
        "a write-back that was dropped half-way left its frame unusable forever (C15)",
    ),
    (
        "dex-cut",
        70,
        "two handles waited for each other, each at the compute server of the other's doubts (C26)",
    ),
    (
        "all",
        220_000_186,
        "READs from a dead memory server took all frames, and all other operations waited for one (C17, C25)",
    ),
    (
        "dex-cut",
        130_000_183,
        "a move waited for doubts that only handles of ended clients could settle",
    ),
    (
        "dex-cut",
        30_000_004,
        "a split whose parent was written later left the whole leaf in the cache, which hid the new half (W4)",
    ),
    ("dex-cut", 30_000_130, "each READ lost to an outage leaked a frame (C17)"),
    ("fine-lossy", 30_000_062, "a lock whose release was lost counted as released (K4)"),
    ("dex-slow", 7_479, "a bulk load during a move made a leaf across the boundary (H1)"),
    (
        "dex-cut",
        40_000_184,
        "operations that waited for a move blocked it: it waited for doubts that only they could settle",
    ),
    (
        "dex-memory",
        40_000_140,
        "moves waited for a dead memory server, and all other operations for the moves",
    ),
    (
        "dex-lossy",
        50_000_036,
        "a dropped handle was still holding nodes back until their parents were written (C24)",
    ),
    ("dex-cut", 100_002_987, "a handle in doubt at one compute server worked at another (C15)"),
    (
        "dex-cut",
        100_004_702,
        "a leaf was cut below a new inner node that was not reachable in the pool yet (C24)",
    ),
    (
        "fine-cut",
        110_000_795,
        "a scan failed for lack of a buffer, while others waited for an unreachable server",
    ),
];

#[test]
fn random_seeds_that_were_once_wrong_hold() {
    for (kind, seed, story) in RANDOM_ONCE_WRONG {
        let mut out = Vec::new();
        let all_well = run_random(kind, Seeds::new(seed, 1), &mut out).unwrap();
        assert!(all_well, "{kind}, seed {seed}: {story}\n{}", String::from_utf8_lossy(&out));
    }
}

#[test]
fn seeds_that_were_once_wrong_hold() {
    for (name, seed, story) in ONCE_WRONG {
        let report = run_seed(&Scenario::registered(name).unwrap(), seed);
        assert_eq!(report.outcome, RunOutcome::Ok, "{name}, seed {seed}: {story}");
    }
}

#[test]
fn one_seed_is_one_history_and_two_seeds_are_two() {
    for name in plain() {
        let scenario = Scenario::registered(name).unwrap();
        let report = run_seed(&scenario, 7);
        assert_eq!(report, run_seed(&scenario, 7), "{name}");
        assert_ne!(report.history_hash, run_seed(&scenario, 8).history_hash, "{name}");
    }
}

/// Number of operations, over a scenario's seeds, with a wanted action and outcome.
fn outcomes(name: &str, wanted: impl Fn(&ClientAction, &OperationOutcome) -> bool) -> usize {
    let scenario = Scenario::registered(name).unwrap();
    let histories = SEEDS.map(|seed| run_and_keep(&scenario, seed).0);
    histories
        .flat_map(|history| history.operations)
        .filter(|operation| wanted(&operation.action, &operation.outcome))
        .count()
}

#[test]
fn balancers_move_keys() {
    for name in ["dex-balance", "dex-balance-faults"] {
        let scenario = Scenario::registered(name).unwrap();
        let moves: u64 = SEEDS.map(|seed| run_seed(&scenario, seed).balanced).sum();
        assert!(moves > 10, "{name}: {moves} moves");
    }
    let calm = Scenario::registered("dex-moves").unwrap();
    assert_eq!(run_seed(&calm, 1).balanced, 0, "no balancer runs there");
}

#[test]
fn faults_show() {
    let uncertain = |_: &ClientAction, outcome: &OperationOutcome| {
        matches!(outcome, OperationOutcome::Indeterminate(_))
    };
    assert!(outcomes("coarse-faults", uncertain) > 20);
    assert!(outcomes("coarse-server-dies", uncertain) > 20);
    let lost = |_: &ClientAction, outcome: &OperationOutcome| {
        matches!(outcome, OperationOutcome::NoReturn)
    };
    assert!(outcomes("coarse-client-dies", lost) > 5);
    assert_eq!(outcomes("coarse-range-calm", lost), 0);
    let full = |_: &ClientAction, outcome: &OperationOutcome| matches!(outcome, OperationOutcome::Failed(error) if error.contains("memory left"));
    assert!(outcomes("coarse-small-pool", full) > 20);
}

#[test]
fn every_kind_of_answer_shows() {
    type Wanted = (&'static str, fn(&ClientAction, &OperationOutcome) -> bool);
    let wanted: &[Wanted] = &[
        ("get, there", |_, outcome| matches!(outcome, OperationOutcome::Value(Some(_)))),
        ("get, absent", |_, outcome| matches!(outcome, OperationOutcome::Value(None))),
        ("insert", |a, o| {
            matches!((a, o), (ClientAction::Insert(..), OperationOutcome::Applied(true)))
        }),
        ("insert, there", |a, o| {
            matches!((a, o), (ClientAction::Insert(..), OperationOutcome::Applied(false)))
        }),
        ("update", |a, o| {
            matches!((a, o), (ClientAction::Update(..), OperationOutcome::Applied(true)))
        }),
        ("update, absent", |a, o| {
            matches!((a, o), (ClientAction::Update(..), OperationOutcome::Applied(false)))
        }),
        ("remove", |a, o| {
            matches!((a, o), (ClientAction::Remove(_), OperationOutcome::Applied(true)))
        }),
        ("remove, absent", |a, o| {
            matches!((a, o), (ClientAction::Remove(_), OperationOutcome::Applied(false)))
        }),
        ("exchange", |_, o| {
            matches!(o, OperationOutcome::Exchange(farleaf_index::Exchange::Exchanged))
        }),
        ("differs", |_, o| {
            matches!(o, OperationOutcome::Exchange(farleaf_index::Exchange::Differs(_)))
        }),
        ("multi-get", |_, o| matches!(o, OperationOutcome::Values(values) if values.len() > 3)),
        (
            "scan",
            |a, o| matches!((a, o), (ClientAction::Scan(s), OperationOutcome::Records(r)) if !s.reverse && r.len() > 3),
        ),
        (
            "reverse scan",
            |a, o| matches!((a, o), (ClientAction::Scan(s), OperationOutcome::Records(r)) if s.reverse && r.len() > 3),
        ),
        (
            "full scan to its limit",
            |a, o| matches!((a, o), (ClientAction::Scan(s), OperationOutcome::Records(r)) if r.len() == s.limit),
        ),
    ];
    for name in ["coarse-range-calm", "coarse-hash-calm"] {
        for (what, wanted) in wanted {
            assert!(outcomes(name, wanted) > 3, "{name}: {what}");
        }
    }
}

#[test]
fn the_planted_bug_is_caught_and_can_be_replayed() {
    let name = "canary-skipped-validation";
    let mut out = Vec::new();
    assert!(!run_command(name, Seeds::new(1, 200), DeathSchedule::AsSeeded, &mut out).unwrap());
    let text = String::from_utf8(out).unwrap();
    // Runs side by side have gone on past the one that failed, and must not show.
    let mut side_by_side = Vec::new();
    let seeds = Seeds { jobs: 3, ..Seeds::new(1, 200) };
    assert!(!run_command(name, seeds, DeathSchedule::AsSeeded, &mut side_by_side).unwrap());
    assert_eq!(String::from_utf8(side_by_side).unwrap(), text);
    let replay = text.lines().last().unwrap();
    let seed: u64 = replay
        .strip_prefix("replay: farleaf-lab sim --scenario canary-skipped-validation --seed ")
        .and_then(|rest| rest.strip_suffix(" --count 1"))
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| panic!("no replay command: {text}"));
    let mut again = Vec::new();
    assert!(!run_command(name, Seeds::new(seed, 1), DeathSchedule::AsSeeded, &mut again).unwrap());
    let again = String::from_utf8(again).unwrap();
    assert!(text.ends_with(&again), "a replay shows the same: {again}");
}

#[test]
fn canaries_succeed_when_all_are_caught() {
    let mut out = Vec::new();
    let none = run_command("canary", Seeds::new(1, 0), DeathSchedule::AsSeeded, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let unnoticed = text.lines().filter(|line| line.ends_with("went UNNOTICED in 0 runs")).count();
    let canaries = SCENARIOS.iter().filter(|(name, _)| name.starts_with("canary-")).count();
    assert!(!none && unnoticed == canaries, "{text}");
}

#[test]
fn mutants_are_hunted_by_name() {
    let mut out = Vec::new();
    let bugs = ["skips_checksum".to_owned()];
    assert!(run_mutants(&bugs, Seeds::new(1, 400), &mut out).unwrap());
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("skips_checksum caught in run "), "{text}");
    let mut out = Vec::new();
    assert!(!run_mutants(&bugs, Seeds::new(1, 0), &mut out).unwrap(), "nothing was run");
    assert!(run_mutants(&["nope".to_owned()], Seeds::new(1, 1), &mut Vec::new()).is_err());
}

#[test]
fn random_scenarios_hold_and_repeat() {
    let run = |kind: &str, seed, count| {
        let mut out = Vec::new();
        let well = run_random(kind, Seeds::new(seed, count), &mut out);
        (well, String::from_utf8(out).unwrap())
    };
    let (well, text) = run("fine", 1, 40);
    assert!(well.unwrap(), "{text}");
    assert_eq!(text.lines().count(), 40);
    assert_eq!(run("fine", 17, 1).1.trim_end(), text.lines().nth(16).unwrap());
    assert!(run("fine-deaths", 5, 2).1.lines().all(|line| line.starts_with("random-fine-deaths ")));
    assert!(run("sideways", 1, 1).0.unwrap_err().to_string().contains("no random scenarios"));
}

/// A collection of 900 keys in pages of 3 records, with a fifth of all messages lost, takes more
/// than 4 s of virtual time. It was once mistaken for an endless loop.
#[test]
fn a_long_collection_on_a_lossy_network_is_no_endless_loop() {
    let mut out = Vec::new();
    let well = run_random("all", Seeds::new(530_001_195, 1), &mut out).unwrap();
    assert!(well, "{}", String::from_utf8(out).unwrap());
}

#[test]
fn the_command_says_what_it_ran_and_what_is_wrong() {
    let run = |scenario: &str, seed, count| {
        let mut out = Vec::new();
        let result =
            run_command(scenario, Seeds::new(seed, count), DeathSchedule::AsSeeded, &mut out);
        (result, String::from_utf8(out).unwrap())
    };
    let (result, text) = run("coarse-range-calm", 3, 2);
    assert!(result.unwrap());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[1].starts_with("coarse-range-calm seed 4 hash "), "{text}");
    assert!(lines[1].ends_with(" ok"), "{text}");

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/coarse-range-calm.toml");
    let (result, from_file) = run(file, 3, 1);
    assert!(result.unwrap());
    let hash = |line: &str| line.split_once("hash").unwrap().1.to_owned();
    assert_eq!(
        hash(from_file.trim_end()),
        hash(lines[0]),
        "a file is played as the registered one"
    );

    let mut out = Vec::new();
    let calm = run_command("coarse-range-calm", Seeds::new(1, 1), DeathSchedule::Sweep, &mut out);
    assert!(calm.unwrap_err().to_string().contains("has no crashes"), "nothing to sweep");
    assert!(out.is_empty());

    let (all, _) = run("all", 1, 0);
    assert!(all.unwrap(), "no seeds, nothing wrong");
    for (scenario, seed, count) in
        [("nope", 1, 1), ("no/such.toml", 1, 1), ("coarse-range-calm", u64::MAX, 2)]
    {
        let (result, text) = run(scenario, seed, count);
        let message = result.unwrap_err().to_string();
        assert!(!message.contains('\n') && text.is_empty(), "{message}");
    }
}

/// Compute servers die once per run, at each of their WRITEs in turn. Then none, some or all of
/// their messages in flight take effect.
#[test]
fn a_death_at_every_write_leaves_what_it_may() {
    let mut out = Vec::new();
    let all_well =
        run_command("dex-crash-sweep", Seeds::new(1, 1), DeathSchedule::Sweep, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(all_well, "{}", text.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
    assert!(text.lines().count() > 300, "{} runs", text.lines().count());
    let scenario = Scenario::registered("dex-crash-sweep").unwrap();
    let report = run_with_death(&scenario, 1, "17:all".parse::<DeathAt>().unwrap());
    let line = text.lines().find(|line| line.contains(" death 17:all ")).unwrap();
    assert!(
        line.contains(&format!("{:016x}", report.history_hash)),
        "it can be played again: {line}"
    );
    assert_eq!(report.deaths, 1);
}

#[test]
fn deaths_are_read_as_they_are_written() {
    for death in (0..40).step_by(13).flat_map(DeathAt::each) {
        assert_eq!(death.to_string().parse(), Ok(death));
    }
    for nonsense in ["", "5", "5:", "5:most", ":all", "-1:all", "x:none"] {
        assert!(nonsense.parse::<DeathAt>().is_err(), "{nonsense}");
    }
}
