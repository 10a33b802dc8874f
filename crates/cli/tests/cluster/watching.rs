//! The shell and the live view on a whole cluster of processes.

use crate::launched::{Launched, eventually, farleaf, signal, stop, text};
use crate::serving::{compute, serving};
use farleaf_cluster::launch::LauncherFolder;
use rustix::process::Signal;
use std::io::Write;
use std::process::{Command, Stdio};

/// Runs a script; returns the exit code, stdout and stderr.
fn script(cluster: &Launched, lines: &str) -> (Option<i32>, String, String) {
    let mut shell = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["shell", "--dir", cluster.dir(), "--deadline-seconds", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = shell.wait_with_output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_script_does_every_line_and_says_which_failed() {
    let mut cluster = serving("tcp", &[]);
    let good = "# both compute servers' keys\nput 5 50\ninsert 18446744073709551608 1\n\n  get 5\n\
        update 5 51\nscan 0\nscan 5 --reverse --limit 1\nremove 5\nscan 0 --limit 1\nstatus";
    let (code, said, errors) = script(&cluster, good);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let expected = "ok\nok\n50\nok\n5,51\n18446744073709551608,1\n5,51\nok\n\
        18446744073709551608,1\n";
    let rest = said.strip_prefix(expected).unwrap_or_else(|| panic!("{said}"));
    assert!(rest.ends_with("serves\n"), "{rest}");
    let bad =
        "get 5\nput 6 60\nput 6\ngot 6\nload -\nload /no/file\nremove 5\nget 6\nquit\nput 7 7\n";
    let (code, said, errors) = script(&cluster, bad);
    assert_eq!((code, said.as_str()), (Some(1), "ok\n60\n"));
    let errors: Vec<&str> = errors.lines().collect();
    assert_eq!(errors.len(), 6, "{errors:?}");
    assert_eq!(errors[0], "error: line 1: key 5 is absent");
    for (error, number) in errors.iter().zip([1, 3, 4, 5, 6, 7]) {
        assert!(error.starts_with(&format!("error: line {number}: ")), "{errors:?}");
    }
    let (code, said, _) =
        script(&cluster, "remove 6\nscan 7 --limit 1\nremove 18446744073709551608\nscan 0");
    assert_eq!((code, said.as_str()), (Some(0), "ok\n18446744073709551608,1\nok\nno records\n"));
    // A change that depends on the value, counts, and ends of ranges. These did not exist.
    let lines = "put 1 10\ncompare-exchange 1 10 11\ncompare-exchange 1 10 12\nget 1\n\
        compare-exchange 2 0 1\nput 2 20\nput 3 30\ncount\ncount 2\ncount 1 --end 3\ncount 9\n\
        scan 1 --end 3\nscan 3 --end 1 --reverse\nscan 3 --end 1\nremove 1\nremove 2\nremove 3";
    let (code, said, errors) = script(&cluster, lines);
    let expected =
        "ok\nok\n11\nok\nok\n3\n2\n2\n0\n1,11\n2,20\n3,30\n2,20\nno records\nok\nok\nok\n";
    assert_eq!((code, said.as_str()), (Some(1), expected), "{errors}");
    let errors: Vec<&str> = errors.lines().collect();
    let expected = ["error: line 3: key 1 has the value 11", "error: line 5: key 2 is absent"];
    assert_eq!(errors, expected);
    let (code, said, _) = script(&cluster, "help scan\nhelp");
    assert_eq!(code, Some(0));
    assert!(said.contains("--reverse") && said.contains("quit"), "{said}");
    assert_eq!(script(&cluster, ""), (Some(0), String::new(), String::new()));
    cluster.end(Signal::TERM);
    // Each line reports that no server answers, and the next line still runs.
    let (code, said, errors) = script(&cluster, "get 1\nstatus\nget 2\nhelp quit\n");
    assert_eq!((code, errors.lines().count()), (Some(1), 3), "{errors}");
    assert!(said.contains("quit"), "{said}");
    let nowhere = farleaf(&["shell", "--dir", "/no/folder"]);
    assert_eq!(nowhere.status.code(), Some(2));
}

/// A shell that receives its input line by line.
struct Fed {
    shell: std::process::Child,
    said: std::io::BufReader<std::process::ChildStdout>,
}

impl Fed {
    fn start(cluster: &Launched) -> Self {
        let mut shell = Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(["shell", "--dir", cluster.dir(), "--deadline-seconds", "2"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = std::io::BufReader::new(shell.stdout.take().unwrap());
        Self { shell, said }
    }

    /// Runs a line, and returns the output up to the text of `help quit`, which marks its end.
    fn say(&mut self, line: &str) -> String {
        use std::io::BufRead;
        let mut stdin = self.shell.stdin.as_ref().unwrap();
        writeln!(stdin, "{line}\nhelp quit").unwrap();
        let (mut said, mut all) = (String::new(), String::new());
        loop {
            said.clear();
            assert!(self.said.read_line(&mut said).unwrap() > 0, "it ended: {all}");
            if said.contains("Leave") {
                break;
            }
            all.push_str(&said);
        }
        // Skip the rest of the help, up to its line of options.
        while !said.contains("--help") {
            said.clear();
            assert!(self.said.read_line(&mut said).unwrap() > 0, "it ended: {all}");
        }
        all
    }
}

/// A program started by the test; it ends with the test.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell once did not find a compute server that had restarted at another address, because a
/// client keeps using the addresses that it found first.
#[test]
fn a_shell_goes_on_when_servers_are_back_elsewhere() {
    let mut cluster = serving("tcp", &[]);
    let mut fed = Fed::start(&cluster);
    assert_eq!(fed.say("put 7 70\nget 7"), "ok\n70\n");
    let before = compute(&cluster, 0).unwrap();
    signal(before.pid, Signal::KILL);
    let catalog = LauncherFolder(cluster.dir().into()).catalog().unwrap().to_string();
    let token = cluster.folder.path().join("token");
    let again = Started(
        Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(["compute-server", "--number", "0", "--term-seconds", "1"])
            .args(["--catalog", &catalog, "--token-file", token.to_str().unwrap()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    eventually("another compute server 0", || {
        let record = compute(&cluster, 0)?;
        (record.address != before.address && cluster.status().status.success()).then_some(())
    });
    // Key 7 may be lost. A scan changes nothing, so the shell may retry it silently.
    assert_eq!(fed.say("scan 1000 --limit 1"), "no records\n");
    assert_eq!(fed.say("put 7 71\nget 7"), "ok\n71\n");
    // Stop all servers, and the catalog with them.
    cluster.end(Signal::TERM);
    drop(again);
    assert_eq!(fed.say("get 7"), "", "an error, and no end");
    cluster.start_again(&["--transport", "tcp", "--memory-servers", "2", "--compute-servers", "2"]);
    eventually("service", || (fed.say("put 8 80") == "ok\n").then_some(()));
    assert_eq!(fed.say("get 8"), "80\n");
    fed.shell.stdin = None;
    assert_eq!(fed.shell.wait().unwrap().code(), Some(1), "lines have failed");
    cluster.end(Signal::TERM);
}

/// The cells of a server's row.
fn cells(said: &str, server: &str) -> Vec<String> {
    let line = said.lines().find(|line| line.contains(server)).unwrap_or_else(|| panic!("{said}"));
    let cells = line.split("  ").map(|cell| cell.trim().to_owned());
    cells.filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn the_view_shows_load_and_who_does_not_answer() {
    let mut cluster = serving("tcp", &["--metrics", "--term-seconds", "60"]);
    let dir = cluster.dir().to_owned();
    let words = ["client", "--dir", &dir, "bench", "--load", "--keys", "20000"];
    let more = ["--operations", "100M", "--workload", "ycsb-b"];
    let bench = Started(
        Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(words)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let top = || {
        let output = farleaf(&["top", "--dir", &dir, "--once", "--interval", "2"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let is_busy = |said: &str, server: &str| {
        let cells = cells(said, server);
        cells.iter().any(|cell| cell == "live") && !["0", "-"].contains(&&*cells[1])
    };
    let said = eventually("load", || {
        let said = top();
        let busy = ["compute 0", "compute 1"].iter().all(|server| is_busy(&said, server));
        busy.then_some(said)
    });
    assert!(said.starts_with("serves; ") && !said.contains('\x1b'), "{said}");
    for server in ["memory 0", "memory 1"] {
        assert!(cells(&said, server).iter().any(|cell| cell == "live"), "{said}");
    }
    let half = (u64::MAX / 2).to_string();
    assert!(said.contains(&format!("..{half} ")) && said.contains(&format!("{half}.. ")), "{said}");
    drop(bench);
    // One is dead and one hangs; the catalog keeps both for a minute.
    signal(compute(&cluster, 1).unwrap().pid, Signal::KILL);
    let still = cluster.memory(1).unwrap().pid;
    stop(still);
    let said = eventually("the others", || {
        let said = top();
        let is = |server: &str, state: &str| cells(&said, server).iter().any(|cell| cell == state);
        let expected = is("compute 1", "no answer") && is("memory 1", "no answer");
        (expected && is("compute 0", "live") && is("memory 0", "live")).then(|| said.clone())
    });
    assert!(said.contains("compute 1: cannot connect"), "{said}");
    assert!(said.contains("memory 1: no answer in time"), "{said}");
    signal(still, Signal::CONT);
    let refused = farleaf(&["top", "--dir", &dir, "--once", "--interval", "0.01"]);
    assert_eq!(refused.status.code(), Some(2));
    cluster.end(Signal::TERM);
}
