//! Kills and stops of a launcher's servers, at random moments.
//!
//! *Invariants*: a server gets signals only through a descriptor of its process, after a look at
//! what this process runs: the number in its file may be that of another process by then. A server
//! is killed only as often as its launcher restarts it. No server stays stopped when the injector
//! ends. Without restarts one compute server is left.
//!
//! *Thread safety*: belongs to one thread.

use farleaf_cluster::launch::{LauncherFolder, LauncherRecord, ServerKind};
use farleaf_cluster::status::ClusterStatus;
use farleaf_command_line::output::grouped;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Time between two faults, and how long a server stays stopped, in terms of the servers' leases.
const TERMS: std::ops::Range<f64> = 0.1..3.0;
/// The launcher counts a death when it notices it, which is after the kill.
const NOTICE_MARGIN: Duration = Duration::from_secs(2);

/// Which servers get which faults.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultSchedule {
    pub(super) kill: Vec<ServerKind>,
    pub(super) stop: Vec<ServerKind>,
    pub(super) seed: u64,
}

/// A server of the launcher.
type ServerName = (ServerKind, u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerFault {
    Kill,
    Stop,
}

/// The process of a server.
#[derive(Debug)]
struct LaunchedProcess {
    pid: u32,
    descriptor: OwnedFd,
}

impl LaunchedProcess {
    /// The running process of a server of this launcher; `None` if there is none.
    fn open(folder: &LauncherFolder, launcher: u32, (kind, number): ServerName) -> Option<Self> {
        let pid = folder.pid(kind, number)?;
        let named = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = pidfd_open(named, PidfdFlags::empty()).ok()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_its = is_server(&String::from_utf8_lossy(&line), launcher, (kind, number));
        is_its.then_some(Self { pid, descriptor })
    }

    fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.descriptor, signal).is_ok()
    }
}

/// Whether a process with this command line is that server of that launcher. Words end with NUL.
fn is_server(line: &str, launcher: u32, (kind, number): ServerName) -> bool {
    let words: Vec<&str> = line.split('\0').collect();
    let has = |flag: &str, value: String| words.windows(2).any(|pair| pair == [flag, &*value]);
    words.get(1) == Some(&&*format!("{kind}-server"))
        && has("--number", number.to_string())
        && has("--parent", launcher.to_string())
}

/// A stopped server; it continues when this is dropped.
#[derive(Debug)]
struct StoppedServer {
    process: LaunchedProcess,
    until: Duration,
}

impl Drop for StoppedServer {
    fn drop(&mut self) {
        // It may have been killed.
        self.process.signal(Signal::CONT);
    }
}

/// Injects the faults of a run.
#[derive(Debug)]
pub(super) struct FaultInjector {
    folder: LauncherFolder,
    launcher: LauncherRecord,
    /// All faults to choose from.
    faults: Vec<(ServerFault, ServerName)>,
    /// Compute servers at the beginning.
    compute_servers: usize,
    rng: SmallRng,
    next_at: Duration,
    stopped: Option<StoppedServer>,
    /// When each server was killed within the launcher's period.
    kill_times: BTreeMap<ServerName, VecDeque<Duration>>,
    /// The last process of each server that was killed.
    killed: BTreeMap<ServerName, u32>,
    kills: u64,
    stops: u64,
}

impl FaultInjector {
    /// An injector for the servers that are registered now.
    pub(super) fn new(
        folder: LauncherFolder,
        launcher: LauncherRecord,
        schedule: FaultSchedule,
        standing: &ClusterStatus,
    ) -> Self {
        let memory = standing.memory.iter().map(|record| (ServerKind::Memory, record.number));
        let compute = standing.compute.iter().map(|record| (ServerKind::Compute, record.number));
        let servers: Vec<ServerName> = memory.chain(compute).collect();
        let of = |kinds: &[ServerKind], fault: ServerFault| {
            let servers = servers.iter().filter(|(kind, _)| kinds.contains(kind));
            servers.map(|server| (fault, *server)).collect::<Vec<_>>()
        };
        let kills = of(&schedule.kill, ServerFault::Kill);
        let faults = [kills, of(&schedule.stop, ServerFault::Stop)].concat();
        let mut injector = Self {
            folder,
            launcher,
            faults,
            compute_servers: standing.compute.len(),
            rng: SmallRng::seed_from_u64(schedule.seed),
            next_at: Duration::ZERO,
            stopped: None,
            kill_times: BTreeMap::new(),
            killed: BTreeMap::new(),
            kills: 0,
            stops: 0,
        };
        injector.next_at = injector.pause();
        injector
    }

    fn pause(&mut self) -> Duration {
        Duration::from_secs_f64(self.launcher.term_seconds * self.rng.random_range(TERMS))
    }

    /// Does what is due `now`, since the beginning of the run.
    pub(super) fn advance(&mut self, now: Duration) {
        if self.stopped.as_ref().is_some_and(|stopped| stopped.until <= now) {
            self.stopped = None;
        }
        if now < self.next_at || self.faults.is_empty() {
            return;
        }
        let chosen = self.rng.random_range(0..self.faults.len());
        let (fault, server) = self.faults[chosen];
        let done = match fault {
            ServerFault::Kill => self.kill(server, now),
            ServerFault::Stop => self.stop(server, now),
        };
        // If that server cannot have the fault now, the next call chooses again.
        if done {
            self.next_at = now + self.pause();
        }
    }

    fn process(&self, server: ServerName) -> Option<LaunchedProcess> {
        LaunchedProcess::open(&self.folder, self.launcher.pid, server)
    }

    fn kill(&mut self, server: ServerName, now: Duration) -> bool {
        let within = Duration::from_secs_f64(self.launcher.restart_period_seconds) + NOTICE_MARGIN;
        let times = self.kill_times.entry(server).or_default();
        times.retain(|at| now.saturating_sub(*at) < within);
        if times.len() >= self.launcher.max_restarts {
            return false;
        }
        if !self.launcher.restart && self.killed.len() + 1 >= self.compute_servers {
            return false; // one has to be left, which takes the keys over
        }
        let Some(process) = self.process(server) else { return false };
        if !process.signal(Signal::KILL) {
            return false;
        }
        self.kill_times.entry(server).or_default().push_back(now);
        self.killed.insert(server, process.pid);
        self.kills += 1;
        true
    }

    fn stop(&mut self, server: ServerName, now: Duration) -> bool {
        if self.stopped.is_some() {
            return false;
        }
        let until = now + self.pause();
        let Some(process) = self.process(server) else { return false };
        if !process.signal(Signal::STOP) {
            return false;
        }
        self.stopped = Some(StoppedServer { process, until });
        self.stops += 1;
        true
    }

    /// Lets a stopped server continue.
    pub(super) fn end(&mut self) {
        self.stopped = None;
    }

    /// A killed server whose next process is not registered yet, as a line.
    pub(super) fn not_restarted(&self, standing: &ClusterStatus) -> Option<String> {
        if !self.launcher.restart {
            return None;
        }
        let registered = |(kind, number): ServerName| match kind {
            ServerKind::Memory => standing.memory_server(number).map(|record| record.pid),
            ServerKind::Compute => standing.compute_server(number).map(|record| record.pid),
        };
        let is_old = |(server, pid): &(&ServerName, &u32)| {
            registered(**server).is_none_or(|registered| registered == **pid)
        };
        let ((kind, number), _) = self.killed.iter().find(is_old)?;
        Some(format!("{kind} server {number} has not come back after its kill"))
    }

    pub(super) fn kills(&self) -> u64 {
        self.kills
    }

    /// The faults so far.
    pub(super) fn progress(&self) -> String {
        format!("{} kills, {} stops", grouped(self.kills), grouped(self.stops))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injector(kill: &[ServerKind], folder: &str) -> FaultInjector {
        let launcher = LauncherRecord {
            pid: 7,
            restart: true,
            max_restarts: 5,
            restart_period_seconds: 60.0,
            term_seconds: 1.0,
            takeover: false,
        };
        let standing = ClusterStatus {
            settings: None,
            memory: Vec::new(),
            compute: Vec::new(),
            index: None,
            map: None,
        };
        let schedule = FaultSchedule { kill: kill.to_vec(), stop: Vec::new(), seed: 1 };
        FaultInjector::new(LauncherFolder(folder.into()), launcher, schedule, &standing)
    }

    #[test]
    fn only_the_server_itself_gets_signals() {
        let line = "farleaf\0compute-server\0--number\x001\0--parent\x007\0";
        assert!(is_server(line, 7, (ServerKind::Compute, 1)));
        assert!(!is_server(line, 8, (ServerKind::Compute, 1)), "another launcher");
        assert!(!is_server(line, 7, (ServerKind::Compute, 0)), "another number");
        assert!(!is_server(line, 7, (ServerKind::Memory, 1)), "another kind");
        assert!(!is_server("vi\0compute-server\0", 7, (ServerKind::Compute, 1)));
        // This process is no server, whatever the file says.
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id().to_string();
        std::fs::write(folder.path().join("compute-0.pid"), pid).unwrap();
        let faults = injector(&[ServerKind::Compute], folder.path().to_str().unwrap());
        assert_eq!(faults.folder.pid(ServerKind::Compute, 0), Some(std::process::id()));
        assert!(faults.process((ServerKind::Compute, 0)).is_none());
    }

    #[test]
    fn faults_are_a_tenth_of_a_term_to_three_terms_apart() {
        let mut faults = injector(&[], "/none");
        for _ in 0..1000 {
            let pause = faults.pause().as_secs_f64();
            assert!((0.1..3.0).contains(&pause), "{pause}");
        }
        faults.advance(Duration::from_secs(100));
        assert_eq!(faults.progress(), "0 kills, 0 stops");
    }
}
