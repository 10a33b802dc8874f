//! The example in C, built against the header and the shared library, with a memory server of this
//! process.

use farleaf_fabric::ServerId;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpServer, TcpServerConfig};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TOKEN: &str = "a token of this test alone";

/// Where this program and the shared library are.
fn folder() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn build(name: &str) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder().join(name);
    let built = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(crate_folder.join("include"))
        .arg(crate_folder.join("examples/c/buffers.c"))
        .arg("-L")
        .arg(folder())
        .args(["-lfarleaf_far_alloc", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler, which jemalloc needs too");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn run(program: &Path, address: &str) -> Output {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder()).args([address, TOKEN]).output().unwrap()
}

/// A memory server of this process, with its service.
fn server(number: u16) -> (TcpServer, Arc<MemoryServer<Fixed8>>) {
    let config = MemoryServerConfig { pool_bytes: 96 << 20, ..MemoryServerConfig::default() };
    let id = ServerId::new(number);
    let service = Arc::new(MemoryServer::<Fixed8>::new(id, &config).unwrap());
    let token = Token::new(TOKEN.as_bytes()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = TcpServerConfig { number, ..TcpServerConfig::default() };
    let server = TcpServer::start(listener, Arc::clone(&service), &token, settings).unwrap();
    (server, service)
}

/// A count of the metrics that the program prints.
fn count(output: &Output, name: &str) -> u64 {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {error}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with(&format!("farleaf_far_{name}{{")));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn a_program_in_c_has_buffers_on_memory_servers() {
    let program = build("farleaf-buffers");
    let (server, service) = server(0);
    let allocated = || service.usage().allocated_bytes;
    let before = allocated();
    let address = server.local_address().to_string();
    let mut after = Vec::new();
    // A region takes 64 MiB, so the second one has room only if the first one's came back.
    for _ in 0..2 {
        let ended = run(&program, &address);
        let written = count(&ended, "write_backs_total");
        assert!(written > 500, "20 MB went through 2 MiB: {written} pages");
        after.push(allocated());
    }
    assert!(after[0] > before && after[0] == after[1], "{before} {after:?}");
}

/// With two memory servers, the program keeps each page on both.
#[test]
fn a_program_in_c_has_a_mirror() {
    let program = build("farleaf-buffers-twice");
    let servers = [server(0), server(1)];
    let addresses = servers.each_ref().map(|(server, _)| server.local_address().to_string());
    let ended = run(&program, &addresses.join(","));
    let (pages, bytes) = (count(&ended, "write_backs_total"), count(&ended, "written_bytes_total"));
    assert!(pages > 500, "{pages}");
    // Pages that were touched while they left have been written as well, and stayed.
    assert!(bytes >= 2 * pages * (16 << 10), "{pages} pages, {bytes} bytes");
    assert_eq!(count(&ended, "lost_copies_total"), 0);
    assert_eq!(count(&ended, "remote_bytes"), 2 * (64 << 20));
}

#[test]
fn errors_are_told_in_words() {
    let ended = run(&build("farleaf-buffers-nowhere"), "somewhere");
    assert_eq!(ended.status.code(), Some(1));
    let error = String::from_utf8(ended.stderr).unwrap();
    let expected =
        "cannot open the arena: \"somewhere\" is no address: use an IP address and a port\n";
    assert_eq!(error, expected);
}
