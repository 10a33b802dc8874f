//! New nodes whose WRITEs fail: whether they are reused, and what lands in them.

use farleaf_fabric::sim::{Faults, Outage, SimCluster, SimConfig, Slow, Verb};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, Provider, ServerId};
use farleaf_page::Fixed8;
use farleaf_pool::remote::{FreshWriter, PageClient, PageImage, RemoteError};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};

type Tiny = Fixed8<16>;

const FIRST: ServerId = ServerId::new(0);

/// A memory server with these faults, where operations time out.
fn start(faults: Faults) -> SimCluster<MemoryServer<Tiny>> {
    let config = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let server = Arc::new(MemoryServer::new(FIRST, &config).unwrap());
    let faults = Faults { timeout_ns: 100_000, detect_death_ns: 10_000, ..faults };
    SimConfig { faults, ..SimConfig::default() }.start(vec![server])
}

fn leaf(at: GlobalAddr) -> PageImage<Tiny> {
    let image = PageImage::<Tiny>::empty();
    image.page().format_empty(at, 0, &0, None);
    image
}

/// A new node whose WRITE may still land is not reused.
#[test]
fn a_node_in_doubt_is_not_used_again() {
    const CUT_NS: u64 = 1_000_000;
    let cut = Outage { server: 0, from_ns: CUT_NS, until_ns: u64::MAX };
    let faults = Faults { cut_memory_server: vec![cut], ..Faults::default() };
    let cluster = start(faults);
    cluster.run_one(|fabric| async move {
        let client = PageClient::<_, Tiny>::new(fabric.clone(), 1 << 14);
        let mut writer = FreshWriter::new(&client);
        let node = writer.take_on(FIRST).await.unwrap();
        let at = node.at();
        fabric.sleep(CUT_NS).await;
        writer.write(node, leaf(at)).await.unwrap();
        let written = writer.finish().await;
        assert!(matches!(written, Err(RemoteError::Indeterminate(_))), "{written:?}");
        writer.abort().await;
        assert_ne!(client.take_node(FIRST).await, Ok(at));
    });
}

/// If all WRITEs of a node have failed, the node is free, and nothing lands in it any more. The
/// last of these WRITEs once landed after the node was reused.
#[test]
fn no_failed_write_lands_in_a_node_that_is_free() {
    const LATE_NS: u64 = 1_000_000_000_000;
    let slow = Slow {
        verbs: vec![Verb::Write],
        compute_servers: vec![],
        replies: false,
        probability: 1.0,
        max_ns: LATE_NS,
    };
    let faults = Faults { slow: vec![slow], ..Faults::default() };
    let cluster = start(faults);
    cluster.run_one(|fabric| async move {
        let client = PageClient::<_, Tiny>::new(fabric.clone(), 1 << 14);
        let mut writer = FreshWriter::new(&client);
        let node = writer.take_on(FIRST).await.unwrap();
        let at = node.at();
        writer.write(node, leaf(at)).await.unwrap();
        let written = writer.finish().await;
        assert!(matches!(written, Err(RemoteError::Indeterminate(_))), "{written:?}");
        writer.abort().await;
        assert_eq!(client.take_node(FIRST).await, Ok(at));
        fabric.sleep(2 * LATE_NS).await;
        let page = fabric.read(at, fabric.buffer(128).unwrap()).await.unwrap();
        assert!((0..16).all(|word| page.get(word) == 0));
    });
}
