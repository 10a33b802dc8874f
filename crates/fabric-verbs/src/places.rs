//! Places: registered memory for messages, one per message.
//!
//! *Thread safety*: the words are atomics; the owner of the places decides which thread uses which
//! place.

use crate::device::{RdmaAdapter, RdmaUnavailable};
use crate::objects::{LocalMemory, Registration, address_of};
use crate::piece::{HEADER_BYTES, MESSAGE_BYTES, PieceHeader};
use farleaf_fabric::Region;
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};

const MESSAGE_WORDS: usize = MESSAGE_BYTES / 8;
const HEADER_WORDS: usize = HEADER_BYTES / 8;

#[derive(Debug)]
pub(crate) struct BufferPlaces(Registration);

impl BufferPlaces {
    /// Allocates and registers places for `count` messages.
    pub(crate) fn new(adapter: &RdmaAdapter, count: usize) -> Result<Self, RdmaUnavailable> {
        let bytes = (count * MESSAGE_BYTES).next_multiple_of(4096);
        let region = Region::new(bytes).map_err(|why| RdmaUnavailable::Broken {
            device: adapter.context().name.clone(),
            what: "memory for messages",
            why: std::io::Error::other(why),
        })?;
        Ok(Self(adapter.register(Arc::new(region), false)?))
    }

    fn words(&self, place: usize) -> &[AtomicU64] {
        &self.0.region().words()[place * MESSAGE_WORDS..(place + 1) * MESSAGE_WORDS]
    }

    /// The whole of a place, for receiving into.
    pub(crate) fn whole(&self, place: usize) -> LocalMemory {
        self.local(place, MESSAGE_BYTES)
    }

    fn local(&self, place: usize, bytes: usize) -> LocalMemory {
        let address = address_of(self.words(place));
        LocalMemory { address, bytes: bytes as u32, lkey: self.0.lkey }
    }

    /// Writes a message into a place: `header`, and the piece of `whole` that it describes. Returns
    /// the memory to send.
    pub(crate) fn put(&self, place: usize, header: &PieceHeader, whole: &[u8]) -> LocalMemory {
        // Without a piece, `first` may point anywhere.
        let piece = match header.length {
            0 => &[],
            _ => &whole[header.first as usize..header.end()],
        };
        let words = self.words(place);
        for (word, value) in words.iter().zip(header.encode()) {
            word.store(value, Ordering::Relaxed);
        }
        for (word, bytes) in words[HEADER_WORDS..].iter().zip(piece.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
        self.local(place, HEADER_BYTES + piece.len())
    }

    /// The header of a message of `bytes` bytes; `None` if it is invalid.
    pub(crate) fn header(&self, place: usize, bytes: usize) -> Option<PieceHeader> {
        let words = self.words(place);
        let header = std::array::from_fn(|index| words[index].load(Ordering::Relaxed));
        PieceHeader::decode(header, bytes)
    }

    /// Appends the piece in a place to `whole`.
    pub(crate) fn append_to(
        &self,
        place: usize,
        header: &PieceHeader,
        whole: &mut farleaf_fabric::Message,
    ) {
        let mut left = header.length as usize;
        for word in &self.words(place)[HEADER_WORDS..] {
            if left == 0 {
                break;
            }
            let bytes = word.load(Ordering::Relaxed).to_le_bytes();
            whole.extend_from_slice(&bytes[..left.min(8)]);
            left -= left.min(8);
        }
    }
}
