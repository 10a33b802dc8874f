//! Bytes of a client of Redis: the decoder, and a session whose commands all reply nothing.
//!
//! In whatever pieces the bytes come, the commands and the replies are the same. A command that
//! another decoder takes for an array of bulk strings has the same words there.

#![no_main]

use farleaf_resp::{
    DecodedCommand, RespConfig, RespDecoder, RespLimits, RespProtocolError, RespReply, RespSession,
    RespShared,
};
use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use std::sync::Arc;
use std::time::Duration;

fn limits() -> RespLimits {
    RespLimits { argument_bytes: 100, command_bytes: 1000, line_bytes: 500, ..Default::default() }
}

fn commands(data: &[u8], piece: usize) -> (Vec<DecodedCommand>, Option<RespProtocolError>) {
    let (mut decoder, mut commands) = (RespDecoder::new(limits(), true), Vec::new());
    for piece in data.chunks(piece) {
        decoder.feed(piece);
        loop {
            match decoder.next_command() {
                Ok(Some(command)) => commands.push(command),
                Ok(None) => break,
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

fn replies(data: &[u8], piece: usize) -> Vec<u8> {
    let shared = Arc::new(RespShared::new(RespConfig {
        index_name: "default".to_owned(),
        password: None,
        limits: limits(),
        version: "0",
        port: 1,
        max_clients: 1,
        seed: 1,
        deadline: Duration::ZERO,
    }));
    let mut session = RespSession::new(shared, "client");
    let (mut pieces, mut output) = (data.chunks(piece), Vec::new());
    loop {
        while let Some(started) = session.start() {
            session.complete(started.ticket, RespReply::Null);
        }
        let bytes = session.output().len();
        output.extend_from_slice(session.output());
        session.consume_output(bytes);
        if session.wants_input()
            && let Some(piece) = pieces.next()
        {
            session.receive(piece);
        } else if bytes == 0 {
            return output;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let piece = 1 + usize::from(data.last().copied().unwrap_or(0) % 16);
    let whole = commands(data, usize::MAX);
    assert_eq!(commands(data, piece), whole);

    if data.first() == Some(&b'*')
        && let Some(first) = whole.0.first().filter(|first| first.skipped.is_none())
        && let Ok(Some((OwnedFrame::Array(items), _))) = decode(data)
        && !items.is_empty()
    {
        let words = items.into_iter().map(|item| match item {
            OwnedFrame::BulkString(word) => word,
            other => panic!("an argument that is {other:?}"),
        });
        assert!(words.eq(first.words.iter().cloned()));
    }

    // INFO tells what changes meanwhile.
    let output = replies(data, usize::MAX);
    if !output.windows(11).any(|text| text == b"used_memory") {
        assert!(replies(data, piece) == output);
    }
});
