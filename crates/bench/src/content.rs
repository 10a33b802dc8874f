//! Opens the files that people give to the program, and decompresses them.
//!
//! *Invariants*
//! - content.F1. The first bytes of a file decide how it is read, not its name. Bytes in a form
//!   that is not read, such as another compression, are an error that names the form.
//! - content.F2. The end of the content is the end of the file: a gzip file may have several
//!   members, and zeros behind the last one, as tapes and block devices leave them. Anything else
//!   behind a member is an error. Frames of zstd follow each other likewise ([`ZstdFrames`]).
//!
//! *Thread safety*: none needed; one thread opens and reads a file.

use crate::InputError;
use crate::zstd::{self, ZstdFrames};
use flate2::bufread::GzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// As many bytes as identify the form of a file.
const MAGIC_BYTES: usize = 16;
/// Size of the buffer of compressed bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// With the method of compression, so that few binary files begin with it by chance.
const GZIP: &[u8] = &[0x1f, 0x8b, 8];

/// The forms that are recognised but not read: first bytes, name, and the command that decompresses
/// them.
const OTHERS: [(&[u8], &str, &str); 9] = [
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4 -dc"),
    (b"LZIP", "lzip", "lzip -dc"),
    (&[0x1f, 0x9d], "compress", "uncompress -c"),
    (&[0x89, b'L', b'Z', b'O', 0], "lzop", "lzop -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
    (&[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c], "7-Zip", "7z x -so"),
    (b"\xff\x06\0\0sNaPpY", "snappy", "snzip -dc"),
];

/// The form of a file that is recognised but not read, by its first bytes.
fn other_form(magic: &[u8]) -> Option<(&'static str, &'static str)> {
    // Text may begin with `BZh`; a block of bzip2 begins with the digits of pi, its end with those
    // of the square root of pi.
    let is_block = |magic: &[u8]| {
        let blocks: [&[u8]; 2] = [b"1AY&SY", &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90]];
        blocks.contains(&magic.get(4..10).unwrap_or_default())
    };
    let found = OTHERS.iter().find(|(first, ..)| magic.starts_with(first));
    let &(first, name, command) = found?;
    (first != b"BZh" || is_block(magic)).then_some((name, command))
}

/// The bytes of an input, decompressed.
pub(crate) type InputContent = Box<dyn Read>;

/// Opens a file, plain or compressed, or stdin for `-`. Also returns the name for messages.
///
/// # Errors
/// [`InputError`] if the file cannot be opened or read, or has a form that is not read.
pub(crate) fn open(path: &Path) -> Result<(PathBuf, InputContent), InputError> {
    let is_stdin = path == Path::new("-");
    let (name, file): (_, Box<dyn Read>) = match is_stdin {
        true => (PathBuf::from("stdin"), Box::new(io::stdin())),
        false => {
            let unreadable = |source| InputError::Read { path: path.to_owned(), source };
            (path.to_owned(), Box::new(File::open(path).map_err(unreadable)?))
        }
    };
    let content = decompressed(&name, is_stdin, file)?;
    Ok((name, content))
}

/// The content of `file` (content.F1).
fn decompressed(
    name: &Path,
    is_stdin: bool,
    mut file: Box<dyn Read>,
) -> Result<InputContent, InputError> {
    let mut magic = Vec::with_capacity(MAGIC_BYTES);
    // A pipe may give these bytes one by one.
    file.by_ref()
        .take(MAGIC_BYTES as u64)
        .read_to_end(&mut magic)
        .map_err(|source| InputError::Read { path: name.to_owned(), source })?;
    if let Some((form, command)) = other_form(&magic) {
        let path = name.to_owned();
        return Err(InputError::OtherForm { path, form, command, is_stdin });
    }
    let (is_gzip, is_zstd) = (magic.starts_with(GZIP), zstd::is_frame(&magic));
    let file = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(magic).chain(file));
    Ok(match is_gzip {
        true => Box::new(GzipMembers { open: Some(GzDecoder::new(file)) }),
        false if is_zstd => Box::new(ZstdFrames::new(file)),
        false => Box::new(file),
    })
}

/// The content of a gzip file (content.F2).
struct GzipMembers<R> {
    /// The member that is being read; `None` at the end, and after an error.
    open: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(mut member) = self.open.take() {
            let read = member.read(into)?;
            if read > 0 {
                self.open = Some(member);
                return Ok(read);
            }
            self.open = next_member(member.into_inner())?.map(GzDecoder::new);
        }
        Ok(0)
    }
}

/// Skips the zeros behind a member. Returns the rest if there is another member.
fn next_member<R: BufRead>(mut rest: R) -> io::Result<Option<R>> {
    loop {
        let bytes = rest.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match bytes.get(zeros).copied() {
            None if bytes.is_empty() => return Ok(None),
            None => {}
            Some(first) if first == GZIP[0] => {
                rest.consume(zeros);
                return Ok(Some(rest));
            }
            Some(_) => {
                let what = "the bytes behind the gzip data are neither gzip data nor zeros";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        rest.consume(zeros);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;

    /// A file that is removed when the test ends.
    pub(crate) struct TestFile(PathBuf);

    impl TestFile {
        pub(crate) fn new(name: &str, content: &[u8]) -> Self {
            let name = format!("farleaf-bench-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, content).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Gives its bytes one by one, as a pipe may.
    struct SingleByteReader(Cursor<Vec<u8>>);

    impl Read for SingleByteReader {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = into.len().min(1);
            self.0.read(&mut into[..most])
        }
    }

    fn read(bytes: &[u8]) -> Result<String, String> {
        let file = Box::new(SingleByteReader(Cursor::new(bytes.to_vec())));
        let content = decompressed(Path::new("x"), false, file);
        let mut content = content.map_err(|error| error.to_string())?;
        let mut text = String::new();
        content.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// A backup from a tape had zeros behind the gzip data, and was an error: `gzip -d` ignores
    /// them. A decompressor that asked only the first read of a pipe for its form took the bytes of
    /// a slow one for text.
    #[test]
    fn gzip_ends_at_zeros_and_at_the_end() {
        let (one, two) = (gzip(b"one\n"), gzip(b"two\n"));
        let zeros = vec![0; 100_000];
        let (one, two, zeros) = (&one[..], &two[..], &zeros[..]);
        for all in [vec![one, two], vec![one, two, zeros], vec![one, zeros, two, zeros]] {
            assert_eq!(read(&all.concat()).as_deref(), Ok("one\ntwo\n"));
        }
        assert_eq!(read(&gzip(b"")).as_deref(), Ok(""));
        assert_eq!(read(b"plain\0\0").as_deref(), Ok("plain\0\0"));
        assert_eq!(read(b"").as_deref(), Ok(""));
        for behind in [&b"\0\0more"[..], b"x"] {
            let said = read(&[one, behind].concat()).unwrap_err();
            assert!(said.contains("behind the gzip data are neither"), "{said}");
        }
        assert!(read(&[one, &[0, 0, 0x1f, 0x8b]].concat()).is_err());
        for length in 2..one.len() {
            assert!(read(&one[..length]).is_err(), "cut after {length} bytes");
        }
    }

    #[test]
    fn other_forms_are_named() {
        let named = [
            (&b"\xfd7zXZ\0\0\x04"[..], "xz", "xz -dc x"),
            (b"BZh91AY&SY\x01", "bzip2", "bzip2 -dc x"),
            (b"BZh9\x17\x72\x45\x38\x50\x90", "bzip2", "bzip2 -dc x"),
            (b"\x04\x22\x4d\x18d", "lz4", "lz4 -dc x"),
            (b"PK\x03\x04\x14", "zip", "unzip -p x"),
            (b"\x1f\x9d\x90", "compress", "uncompress -c x"),
        ];
        for (bytes, form, command) in named {
            let said = read(bytes).unwrap_err();
            assert!(said.contains(form) && said.contains(command), "{said}");
            assert!(said.starts_with("cannot read x: ") && !said.contains('\n'), "{said}");
        }
        // `xz -dc stdin` was the advice for a pipe.
        let pipe = Box::new(SingleByteReader(Cursor::new(b"\xfd7zXZ\0\0".to_vec())));
        let said = decompressed(Path::new("stdin"), true, pipe).err().unwrap().to_string();
        assert!(said.starts_with("cannot read stdin: this is xz"), "{said}");
        assert!(said.contains("use `xz -dc FILE | farleaf …`"), "{said}");
        for text in ["BZh,9\n", "BZh91AY,2\n", "PK,1\n", "LZI\n"] {
            assert_eq!(read(text.as_bytes()).as_deref(), Ok(text));
        }
    }
}
