//! The shell's history of previous sessions, kept in a file.
//!
//! *Invariants*: a failure of the file does not affect commands. It is reported once, and from then
//! on the history is kept in memory for this session only. A line longer than the command limit is
//! never added.

use super::words::LINE_BYTES;
use farleaf_command_line::output::note;
use rustyline::history::{FileHistory, History as _};
use std::ffi::OsString;
use std::fs::{DirBuilder, metadata};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Number of lines kept.
pub(super) const LINES: usize = 1000;
/// Size above which a file is rejected, because it cannot be a history.
const MAX_BYTES: u64 = (LINES * 2 * LINE_BYTES) as u64;

/// The user's file: `farleaf/history` in `$XDG_STATE_HOME`, or in `.local/state` of the home
/// folder.
pub(super) fn file(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = state.and_then(absolute);
    let state = state.or_else(|| Some(home.and_then(absolute)?.join(".local/state")));
    Some(state?.join("farleaf/history"))
}

/// The place where lines are kept.
#[derive(Debug)]
pub(super) struct HistoryFile {
    path: Option<PathBuf>,
}

fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

impl HistoryFile {
    /// Reads the lines of earlier sessions.
    pub(super) fn open(path: Option<PathBuf>, lines: &mut FileHistory) -> Self {
        let mut kept = Self { path };
        let Some(path) = &kept.path else { return kept };
        let outcome = match metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(path).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
            Ok(found) if !found.is_file() || found.len() > MAX_BYTES => {
                Err("it is not a history file".to_owned())
            }
            Ok(_) => lines.load(path).map_err(|error| error.to_string()),
        };
        if let Err(why) = outcome {
            kept.give_up(&why);
        }
        kept
    }

    fn give_up(&mut self, why: &str) {
        if let Some(path) = self.path.take() {
            note(&format!("cannot keep lines in {}: {why}", path.display()));
        }
    }

    /// Adds a line, before its command runs.
    pub(super) fn add(&mut self, line: &str, lines: &mut FileHistory) {
        if line.len() > LINE_BYTES {
            return;
        }
        let added = lines.add(line);
        let Some(path) = &self.path else { return };
        if let Err(error) = added.and_then(|_| lines.append(path)) {
            self.give_up(&error.to_string());
        }
    }

    /// The path of the file, if the history is kept in one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn remembered(lines: &FileHistory) -> Vec<&str> {
        lines.iter().map(String::as_str).collect()
    }

    #[test]
    fn the_file_is_the_users() {
        let path = |state: Option<&str>, home: Option<&str>| {
            file(state.map(Into::into), home.map(Into::into))
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(path(Some("/s"), Some("/h")), expected("/s/farleaf/history"));
        assert_eq!(path(None, Some("/h")), expected("/h/.local/state/farleaf/history"));
        assert_eq!(path(Some("s"), Some("/h")), expected("/h/.local/state/farleaf/history"));
        assert_eq!((path(None, None), path(None, Some(""))), (None, None));
    }

    #[test]
    fn lines_are_there_in_the_next_session() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/history");
        for (session, line) in ["get 1", "put 1 2", "scan 0"].into_iter().enumerate() {
            let mut lines = FileHistory::new();
            let mut kept = HistoryFile::open(Some(path.clone()), &mut lines);
            assert_eq!(remembered(&lines).len(), session);
            kept.add(line, &mut lines);
            kept.add(&"x".repeat(LINE_BYTES + 1), &mut lines);
            assert_eq!(kept.path(), Some(&*path));
        }
        let mut lines = FileHistory::new();
        HistoryFile::open(Some(path.clone()), &mut lines);
        assert_eq!(remembered(&lines), ["get 1", "put 1 2", "scan 0"]);
        // Only the user may read the history.
        assert_eq!(metadata(&path).unwrap().permissions().mode() & 0o077, 0);
        // The file disappears in the middle of a session: the next line creates a new one.
        let mut kept = HistoryFile::open(Some(path.clone()), &mut lines);
        std::fs::remove_file(&path).unwrap();
        kept.add("get 2", &mut lines);
        assert!(path.exists());
    }

    #[test]
    fn without_a_file_lines_are_still_done_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        for path in [folder.path().to_owned(), plain.join("history"), "/proc/none/history".into()] {
            let mut lines = FileHistory::new();
            let mut kept = HistoryFile::open(Some(path), &mut lines);
            assert_eq!(kept.path(), None);
            kept.add("get 1", &mut lines);
            assert_eq!(remembered(&lines), ["get 1"]);
        }
        // The folder of an existing file disappears.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let mut lines = FileHistory::new();
        let mut kept = HistoryFile::open(Some(path), &mut lines);
        drop(folder);
        kept.add("get 1", &mut lines);
        kept.add("get 2", &mut lines);
        assert_eq!((kept.path(), remembered(&lines)), (None, vec!["get 1", "get 2"]));
    }
}
