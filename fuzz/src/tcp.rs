//! Fuzzes the decoding of frames and the handshake with arbitrary bytes: they neither panic nor
//! read past the end, a decoded frame encodes to the same bytes again, and only a peer that sends
//! exactly the protocol's messages is let in.
#![no_main]

use farleaf_fabric::handshake::{
    ExpectedPeer, HandshakeError, HandshakeMessage, Initiator, InitiatorStep, MessageAssembler,
    Nonce, PeerIdentity, PeerRole, Responder, ResponderStep, Token,
};
use farleaf_fabric::tcp::frame::{
    DecodedFrame, MAX_FRAME_BYTES, decode_completion, decode_request,
};
use libfuzzer_sys::fuzz_target;

fn requests(mut data: &[u8]) {
    loop {
        match decode_request(data) {
            DecodedFrame::Frame { id, body, bytes } => {
                assert!(bytes <= MAX_FRAME_BYTES && bytes == body.frame_bytes());
                let mut again = vec![0; bytes];
                body.encode(id, &mut again);
                assert_eq!(again, data[..bytes]);
                data = &data[bytes..];
            }
            DecodedFrame::Incomplete => return assert!(data.len() < MAX_FRAME_BYTES),
            DecodedFrame::Malformed => return,
        }
    }
}

fn completions(mut data: &[u8]) {
    loop {
        match decode_completion(data) {
            DecodedFrame::Frame { id, body, bytes } => {
                assert!(bytes <= MAX_FRAME_BYTES && bytes == body.frame_bytes());
                let mut again = vec![0; bytes];
                body.encode(id, &mut again);
                assert_eq!(again, data[..bytes]);
                data = &data[bytes..];
            }
            DecodedFrame::Incomplete => return assert!(data.len() < MAX_FRAME_BYTES),
            DecodedFrame::Malformed => return,
        }
    }
}

fn sides() -> (Initiator, Responder) {
    let token = Token::new(&[7; 32]).unwrap();
    let endpoint = PeerIdentity { role: PeerRole::ComputeServer, number: 3, epoch: 77 };
    let server = PeerIdentity { role: PeerRole::MemoryServer, number: 1, epoch: 99 };
    let wanted = ExpectedPeer { role: PeerRole::MemoryServer, number: 1 };
    let nonce = Nonce::from_bytes;
    (
        Initiator::new(&token, endpoint, 0, wanted, nonce([1; 32]), u64::MAX),
        Responder::new(&token, server, &[PeerRole::ComputeServer], nonce([2; 32]), u64::MAX),
    )
}

/// Sends arbitrary messages in pieces to both sides: neither lets the peer in.
fn strangers(mut data: &[u8]) {
    let (mut initiator, mut responder) = sides();
    let mut gather = MessageAssembler::default();
    while let Some((first, rest)) = data.split_first() {
        let count = usize::from(*first).min(rest.len()).min(gather.missing().len());
        gather.missing()[..count].copy_from_slice(&rest[..count]);
        data = &rest[count..];
        let Some(message) = gather.arrived(count) else { continue };
        let open = initiator.receive(&message, 0);
        assert!(!matches!(open, Ok(InitiatorStep::Open { .. })));
        let proven = responder.receive(&message, 0);
        assert!(!matches!(proven, Ok(ResponderStep::Proven { .. })));
    }
}

/// Sends the correct messages with some bits flipped: the handshake fails if any bit was.
fn meddlers(data: &[u8]) {
    let mut masks = data.chunks(64);
    let mut changed = false;
    let mut meddle = |message: &HandshakeMessage| {
        let mut meddled = *message;
        for (byte, mask) in meddled.iter_mut().zip(masks.next().unwrap_or(&[])) {
            *byte ^= mask;
            changed |= *mask != 0;
        }
        meddled
    };
    let (mut initiator, mut responder) = sides();
    let mut shake = || {
        let hello = meddle(initiator.hello());
        let ResponderStep::Send(challenge) = responder.receive(&hello, 0)? else { panic!() };
        let challenge = meddle(&challenge);
        let InitiatorStep::Send(proof) = initiator.receive(&challenge, 0)? else { panic!() };
        responder.receive(&meddle(&proof), 0)?;
        initiator.receive(&meddle(&responder.welcome(5)), 0)?;
        Ok::<(), HandshakeError>(())
    };
    let done = shake();
    assert_eq!(done.is_err(), changed, "{done:?}");
}

fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((0, data)) => strangers(data),
        Some((1, data)) => meddlers(data),
        Some((n, data)) if n % 2 == 0 => requests(data),
        Some((_, data)) => completions(data),
        None => {}
    }
});
