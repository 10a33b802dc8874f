//! The example in C, built against the header and the shared library, with a memory server of this
//! process.

use farleaf_core::page::Fixed8;
use farleaf_core::server::{MemoryServer, MemoryServerConfig};
use farleaf_fabric::ServerId;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpServer, TcpServerConfig};
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

#[test]
fn a_program_in_c_has_buffers_on_memory_servers() {
    let program = build("farleaf-buffers");
    let config = MemoryServerConfig { pool_bytes: 96 << 20, ..MemoryServerConfig::default() };
    let service = Arc::new(MemoryServer::<Fixed8>::new(ServerId::new(0), &config).unwrap());
    let allocated = || service.usage().allocated_bytes;
    let before = allocated();
    let token = Token::new(TOKEN.as_bytes()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = TcpServerConfig::default();
    let server = TcpServer::start(listener, Arc::clone(&service), &token, settings).unwrap();
    let address = server.local_address().to_string();
    let mut after = Vec::new();
    // A region takes 64 MiB, so the second one has room only if the first one's came back.
    for _ in 0..2 {
        let ended = run(&program, &address);
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{:?}: {error}", ended.status);
        let text = String::from_utf8(ended.stdout).unwrap();
        let written = text.lines().find(|line| line.starts_with("farleaf_far_write_backs_total"));
        let written = written.unwrap().rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        assert!(written > 500, "20 MB went through 2 MiB: {written} pages");
        after.push(allocated());
    }
    assert!(after[0] > before && after[0] == after[1], "{before} {after:?}");
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
