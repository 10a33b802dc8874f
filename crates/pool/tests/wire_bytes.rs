//! The bytes of every message. A server and a client of different builds can communicate only if
//! these do not change.

use farleaf_fabric::{GlobalAddr, Message, ServerId};
use farleaf_page::{EditAction, EditAnswer, Fixed8, LeafEdit};
use farleaf_pool::wire::{
    ClientRequest, ClientResponse, CompactionRequest, DirectoryRequest, ErrorCode, LeaseState,
    OffloadRequest, OffloadTicket, OwnerRequest, PoolRequest, Refusal, Reply, Request, TreeRequest,
    TreeShare, Usage,
};
use std::ops::Bound::{Excluded, Included, Unbounded};

const KEY: u64 = 0x1122_3344_5566_7788;
const VALUE: u64 = 0x0102_0304_0506_0708;
const TICKET: OffloadTicket = OffloadTicket { owner: 0x0201, slot: 5, number: 0x0403_0201 };

fn at() -> GlobalAddr {
    GlobalAddr::new(ServerId::new(0x0102), 0x0304_0506_0400)
}

fn requests() -> Vec<(Request<Fixed8>, &'static str)> {
    let (key, value) = (KEY, VALUE);
    let (node, level, limit) = (at(), 2, 0x0201);
    let edit = |action| Request::Edit(LeafEdit { key, action });
    let walk = |action, ticket| {
        let edit = LeafEdit { key, action };
        OffloadRequest::Edit { node, level, edit, ticket }.into()
    };
    vec![
        (TreeRequest::Describe.into(), "00"),
        (
            TreeRequest::Create { share: TreeShare::Range { low: key, high: None } }.into(),
            "0100887766554433221100",
        ),
        (
            TreeRequest::Create { share: TreeShare::Range { low: 0, high: Some(key) } }.into(),
            "01000000000000000000018877665544332211",
        ),
        (TreeRequest::Create { share: TreeShare::Hash { servers: 0x0201 } }.into(), "01010102"),
        (edit(EditAction::Get), "028877665544332211"),
        (edit(EditAction::Insert(value)), "0388776655443322110807060504030201"),
        (edit(EditAction::Update(value)), "0488776655443322110807060504030201"),
        (edit(EditAction::Upsert(value)), "0588776655443322110807060504030201"),
        (edit(EditAction::Remove), "068877665544332211"),
        (
            edit(EditAction::CompareExchange(value, 9)),
            "07887766554433221108070605040302010900000000000000",
        ),
        (
            TreeRequest::Scan {
                lower: Included(key),
                upper: Excluded(value),
                reverse: true,
                limit,
            }
            .into(),
            "080188776655443322110208070605040302010101020000",
        ),
        (
            TreeRequest::Scan { lower: Unbounded, upper: Unbounded, reverse: false, limit }.into(),
            "0800000001020000",
        ),
        (
            PoolRequest::AllocateWhole { bytes: value, least: 9, token: 7 }.into(),
            "1c080706050403020109000000000000000700000000000000",
        ),
        (
            PoolRequest::AllocateUnused { bytes: value, token: 7 }.into(),
            "2f08070605040302010700000000000000",
        ),
        (PoolRequest::ListChunks { from: 0x0403_0201 }.into(), "1d01020304"),
        (PoolRequest::ForgetChunks.into(), "1e"),
        (
            PoolRequest::ReturnPieces { pieces: vec![(node, value)] }.into(),
            "1f00040605040302010807060504030201",
        ),
        (
            PoolRequest::Lease { owner: key, term_ms: 0x0403_0201, bytes: value, token: 7 }.into(),
            "2b88776655443322110102030408070605040302010700000000000000",
        ),
        (PoolRequest::Renew { owner: key }.into(), "2c8877665544332211"),
        (PoolRequest::EndLease { owner: key }.into(), "2d8877665544332211"),
        (PoolRequest::ListLeases.into(), "2e"),
        (
            PoolRequest::LogRing { compute_server: 0x0403, ring: 0x0201, bytes: value }.into(),
            "35030401020807060504030201",
        ),
        (PoolRequest::LogRings { compute_server: 0x0201 }.into(), "360102"),
        (
            PoolRequest::AllocateChunk { bytes: value, token: 7 }.into(),
            "0908070605040302010700000000000000",
        ),
        (
            TreeRequest::LoadBegin { load: value, fill_permille: 0x0201 }.into(),
            "0a08070605040302010102",
        ),
        (
            TreeRequest::LoadAppend { load: value, records: vec![(key, value), (1, 2)] }.into(),
            "0b0807060504030201020000008877665544332211080706050403020101000000000000000200000000000000",
        ),
        (TreeRequest::LoadEnd { load: value }.into(), "0c0807060504030201"),
        (TreeRequest::LoadAbort { load: value }.into(), "0d0807060504030201"),
        (TreeRequest::LoadAbandon { compute_server: 0x0201 }.into(), "1b0102"),
        (TreeRequest::Collect.into(), "0e"),
        (PoolRequest::Usage.into(), "0f"),
        (
            PoolRequest::Claim { options: value, root: node }.into(),
            "1008070605040302010004060504030201",
        ),
        (OwnerRequest::Register.into(), "11"),
        (OwnerRequest::LogArea { owner: 0x0201, create: true }.into(), "12010201"),
        (OwnerRequest::DeclareDead { compute_server: 0x0201, fenced: true }.into(), "13010201"),
        (OwnerRequest::OwnerState { owner: 0x0201 }.into(), "140102"),
        (
            PoolRequest::GiveBack { nodes: vec![node, GlobalAddr::NULL] }.into(),
            "1500040605040302010000000000000000",
        ),
        (walk(EditAction::Get, None), "1600040605040302010200887766554433221100"),
        (
            walk(EditAction::Insert(value), Some(TICKET)),
            "1600040605040302010201887766554433221108070605040302010101020501020304",
        ),
        (
            walk(EditAction::Update(value), Some(TICKET)),
            "1600040605040302010202887766554433221108070605040302010101020501020304",
        ),
        (
            walk(EditAction::Upsert(value), Some(TICKET)),
            "1600040605040302010203887766554433221108070605040302010101020501020304",
        ),
        (
            walk(EditAction::Remove, Some(TICKET)),
            "160004060504030201020488776655443322110101020501020304",
        ),
        (
            walk(EditAction::CompareExchange(value, 9), Some(TICKET)),
            "16000406050403020102058877665544332211080706050403020109000000000000000101020501020304",
        ),
        (
            OffloadRequest::Scan {
                node,
                level,
                lower: Excluded(key),
                upper: Unbounded,
                reverse: false,
                limit,
            }
            .into(),
            "17000406050403020102028877665544332211000001020000",
        ),
        (OffloadRequest::CloseTicket { ticket: TICKET }.into(), "1801020501020304"),
        (OwnerRequest::DeadOwners { compute_server: 0x0201 }.into(), "190102"),
        (OwnerRequest::Retire { owner: 0x0201 }.into(), "1a0102"),
        (
            CompactionRequest::Begin { owner: key, job: 7, words: vec![value] }.into(),
            "20887766554433221107000000000000000807060504030201",
        ),
        (
            CompactionRequest::Step { owner: key, job: 7, step: 0x0201 }.into(),
            "218877665544332211070000000000000001020000",
        ),
        (
            CompactionRequest::Close { owner: key, job: 7 }.into(),
            "2288776655443322110700000000000000",
        ),
        (DirectoryRequest::State { shard: key }.into(), "238877665544332211"),
        (
            DirectoryRequest::Open { shard: key, owner: value, after: 3, extent_bytes: 4 }.into(),
            "248877665544332211080706050403020103000000000000000400000000000000",
        ),
        (
            DirectoryRequest::Join { shard: key, owner: value }.into(),
            "2588776655443322110807060504030201",
        ),
        (
            DirectoryRequest::Fenced { shard: key, epoch: 3 }.into(),
            "2688776655443322110300000000000000",
        ),
        (
            DirectoryRequest::Edit {
                shard: key,
                epoch: 3,
                number: 4,
                part: 5,
                more: true,
                words: vec![value],
            }
            .into(),
            "278877665544332211030000000000000004000000000000000500000001\
             0807060504030201",
        ),
        (
            DirectoryRequest::Tables { shard: key, epoch: 3, from: value }.into(),
            "28887766554433221103000000000000000807060504030201",
        ),
        (
            DirectoryRequest::Allocate { shard: key, epoch: 3, bytes: value, least: 4, token: 5 }
                .into(),
            "298877665544332211030000000000000008070605040302010400000000000000\
             0500000000000000",
        ),
        (
            DirectoryRequest::Chunks { shard: key, epoch: 3, from: 0x0403_0201 }.into(),
            "2a887766554433221103000000000000000102\
             0304",
        ),
        (
            DirectoryRequest::Leave { shard: key, owner: value, epoch: 3 }.into(),
            "30887766554433221108070605040302010300000000000000",
        ),
        (
            DirectoryRequest::Divide {
                shard: key,
                owner: value,
                epoch: 3,
                into: 4,
                at: vec![value],
            }
            .into(),
            "318877665544332211080706050403020103000000000000000400000000000000\
             0807060504030201",
        ),
        (DirectoryRequest::Pieces { from: value }.into(), "320807060504030201"),
        (
            DirectoryRequest::Loans { shard: key, epoch: 3, from: value }.into(),
            "33887766554433221103000000000000000807060504030201",
        ),
        (
            DirectoryRequest::Return { shard: key, epoch: 3, tables: vec![value] }.into(),
            "34887766554433221103000000000000000807060504030201",
        ),
    ]
}

fn replies() -> Vec<(Reply<Fixed8>, &'static str)> {
    let answer = |applied, found| EditAnswer { applied, found };
    let usage = Usage {
        pool_bytes: 1,
        allocated_bytes: 2,
        nodes_in_use: 3,
        nodes_free: 4,
        deleted_records: 5,
        height: 6,
    };
    let (owner, compute_server) = (0x0201, 0x0403);
    let lease = LeaseState {
        owner: KEY,
        compute_server,
        term_ms: 0x0102_0304,
        renewals: VALUE,
        bytes: 1 << 10,
    };
    let mut replies = vec![
        (Reply::Done, "00"),
        (Reply::Applied(false), "0100"),
        (Reply::Applied(true), "0101"),
        (Reply::Value(None), "0200"),
        (Reply::Value(Some(VALUE)), "02010807060504030201"),
        (Reply::Differs(None), "0300"),
        (Reply::Differs(Some(VALUE)), "03010807060504030201"),
        (
            Reply::Records { records: vec![(KEY, VALUE), (1, 2)], more: true },
            "0401020000008877665544332211080706050403020101000000000000000200000000000000",
        ),
        (Reply::Chunk { at: at(), bytes: VALUE }, "0500040605040302010807060504030201"),
        (Reply::Description(None), "0600"),
        (Reply::Description(Some(TreeShare::Hash { servers: 0x0201 })), "0601010102"),
        (
            Reply::Usage(usage),
            "07010000000000000002000000000000000300000000000000040000000000000005000000000000000600000000000000",
        ),
        (Reply::Owner { owner, compute_server, dead: true, fenced: false }, "09010203040100"),
        (
            Reply::Offloaded { leaf: None, answer: answer(false, Some(VALUE)) },
            "0a0000010807060504030201",
        ),
        (
            Reply::Offloaded { leaf: Some(at()), answer: answer(true, None) },
            "0a0100040605040302010100",
        ),
        (Reply::Owners(vec![0x0201, 0x0403]), "0b01020304"),
        (Reply::Replaced(VALUE), "0c0807060504030201"),
        (
            Reply::Chunks { more: true, chunks: vec![(at(), VALUE)] },
            "0d0100040605040302010807060504030201",
        ),
        (Reply::Merged { done: true, outputs: vec![VALUE] }, "0e010807060504030201"),
        (
            Reply::Shard {
                epoch: 1,
                owner: VALUE,
                edit: 2,
                highest_table: 3,
                extent_bytes: 4,
                loans: 5,
                unfenced: vec![0x0201],
            },
            "0f01000000000000000807060504030201020000000000000003000000000000000400000000000000\
             05000000000000000102",
        ),
        (Reply::Tables { more: true, words: vec![VALUE] }, "10010807060504030201"),
        (
            Reply::Leases(vec![lease]),
            "11887766554433221103040403020108070605040302010004000000000000",
        ),
    ];
    let refusals = [
        (Refusal::Malformed, "0800"),
        (Refusal::OutOfMemory, "0801"),
        (Refusal::NoTree, "0802"),
        (Refusal::TreeExists, "0803"),
        (Refusal::NotEmpty, "0804"),
        (Refusal::NotLoading, "0805"),
        (Refusal::Loading, "0806"),
        (Refusal::NotSorted, "0807"),
        (Refusal::NotMine, "0808"),
        (Refusal::Contended, "0809"),
        (Refusal::Damaged, "080a"),
        (Refusal::NoSuchOwner, "080b"),
        (Refusal::NotHere, "080c"),
        (Refusal::Restructures, "080d"),
        (Refusal::TicketClosed, "080e"),
        (Refusal::TooManyClients, "080f"),
        (Refusal::DeclaredDead, "0810"),
        (Refusal::NoSuchJob, "0811"),
        (Refusal::NoSuchTable, "0812"),
        (Refusal::TooManyMerges, "0813"),
        (Refusal::NoSuchShard, "0814"),
        (Refusal::OtherOwner, "0815"),
        (Refusal::LateEdit, "0816"),
        (Refusal::NoSuchLease, "0817"),
        (Refusal::TooManyLeases, "0818"),
    ];
    replies.extend(refusals.map(|(refusal, bytes)| (Reply::Refused(refusal), bytes)));
    replies
}

fn asks() -> Vec<(ClientRequest<Fixed8>, &'static str)> {
    let (key, value) = (KEY, VALUE);
    let edit = |action| ClientRequest::Edit(LeafEdit { key, action });
    vec![
        (edit(EditAction::Get), "00008877665544332211"),
        (edit(EditAction::Insert(value)), "000188776655443322110807060504030201"),
        (edit(EditAction::Update(value)), "000288776655443322110807060504030201"),
        (edit(EditAction::Upsert(value)), "000388776655443322110807060504030201"),
        (edit(EditAction::Remove), "00048877665544332211"),
        (
            edit(EditAction::CompareExchange(value, 9)),
            "0005887766554433221108070605040302010900000000000000",
        ),
        (
            ClientRequest::Scan {
                lower: Included(key),
                upper: Unbounded,
                reverse: true,
                limit: 0x0201,
            },
            "01018877665544332211000101020000",
        ),
        (
            ClientRequest::UpsertAll { records: vec![(key, value)] },
            "020100000088776655443322110807060504030201",
        ),
        (ClientRequest::Map, "03"),
        (ClientRequest::Collect, "04"),
        (ClientRequest::Halt { load: value, version: 3 }, "0508070605040302010300000000000000"),
        (ClientRequest::Resume { load: value }, "060807060504030201"),
        (ClientRequest::LoadBegin { load: value, fill_permille: 0x0201 }, "0708070605040302010102"),
        (
            ClientRequest::LoadAppend { load: value, records: vec![(key, value)] },
            "0808070605040302010100000088776655443322110807060504030201",
        ),
        (ClientRequest::LoadEnd { load: value, version: 3 }, "0908070605040302010300000000000000"),
        (ClientRequest::LoadAbort { load: value }, "0a0807060504030201"),
        (ClientRequest::LoadReady { load: value }, "100807060504030201"),
        (ClientRequest::Flush, "0b"),
        (ClientRequest::Release { to: 0x0201, near: Some(key) }, "0c0102018877665544332211"),
        (ClientRequest::Release { to: 0x0201, near: None }, "0c010200"),
        (ClientRequest::TakeOver { from: 0x0201 }, "0d0102"),
        (ClientRequest::Samples, "0e"),
        (ClientRequest::Fences { key }, "0f8877665544332211"),
    ]
}

fn tolds() -> Vec<(ClientResponse<Fixed8>, &'static str)> {
    let mut tolds = vec![
        (ClientResponse::Done, "00"),
        (
            ClientResponse::Edited(EditAnswer { applied: true, found: Some(VALUE) }),
            "0101010807060504030201",
        ),
        (ClientResponse::Edited(EditAnswer { applied: false, found: None }), "010000"),
        (
            ClientResponse::Records { records: vec![(KEY, VALUE)], next: Some(Excluded(KEY)) },
            "02010288776655443322110100000088776655443322110807060504030201",
        ),
        (ClientResponse::Records { records: vec![], next: None }, "020000000000"),
        (
            ClientResponse::Map { epoch: 3, boundaries: vec![10, 20], owners: vec![0, 2, 0x0201] },
            "03030000000000000002000a0000000000000014000000000000000300000002000102",
        ),
        (ClientResponse::NotOwner { owner: 0x0201, epoch: VALUE }, "0401020807060504030201"),
        (
            ClientResponse::Samples { samples: 3, keys: vec![KEY] },
            "060300000000000000010000008877665544332211",
        ),
        (
            ClientResponse::Fences { low: KEY, high: Some(VALUE) },
            "078877665544332211010807060504030201",
        ),
        (ClientResponse::Loaded { boundaries: vec![KEY] }, "0801008877665544332211"),
        (
            ClientResponse::Changed {
                incarnation: KEY,
                answer: EditAnswer { applied: true, found: Some(VALUE) },
            },
            "09887766554433221101010807060504030201",
        ),
        (ClientResponse::Upserted { incarnation: KEY }, "0a8877665544332211"),
        (
            ClientResponse::Covered { incarnation: KEY, age_ns: VALUE, epoch: 3 },
            "0b887766554433221108070605040302010300000000000000",
        ),
        (
            ClientResponse::LoadReady { version: VALUE, epoch: 3 },
            "0c08070605040302010300000000000000",
        ),
    ];
    let troubles = [
        (ErrorCode::Malformed, "0500"),
        (ErrorCode::Unavailable, "0501"),
        (ErrorCode::Absent, "050a"),
        (ErrorCode::NotItsKeys, "050b"),
        (ErrorCode::Indeterminate, "0502"),
        (ErrorCode::NoMemoryServer, "0503"),
        (ErrorCode::Contended, "0504"),
        (ErrorCode::OutOfMemory, "0505"),
        (ErrorCode::NotEmpty, "0506"),
        (ErrorCode::NotSorted, "0507"),
        (ErrorCode::Loading, "0508"),
        (ErrorCode::NoLoad, "050e"),
        (ErrorCode::Damaged, "0509"),
        (ErrorCode::KeyTooLong { bytes: 3, most: 2 }, "050c03000000000000000200000000000000"),
        (ErrorCode::ValueTooLong { bytes: 3, most: 2 }, "050d03000000000000000200000000000000"),
    ];
    tolds.extend(troubles.map(|(code, bytes)| (ClientResponse::Error(code), bytes)));
    tolds
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// Checks that a message encodes to these bytes, and that exactly these bytes decode to it.
fn check<M: std::fmt::Debug + PartialEq>(
    messages: Vec<(M, &str)>,
    encode: impl Fn(&M) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Option<M>,
) {
    for (message, expected) in messages {
        assert_eq!(hex(&encode(&message)), expected, "{message:?}");
        let mut long = bytes(expected);
        assert_eq!(decode(&long).as_ref(), Some(&message));
        assert_ne!(decode(&long[..long.len() - 1]).as_ref(), Some(&message));
        long.push(0);
        assert_eq!(decode(&long), None, "{message:?} and a byte more");
    }
}

#[test]
fn requests_and_replies_keep_their_bytes() {
    check(requests(), |request| request.encode().to_vec(), Request::decode);
    let encode = |reply: &Reply<Fixed8>| {
        let mut message = Message::new();
        reply.encode(&mut message);
        message.to_vec()
    };
    check(replies(), encode, Reply::decode);
}

#[test]
fn messages_of_clients_keep_their_bytes() {
    check(asks(), |ask| ask.encode().to_vec(), ClientRequest::decode);
    check(tolds(), |told| told.encode().to_vec(), ClientResponse::decode);
}

/// An unknown tag is rejected, whatever follows it.
#[test]
fn unknown_tags_are_no_messages() {
    for tag in 0..=u8::MAX {
        for rest in 0..64 {
            let message = [&[tag][..], &vec![0; rest]].concat();
            let known = [tag < 55, tag < 18, tag < 17, tag < 13];
            assert!(known[0] || Request::<Fixed8>::decode(&message).is_none(), "request {tag}");
            assert!(known[1] || Reply::<Fixed8>::decode(&message).is_none(), "reply {tag}");
            assert!(known[2] || ClientRequest::<Fixed8>::decode(&message).is_none(), "ask {tag}");
            assert!(known[3] || ClientResponse::<Fixed8>::decode(&message).is_none(), "told {tag}");
        }
    }
}
