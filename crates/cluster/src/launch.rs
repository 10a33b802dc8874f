//! `farleaf cluster`: runs a whole cluster on one host, each server in its own process, in one
//! folder.
//!
//! ```text
//! D/lock            held while the launcher runs        D/memory-0.log   output of a server
//! D/servers.lock    held while any of its servers runs  D/memory-0.pid   its process id
//! D/token           the cluster's token, mode 600       D/compute-0.log  …
//! D/catalog.json    the catalog's state                 D/memory-0.socket  over shm
//! D/catalog.address the catalog's address               D/launcher.pid
//! D/launcher.json   how it restarts servers ([`LauncherRecord`])
//! ```
//!
//! *Invariants*: U1. Only one launcher uses the folder at a time. U2. When the launcher ends, for
//! whatever reason, every server that it started ends too. U3. Servers end in this order: compute
//! servers, memory servers, and last the memory server that runs the catalog; none is killed before
//! its time limit for ending has passed. U4. Restarts after crashes are bounded; a restart that
//! fails ends no other server. U5. No server starts before all servers of former launchers in the
//! folder have ended: after the death of a launcher they still write back, and have the catalog's
//! state.
//!
//! *Thread safety*: [`run`] occupies the calling thread, because servers end when the thread that
//! started them ends.

use crate::catalog::{CatalogAddress, open};
use crate::clock::MonotonicClock;
use crate::config::{self, ConfigError};
use crate::error::ProgramError;
use crate::records::{CatalogKeys, PoolTransport};
use crate::status::ClusterStatus;
use crate::stop::StopSignal;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Poll interval of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The period of [`LaunchOptions::max_restarts`].
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);
/// How long the servers of a launcher that was killed may take to end, beyond the time limit for
/// ending: the kernel has sent them SIGTERM.
const FORMER_SERVERS: Duration = Duration::from_secs(5);
/// Pause before a dead server is restarted.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// Options of the launcher.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The folder that holds all files.
    pub dir: PathBuf,
    /// The name of the cluster.
    pub cluster: String,
    /// How compute servers reach memory servers.
    pub transport: PoolTransport,
    /// Number of memory servers.
    pub memory_servers: u16,
    /// Number of compute servers.
    pub compute_servers: u16,
    /// Additional flags of every memory server.
    pub memory_flags: Vec<OsString>,
    /// Additional flags of every compute server.
    pub compute_flags: Vec<OsString>,
    /// Whether to restart servers that die.
    pub restart: bool,
    /// Maximum number of restarts of one server within a minute.
    pub max_restarts: usize,
    /// The term of the servers' leases in the catalog, which `memory_flags` and `compute_flags`
    /// have, too.
    pub term: Duration,
    /// Whether the compute servers' flags let them take over the keys of dead ones.
    pub takeover: bool,
    /// Timeout for the cluster to begin serving.
    pub ready_within: Duration,
    /// How long a server may take to end before it is killed.
    pub end_within: Duration,
    /// The program with the commands `memory-server` and `compute-server`.
    pub program: PathBuf,
}

/// What a launcher says of itself in its folder, for programs that kill its servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LauncherRecord {
    /// The launcher's process.
    pub pid: u32,
    /// Whether it restarts servers that die.
    pub restart: bool,
    /// It gives a server up that needs more restarts than this within the period.
    pub max_restarts: usize,
    pub restart_period_seconds: f64,
    /// The term of the servers' leases.
    pub term_seconds: f64,
    /// Whether living compute servers take over the keys of dead ones.
    #[serde(default)]
    pub takeover: bool,
}

/// The kinds of servers that a launcher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerKind {
    Memory,
    Compute,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
        })
    }
}

/// The files of a launcher's folder that other programs may read.
#[derive(Clone, Debug)]
pub struct LauncherFolder(pub PathBuf);

impl LauncherFolder {
    /// The token file.
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// The address of the catalog.
    ///
    /// # Errors
    /// [`ConfigError`] if the folder has no cluster.
    pub fn catalog(&self) -> Result<CatalogAddress, ConfigError> {
        let path = self.0.join("catalog.address");
        let text = fs::read_to_string(&path)
            .map_err(|error| ConfigError::File { path: path.clone(), error })?;
        text.trim().parse().map_err(|why| ConfigError::Content { path, why })
    }

    /// What the launcher says of itself.
    ///
    /// # Errors
    /// [`ConfigError`] if no launcher of this version runs in the folder.
    pub fn launcher(&self) -> Result<LauncherRecord, ConfigError> {
        let path = self.0.join("launcher.json");
        let text = fs::read_to_string(&path)
            .map_err(|error| ConfigError::File { path: path.clone(), error })?;
        let content =
            |error: serde_json::Error| ConfigError::Content { path, why: error.to_string() };
        serde_json::from_str(&text).map_err(content)
    }

    /// The process of a server; `None` if it does not run.
    pub fn pid(&self, kind: ServerKind, number: u16) -> Option<u32> {
        fs::read_to_string(self.file(kind, number, "pid")).ok()?.trim().parse().ok()
    }

    fn file(&self, kind: ServerKind, number: u16, ending: &str) -> PathBuf {
        self.0.join(format!("{kind}-{number}.{ending}"))
    }
}

/// Makes this process end when its parent, process `parent`, ends.
///
/// # Errors
/// The error of the operating system; [`io::ErrorKind::NotFound`] if the parent has ended already.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if now == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::NotFound, "the launcher has ended"))
    }
}

/// A server, running or not.
#[derive(Debug)]
struct LaunchedServer {
    kind: ServerKind,
    number: u16,
    process: Option<Child>,
    /// The address it last listened on, reused at a restart.
    address: Option<String>,
    /// Length of its log when it was last started.
    log_from: u64,
    /// Times of its recent restarts; below, the time of the next one.
    restarts: VecDeque<Duration>,
    restart_at: Option<Duration>,
}

impl LaunchedServer {
    fn new(kind: ServerKind, number: u16) -> Self {
        Self {
            kind,
            number,
            process: None,
            address: None,
            log_from: 0,
            restarts: VecDeque::new(),
            restart_at: None,
        }
    }

    fn file(&self, folder: &Path, ending: &str) -> PathBuf {
        LauncherFolder(folder.to_owned()).file(self.kind, self.number, ending)
    }

    fn name(&self) -> String {
        format!("{} server {}", self.kind, self.number)
    }

    fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Returns how the server ended, once, after it has ended.
    fn ended(&mut self, folder: &Path) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.try_wait().ok().flatten()?;
        self.process = None;
        // The file may never have been written.
        let _ = fs::remove_file(self.file(folder, "pid"));
        Some(status)
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // The process may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Whether a server has ended because it was asked to. One that has only begun does not handle the
/// signals of an operator yet, and they end it.
fn was_asked(status: ExitStatus) -> bool {
    let asks = [Signal::TERM, Signal::INT, Signal::HUP];
    status.success() || asks.iter().any(|signal| status.signal() == Some(signal.as_raw()))
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown end".to_owned(),
    }
}

/// The reason why a server ended: the last `error:` line or panic in its log since offset `from`.
/// Other log lines do not count as reasons.
fn last_words(path: &Path, from: u64) -> Option<String> {
    const TAIL_BYTES: u64 = 16 * 1024;
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES).max(from))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let is_reason = |line: &&str| line.starts_with("error: ") || line.contains(" panicked at ");
    text.lines().rev().find(is_reason).map(str::to_owned)
}

/// Below this much room in the folder, a full disk is named as the likely reason of a failure: the
/// files of a server that has ended may have been removed since.
const ROOM_BYTES: u64 = 16 * 1024;

/// Returns how the folder is out of room; `None` if it is not. A server that dies of a full disk
/// cannot say so in its log, which is on the same disk.
fn without_room(folder: &Path) -> Option<String> {
    let path = folder.join("room");
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
    let taken =
        file.and_then(|file| Ok(fallocate(&file, FallocateFlags::KEEP_SIZE, 0, ROOM_BYTES)?));
    // It may not exist.
    let _ = fs::remove_file(&path);
    let error = taken.err()?;
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        .then(|| format!("{} is out of room: {error}", folder.display()))
}

struct Launcher<'a> {
    options: &'a LaunchOptions,
    folder: PathBuf,
    keys: CatalogKeys,
    clock: MonotonicClock,
    servers: Vec<LaunchedServer>,
    catalog: Option<CatalogAddress>,
    out: &'a mut dyn Write,
    /// Whether no server has died.
    is_well: bool,
}

impl Launcher<'_> {
    fn say(&mut self, line: &str) {
        // A closed stdout does not stop the cluster.
        let _ = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
    }

    /// Says what did not happen in time, and why if the disk is full.
    fn say_late(&mut self, what: &str) {
        let why = without_room(&self.folder).map_or(String::new(), |why| format!(": {why}"));
        self.say(&format!("{what}{why}"));
    }

    fn command(&self, server: &LaunchedServer) -> Command {
        let mut command = Command::new(&self.options.program);
        let (name, flags) = match server.kind {
            ServerKind::Memory => ("memory-server", &self.options.memory_flags),
            ServerKind::Compute => ("compute-server", &self.options.compute_flags),
        };
        command.arg(name).args(["--number", &server.number.to_string()]);
        command.args(["--cluster", &self.options.cluster]);
        command.arg("--token-file").arg(self.folder.join("token"));
        // Over shm, the address of a memory server is a socket path, not an address to listen on.
        let known = server.address.as_deref().filter(|at| at.parse::<SocketAddr>().is_ok());
        command.args(["--listen", known.unwrap_or("127.0.0.1:0")]);
        command.args(["--parent", &std::process::id().to_string()]);
        if server.kind == ServerKind::Memory {
            command.args(["--transport", &self.options.transport.to_string()]);
            if self.options.transport == PoolTransport::Shm {
                command.arg("--socket").arg(server.file(&self.folder, "socket"));
            }
            command.args(["--memory-servers", &self.options.memory_servers.to_string()]);
            command.args(["--compute-servers", &self.options.compute_servers.to_string()]);
        }
        if server.kind == ServerKind::Memory && server.number == 0 {
            // Reuse the previous address, which other programs know.
            let listen = match &self.catalog {
                Some(address) => address.to_string(),
                None => "127.0.0.1:0".to_owned(),
            };
            command.args(["--catalog-listen", &listen]);
            command.arg("--catalog-state").arg(self.folder.join("catalog.json"));
            command.arg("--catalog-address-file").arg(self.folder.join("catalog.address"));
        } else if let Some(address) = &self.catalog {
            command.args(["--catalog", &address.to_string()]);
        }
        command.args(flags);
        command
    }

    fn start(&mut self, index: usize) -> Result<(), ProgramError> {
        let server = &self.servers[index];
        let path = server.file(&self.folder, "log");
        let what = format!("cannot start {}", server.name());
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let log =
            log.map_err(ProgramError::system(format!("{what}: its log {}", path.display())))?;
        let started = (|| {
            let log_from = log.metadata()?.len();
            let mut command = self.command(server);
            // Each server gets its own process group, so that the launcher, not the terminal,
            // forwards signals, in order.
            command.process_group(0).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log);
            Ok((command.spawn()?, log_from))
        })();
        let (process, log_from) = started.map_err(ProgramError::system(what))?;
        let pid = format!("{}\n", process.id());
        let noted = written(config::replace_file(&server.file(&self.folder, "pid"), &pid));
        self.servers[index].process = Some(process);
        self.servers[index].log_from = log_from;
        if let Err(error) = noted {
            // Only people read this file.
            self.say(&format!("warning: {error}"));
        }
        Ok(())
    }

    /// Reports which servers have ended, and why any of them died. Returns whether any has ended.
    fn reap(&mut self) -> bool {
        let mut anybody = false;
        for index in 0..self.servers.len() {
            let Some(status) = self.servers[index].ended(&self.folder) else { continue };
            let server = &self.servers[index];
            anybody = true;
            let line = if was_asked(status) {
                format!("{} has ended on request", server.name())
            } else {
                self.is_well = false;
                let why = last_words(&server.file(&self.folder, "log"), server.log_from);
                let why = why.or_else(|| without_room(&self.folder));
                let why = why.filter(|_| status.code().is_some());
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                format!("{} has died: {}{why}", server.name(), how(status))
            };
            self.say(&line);
            self.plan_restart(index, was_asked(status));
        }
        anybody
    }

    /// Plans the restart of a server that has ended. One that somebody has asked to end does not
    /// count against the limit, which is for servers that cannot run.
    fn plan_restart(&mut self, index: usize, was_asked: bool) {
        let now = self.clock.elapsed();
        let server = &mut self.servers[index];
        if !self.options.restart {
            return;
        }
        let recent = |at: &Duration| now.saturating_sub(*at) < RESTARTS_WITHIN;
        server.restarts.retain(recent);
        if was_asked || server.restarts.len() < self.options.max_restarts {
            if !was_asked {
                server.restarts.push_back(now);
            }
            server.restart_at = Some(now + RESTART_PAUSE);
        } else {
            let line = format!("{}: restart limit reached, giving up", server.name());
            self.say(&line);
        }
    }

    fn restart_those_due(&mut self) {
        let now = self.clock.elapsed();
        for index in 0..self.servers.len() {
            if self.servers[index].restart_at.is_some_and(|at| at <= now) {
                self.servers[index].restart_at = None;
                match self.start(index) {
                    Ok(()) => {
                        let line = format!("{} has been restarted", self.servers[index].name());
                        self.say(&line);
                    }
                    // The disk may be full, or the machine out of processes: the other servers go
                    // on.
                    Err(error) => {
                        self.is_well = false;
                        self.say(&error.to_string());
                        self.plan_restart(index, false);
                    }
                }
            }
        }
    }

    /// Waits until the first memory server publishes the catalog's address; `false` if it never
    /// does.
    fn await_catalog(&mut self, stop: &StopSignal) -> Result<bool, ProgramError> {
        while self.clock.elapsed() < self.options.ready_within {
            if stop.wait(POLL_INTERVAL) || self.reap() {
                return Ok(false);
            }
            match LauncherFolder(self.folder.clone()).catalog() {
                Ok(address) => {
                    self.catalog = Some(address);
                    return Ok(true);
                }
                Err(ConfigError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.say_late("the catalog did not start in time");
        Ok(false)
    }

    /// Whether the registered servers are exactly those that the launcher started, and all of them
    /// serve.
    fn is_ready(&self, standing: &ClusterStatus) -> bool {
        let is_ours = |server: &LaunchedServer| {
            let registered = match server.kind {
                ServerKind::Memory => {
                    standing.memory_server(server.number).map(|record| record.pid)
                }
                ServerKind::Compute => {
                    standing.compute_server(server.number).map(|record| record.pid)
                }
            };
            registered.is_some() && registered == server.pid()
        };
        standing.missing().is_empty() && self.servers.iter().all(is_ours)
    }

    /// Waits until the cluster serves, and returns its status; `None` if it does not serve in time.
    fn await_ready(&mut self, stop: &StopSignal) -> Result<Option<ClusterStatus>, ProgramError> {
        let Some(address) = &self.catalog else { return Ok(None) };
        let catalog = open(address, &config::read_token(&self.folder.join("token"))?)?;
        let mut missing = "the catalog did not answer".to_owned();
        while self.clock.elapsed() < self.options.ready_within {
            match ClusterStatus::read(&*catalog, &self.keys) {
                Ok(standing) if self.is_ready(&standing) => return Ok(Some(standing)),
                Ok(standing) => {
                    let first = standing.missing().into_iter().next();
                    missing = first.unwrap_or_else(|| "a server is not registered".to_owned());
                }
                Err(error) => missing = error.to_string(),
            }
            if stop.wait(POLL_INTERVAL) || self.reap() {
                return Ok(None);
            }
        }
        self.say_late(&format!("the cluster did not serve in time: {missing}"));
        Ok(None)
    }

    /// Starts all servers and reports when the cluster serves. Returns whether it does.
    fn bring_up(&mut self, stop: &StopSignal) -> Result<bool, ProgramError> {
        // A stale file would name the catalog of an earlier cluster.
        let _ = fs::remove_file(self.folder.join("catalog.address"));
        self.start(0)?;
        if !self.await_catalog(stop)? {
            return Ok(false);
        }
        for index in 1..self.servers.len() {
            self.start(index)?;
        }
        let Some(standing) = self.await_ready(stop)? else { return Ok(false) };
        for index in 0..self.servers.len() {
            let server = &self.servers[index];
            let (address, metrics) = match server.kind {
                ServerKind::Memory => {
                    let record = standing.memory_server(server.number);
                    record.map(|record| (record.address.clone(), record.metrics.clone()))
                }
                ServerKind::Compute => {
                    let record = standing.compute_server(server.number);
                    record.map(|record| (record.address.clone(), record.metrics.clone()))
                }
            }
            .unwrap_or_default();
            let metrics = metrics.map(|at| format!(", metrics {at}")).unwrap_or_default();
            let pid = server.pid().unwrap_or(0);
            let line = format!("{}: {address}, process {pid}{metrics}", server.name());
            self.servers[index].address = Some(address);
            self.say(&line);
        }
        if let Some(address) = &self.catalog {
            let line = format!("catalog: {address}");
            self.say(&line);
        }
        self.say("ready");
        Ok(true)
    }

    /// Stops these servers: asks them to end, waits, and kills those that exceed the time limit.
    fn end(&mut self, which: impl Fn(&LaunchedServer) -> bool) {
        for server in self.servers.iter().filter(|server| which(server)) {
            server.signal(Signal::TERM);
        }
        let (asked, never) = (self.clock.elapsed(), StopSignal::default());
        let mut killed = false;
        loop {
            for index in 0..self.servers.len() {
                if !which(&self.servers[index]) {
                    continue;
                }
                let Some(status) = self.servers[index].ended(&self.folder) else { continue };
                if !was_asked(status) {
                    self.is_well = false;
                    let line = format!("{} ended with {}", self.servers[index].name(), how(status));
                    self.say(&line);
                }
            }
            let running = |server: &&LaunchedServer| which(server) && server.process.is_some();
            if !self.servers.iter().any(|server| running(&server)) {
                return;
            }
            if !killed && self.clock.elapsed().saturating_sub(asked) >= self.options.end_within {
                killed = true;
                let names: Vec<_> =
                    self.servers.iter().filter(running).map(LaunchedServer::name).collect();
                self.servers.iter().filter(running).for_each(|server| server.signal(Signal::KILL));
                self.say(&format!("killed because they did not end in time: {}", names.join(", ")));
            }
            never.wait(POLL_INTERVAL);
        }
    }

    fn end_all(&mut self) {
        self.end(|server| server.kind == ServerKind::Compute);
        self.end(|server| server.kind == ServerKind::Memory && server.number > 0);
        self.end(|_| true);
    }
}

/// Reports a failed write as a failure of the machine, not as invalid settings.
fn written(outcome: Result<(), ConfigError>) -> Result<(), ProgramError> {
    match outcome {
        Err(ConfigError::File { path, error }) => {
            Err(ProgramError::system(format!("cannot write {}", path.display()))(error))
        }
        outcome => Ok(outcome?),
    }
}

/// The process ids in the folder of servers that are running.
fn running_servers(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "pid"));
    let pids = files.filter(|path| path.file_stem().is_some_and(|name| name != "launcher"));
    let pids = pids.filter_map(|path| Some(fs::read_to_string(path).ok()?.trim().to_owned()));
    pids.filter(|pid| !pid.is_empty() && Path::new("/proc").join(pid).exists()).collect()
}

/// Waits until all servers of former launchers have ended (U5), and returns the lock that says so
/// of the servers that this launcher starts. They inherit it, so the kernel releases it with the
/// last of them, however they end.
fn await_former_servers(
    folder: &Path,
    end_within: Duration,
    stop: &StopSignal,
    out: &mut dyn Write,
) -> Result<File, ProgramError> {
    let path = folder.join("servers.lock");
    let what = format!("cannot lock {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(&path).map_err(ProgramError::system(what.clone()))?;
    let (clock, mut said) = (MonotonicClock::start(), false);
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(ProgramError::system(what)(errno.into())),
        }
        if !std::mem::replace(&mut said, true) {
            // A closed stdout does not stop the cluster.
            let _ = writeln!(out, "waiting for the servers of a former launcher to end")
                .and_then(|()| out.flush());
        }
        if clock.elapsed() >= end_within + FORMER_SERVERS || stop.wait(POLL_INTERVAL) {
            return Err(ProgramError::Failed(format!(
                "servers of a former launcher still run in {}: process {}",
                folder.display(),
                running_servers(folder).join(", ")
            )));
        }
    }
    fcntl_setfd(&lock, FdFlags::empty())
        .map_err(|errno| ProgramError::system(what)(errno.into()))?;
    Ok(lock)
}

fn prepare(dir: &Path) -> Result<(PathBuf, File), ProgramError> {
    let what = format!("cannot make {}", dir.display());
    fs::create_dir_all(dir).map_err(ProgramError::system(what.clone()))?;
    // Servers may run in another working directory, so make the path absolute.
    let folder = fs::canonicalize(dir).map_err(ProgramError::system(what.clone()))?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(folder.join("lock")).map_err(ProgramError::system(what.clone()))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let text = format!("another launcher is using {}", folder.display());
            return Err(ConfigError::Settings(text).into());
        }
        Err(errno) => return Err(ProgramError::system(what)(errno.into())),
    }
    let token = folder.join("token");
    if !token.exists() {
        written(config::make_token(&token))?;
    }
    config::read_token(&token)?;
    let pid = format!("{}\n", std::process::id());
    written(config::replace_file(&folder.join("launcher.pid"), &pid))?;
    Ok((folder, lock))
}

/// Starts a cluster, monitors it, and ends it when `stop` is raised or no server is left. Reports
/// the servers, and those that die, on `out`. Returns whether no server died.
///
/// # Errors
/// [`ProgramError`] if the cluster could not be started; in that case none of its servers is left
/// running.
pub fn run(
    options: &LaunchOptions,
    stop: &StopSignal,
    out: &mut dyn Write,
) -> Result<bool, ProgramError> {
    let keys = CatalogKeys::new(&options.cluster)
        .map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", options.cluster)))?;
    if options.memory_servers == 0 {
        return Err(
            ConfigError::Settings("a cluster needs at least one memory server".to_owned()).into()
        );
    }
    let (folder, _lock) = prepare(&options.dir)?;
    let _servers = await_former_servers(&folder, options.end_within, stop, out)?;
    let memory =
        (0..options.memory_servers).map(|number| LaunchedServer::new(ServerKind::Memory, number));
    let compute =
        (0..options.compute_servers).map(|number| LaunchedServer::new(ServerKind::Compute, number));
    let record = LauncherRecord {
        pid: std::process::id(),
        restart: options.restart,
        max_restarts: options.max_restarts,
        restart_period_seconds: RESTARTS_WITHIN.as_secs_f64(),
        term_seconds: options.term.as_secs_f64(),
        takeover: options.takeover,
    };
    let record = serde_json::to_string(&record)
        .map_err(|error| ProgramError::Failed(format!("cannot write launcher.json: {error}")))?;
    written(config::replace_file(&folder.join("launcher.json"), &format!("{record}\n")))?;
    let mut launcher = Launcher {
        options,
        folder,
        keys,
        clock: MonotonicClock::start(),
        servers: memory.chain(compute).collect(),
        catalog: None,
        out,
        is_well: true,
    };
    let result = launcher.bring_up(stop).map(|serves| {
        if !serves && !stop.is_raised() {
            launcher.is_well = false;
        }
        while serves && !stop.wait(POLL_INTERVAL) {
            launcher.reap();
            launcher.restart_those_due();
            let lives =
                |server: &LaunchedServer| server.process.is_some() || server.restart_at.is_some();
            if !launcher.servers.iter().any(lives) {
                launcher.say("no server is running");
                break;
            }
        }
    });
    launcher.end_all();
    // These files belong to this run, which has ended.
    for name in ["launcher.pid", "launcher.json", "catalog.address"] {
        let _ = fs::remove_file(launcher.folder.join(name));
    }
    result.map(|()| launcher.is_well)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGTERM met a server that had only begun, and counted as its crash.
    #[test]
    fn who_is_asked_to_end_has_not_died() {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            assert!(was_asked(ExitStatus::from_raw(signal.as_raw())), "{signal:?}");
        }
        assert!(was_asked(ExitStatus::from_raw(0)));
        for signal in [Signal::KILL, Signal::ABORT, Signal::SEGV] {
            assert!(!was_asked(ExitStatus::from_raw(signal.as_raw())), "{signal:?}");
        }
        assert!(!was_asked(ExitStatus::from_raw(1 << 8)), "exit code 1");
    }
}
