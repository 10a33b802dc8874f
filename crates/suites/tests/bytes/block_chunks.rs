//! Chunks for value blocks from memory servers that answer wrongly, and what such servers do with
//! wrong requests.

use farleaf_dex::blocks::{BlockClient, BlockSpace};
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{
    Cluster, Cpu, Fabric, GlobalAddr, Message, Provider, Region, RpcService, ServerId,
};
use farleaf_page::Bytes;
use farleaf_pool::remote::{NodeAllocator, RemoteError, RpcClient};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::{PoolRequest, Refusal, Reply, Request};
use futures_util::future::join_all;

type Small = Bytes<128>;

const SERVER: ServerId = ServerId::new(0);

/// A memory server that answers requests for and about chunks with what `chunk` makes of them.
struct Server {
    server: MemoryServer<Small>,
    chunk: Option<(GlobalAddr, u64)>,
}

impl RpcService for Server {
    fn region(&self) -> &Arc<Region> {
        self.server.region()
    }

    async fn handle<C: Cpu>(&self, cpu: &C, client: u16, request: &[u8], reply: &mut Message) {
        let decoded = Request::<Small>::decode(request);
        match (self.chunk, decoded) {
            (
                Some((at, bytes)),
                Some(Request::Pool(
                    PoolRequest::AllocateWhole { .. } | PoolRequest::AllocateChunk { .. },
                )),
            ) => Reply::<Small>::Chunk { at, bytes }.encode(reply),
            (Some(chunk), Some(Request::Pool(PoolRequest::ListChunks { .. }))) => {
                Reply::<Small>::Chunks { more: false, chunks: vec![chunk] }.encode(reply);
            }
            _ => self.server.handle(cpu, client, request, reply).await,
        }
    }

    async fn after_reply<C: Cpu>(&self, cpu: &C) {
        self.server.after_reply(cpu).await;
    }
}

/// A cluster whose only memory server answers with `chunk`.
fn cluster(chunk: Option<(GlobalAddr, u64)>) -> <SimConfig as Provider>::Cluster<Server> {
    let config = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let server = Server { server: MemoryServer::new(SERVER, &config).unwrap(), chunk };
    SimConfig::default().start(vec![Arc::new(server)])
}

fn client<F: Fabric>(fabric: F) -> BlockClient<F, Small> {
    BlockClient::new(fabric, &Arc::new(BlockSpace::new(1)), 1 << 16)
}

/// Regression test: the client added chunks that were too small for its block until the memory
/// server had none left, and addresses behind the last one ended the process.
#[test]
fn chunks_that_cannot_be_are_refused() {
    let at = |offset| GlobalAddr::new(SERVER, offset);
    let of_a_frame = GlobalAddr::from_bits(at(1024).to_bits() | 1 << 63);
    for chunk in [
        (at(1024), 1024),
        (at(1024), 0),
        (at(1024), u64::MAX),
        (at(1024), GlobalAddr::OFFSET_LIMIT),
        (of_a_frame, 1 << 16),
        (GlobalAddr::new(ServerId::new(1), 1024), 1 << 16),
        (GlobalAddr::NULL, 1 << 16),
    ] {
        cluster(Some(chunk)).run_one(|fabric| async move {
            let bad_reply = RemoteError::BadReply { server: SERVER };
            let client = client(fabric);
            assert_eq!(client.write(&[1; 5_000]).await, Err(bad_reply.clone()), "{chunk:?}");
            // Memory can be listed in smaller chunks than blocks need.
            let listed = if chunk == (at(1024), 1024) { Ok(()) } else { Err(bad_reply) };
            assert_eq!(client.adopt().await, listed, "{chunk:?}");
        });
    }
}

/// Tasks that find no memory wait for one request, and fail as it does. If each asked for itself,
/// 64 tasks would take 64 chunks; if they asked one after the other, each would wait anew for a
/// memory server that does not answer.
#[test]
fn tasks_share_a_request() {
    let counts = |chunk| {
        cluster(chunk).run_one(|fabric| async move {
            let (blocks, rpcs) = (client(fabric.clone()), || fabric.counters().snapshot().rpcs);
            let written = join_all((0..64).map(async |_| blocks.write(&[1; 500]).await)).await;
            let of_blocks = (written.iter().filter(|block| block.is_ok()).count(), rpcs());
            let nodes = NodeAllocator::<_, Small>::new(fabric.clone(), 64 << 10);
            let taken = join_all((0..64).map(async |_| nodes.take(SERVER).await)).await;
            let of_nodes = (taken.iter().filter(|node| node.is_ok()).count(), rpcs());
            (of_blocks, of_nodes)
        })
    };
    assert_eq!(counts(None), ((64, 1), (64, 2)));
    assert_eq!(counts(Some((GlobalAddr::NULL, 1 << 16))), ((0, 1), (0, 2)));
}

/// Regression test: a piece behind the last chunk, but with a smaller offset, stopped the memory
/// server, and one with the name of a frame was allocated under that name.
#[test]
fn pieces_that_cannot_be_are_refused() {
    cluster(None).run_one(|fabric| async move {
        let block = client(fabric.clone()).write(&[1; 5_000]).await.unwrap();
        let rpc = RpcClient::<_, Small>::new(fabric);
        let give_back = async |at, bytes| {
            let request = PoolRequest::ReturnPieces { pieces: vec![(at, bytes)] };
            rpc.expect_done(SERVER, &request).await
        };
        let malformed = RemoteError::Refused { server: SERVER, refusal: Refusal::Malformed };
        let of_a_frame = GlobalAddr::from_bits(block.at.to_bits() | 1 << 63);
        for at in
            [GlobalAddr::new(ServerId::new(1), 0), GlobalAddr::from_bits(u64::MAX), of_a_frame]
        {
            assert_eq!(give_back(at, 1024).await, Err(malformed.clone()), "{at:?}");
        }
        assert_eq!(give_back(block.at, 1024).await, Ok(()));
        assert_eq!(give_back(block.at, 1024).await, Err(malformed), "it is back already");
    });
}
