//! Programs over verbs. Without a device they end with one line and do not fall back to another
//! transport; with a device, a whole cluster serves.

use crate::launched::{Launched, farleaf, text};
use farleaf_cluster::catalog::{EmbeddedCatalog, EmbeddedConfig, open};
use farleaf_cluster::config::{make_token, read_token};
use farleaf_cluster::records::{self, CatalogKeys, PoolTransport, SettingsRecord};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Exit code and beginning of the error if verbs is not available.
const REFUSED: (i32, &str) = match cfg!(feature = "verbs") {
    true => (1, "error: no RDMA: "),
    false => (2, "error: transport verbs is not in this program"),
};

/// Whether this machine has an RDMA device.
fn has_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// The single line of a program's error.
fn error_of(stderr: &[u8]) -> String {
    let said = text(stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    errors[0].to_owned()
}

fn token_in(folder: &Path) -> String {
    let path = folder.join("token");
    make_token(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_memory_server_without_a_device_ends_with_one_line() {
    if has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (token, state) = (token_in(folder.path()), folder.path().join("catalog.json"));
    let state = state.to_str().unwrap();
    let output = farleaf(
        &[
            &["memory-server", "--number", "0", "--transport", "verbs", "--token-file", &token][..],
            &["--catalog-listen", "127.0.0.1:0", "--catalog-state", state],
        ]
        .concat(),
    );
    let line = error_of(&output.stderr);
    assert_eq!(
        (output.status.code(), line.starts_with(REFUSED.1)),
        (Some(REFUSED.0), true),
        "{line}"
    );
}

/// The compute server learns the transport from the catalog.
#[test]
fn a_compute_server_without_a_device_ends_with_one_line() {
    if has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let token = token_in(folder.path());
    let state = folder.path().join("catalog.json");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = EmbeddedConfig { state, connections: 8 };
    let secret = read_token(Path::new(&token)).unwrap();
    let server = EmbeddedCatalog::start(listener, &secret, &config).unwrap();
    let address = server.local_address().to_string();
    let catalog = open(&address.parse().unwrap(), &secret).unwrap();
    let settings = SettingsRecord {
        memory_servers: 1,
        compute_servers: 1,
        transport: PoolTransport::Verbs,
        placement_level: 3,
        keys: "u64".into(),
        page_bytes: 1024,
        index: Default::default(),
    };
    let key = CatalogKeys::new("default").unwrap().settings();
    assert!(records::put_if(&*catalog, &key, None, &settings, None).unwrap());
    let output = farleaf(&[
        "compute-server",
        "--number",
        "0",
        "--token-file",
        &token,
        "--catalog",
        &address,
    ]);
    let line = error_of(&output.stderr);
    // The command line does not name the transport.
    assert_eq!((output.status.code(), line.starts_with(REFUSED.1)), (Some(1), true), "{line}");
    let gone: Vec<_> = catalog.list("").unwrap().into_iter().map(|entry| entry.key).collect();
    assert_eq!(gone, [key], "it is not registered any more");
}

/// The launcher reports which server failed and why, and the folder is not tied to a transport yet.
#[test]
fn a_cluster_without_a_device_says_why() {
    if has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let output = farleaf(
        &[
            &["cluster", "--dir", dir, "--transport", "verbs"][..],
            &["--memory-servers", "1", "--compute-servers", "0"],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    let (code, line) = REFUSED;
    let expected = format!("memory server 0 has died: exit code {code}: {line}");
    assert!(said.contains(&expected), "{said}");
    let mut other = Launched::start_in(folder, &["--transport", "tcp", "--memory-servers", "1"]);
    assert_eq!(other.end(Signal::TERM), Some(0));
}

/// An emulated machine is slow, and its processes pause occasionally.
const PATIENT: [&str; 4] = ["--term-seconds", "10", "--ready-seconds", "300"];

#[test]
#[ignore = "needs an RDMA device"]
fn a_cluster_serves_over_verbs() {
    let servers = ["--memory-servers", "2", "--compute-servers", "2", "--transport", "verbs"];
    let sizes = ["--pool-bytes", "64Mi", "--cache-bytes", "48Ki", "--boundaries", "2500"];
    let mut cluster = Launched::start(&[&servers[..], &sizes, &PATIENT].concat());
    for number in 0..2 {
        let record = cluster.memory(number).unwrap();
        assert_eq!(record.transport, PoolTransport::Verbs);
    }
    let dir = cluster.dir().to_owned();
    let client = |words: &[&str]| {
        let patient = ["client", "--dir", &dir, "--deadline-seconds", "60"];
        let output = farleaf(&[&patient, words].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let done = |out: &str| (Some(0), out.to_owned(), String::new());
    // Keys of both compute servers, more than their caches can hold.
    let path = cluster.folder.path().join("records.csv");
    let lines: String = (0..5_000).map(|key| format!("{key},{}\n", key * 3)).collect();
    std::fs::write(&path, format!("key,value\n{lines}")).unwrap();
    assert_eq!(client(&["load", path.to_str().unwrap()]), done("5000 records\n"));
    for key in [0, 1_234, 2_499, 2_500, 4_999] {
        assert_eq!(client(&["get", &key.to_string()]), done(&format!("{}\n", key * 3)));
    }
    let absent = (Some(1), String::new(), "key 5000 is absent\n".to_owned());
    assert_eq!(client(&["get", "5000"]), absent);
    let expected: String = (2_000..3_000).map(|key| format!("{key},{}\n", key * 3)).collect();
    assert_eq!(client(&["scan", "2000", "--limit", "1000"]), done(&expected));
    assert_eq!(client(&["remove", "2500"]), done(""));
    assert_eq!(client(&["put", "2501", "1"]), done(""));
    assert_eq!(client(&["scan", "2499", "--limit", "2"]), done("2499,7497\n2501,1\n"));
    let status = cluster.status();
    assert_eq!(status.status.code(), Some(0), "{}", text(&status.stdout));
    // The launcher exits with 0 only if every server did.
    assert_eq!(cluster.end(Signal::TERM), Some(0));
    let compute = |number| std::fs::read_to_string(format!("{dir}/compute-{number}.log")).unwrap();
    for number in 0..2 {
        assert!(compute(number).contains("everything is written back"), "{}", compute(number));
    }
}

/// The limit on locked memory does not apply to root, so the program runs as another user.
#[test]
#[ignore = "needs an RDMA device and root"]
fn a_pool_that_may_not_be_locked_ends_with_one_line() {
    const NOBODY: u32 = 65_534;
    let folder = tempfile::tempdir().unwrap();
    let (token, state) = (token_in(folder.path()), folder.path().join("catalog.json"));
    for path in [folder.path(), Path::new(&token)] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), ..before }).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["memory-server", "--number", "0", "--transport", "verbs", "--pool-bytes", "64Mi"])
        .args(["--memory-servers", "1", "--compute-servers", "0"])
        .args(["--token-file", &token, "--catalog-listen", "127.0.0.1:0", "--catalog-state"])
        .arg(state)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    setrlimit(Resource::Memlock, before).unwrap();
    let line = error_of(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.starts_with("error: no RDMA: 67108864 bytes"), "{line}");
    assert!(line.contains("the limit of locked memory is 1048576 bytes"), "{line}");
}

/// The next index uses new memory over new connections.
#[test]
#[ignore = "needs an RDMA device"]
fn a_cluster_over_verbs_makes_its_index_anew() {
    crate::standing::loses_its_index("verbs", &PATIENT);
}
