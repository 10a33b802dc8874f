//! Memory servers that are stopped or killed under use, and programs that access what is lost with
//! them: each is a process of its own, this program in another role.

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::{ShmCluster, ShmConfig, ShmServer, ShmServerConfig};
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServer, TcpServerConfig};
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, Provider, ServerId};
use farleaf_far_memory::{
    AccessAdvice, ChunkSpace, ClusterEndpoints, EndpointSource, FarConfig, FarError, FarRegion,
    FaultProvider, Leased, Reserved,
};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
const PAGES: usize = 64;
const SERVER_BYTES: usize = 1 << 20;

fn config() -> FarConfig {
    let (patience_ns, rest_ns) = (300_000_000, 600_000_000_000);
    FarConfig { patience_ns, rest_ns, ..FarConfig::new(PAGES * PAGE_BYTES, PAGE_BYTES, 16) }
}

fn token() -> Token {
    Token::new(b"a token of these tests alone").unwrap()
}

fn region<R: EndpointSource>(provider: FaultProvider, reach: R) -> Result<FarRegion, FarError> {
    let space = Reserved::first(SERVER_BYTES);
    FarRegion::by(provider, config(), reach, space)
}

/// This program in another role.
fn start(role: &str, provider: FaultProvider) -> Child {
    start_with(role, provider, "")
}

/// The same, with an argument.
fn start_with(role: &str, provider: FaultProvider, argument: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([role, &format!("{provider:?}"), argument])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// A memory server, until its standard input ends.
fn be_server(number: u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = TestService::new(SERVER_BYTES);
    let config = TcpServerConfig { number, ..TcpServerConfig::default() };
    let server = TcpServer::start(listener, service, &token(), config).unwrap();
    println!("{}", server.local_address());
    let _ = std::io::stdin().read(&mut [0]);
}

/// The same over shared memory, at this socket.
fn be_shm_server(path: &Path) {
    let service = TestService::new(SERVER_BYTES);
    let server = ShmServer::start(path, service, &token(), ShmServerConfig::default()).unwrap();
    println!("{}", server.path().display());
    let _ = std::io::stdin().read(&mut [0]);
}

/// A program that gets an error for a page that it asks for, and then accesses it all the same.
fn be_victim(provider: FaultProvider) {
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
    let region = region(provider, ClusterEndpoints::new(Arc::clone(&cluster), 0, 0)).unwrap();
    region.words()[0].store(1, Ordering::Relaxed);
    region.advise(0..PAGE_BYTES, AccessAdvice::DontNeed).unwrap();
    cluster.kill_memory_server(ServerId::new(0));
    println!("{}", region.ensure(0..1).unwrap_err());
    println!("read {}", region.words()[0].load(Ordering::Relaxed));
}

/// A program that writes lost memory to its standard error, and so has the lock of that while it
/// waits. A system call may fail instead, which it then says.
fn be_writer(provider: FaultProvider) {
    use std::fmt::Write as _;
    use std::io::Write as _;
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
    let region = region(provider, ClusterEndpoints::new(Arc::clone(&cluster), 0, 0)).unwrap();
    region.words()[0].store(1, Ordering::Relaxed);
    region.advise(0..PAGE_BYTES, AccessAdvice::DontNeed).unwrap();
    cluster.kill_memory_server(ServerId::new(0));
    let lock = std::io::stderr().lock();
    let mut line = String::new();
    write!(line, "{}", region.words()[0].load(Ordering::Relaxed)).unwrap();
    writeln!({ lock }, "{line}").unwrap();
}

/// A region ends, and a line is said, whatever locks the waiting threads have.
fn an_abort_needs_no_lock(provider: FaultProvider) {
    let ended = start("writer", provider).wait_with_output().unwrap();
    let line = String::from_utf8(ended.stderr).unwrap();
    assert!(line.starts_with("farleaf: access to far memory at 0x"), "{line}");
    assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{:?}", ended.status);
}

/// A SIGSEGV that is sent, as by `kill`, is not swallowed by the handler of far memory.
fn be_target(provider: FaultProvider) {
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
    let region = region(provider, ClusterEndpoints::new(cluster, 0, 0)).unwrap();
    kill_process(rustix::process::getpid(), Signal::SEGV).unwrap();
    println!("read {}", region.words()[0].load(Ordering::Relaxed));
}

fn a_signal_that_is_sent_ends_the_process(provider: FaultProvider) {
    if provider == FaultProvider::Userfaultfd {
        // It has no handler: what Rust's runtime does is not about far memory.
        return;
    }
    let ended = start("target", provider).wait_with_output().unwrap();
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "");
    assert_eq!(ended.status.signal(), Some(Signal::SEGV.as_raw()), "{:?}", ended.status);
}

fn a_stray_access_is_one_line_and_an_abort(provider: FaultProvider) {
    let ended = start("victim", provider).wait_with_output().unwrap();
    let (told, line) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr));
    let line = line.unwrap();
    assert!(told.starts_with("page 0 of far memory is on memory server 0"), "{told}");
    assert_eq!(told.lines().count(), 1, "nothing was read: {told}");
    assert!(line.starts_with("farleaf: access to far memory at 0x"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{:?}", ended.status);
}

/// A program with a region that accesses no memory at all.
fn be_broken(provider: FaultProvider) {
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
    let region = region(provider, ClusterEndpoints::new(cluster, 0, 0)).unwrap();
    let outside = region.base().as_ptr().wrapping_sub(64 << 40);
    println!("with a region");
    // SAFETY: the process ends here, which is what the test is about.
    println!("{}", unsafe { outside.read_volatile() });
}

fn other_faults_end_the_process_as_ever(provider: FaultProvider) {
    let ended = start("broken", provider).wait_with_output().unwrap();
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "with a region\n");
    assert_eq!(ended.status.signal(), Some(Signal::SEGV.as_raw()), "{:?}", ended.status);
}

/// A program whose child accesses the region, a page that is only on the memory server.
fn be_parent(provider: FaultProvider) {
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
    let region = region(provider, ClusterEndpoints::new(cluster, 0, 0)).unwrap();
    region.words()[0].store(77, Ordering::Relaxed);
    region.advise(0..PAGE_BYTES, AccessAdvice::DontNeed).unwrap();
    // SAFETY: the child calls nothing but `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = region.words()[0].load(Ordering::Relaxed);
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(i32::try_from(found).unwrap_or(1)) };
    }
    let child = Pid::from_raw(child).unwrap();
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    println!("{:?}", status.terminating_signal());
    // SAFETY: the child uses and ends its region, which it does not have, and calls `alarm` and
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends the child if that waits for a thread that it does not have.
        unsafe { libc::alarm(20) };
        let discarded = region.discard(0..PAGE_BYTES);
        drop(region);
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(if discarded == Err(FarError::Stopped) { 3 } else { 4 }) };
    }
    let child = Pid::from_raw(child).unwrap();
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    println!("{:?}", status.exit_status());
    println!("{}", region.words()[0].load(Ordering::Relaxed));
}

/// The child neither reads zeros nor waits for a pager that it does not have, and the parent goes
/// on.
fn a_child_process_does_not_have_the_region(provider: FaultProvider) {
    let ended = start("parent", provider).wait_with_output().unwrap();
    let told = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(told, format!("{:?}\nSome(3)\n77\n", Some(Signal::SEGV.as_raw())));
    assert!(ended.status.success(), "{:?}", ended.status);
}

/// A program of another user, for which the system call is also forbidden if `is_confined`, as in a
/// container.
fn be_restricted(is_confined: bool) {
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
    // SAFETY: these calls change the process's own rights only. Without the right to change its
    // user, the process is one of another user already.
    unsafe { libc::setuid(65_534) };
    if is_confined {
        forbid_userfaultfd();
    }
    let space = Reserved::first(SERVER_BYTES);
    let region = FarRegion::new(config(), ClusterEndpoints::new(cluster, 0, 0), space).unwrap();
    fill(&region, 3);
    assert_eq!(look(&region, 3), (None, PAGES));
    println!("{:?}", region.mode());
    println!("{}", region.fallback().map_or("none".to_owned(), ToString::to_string));
}

/// Lets the system call `userfaultfd` fail with `EPERM` from now on.
fn forbid_userfaultfd() {
    let instruction = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let number = u32::try_from(libc::SYS_userfaultfd).unwrap();
    let mut filter = [
        // The number of the system call is the first word of what the filter sees.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        instruction(libc::BPF_RET, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        instruction(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: this only forbids the process to get more rights.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    // SAFETY: the filter is valid for the duration of the call, which copies it.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// The program gets a provider all the same, and knows which and why.
fn what_is_not_allowed_has_a_fallback(provider: FaultProvider) {
    let is_confined = provider == FaultProvider::Signal;
    let role = if is_confined { "confined" } else { "other-user" };
    let ended = start(role, provider).wait_with_output().unwrap();
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{:?}: {error}", ended.status);
    let told = String::from_utf8(ended.stdout).unwrap();
    let (mode, fallback) = told.trim_end().split_once('\n').unwrap();
    if is_confined {
        assert_eq!(mode, "Signal");
        assert!(fallback.starts_with("cannot open userfaultfd; allow the system call"), "{told}");
    } else {
        assert!(mode.starts_with("Userfaultfd"), "{told}");
        assert_eq!(fallback, "none");
    }
    println!("provider for another user, confined {is_confined}: {mode}; fallback: {fallback}");
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    if signal == Signal::STOP {
        // Its other threads go on until one of them has seen the signal.
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }
}

/// Writes every page, so that most of them are on the memory server only.
fn fill(region: &FarRegion, value: u64) {
    for page in 0..PAGES {
        region.words()[page * PAGE_WORDS].store(value + page as u64, Ordering::Relaxed);
    }
}

/// The first page that cannot be had, and the number of pages that have the right content.
fn look(region: &FarRegion, value: u64) -> (Option<FarError>, usize) {
    let (mut first, mut right) = (None, 0);
    for page in 0..PAGES {
        let from = page * PAGE_BYTES;
        match region.ensure(from..from + PAGE_BYTES) {
            Ok(()) => {
                let found = region.words()[page * PAGE_WORDS].load(Ordering::Relaxed);
                assert_eq!(found, value + page as u64);
                right += 1;
            }
            Err(error) => {
                first = first.or(Some(error));
            }
        }
    }
    (first, right)
}

fn a_server_that_is_stopped_and_killed_is_an_error(provider: FaultProvider) {
    let mut server = start_with("server", provider, "0");
    let mut address = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let address: SocketAddr = address.trim().parse().unwrap();
    let cluster = Arc::new(TcpCluster::connect(vec![address], &token(), tcp()));
    let region = region(provider, ClusterEndpoints::new(cluster, 0, 0)).unwrap();
    fill(&region, 100);
    assert_eq!(look(&region, 100), (None, PAGES));

    // Stopped: an error. When it goes on: nothing was lost, and late WRITEs did no harm.
    signal(&server, Signal::STOP);
    let (error, right) = look(&region, 100);
    assert!(matches!(error, Some(FarError::Unreachable { .. })), "{error:?} after {right} pages");
    signal(&server, Signal::CONT);
    let mut outcome = look(&region, 100);
    for _ in 0..50 {
        if outcome.0.is_none() {
            break;
        }
        outcome = look(&region, 100);
    }
    assert_eq!(outcome, (None, PAGES));
    fill(&region, 500);
    assert_eq!(look(&region, 500), (None, PAGES));

    // Killed: an error again, at once for the pages behind the first one.
    signal(&server, Signal::KILL);
    server.wait().unwrap();
    let (error, right) = look(&region, 500);
    assert!(matches!(error, Some(FarError::Unreachable { .. })), "{error:?} after {right} pages");
    let retries = region.stats().unwrap().retries;
    let from = |page| page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
    let refused = (0..PAGES).filter(|page| region.ensure(from(*page)).is_err()).count();
    assert!(refused >= PAGES - 16, "{refused} pages are not in the buffer");
    assert_eq!(region.stats().unwrap().retries, retries, "one attempt for each page");
    region.check().unwrap();
    drop(region);
}

/// With a second copy of each page, a server that is killed is not missed.
fn a_mirror_outlives_a_server(provider: FaultProvider) {
    let mut servers = ["0", "1"].map(|number| start_with("server", provider, number));
    let addresses = servers.each_mut().map(|server| {
        let mut address = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
        address.trim().parse().unwrap()
    });
    let cluster = Arc::new(TcpCluster::connect(addresses.to_vec(), &token(), tcp()));
    let parts = [0, 1].map(|it| (GlobalAddr::new(ServerId::new(it), 0), SERVER_BYTES as u64));
    let config = FarConfig { mirror: true, ..config() };
    let space = Reserved::new(parts.to_vec());
    let region =
        FarRegion::by(provider, config, ClusterEndpoints::new(cluster, 0, 0), space).unwrap();
    fill(&region, 100);
    assert_eq!(look(&region, 100), (None, PAGES));
    signal(&servers[0], Signal::KILL);
    servers[0].wait().unwrap();
    assert_eq!(look(&region, 100), (None, PAGES), "what was there");
    fill(&region, 300);
    assert_eq!(look(&region, 300), (None, PAGES), "what came later");
    assert_eq!(region.stats().unwrap().lost_copies, 1, "of one chunk");
    // The last copy is an error again.
    signal(&servers[1], Signal::KILL);
    servers[1].wait().unwrap();
    let (error, right) = look(&region, 300);
    assert!(matches!(error, Some(FarError::Unreachable { .. })), "{error:?} after {right} pages");
    region.check().unwrap();
}

/// Over shared memory, pages go in and out while their server is stopped. Once it is dead, they are
/// errors, although the memory is still mapped: another server would begin without them.
fn a_server_of_this_host_is_an_error_only_if_it_is_killed(provider: FaultProvider) {
    let name = format!("farleaf-far-memory-{}-{provider:?}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut server = start_with("shm-server", provider, path.to_str().unwrap());
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(Path::new(line.trim()), path);
    let config = ShmConfig { timeout_ns: 200_000_000, ..ShmConfig::default() };
    let cluster = Arc::new(ShmCluster::connect(&[&path], &token(), &config).unwrap());
    let region = region(provider, ClusterEndpoints::new(cluster, 0, 0)).unwrap();
    fill(&region, 100);
    signal(&server, Signal::STOP);
    assert_eq!(look(&region, 100), (None, PAGES));
    fill(&region, 300);
    assert_eq!(look(&region, 300), (None, PAGES));
    signal(&server, Signal::KILL);
    server.wait().unwrap();
    let mut outcome = look(&region, 300);
    for _ in 0..50 {
        if outcome.0.is_some() {
            break;
        }
        outcome = look(&region, 300);
    }
    assert!(matches!(outcome.0, Some(FarError::Unreachable { .. })), "{outcome:?}");
    assert!(look(&region, 300).1 <= 16, "only what is in the buffer is left");
    region.check().unwrap();
    drop(region);
    let _ = std::fs::remove_file(path);
}

/// The terms of the leases below.
const SHORT_TERM_MS: u32 = 2_000;

fn tcp() -> TcpConfig {
    TcpConfig { timeout_ns: 200_000_000, connect_timeout_ns: 200_000_000, ..TcpConfig::default() }
}

/// A program with a region in a lease on the memory server at `address`. It writes all pages, and
/// says so; with the next line on its standard input, it reads them and says the first error.
fn be_tenant(provider: FaultProvider, address: &str) {
    let cluster = TcpCluster::connect(vec![address.parse().unwrap()], &token(), tcp());
    let space = Leased::<Fixed8>::new(SHORT_TERM_MS).unwrap();
    let region =
        FarRegion::by(provider, config(), ClusterEndpoints::new(Arc::new(cluster), 1, 0), space);
    let region = region.unwrap();
    fill(&region, 100);
    region.advise(0..region.bytes(), AccessAdvice::DontNeed).unwrap();
    println!("{}", region.stats().unwrap().remote_bytes);
    let _ = std::io::stdin().read(&mut [0]);
    println!("{}", look(&region, 100).0.map_or("none".to_owned(), |error| error.to_string()));
}

/// A program that has all of a memory server's memory dies, or is stopped for longer than its term.
/// Its memory goes to another program, but not before. If it goes on, it is an error there.
fn memory_of_an_owner_that_ends_comes_back(provider: FaultProvider) {
    for by in [Signal::KILL, Signal::STOP] {
        let bytes = (PAGES * PAGE_BYTES) as u64;
        let pool_bytes = PAGES * PAGE_BYTES * 3 / 2;
        let config = MemoryServerConfig { pool_bytes, ..MemoryServerConfig::default() };
        let service = Arc::new(MemoryServer::<Fixed8>::new(ServerId::new(0), &config).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = TcpServer::start(listener, service, &token(), TcpServerConfig::default());
        let server = server.unwrap();
        let address = server.local_address().to_string();
        let mut tenant = start_with("tenant", provider, &address);
        let mut told = BufReader::new(tenant.stdout.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), bytes.to_string(), "it has its memory");

        let cluster =
            Arc::new(TcpCluster::connect(vec![address.parse().unwrap()], &token(), tcp()));
        let driver = cluster.driver().unwrap();
        let fabric = driver.open(2, 0).unwrap();
        let mut executor = Executor::new();
        let pid = &tenant;
        executor.spawn(0, async move {
            let space = Leased::<Fixed8>::new(SHORT_TERM_MS).unwrap();
            let term_ns = u64::from(SHORT_TERM_MS) * 1_000_000;
            // It is alive, and renews its lease.
            for _ in 0..6 {
                let outcome = space.take(&fabric, bytes).await;
                assert_eq!(outcome, Err(FarError::NoSpace { bytes }));
                fabric.sleep(term_ns / 4).await;
            }
            signal(pid, by);
            let mut at = space.take(&fabric, bytes).await;
            assert_eq!(at, Err(FarError::NoSpace { bytes }), "the term goes on");
            for _ in 0..100 {
                if at.is_ok() {
                    break;
                }
                fabric.sleep(term_ns / 4).await;
                at = space.take(&fabric, bytes).await;
            }
            space.give_back(&fabric, at.unwrap(), bytes).await;
            space.end(&fabric).await;
        });
        assert!(executor.run(&driver));
        drop(executor);

        let space = Leased::<Fixed8>::new(SHORT_TERM_MS).unwrap();
        let region =
            FarRegion::by(provider, self::config(), ClusterEndpoints::new(cluster, 3, 0), space);
        let region = region.unwrap();
        fill(&region, 700);
        region.advise(0..region.bytes(), AccessAdvice::DontNeed).unwrap();
        if by == Signal::STOP {
            signal(&tenant, Signal::CONT);
            tenant.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            line.clear();
            told.read_line(&mut line).unwrap();
            assert!(line.contains("is on memory server 0, which fails"), "{line}");
        }
        assert_eq!(look(&region, 700), (None, PAGES), "by {by:?}");
        tenant.kill().unwrap();
        tenant.wait().unwrap();
    }
}

type Test = fn(FaultProvider);

const TESTS: [(&str, Test); 10] = [
    ("a_mirror_outlives_a_server", a_mirror_outlives_a_server),
    ("memory_of_an_owner_that_ends_comes_back", memory_of_an_owner_that_ends_comes_back),
    ("an_abort_needs_no_lock", an_abort_needs_no_lock),
    ("a_signal_that_is_sent_ends_the_process", a_signal_that_is_sent_ends_the_process),
    ("what_is_not_allowed_has_a_fallback", what_is_not_allowed_has_a_fallback),
    ("other_faults_end_the_process_as_ever", other_faults_end_the_process_as_ever),
    ("a_child_process_does_not_have_the_region", a_child_process_does_not_have_the_region),
    ("a_stray_access_is_one_line_and_an_abort", a_stray_access_is_one_line_and_an_abort),
    (
        "a_server_that_is_stopped_and_killed_is_an_error",
        a_server_that_is_stopped_and_killed_is_an_error,
    ),
    (
        "a_server_of_this_host_is_an_error_only_if_it_is_killed",
        a_server_of_this_host_is_an_error_only_if_it_is_killed,
    ),
];

fn main() {
    let providers = [FaultProvider::Userfaultfd, FaultProvider::Signal];
    let named = std::env::args().nth(2);
    let argument = || std::env::args().nth(3).unwrap();
    let named = providers.into_iter().find(|it| Some(format!("{it:?}")) == named);
    match (std::env::args().nth(1).as_deref(), named) {
        (Some("server"), _) => return be_server(argument().parse().unwrap()),
        (Some("shm-server"), _) => return be_shm_server(Path::new(&argument())),
        (Some("other-user"), _) => return be_restricted(false),
        (Some("confined"), _) => return be_restricted(true),
        (Some("victim"), Some(provider)) => return be_victim(provider),
        (Some("broken"), Some(provider)) => return be_broken(provider),
        (Some("writer"), Some(provider)) => return be_writer(provider),
        (Some("target"), Some(provider)) => return be_target(provider),
        (Some("parent"), Some(provider)) => return be_parent(provider),
        (Some("tenant"), Some(provider)) => {
            return be_tenant(provider, &argument());
        }
        _ => {}
    }
    for provider in providers {
        let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(SERVER_BYTES)]));
        if let Err(error) = region(provider, ClusterEndpoints::new(cluster, 0, 0)) {
            println!("skipped: this machine does not allow {provider:?}: {error}");
            continue;
        }
        for (name, test) in TESTS {
            test(provider);
            println!("test {name} ({provider:?}) ... ok");
        }
    }
}
