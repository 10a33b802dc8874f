//! Decompresses files of zstd frames (RFC 8878), one after the other, with skippable frames between
//! them, as `pzstd` writes them.
//!
//! *Invariants*: memory is bounded by the decoder's limit on a frame's window. A file that ends
//! within a frame, or whose content does not have the checksum of its frame, is an error.
//!
//! *Thread safety*: none needed; one thread reads a file.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, Read};

/// Whether a file with this start has zstd frames. The start of a skippable frame is one, too.
pub(crate) fn is_frame(start: &[u8]) -> bool {
    match start {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => true,
        [first, 0x2a, 0x4d, 0x18, ..] => first & 0xf0 == 0x50,
        _ => false,
    }
}

/// The content of zstd frames.
pub(crate) struct ZstdFrames<R> {
    inner: R,
    decoder: FrameDecoder,
    /// Whether the decoder is within a frame.
    is_open: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, decoder: FrameDecoder::new(), is_open: false }
    }

    /// Begins the next frame. Returns `false` at the end of the file.
    fn open(&mut self) -> io::Result<bool> {
        loop {
            if self.inner.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.inner) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.inner.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(failed(&error)),
            }
        }
    }
}

fn failed(error: &FrameDecoderError) -> io::Error {
    io::Error::other(format!("zstd: {error}"))
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_open && !self.open()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.inner, strategy);
                decoded.map_err(|error| failed(&error))?;
            }
            match self.decoder.read(into)? {
                0 => {
                    let expected = self.decoder.get_checksum_from_data();
                    if expected.is_some() && expected != self.decoder.get_calculated_checksum() {
                        return Err(io::Error::other("zstd: wrong checksum"));
                    }
                    self.is_open = false;
                }
                read => return Ok(read),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn decompressed(content: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        ZstdFrames::new(content).read_to_end(&mut plain).map(|_| plain)
    }

    #[test]
    fn frames_follow_each_other() {
        let text: Vec<u8> =
            (0..200_000_u32).flat_map(|number| (number / 3).to_le_bytes()).collect();
        let frame = compress_to_vec(&text[..], CompressionLevel::Fastest);
        assert!(is_frame(&frame) && decompressed(&frame).unwrap() == text);
        // A skippable frame of three bytes.
        let skippable = [0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let all = [&skippable[..], &frame, &skippable, &frame].concat();
        assert!(is_frame(&all) && decompressed(&all).unwrap() == [&text[..], &text].concat());
        assert!(decompressed(&all[..8]).is_err() && decompressed(&skippable[..9]).is_err());
        for cut in [frame.len() - 1, frame.len() / 2, 5, 3] {
            assert!(decompressed(&frame[..cut]).is_err(), "{cut}");
        }
        assert!(decompressed(&[&frame[..], b"rubbish"].concat()).is_err());
        assert!(!is_frame(b"op,lbn") && !is_frame(&[0x1f, 0x8b]) && !is_frame(&[0x28]));
    }

    #[test]
    fn a_damaged_frame_is_an_error() {
        let frame = compress_to_vec(&[7_u8; 1000][..], CompressionLevel::Uncompressed);
        let mut damaged = frame.clone();
        damaged[500] ^= 1;
        assert_eq!(decompressed(&frame).unwrap(), [7; 1000]);
        assert!(decompressed(&damaged).unwrap_err().to_string().contains("checksum"));
    }
}
