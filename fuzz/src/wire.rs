//! Fuzzes the decoding of messages: arbitrary bytes are either refused or decoded, and a decoded
//! message encodes to the same bytes again.
#![no_main]

use farleaf_fabric::Message;
use farleaf_page::Fixed8;
use farleaf_pool::wire::{ClientRequest, ClientResponse, Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(request) = Request::<Fixed8>::decode(data) {
        assert_eq!(&request.encode()[..], data);
    }
    if let Some(reply) = Reply::<Fixed8>::decode(data) {
        let mut message = Message::new();
        reply.encode(&mut message);
        assert_eq!(&message[..], data);
    }
    if let Some(ask) = ClientRequest::<Fixed8>::decode(data) {
        assert_eq!(&ask.encode()[..], data);
    }
    if let Some(told) = ClientResponse::<Fixed8>::decode(data) {
        assert_eq!(&told.encode()[..], data);
    }
});
