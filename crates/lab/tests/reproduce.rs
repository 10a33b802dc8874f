//! `farleaf-lab reproduce` from end to end: its files, exit codes, and runs that continue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farleaf-lab"));
    command.arg("reproduce").args(arguments);
    command
}

fn reproduce(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// A folder of a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("farleaf-{}-reproduce-{name}", std::process::id());
        Self(std::env::temp_dir().join(folder))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// All files below the folder, with their content.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn add(folder: &Path, top: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    add(&path, top, files);
                } else {
                    let name = path.strip_prefix(top).unwrap().to_owned();
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
        let mut files = BTreeMap::new();
        add(&self.0, &self.0, &mut files);
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // No other test depends on the removal.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TINY: [&str; 7] = ["dex", "--figure", "t2,4", "--keys", "20k", "--operations", "4k"];

#[test]
fn a_tiny_reproduction_has_a_report_data_and_commands() {
    let folder = Folder::new("tiny");
    let output = reproduce(&[&TINY[..], &["--out", folder.path()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = folder.files();
    let text = |name: &str| String::from_utf8(files[Path::new(name)].clone()).unwrap();
    let report = text("report.md");
    for expected in [
        "| dex t2 | read-only: WRITEs | 0 | 0 | holds |  |",
        "cannot be said here",
        "virtual time charges nothing for contention",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    let html = text("report.html");
    assert!(html.contains("<table>") && html.contains("read-only: WRITEs"), "{html}");
    let data = text("data/dex-t2.csv");
    assert_eq!(data.lines().count(), 1 + 2 * 9, "two mixes of nine rows: {data}");
    assert!(data.starts_with("figure,panel,row,x,seed,operations_per_s,p50_ns,p99_ns,reads,"));
    // Each point has a line, which runs unchanged.
    let commands = text("commands.txt");
    let lines: Vec<&str> = commands.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 18, "{commands}");
    let words: Vec<&str> = lines[0].split(' ').skip(1).collect();
    let alone = Command::new(env!("CARGO_BIN_EXE_farleaf-lab")).args(words).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    assert!(text("environment.json").contains("\"scale\": \"small\""));
}

/// Tables of blocks READ a block for each lookup, and tables of records a record.
#[test]
fn the_ablation_shows_what_tables_of_records_save() {
    let folder = Folder::new("lsm");
    let output = Command::new(env!("CARGO_BIN_EXE_farleaf-lab"))
        .args(["ablation", "--part", "lsm", "--figure", "13", "--keys", "5k"])
        .args(["--operations", "2k", "--jobs", "2", "--out", folder.path()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let data = String::from_utf8(folder.files()[Path::new("data/dlsm-13.csv")].clone()).unwrap();
    assert_eq!(data.lines().count(), 1 + 2 * 3, "two panels of three rows: {data}");
    let bytes = |row: &str| {
        let line = data.lines().find(|line| line.contains(&format!("\"reads\",\"{row}\"")));
        // The columns between the row's name and the command: x, seed, …, bytes.
        let columns = line.unwrap().split_once(row).unwrap().1;
        columns.split(',').nth(10).unwrap().parse::<f64>().unwrap()
    };
    let (records, blocks) = (bytes("dLSM"), bytes("dLSM, blocks of 8 KB"));
    assert!((440.0..500.0).contains(&records) && (4_000.0..9_000.0).contains(&blocks), "{data}");
}

/// Each part of DEX is a row of Figures 8, 9, 12 and of the figure of a trace.
#[test]
fn the_ablation_shows_what_each_part_of_dex_costs() {
    let mut requests = String::from("op,lbn\n");
    for number in 0..400 {
        let op = if number % 3 == 0 { "28" } else { "2a" };
        requests.push_str(&format!("{op},{}\n", number * 7919 % 101));
    }
    let folder = Folder::new("ablation");
    std::fs::create_dir_all(&folder.0).unwrap();
    let trace = folder.0.join("trace.csv");
    std::fs::write(&trace, requests).unwrap();
    let small = ["ablation", "--keys", "20k", "--operations", "2k", "--jobs", "2", "--trace"];
    let output = Command::new(env!("CARGO_BIN_EXE_farleaf-lab"))
        .args(small)
        .args([trace.to_str().unwrap(), "--out", folder.path()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = folder.files();
    let text = |name: &str| String::from_utf8(files[Path::new(name)].clone()).unwrap();
    let steps = text("data/dex-8.csv");
    let column = |name: &str| {
        let at = steps.lines().next().unwrap().split(',').position(|column| column == name);
        let partitions = steps.lines().find(|line| line.contains("\"+ partitions\""));
        // No column before the command has a comma inside quotes.
        partitions.unwrap().split(',').nth(at.unwrap()).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!((column("atomics"), column("hit_ratio")), (0.0, 0.0), "{steps}");
    assert!(column("reads") >= 3.0 && column("writes") < 0.6, "{steps}");
    assert_eq!(text("data/dex-trace.csv").lines().count(), 1 + 9 * 3);
    let bars = text("figures/dex-9-1.svg");
    assert!(bars.contains("+ cooling map") && bars.contains("operations/s"), "{bars}");
    assert!(text("figures/dex-trace-1.svg").contains("hot, clock"));
    // Only rows that cache nodes run operations first, to fill their caches.
    let commands = text("commands.txt");
    let warms = |line: &str| line.contains(" --warm-up ");
    let has_cache =
        |line: &str| line.contains("--index dex") && !line.contains("dex.admission=never");
    let lines =
        || commands.lines().filter(|line| line.contains(" --index ") && !line.contains("--trace"));
    assert!(lines().any(warms) && lines().any(|line| !warms(line)), "{commands}");
    assert!(lines().all(|line| warms(line) == has_cache(line)), "{commands}");
    // The paper states the gain from partitions with 2 threads.
    assert!(text("figures/dex-8-1.svg").contains("hollow: as stated"));
}

#[test]
fn a_figure_of_latencies_shows_how_they_are_distributed() {
    let folder = Folder::new("latencies");
    let small = ["trees", "--figure", "13", "--design", "coarse", "--keys", "2k", "--jobs", "2"];
    let output = reproduce(&[&small[..], &["--out", folder.path()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = folder.files();
    let text = |name: &str| String::from_utf8(files[Path::new(name)].clone()).unwrap();
    let data = text("data/trees-13-latencies.csv");
    assert!(data.starts_with("figure,panel,row,x,seed,share,latency_ns\n"));
    // By point: everything but its share and its latency.
    let mut points: BTreeMap<&str, Vec<(f64, u64)>> = BTreeMap::new();
    for line in data.lines().skip(1) {
        let (point, latency) = line.rsplit_once(',').unwrap();
        let (point, share) = point.rsplit_once(',').unwrap();
        let at = (share.parse::<f64>().unwrap(), latency.parse::<u64>().unwrap());
        points.entry(point).or_default().push(at);
    }
    assert_eq!(points.len(), 4 * 7, "mixes and numbers of clients: {:?}", points.keys());
    for (point, distribution) in &points {
        let medians = distribution.iter().filter(|(share, _)| *share == 0.5).count();
        assert_eq!((medians, distribution.last().unwrap().0), (1, 1.0), "{point}");
        assert!(distribution.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1));
        assert!(distribution[0].1 > 1_000, "{point}: a message takes 850 ns each way");
    }
    // Four plots of medians, then four of distributions.
    let median = text("figures/trees-13-1.svg");
    assert!(median.contains("median latency, ns") && !median.contains("share of the"), "{median}");
    let shares = text("figures/trees-13-8.svg");
    assert!(shares.contains("share of the operations") && shares.contains("240 clients"));
    assert!(!files.contains_key(Path::new("figures/trees-13-9.svg")));
}

/// A killed run leaves complete points, and a run that continues it writes the same bytes.
#[test]
fn a_killed_run_continues_to_the_same_bytes() {
    let (whole, cut) = (Folder::new("whole"), Folder::new("cut"));
    let arguments = |out| [&TINY[..], &["--out", out]].concat();
    assert!(reproduce(&arguments(whole.path())).status.success());

    let mut child = command(&arguments(cut.path()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let points = cut.0.join("points");
    let finished = || std::fs::read_dir(&points).map_or(0, Iterator::count);
    while finished() < 2 && child.try_wait().unwrap().is_none() {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!cut.0.join("report.md").exists(), "it was killed in time");
    let refused = reproduce(&arguments(cut.path()));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --resume"));
    let again = reproduce(&[&arguments(cut.path())[..], &["--resume", "--jobs", "2"]].concat());
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let (mut first, mut second) = (whole.files(), cut.files());
    for files in [&mut first, &mut second] {
        files.retain(|name, _| name.extension().is_none_or(|extension| extension != "part"));
    }
    assert!(first.contains_key(Path::new("report.html")));
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    for (name, bytes) in &first {
        assert!(bytes == &second[name], "{} differs", name.display());
    }
}

/// So few records fit into any cache, so throughput does not increase with the cache as the paper
/// states.
#[test]
fn strict_fails_if_a_statement_differs() {
    let figure =
        ["dex", "--figure", "11a", "--design", "dex", "--keys", "2k", "--operations", "1k"];
    let [lax, strict] = [Folder::new("lax"), Folder::new("strict")];
    let output = reproduce(&[&figure[..], &["--out", lax.path()]].concat());
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && stdout.contains(" 1 differs"), "{stdout}");
    let output = reproduce(&[&figure[..], &["--strict", "--out", strict.path()]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(strict.0.join("report.md").exists(), "the report is there all the same");
}

#[test]
fn bad_input_is_one_line_and_code_2() {
    for (arguments, expected) in [
        (&["--figure", "99", "--out", "x"][..], "there is no figure `99`: there are t2, 4,"),
        (&["dex", "--design", "b-tree", "--out", "x"], "no figure has the design `b-tree`"),
        (&["nope", "--out", "x"], "possible values: dex, trees"),
        (&["dex", "--jobs", "0", "--out", "x"], "0 is not in 1..=256"),
        (&["dex", "--scale", "huge", "--out", "x"], "possible values: small"),
        (&["dex", "--trace", "/nonexistent.csv", "--out", "x"], "there is no trace"),
        (&["dex"], "not provided: --out"),
    ] {
        let output = reproduce(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(expected) && stderr.lines().count() == 1,
            "{arguments:?}: {stderr}"
        );
    }
    assert!(!Path::new("x").exists());
}
