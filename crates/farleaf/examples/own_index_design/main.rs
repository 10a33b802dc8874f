//! Runs the suite of all designs on an index design of your own, the template `one_server.rs`:
//! `cargo run --release -p farleaf --example own_index_design`
//!
//! `docs/own-design.md` explains the template and adds it to the program `farleaf`.

mod one_server;

use farleaf_fabric::local::LocalConfig;
use farleaf_index::Design;
use farleaf_page::Fixed8;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteSetup};
use one_server::OneServer;

fn main() {
    let server = MemoryServerConfig { pool_bytes: 64 << 20, ..MemoryServerConfig::default() };
    let provider = &LocalConfig::default();
    let setup = SuiteSetup { provider, options: (), memory_servers: 1, server };
    conformance::run::<Fixed8, OneServer, _>(&setup);
    println!("{} passes the suite", <OneServer as Design<Fixed8>>::NAME);
}

#[test]
fn the_program_runs() {
    main();
}

/// Otherwise the page and the template would drift apart.
#[test]
fn the_page_quotes_the_template() {
    let page = include_str!("../../../../docs/own-design.md");
    let blocks = page.split("```rust\n").skip(1);
    let blocks: Vec<&str> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!blocks.is_empty(), "the page quotes nothing");
    for block in blocks {
        assert!(include_str!("one_server.rs").contains(block), "not in the template:\n{block}");
    }
}
