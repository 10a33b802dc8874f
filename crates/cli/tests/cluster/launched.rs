//! A launcher with its cluster, for tests.

use farleaf_cluster::catalog::{Catalog, open};
use farleaf_cluster::config::read_token;
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::records::{self, CatalogKeys, MemoryRecord};
use farleaf_cluster::stop::StopSignal;
use farleaf_fabric::handshake::Token;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn farleaf(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farleaf")).args(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until `look` returns a value, and panics if it never does.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let never = StopSignal::default();
    for _ in 0..1200 {
        if let Some(found) = look() {
            return found;
        }
        never.wait(Duration::from_millis(50));
    }
    panic!("{what} did not come");
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Stops a process, and waits until all its threads have stopped. On a loaded machine, some of them
/// continue for a while, and could still accept a connection and serve it.
pub(crate) fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    let stands_still = |thread: std::fs::DirEntry| {
        let state = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        state.contains(") T ")
    };
    eventually("the stop of every thread", || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.flatten().all(stands_still).then_some(())
    });
}

pub(crate) fn is_running(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok()
}

/// A launcher with its cluster; if the test fails, both end with it.
pub(crate) struct Launched {
    process: Child,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) said: Vec<String>,
    lines: BufReader<ChildStdout>,
}

impl Drop for Launched {
    fn drop(&mut self) {
        // It may have ended already; its servers end with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Launched {
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), more)
    }

    /// Starts a cluster, without compute servers unless `more` requests them, and waits until it
    /// reports that it is ready.
    pub(crate) fn start_in(folder: tempfile::TempDir, more: &[&str]) -> Self {
        let (process, lines) = Self::spawn(folder.path(), more);
        let mut launched = Self { process, folder, said: Vec::new(), lines };
        launched.await_line("ready");
        launched
    }

    /// Starts another cluster in the folder of one that has ended.
    pub(crate) fn start_again(&mut self, more: &[&str]) {
        self.begin_again(more);
        self.await_line("ready");
    }

    /// As [`Launched::start_again`], without waiting until it serves.
    pub(crate) fn begin_again(&mut self, more: &[&str]) {
        (self.process, self.lines) = Self::spawn(self.folder.path(), more);
    }

    fn spawn(folder: &Path, more: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let none: &[&str] = match more.contains(&"--compute-servers") {
            true => &[],
            false => &["--compute-servers", "0"],
        };
        // Programs inherit an ignored SIGHUP, which these tests have if `nohup` started them.
        let mut process = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_farleaf")])
            .args(["cluster", "--pool-bytes", "16Mi"])
            .args(["--term-seconds", "1", "--dir"])
            .arg(folder)
            .args(more)
            .args(none)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        (process, lines)
    }

    /// Reads the launcher's output up to a line with this prefix.
    pub(crate) fn await_line(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            let bytes = self.lines.read_line(&mut line).unwrap();
            let line = line.trim_end().to_owned();
            assert!(bytes > 0, "it ended before `{beginning}`: {:?}", self.said);
            self.said.push(line.clone());
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    pub(crate) fn dir(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    pub(crate) fn status(&self) -> Output {
        farleaf(&["status", "--dir", self.dir()])
    }

    pub(crate) fn token(&self) -> Token {
        read_token(&self.folder.path().join("token")).unwrap()
    }

    pub(crate) fn catalog(&self) -> Arc<dyn Catalog> {
        let address = LauncherFolder(self.folder.path().to_owned()).catalog().unwrap();
        open(&address, &self.token()).unwrap()
    }

    pub(crate) fn memory(&self, number: u16) -> Option<MemoryRecord> {
        let key = CatalogKeys::new("default").unwrap().memory(number);
        records::get(&*self.catalog(), &key).ok()?.map(|(record, _)| record)
    }

    /// Ends the launcher with a signal, as an operator would. Returns its exit code. A failed end
    /// prints what the launcher and its servers said.
    pub(crate) fn end(&mut self, by: Signal) -> Option<i32> {
        signal(self.process.id(), by);
        let mut rest = String::new();
        if by != Signal::KILL {
            self.lines.read_to_string(&mut rest).unwrap();
        }
        let code = self.process.wait().unwrap().code();
        if code.is_some_and(|code| code != 0) {
            println!("the launcher: {:?}\n{rest}", self.said);
            for file in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
                if file.path().extension().is_some_and(|ending| ending == "log") {
                    let log = std::fs::read_to_string(file.path()).unwrap_or_default();
                    println!("{:?}:\n{log}", file.file_name());
                }
            }
        }
        code
    }
}
