//! A small columnar engine on Arrow, whose tables are in an arena: what `crates/far-tpch` does with
//! DataFusion, which no test builds.

use arrow_array::builder::StringViewBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, make_array};
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServer, TcpServerConfig};
use farleaf_fabric::{Cluster, Provider, ServerId};
use farleaf_far_alloc::{ArenaConfig, FarArena, Metadata};
use farleaf_far_memory::{
    AccessAdvice, ClusterEndpoints, EndpointSource, FarConfig, FarError, FarRegion, FaultProvider,
    Reserved,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};

const REGION_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 16 << 10;
const BUFFER_PAGES: u32 = 64;
const ROWS: usize = 8_192;
const BATCHES: usize = 40;

/// A batch of sales: what was sold (null for a tenth), where, at which price.
type Batch = [ArrayRef; 3];

fn batch(number: usize) -> Batch {
    let row = |row: usize| (number * ROWS + row) as i64;
    let things = (0..ROWS).map(|at| (at % 10 != 3).then(|| row(at) * 31 % 97));
    let mut places = StringViewBuilder::new();
    for at in 0..ROWS {
        // Long ones are in blocks of their own, which views refer to.
        places.append_value(format!("street {} of the city of {}", row(at) % 1_000, row(at) % 7));
    }
    let prices = (0..ROWS).map(|at| (row(at) * 17 % 10_007) as f64 / 4.0);
    [
        Arc::new(things.collect::<Int64Array>()),
        Arc::new(places.finish()),
        Arc::new(prices.collect::<Float64Array>()),
    ]
}

/// Revenue by thing, of the places of one city: a filter, a lookup in a hash table's stead, a sum.
fn revenue(batches: &[Batch], city: i64) -> BTreeMap<Option<i64>, (u64, f64)> {
    let mut sums = BTreeMap::<_, (u64, f64)>::new();
    let suffix = format!(" {city}");
    for [things, places, prices] in batches {
        let (things, prices) =
            (things.as_primitive::<Int64Type>(), prices.as_primitive::<Float64Type>());
        for (row, place) in places.as_string_view().iter().enumerate() {
            if place.is_some_and(|place| place.ends_with(&suffix)) {
                let thing = things.is_valid(row).then(|| things.value(row));
                let sum = sums.entry(thing).or_default();
                *sum = (sum.0 + 1, sum.1 + prices.value(row));
            }
        }
    }
    sums
}

fn far(arena: &Arc<FarArena>, batches: &[Batch]) -> Vec<Batch> {
    let column = |column: &ArrayRef| make_array(arena.array(&column.to_data()).unwrap());
    batches.iter().map(|batch| batch.each_ref().map(column)).collect()
}

fn arena<R: EndpointSource>(
    provider: Option<FaultProvider>,
    reach: R,
    metadata: Metadata,
) -> Arc<FarArena> {
    let mut config = FarConfig::new(REGION_BYTES, PAGE_BYTES, BUFFER_PAGES);
    config.patience_ns = 100_000_000;
    let space = Reserved::first(REGION_BYTES);
    let region = match provider {
        None => FarRegion::new(config, reach, space),
        Some(provider) => FarRegion::by(provider, config, reach, space),
    };
    let config = ArenaConfig { metadata, ..ArenaConfig::default() };
    Arc::new(FarArena::new(region.unwrap(), config).unwrap())
}

fn answers_are_equal<R: EndpointSource>(
    provider: Option<FaultProvider>,
    reach: R,
    metadata: Metadata,
) {
    let near: Vec<_> = (0..BATCHES).map(batch).collect();
    let arena = arena(provider, reach, metadata);
    println!("{metadata:?} by {}", arena.mode());
    let tables = far(&arena, &near);
    let bytes = arena.stats().unwrap().allocated_bytes;
    assert!(bytes > 8 * BUFFER_PAGES as usize * PAGE_BYTES, "{bytes} bytes are too few");
    let before = (arena.far_stats().unwrap(), arena.stats().unwrap());
    for city in 0..7 {
        let expected = revenue(&near, city);
        assert!(expected.len() > 90 && expected.contains_key(&None));
        assert_eq!(revenue(&tables, city), expected);
    }
    let after = (arena.far_stats().unwrap(), arena.stats().unwrap());
    // A query that only reads uses no metadata, wherever that is, and changes nothing. What the
    // tables' writes left in the buffer still goes.
    assert_eq!(after.1.extents_taken, before.1.extents_taken);
    let writes = after.0.write_backs - before.0.write_backs;
    assert!(writes <= u64::from(BUFFER_PAGES), "{writes} pages were written by queries");
    let read = (after.0.bytes_in - before.0.bytes_in) as usize;
    assert!(read > 7 * (bytes - BUFFER_PAGES as usize * PAGE_BYTES) / 2, "{read} bytes were read");
    assert!(after.0.peak_resident <= BUFFER_PAGES);

    // A column outlives its table and the last handle of the arena (B1).
    let column = Arc::clone(&tables[3][1]);
    drop(tables);
    let left = arena.stats().unwrap().allocated_bytes;
    let own = column.to_data().buffers().iter().map(|it| it.len()).sum::<usize>();
    assert!((own..=own * 3 / 2 + 64).contains(&left), "{left} bytes for a column of {own}");
    drop(arena);
    assert!(column.as_string_view().iter().eq(near[3][1].as_string_view().iter()));
}

fn service() -> Arc<TestService> {
    TestService::new(REGION_BYTES)
}

#[test]
fn answers_on_far_tables_are_equal() {
    let local =
        || ClusterEndpoints::new(Arc::new(LocalConfig::default().start(vec![service()])), 0, 0);
    for metadata in [Metadata::Together, Metadata::Separated, Metadata::Pinned { bytes: 2 << 20 }] {
        answers_are_equal(None, local(), metadata);
    }
    answers_are_equal(Some(FaultProvider::Signal), local(), Metadata::Together);
    let tcp = Arc::new(TcpConfig::default().start(vec![service()]));
    answers_are_equal(None, ClusterEndpoints::new(tcp, 0, 0), Metadata::Separated);
    let shm = Arc::new(ShmConfig::default().start(vec![service()]));
    answers_are_equal(None, ClusterEndpoints::new(shm, 0, 0), Metadata::Separated);
}

/// A query over `tables` that asks for each batch before it reads it, or copies it. `before` is
/// told of each batch.
fn query(
    arena: &Arc<FarArena>,
    (tables, near): (&[Batch], &[Batch]),
    copies: bool,
    mut before: impl FnMut(usize),
) -> Result<(), FarError> {
    for (number, batch) in tables.iter().enumerate() {
        before(number);
        let mut read = batch.clone();
        if copies {
            for column in &mut read {
                *column = make_array(arena.near_array(&column.to_data())?);
            }
        } else {
            let columns = batch.each_ref().map(Array::to_data);
            let before = arena.far_stats()?.touches;
            arena.ensure_arrays(&columns)?;
            // Three columns of 64 KiB, one of them with nulls, and their strings.
            let touches = arena.far_stats()?.touches - before;
            assert!((12..=40).contains(&touches), "each page is touched once: {touches}");
        }
        assert_eq!(revenue(&[read], 2), revenue(&near[number..=number], 2));
    }
    Ok(())
}

/// A memory server that dies is an error of the query that asks for each batch before it reads it.
#[test]
fn a_dead_memory_server_is_an_error_of_the_query() {
    let cluster = Arc::new(LocalConfig::default().start(vec![service()]));
    let reach = ClusterEndpoints::new(Arc::clone(&cluster), 0, 0);
    let arena = arena(None, reach, Metadata::Separated);
    let near: Vec<_> = (0..BATCHES).map(batch).collect();
    let tables = far(&arena, &near);
    arena.advise(0..arena.bytes(), AccessAdvice::DontNeed).unwrap();
    let query = |dies_at: usize| {
        let kill = |number| {
            if number == dies_at {
                cluster.kill_memory_server(ServerId::new(0));
            }
        };
        query(&arena, (&tables, &near), false, kill)
    };
    assert_eq!(query(BATCHES), Ok(()));
    let outcome = query(BATCHES / 2);
    assert!(matches!(outcome, Err(FarError::Unreachable { .. })), "{outcome:?}");
    // What the query had is freed, and the arena ends, without the server.
    drop(tables);
    assert_eq!(arena.stats().unwrap().allocated_bytes, 0);
}

/// A copy of a batch outlives the memory server, without a page in the buffer. What the copying
/// held is released.
#[test]
fn a_copied_batch_needs_no_memory_server() {
    let cluster = Arc::new(LocalConfig::default().start(vec![service()]));
    let arena = arena(None, ClusterEndpoints::new(Arc::clone(&cluster), 0, 0), Metadata::Separated);
    let near = batch(0);
    let tables = far(&arena, std::slice::from_ref(&near));
    let copy = |column: &ArrayRef| make_array(arena.near_array(&column.to_data()).unwrap());
    let copies = tables[0].each_ref().map(copy);
    assert_eq!(arena.far_stats().unwrap().held, 0);
    arena.advise(0..arena.bytes(), AccessAdvice::DontNeed).unwrap();
    cluster.kill_memory_server(ServerId::new(0));
    assert!(arena.ensure_array(&tables[0][0].to_data()).is_err());
    for (copy, column) in copies.iter().zip(&near) {
        assert_eq!(copy, column);
        let data = copy.to_data();
        let buffers = data.buffers().iter().chain(data.nulls().map(|nulls| nulls.buffer()));
        for buffer in buffers {
            assert!(!arena.addresses().contains(&buffer.as_ptr().addr()));
        }
    }
}

const TOKEN: &[u8] = b"a token of these tests alone";

#[test]
#[ignore = "it is the memory server of the test below, until its standard input ends"]
fn be_a_memory_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let token = Token::new(TOKEN).unwrap();
    let server = TcpServer::start(listener, service(), &token, TcpServerConfig::default()).unwrap();
    println!("\nserver {}", server.local_address());
    let _ = std::io::stdin().read(&mut [0]);
}

/// A memory server that is stopped or killed (`kill -9`) in the middle of a query is an error of
/// the query, in one line, by either provider, and whether batches are copied or loaded. Once it
/// goes on, nothing was lost.
#[test]
fn a_stopped_and_a_killed_memory_server_are_errors_of_the_query() {
    for (provider, copies) in [(None, true), (Some(FaultProvider::Signal), false)] {
        let mut server = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "be_a_memory_server", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().strip_prefix("server ")?.parse().ok());
        let timeout_ns = 100_000_000;
        let tcp = TcpConfig { timeout_ns, connect_timeout_ns: timeout_ns, ..TcpConfig::default() };
        let token = Token::new(TOKEN).unwrap();
        let cluster = Arc::new(TcpCluster::connect(vec![address.unwrap()], &token, tcp));
        let arena = arena(provider, ClusterEndpoints::new(cluster, 0, 0), Metadata::Separated);
        let near: Vec<_> = (0..BATCHES).map(batch).collect();
        let tables = far(&arena, &near);
        let process = server.id() as libc::pid_t;
        // SAFETY: the process is this one's child, which has not been waited for.
        let send = |signal| assert_eq!(unsafe { libc::kill(process, signal) }, 0);
        let query = |signal: Option<libc::c_int>| {
            let before = |number| {
                if let Some(signal) = signal.filter(|_| number == BATCHES / 2) {
                    send(signal);
                }
            };
            query(&arena, (&tables, &near), copies, before)
        };
        assert_eq!(query(None), Ok(()));
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            let outcome = query(Some(signal));
            assert!(matches!(outcome, Err(FarError::Unreachable { .. })), "{outcome:?}");
            assert_eq!(outcome.unwrap_err().to_string().lines().count(), 1);
            if signal == libc::SIGSTOP {
                send(libc::SIGCONT);
                let goes_on = (0..50).any(|_| query(None) == Ok(()));
                assert!(goes_on, "the server has its content");
            }
        }
        server.wait().unwrap();
        drop(tables);
        assert_eq!(arena.stats().unwrap().allocated_bytes, 0);
        arena.check().unwrap();
    }
}
