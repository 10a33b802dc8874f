//! A program as scripts and people use it, for the tests of `farleaf` and `farleaf-lab`: exit
//! codes, one line per error, and files that a test reads and removes.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The path of a program.
pub(crate) struct Program(pub(crate) &'static str);

impl Program {
    /// Runs it to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(self.0).args(arguments).output().unwrap()
    }

    /// The single line of an error with this exit code.
    pub(crate) fn error(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}: nothing on stdout");
        let error = stderr.strip_suffix('\n').unwrap();
        assert!(error.starts_with("error: ") && !error.contains('\n'), "{arguments:?}: {stderr}");
        error.to_owned()
    }
}

/// What a program has written.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file of a test, removed at its end.
pub(crate) struct TestFile(PathBuf);

impl TestFile {
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("farleaf-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        // No other test depends on the removal.
        let _ = std::fs::remove_file(&self.0);
    }
}
