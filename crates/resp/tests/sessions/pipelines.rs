//! Pipelines in any pieces, with any order of completion; and input that no client should send.

use crate::memory::{Client, MemoryStore, command, shared};
use farleaf_resp::{RespDecoder, RespLimits, RespReply, RespSession, StoreCommand};
use proptest::collection::vec;
use proptest::prelude::*;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame};

/// A command on few keys, so that many concern the same one.
fn any_command() -> impl Strategy<Value = Vec<u8>> {
    let key = (0..4_u8).prop_map(|key| vec![b'k', key]);
    let other = (0..4_u8).prop_map(|key| vec![b'k', key]);
    (0..20_u8, key, other, vec(any::<u8>(), 0..4)).prop_map(|(kind, key, other, value)| {
        let words: Vec<&[u8]> = match kind {
            0..3 => vec![b"GET", &key],
            3..5 => vec![b"SET", &key, &value],
            5 => vec![b"SET", &key, b"1", b"NX", b"GET"],
            6..8 => vec![b"INCR", &key],
            8 => vec![b"APPEND", &key, &value],
            9 => vec![b"DEL", &key, &other],
            10 => vec![b"MGET", &key, &other],
            11 => vec![b"MSET", &key, &value, &other, b"7"],
            12 => vec![b"GETSET", &key, b"5"],
            13 => vec![b"RI.RANGE", b"default", &key, &other],
            14 => vec![b"DBSIZE", b"SCAN"],
            15 => vec![b"PING", &value],
            16 => vec![b"HELLO", if value.len() % 2 == 0 { b"2" } else { b"3" }],
            17 => vec![b"TIME"],
            18 => vec![b"RI.DELRANGE", b"default", &key, &other],
            _ => vec![b"KEYS", b"*"],
        };
        command(&words)
    })
}

/// The output when each command ends before the next begins.
fn one_by_one(commands: &[Vec<u8>]) -> Vec<u8> {
    let (store, shared) = (MemoryStore::new(0, 0), shared(None, RespLimits::default()));
    let mut client = Client::new(&store, &shared, 0);
    commands.iter().flat_map(|command| client.send(command, usize::MAX)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// resp.N1, resp.N2, resp.D2.
    #[test]
    fn a_pipeline_replies_as_if_one_by_one(
        commands in vec(any_command(), 0..60),
        piece in 1..400_usize,
        running in 1..40_usize,
        seed: u64,
    ) {
        let limits = RespLimits { running, output_bytes: 64, ..RespLimits::default() };
        let (store, shared) = (MemoryStore::new(seed, 3), shared(None, limits));
        let mut client = Client::new(&store, &shared, seed);
        prop_assert_eq!(client.send(&commands.concat(), piece), one_by_one(&commands));
    }

    /// What another implementation encodes, the decoder takes apart again.
    #[test]
    fn commands_of_another_encoder_are_decoded(
        commands in vec(vec(vec(any::<u8>(), 0..50), 1..6), 1..6),
        piece in 1..100_usize,
    ) {
        let mut bytes = Vec::new();
        for words in &commands {
            let words = words.iter().cloned().map(OwnedFrame::BulkString).collect();
            let frame = OwnedFrame::Array(words);
            let begun = bytes.len();
            bytes.resize(begun + frame.encode_len(false), 0);
            redis_protocol::resp2::encode::encode(&mut bytes[begun..], &frame, false).unwrap();
        }
        let mut decoder = RespDecoder::new(RespLimits::default(), true);
        let mut decoded = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.feed(piece);
            while let Some(command) = decoder.next_command().unwrap() {
                decoded.push(command.words);
            }
        }
        prop_assert_eq!(decoded, commands);
        prop_assert!(!decoder.is_within_command());
    }

    /// Every reply is one that another decoder knows, in both versions, and there is one for each
    /// command.
    #[test]
    fn another_decoder_knows_every_reply(commands in vec(any_command(), 1..30), seed: u64) {
        let (store, shared) = (MemoryStore::new(seed, 1), shared(None, RespLimits::default()));
        for version in ["2", "3"] {
            let hello = command(&[b"HELLO", version.as_bytes()]);
            let is_hello = |command: &&Vec<u8>| !command.starts_with(b"*2\r\n$5\r\nHELLO");
            let commands: Vec<&Vec<u8>> = commands.iter().filter(is_hello).collect();
            let mut client = Client::new(&store, &shared, seed);
            client.send(&hello, usize::MAX);
            let all: Vec<u8> = commands.iter().flat_map(|command| command.to_vec()).collect();
            let output = client.send(&all, usize::MAX);
            let (mut rest, mut replies) = (&output[..], 0);
            while !rest.is_empty() {
                let taken = match version {
                    "2" => {
                        let decoded = redis_protocol::resp2::decode::decode(rest);
                        decoded.unwrap().map(|(_, taken)| taken)
                    }
                    _ => {
                        let decoded = redis_protocol::resp3::decode::complete::decode(rest);
                        decoded.unwrap().map(|(_, taken)| taken)
                    }
                };
                rest = &rest[taken.unwrap()..];
                replies += 1;
            }
            prop_assert_eq!(replies, commands.len());
        }
    }

    /// Nothing panics, in whatever pieces the bytes come, and little is held.
    #[test]
    fn hostile_bytes_end_a_session_at_most(
        parts in vec(prop_oneof![
            vec(any::<u8>(), 0..40),
            Just(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$".to_vec()),
            Just(b"*1000000\r\n$0\r\n\r\n".to_vec()),
            Just(b"$500000000\r\n".to_vec()),
            Just(b"\r\n".to_vec()),
            "[*$+:-]-?[0-9]{0,12}\r?\n".prop_map(String::into_bytes),
            any_command(),
        ], 0..40),
        piece in 1..60_usize,
    ) {
        let bytes = parts.concat();
        let outputs = [piece, usize::MAX].map(|piece| {
            let (store, shared) = (MemoryStore::new(1, 0), shared(None, RespLimits::default()));
            let mut client = Client::new(&store, &shared, 1);
            let output = client.send(&bytes, piece);
            assert!(client.session.held_bytes() < 1 << 20);
            output
        });
        prop_assert_eq!(&outputs[0], &outputs[1]);
    }
}

#[test]
fn who_does_not_read_is_not_read() {
    let limits = RespLimits { output_bytes: 1000, ..RespLimits::default() };
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, limits));
    let mut client = Client::new(&store, &shared, 1);
    client.send(&command(&[b"SET", b"k", &[b'v'; 900]]), usize::MAX);
    let get = command(&[b"GET", b"k"]);
    let mut sent = 0;
    while client.session.wants_input() && sent < 10_000 {
        client.session.receive(&get);
        while client.step() {}
        sent += 1;
    }
    assert_eq!(sent, 2);
    client.session.consume_output(client.session.output().len());
    assert!(client.session.wants_input());
}

/// TIME may run beside a command on a range, and its end does not let others begin.
#[test]
fn nothing_begins_beside_a_command_on_a_range() {
    let mut session = RespSession::new(shared(None, RespLimits::default()), "127.0.0.1:1");
    session.receive(b"RI.DELRANGE default \"\" \"\"\r\nTIME\r\nSET a 1\r\n");
    let [removal, time] = [session.start().unwrap(), session.start().unwrap()];
    assert_eq!(time.command, StoreCommand::Time);
    session.complete(time.ticket, RespReply::OK);
    assert!(session.start().is_none());
    session.complete(removal.ticket, RespReply::Integer(0));
    assert!(session.start().is_some());
}

/// A command that has waited for another begins only when there is room for its reply.
#[test]
fn a_command_that_waited_finds_room_or_waits_on() {
    let limits = RespLimits { output_bytes: 100, ..RespLimits::default() };
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, limits));
    let mut client = Client::new(&store, &shared, 1);
    client.line(&format!("SET a {}", "v".repeat(200)));
    client.session.receive(b"RI.RANGE default a b\r\nGET a\r\n");
    while client.step() {}
    assert_eq!(client.session.running(), 0);
    let output = client.session.output().len();
    assert!((200..300).contains(&output), "{output}");
    client.session.consume_output(output);
    while client.step() {}
    assert_eq!(client.session.output().len(), 208);
}

/// Replies that wait for an earlier one count as those that wait for the client.
#[test]
fn replies_that_wait_for_another_are_bounded() {
    let limits = RespLimits { output_bytes: 64 << 10, ..RespLimits::default() };
    for (many, most) in [("COMMAND\r\n", 96 << 10), ("GET b\r\n", 256 << 10)] {
        let mut session = RespSession::new(shared(None, limits), "127.0.0.1:1");
        session.receive(format!("GET a\r\n{}", many.repeat(1000)).as_bytes());
        let first = session.start().unwrap();
        while let Some(next) = session.start() {
            session.complete(next.ticket, RespReply::Bulk(vec![b'v'; 60 << 10]));
        }
        assert!(!session.wants_input());
        let undecoded = many.len() * 1000;
        assert!(session.held_bytes() < most + undecoded, "{}", session.held_bytes());
        session.complete(first.ticket, RespReply::Null);
        assert!(session.output().len() < most, "{}", session.output().len());
    }
}

#[test]
fn large_commands_weigh_as_many_small_ones() {
    let limits = RespLimits { running: 4, ..RespLimits::default() };
    let (store, shared) = (MemoryStore::new(1, 9), shared(None, limits));
    let mut client = Client::new(&store, &shared, 1);
    let many = command(&[b"MGET", b"a", b"b", b"c", b"d", b"e"]);
    client.session.receive(&[many, command(&[b"GET", b"x"])].concat());
    client.step();
    assert_eq!((client.session.running(), client.session.wants_input()), (1, false));
    while client.step() {}
    assert_eq!(client.session.output(), b"*5\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n");
}

#[test]
fn ten_thousand_commands_in_one_piece() {
    let (store, shared) = (MemoryStore::new(3, 2), shared(None, RespLimits::default()));
    let mut client = Client::new(&store, &shared, 3);
    let one = |number: usize| {
        let key = format!("key:{}", number % 100);
        let key = key.as_bytes();
        [command(&[b"SET", key, b"5"]), command(&[b"GET", key]), command(&[b"INCR", key])].concat()
    };
    let commands: Vec<u8> = (0..10_000).flat_map(one).collect();
    let output = client.send(&commands, 16 << 10);
    assert!(output == b"+OK\r\n$1\r\n5\r\n:6\r\n".repeat(10_000));
}
