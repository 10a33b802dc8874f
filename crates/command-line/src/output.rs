//! Output to stdout and stderr, and progress bars.
//!
//! Results go to stdout, all other output to stderr. With `--json -`, stdout has only the JSON. No
//! function here panics when the reader has closed the pipe.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The destination of JSON.
#[derive(Debug)]
pub enum JsonTarget {
    /// None: no JSON is written.
    None,
    /// Stdout; the table then goes to stderr.
    Stdout,
    File(File, PathBuf),
}

impl JsonTarget {
    /// Opens the file at once, so that a run of minutes does not fail at its end.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match path {
            None => Self::None,
            Some(path) if path == Path::new("-") => Self::Stdout,
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Self::File(file, path.to_owned())
            }
        })
    }

    /// Writes text for people: to stdout, or to stderr if JSON goes to stdout.
    pub fn say(&self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => {
                note(text);
                Ok(())
            }
            _ => Ok(writeln!(io::stdout().lock(), "{}", printable(text))?),
        }
    }

    pub fn write(&mut self, json: &str) -> anyhow::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                writeln!(stdout, "{json}")?;
                Ok(stdout.flush()?)
            }
            Self::File(file, path) => {
                writeln!(file, "{json}").with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }
}

/// Text for a terminal: its control characters are escaped except line breaks, and so are those
/// that change the direction of text. What a message quotes, such as a file's name or a field, may
/// have them.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_harmful = |character: char| match character {
        '\n' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        character => character.is_control(),
    };
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            _ if !is_harmful(character) => escaped.push(character),
            '\0'..='\x7f' => escaped.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => escaped.extend(character.escape_unicode()),
        }
    }
    Cow::Owned(escaped)
}

/// Writes text to stderr ([`printable`]) and ignores failures.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// Writes an error to stderr as one line, even if the message has several.
pub fn error_line(message: &str) {
    let words: Vec<&str> = message.split_whitespace().collect();
    note(&format!("error: {}", words.join(" ")));
}

/// An error and its causes. Skips a cause that the error's own text already contains.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the error means that the reader has closed the pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref()).any(broken)
}

/// A progress bar on stderr for `total` steps, hidden if stderr is not a terminal. Without a total
/// it is a spinner.
pub fn bar(what: &str, total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{msg:>28} [{bar:32}] {human_pos}/{human_len} {per_sec} {eta}",
        ),
        None => (ProgressBar::new_spinner(), "{msg:>28} {spinner} {human_pos} {per_sec}"),
    };
    let style = ProgressStyle::with_template(template).expect("a valid template");
    bar.with_style(style.progress_chars("=> ")).with_message(what.to_owned())
}

/// A count with separators, such as `1,000,000`.
pub fn grouped(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for plain in ["", "a b\nc", "naïve – 数 🦀", "\\x1b"] {
            assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
        for (text, expected) in [
            ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
            ("a\tb\r\x7f\0", "a\\x09b\\x0d\\x7f\\x00"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("\u{202e}gpj.csv", "\\u{202e}gpj.csv"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
