//! Settings of the programs: a TOML file, flags, and the token file.
//!
//! The keys of a settings file are the names of the flags, with `_` for `-`, so each setting is
//! named, checked and given its unit in one place. Tables have the options of designs, `[dex]` and
//! `[dlsm]`. Settings of the file are placed before the flags of the command line, so flags
//! override them.
//!
//! *Thread safety*: plain functions.

use crate::address::HostPort;
use farleaf_dex::cache::CacheOptions;
use farleaf_dlsm::DlsmOptions;
use farleaf_fabric::handshake::Token;
use farleaf_index::{OptionChange, OptionSchema};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An invalid setting; each message is one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file could not be read or written.
    #[error("{path}: {error}", path = .path.display())]
    File {
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file is not TOML, or has unknown keys or values.
    #[error("{path}: {why}", path = .path.display())]
    Content {
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
    },
    /// Other users can read a token file.
    #[error("{path}: others can read this token (its mode is {mode:o}); run chmod 600 on it", path = .path.display())]
    Exposed {
        /// Path of the token file.
        path: PathBuf,
        mode: u32,
    },
    /// Settings contradict each other.
    #[error("{0}")]
    Settings(String),
}

/// Error text for programs built without RDMA.
#[cfg(not(feature = "verbs"))]
pub(crate) fn without_verbs() -> ConfigError {
    let why = "transport verbs is not in this program: it was built without the feature `verbs`";
    ConfigError::Settings(why.to_owned())
}

/// Maximum size of a settings file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Maximum size of a token file, in bytes.
const MAX_TOKEN_BYTES: u64 = 4096;

fn at(path: &Path) -> impl Fn(io::Error) -> ConfigError {
    |error| ConfigError::File { path: path.to_owned(), error }
}

fn read_bounded(path: &Path, file: File, most: u64) -> Result<Vec<u8>, ConfigError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(at(path))?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes");
        return Err(ConfigError::Content { path: path.to_owned(), why });
    }
    Ok(bytes)
}

/// Translates a settings file into flags. `flags` has the names of the flags that the program
/// knows, without dashes.
///
/// # Errors
/// [`ConfigError`] if the file cannot be read, is not TOML, or has a key that is not a flag.
pub fn flags_of_file(path: &Path, flags: &[&str]) -> Result<Vec<OsString>, ConfigError> {
    let file = File::open(path).map_err(at(path))?;
    let bytes = read_bounded(path, file, MAX_FILE_BYTES)?;
    let content = |why: String| ConfigError::Content { path: path.to_owned(), why };
    let text = String::from_utf8(bytes).map_err(|_| content("it is not UTF-8".to_owned()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        content(format!("{place}{}", error.message()))
    })?;
    let mut arguments = Vec::new();
    for (key, value) in &table {
        if let (true, toml::Value::Table(options)) = (flags.contains(&"set"), value) {
            for (option, value) in options {
                let line = line_of(&text, option);
                let value = value.to_string().trim_matches('"').into();
                let change = OptionChange { design: key.clone(), option: option.clone(), value };
                set_option(&mut CacheOptions::default(), &mut DlsmOptions::default(), &change)
                    .map_err(|why| content(format!("line {line}: {why}")))?;
                arguments.push(format!("--set={change}").into());
            }
            continue;
        }
        let flag = key.replace('_', "-");
        if key.contains('-') || !flags.contains(&flag.as_str()) || flag == "config" {
            return Err(content(format!("unknown setting `{key}`")));
        }
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(true) => {
                arguments.push(format!("--{flag}").into());
                continue;
            }
            toml::Value::Boolean(false) => continue,
            _ => return Err(content(format!("`{key}` must be a string, a number or a boolean"))),
        };
        arguments.push(format!("--{flag}={text}").into());
    }
    Ok(arguments)
}

/// The line that sets `option`, from 1.
fn line_of(text: &str, option: &str) -> usize {
    let sets = |line: &str| {
        let rest = line.trim_start().strip_prefix(option);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    1 + text.lines().position(sets).unwrap_or(0)
}

/// Sets an option of a compute server: of the cache of a DEX index, or of a dLSM index's trees.
///
/// # Errors
/// One line that names the design or the option, and what is expected.
pub fn set_option(
    cache: &mut CacheOptions,
    tree: &mut DlsmOptions,
    change: &OptionChange,
) -> Result<(), String> {
    let options: &mut dyn OptionSchema = match change.design.as_str() {
        "dex" => cache,
        "dlsm" => tree,
        design => return Err(format!("unknown design `{design}`: expected dex or dlsm")),
    };
    let set = options.set(&change.option, &change.value);
    set.map_err(|error| format!("{}: {error}", change.design))
}

/// Reads a token: 64 hexadecimal digits for 32 bytes, as [`make_token`] writes them, or any other
/// text of at least 16 bytes. Surrounding white space is ignored.
///
/// # Errors
/// [`ConfigError`] if the file cannot be read, other users can read it, or the token is too short.
pub fn read_token(path: &Path) -> Result<Token, ConfigError> {
    Token::new(&read_secret(path)?)
        .map_err(|short| ConfigError::Content { path: path.to_owned(), why: short.to_string() })
}

/// Reads a secret of any length, without the white space around it.
///
/// # Errors
/// [`ConfigError`] if the file cannot be read, or other users can read it.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let file = File::open(path).map_err(at(path))?;
    let mode = file.metadata().map_err(at(path))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(ConfigError::Exposed { path: path.to_owned(), mode });
    }
    Ok(read_bounded(path, file, MAX_TOKEN_BYTES)?.trim_ascii().to_vec())
}

/// Draws a random token and writes it to a new file that only its owner can read.
///
/// # Errors
/// [`ConfigError`] if the file exists already or cannot be written.
pub fn make_token(path: &Path) -> Result<(), ConfigError> {
    if path.exists() {
        return Err(at(path)(io::ErrorKind::AlreadyExists.into()));
    }
    let mut text = String::with_capacity(65);
    for _ in 0..4 {
        let word = farleaf_fabric::handshake::draw_epoch().map_err(at(path))?;
        text.push_str(&format!("{word:016x}"));
    }
    text.push('\n');
    replace_with(path, &text, 0o600)
}

/// Writes a temporary file next to `path`, and renames it into place once it is complete.
fn replace_with(path: &Path, content: &str, mode: u32) -> Result<(), ConfigError> {
    let temporary = path.with_added_extension("new");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(mode).open(&temporary);
    let written = file.and_then(|mut file| {
        file.write_all(content.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&temporary, path)).map_err(|error| {
        // A partly written file is useless.
        let _ = std::fs::remove_file(&temporary);
        at(path)(error)
    })
}

/// Replaces a small file as a whole.
///
/// # Errors
/// [`ConfigError`] if it cannot be written.
pub fn replace_file(path: &Path, content: &str) -> Result<(), ConfigError> {
    replace_with(path, content, 0o666)
}

/// The address to publish for a listener at `bound`: `said` if given, otherwise `bound`.
///
/// # Errors
/// [`ConfigError::Settings`] if `bound` is the unspecified address and `said` is `None`.
pub fn advertised(bound: SocketAddr, said: Option<&str>) -> Result<String, ConfigError> {
    match said {
        Some(address) => {
            let host = address.parse::<HostPort>().map_err(|why| {
                let why = format!("{why} (port 0 stands for the listening port)");
                ConfigError::Settings(format!("cannot advertise `{address}`: {why}"))
            })?;
            Ok(if host.port() == 0 { host.with_port(bound.port()) } else { host }.to_string())
        }
        None if bound.ip().is_unspecified() => Err(ConfigError::Settings(format!(
            "other machines cannot connect to {bound}: pass a reachable address with --advertise"
        ))),
        None => Ok(bound.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn flags(text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.toml");
        fs::write(&path, text).unwrap();
        let known = ["pool-bytes", "threads", "restart", "config", "set"];
        let flags = flags_of_file(&path, &known).map_err(|error| error.to_string())?;
        Ok(flags.into_iter().map(|flag| flag.into_string().unwrap()).collect())
    }

    #[test]
    fn files_become_flags() {
        let text = "pool_bytes = \"64Mi\"\nthreads = 2\nrestart = true\n";
        assert_eq!(flags(text).unwrap(), ["--pool-bytes=64Mi", "--restart", "--threads=2"]);
        assert_eq!(flags("restart = false").unwrap(), Vec::<String>::new());
        let options = "[dlsm]\nlevels = 3\n[dex]\nadmission = \"coin:0.5\"\n";
        assert_eq!(
            flags(options).unwrap(),
            ["--set=dex.admission=coin:0.5", "--set=dlsm.levels=3"]
        );
    }

    #[test]
    fn what_nobody_knows_is_refused_in_one_line() {
        let cases = [
            ("poolbytes = 1", "unknown setting `poolbytes`"),
            ("pool-bytes = 1", "unknown setting `pool-bytes`"),
            ("config = \"x\"", "unknown setting `config`"),
            ("threads = [1]", "`threads` must be a string"),
            ("[threads]\nx = 1", "line 2: unknown design `threads`: expected dex or dlsm"),
            (
                "[dlsm]\nindex = \"full\"\nlevels = 13",
                "line 3: dlsm: `levels` must be a number from 1 to 12, not `13`",
            ),
            ("[dex]\nscan = 1", "line 2: dex: unknown option `scan`: expected one of cache_bytes"),
            ("threads = 1\nthreads = 2", "line 2: duplicate key"),
            ("threads = = 1", "line 1: "),
        ];
        for (text, expected) in cases {
            let error = flags(text).unwrap_err();
            assert!(error.contains(expected) && error.contains("f.toml"), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let missing = flags_of_file(Path::new("/does/not/exist"), &[]).unwrap_err();
        assert!(missing.to_string().contains("/does/not/exist"));
    }

    #[test]
    fn tokens_are_kept_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        make_token(&path).unwrap();
        assert!(make_token(&path).is_err(), "it is there already");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let token = read_token(&path).unwrap();
        assert_eq!(read_token(&path).unwrap(), token);
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(read_token(&path), Err(ConfigError::Exposed { .. })), "{mode:o}");
        }
        fs::write(&path, "short\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read_token(&path).unwrap_err().to_string().contains("a token of 5 bytes"));
    }

    #[test]
    fn addresses_are_advertised_as_they_can_be_used() {
        let bound: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(advertised(bound, None).unwrap(), "127.0.0.1:7");
        assert_eq!(advertised(bound, Some("10.0.0.7:0")).unwrap(), "10.0.0.7:7");
        let everywhere: SocketAddr = "0.0.0.0:7".parse().unwrap();
        assert!(
            advertised(everywhere, None).is_err() && advertised(everywhere, Some("x")).is_err()
        );
        assert_eq!(advertised(everywhere, Some("10.0.0.7:9")).unwrap(), "10.0.0.7:9");
        assert_eq!(advertised(everywhere, Some("db7:0")).unwrap(), "db7:7");
    }
}
