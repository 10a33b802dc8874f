//! Output to stdout and stderr, and progress bars.
//!
//! Results go to stdout, all other output to stderr. With `--json -`, stdout has only the JSON. No
//! function here panics when the reader has closed the pipe.

use anyhow::Context;
use farleaf_cluster::clock::Clock;
use farleaf_cluster::stop::Stop;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// The destination of JSON.
#[derive(Debug)]
pub(crate) enum JsonTarget {
    /// None: no JSON is written.
    None,
    /// Stdout; the table then goes to stderr.
    Stdout,
    File(File, PathBuf),
}

impl JsonTarget {
    /// Opens the file at once, so that a run of minutes does not fail at its end.
    pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
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
    pub(crate) fn say(&self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => {
                note(text);
                Ok(())
            }
            _ => Ok(writeln!(io::stdout().lock(), "{text}")?),
        }
    }

    pub(crate) fn write(&mut self, json: &str) -> anyhow::Result<()> {
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

/// Writes text to stderr and ignores failures.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error to stderr as one line, even if the message has several.
pub(crate) fn error_line(message: &str) {
    let words: Vec<&str> = message.split_whitespace().collect();
    note(&format!("error: {}", words.join(" ")));
}

/// An error and its causes. Skips a cause that the error's own text already contains.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the error means that the reader has closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref()).any(broken)
}

/// A progress bar on stderr for `total` steps, hidden if stderr is not a terminal. Without a total
/// it is a spinner.
pub(crate) fn bar(what: &str, total: Option<u64>) -> ProgressBar {
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

/// Interval between the lines of a [`Heartbeat`].
const BEAT: Duration = Duration::from_secs(1);

/// Says once a second on stderr what a long command is doing, if stderr is no terminal: its bars
/// are hidden then.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    bar: Arc<Mutex<ProgressBar>>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Begins with work without steps, which `what` names.
    pub(crate) fn begin(what: &str) -> Self {
        let bar = bar(what, None);
        let is_hidden = bar.is_hidden();
        let (bar, stop, clock) = (Arc::new(Mutex::new(bar)), Stop::default(), Clock::start());
        let (shared, ended) = (Arc::clone(&bar), stop.clone());
        let beat = move || {
            while !ended.wait(BEAT) {
                note(&line(clock.elapsed().as_secs(), &lock(&shared)));
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        // Without the thread, the command is silent.
        let thread = is_hidden.then(|| thread.spawn(beat).ok()).flatten();
        Self { bar, stop, thread }
    }

    /// A bar for the next part of the work ([`bar`]).
    pub(crate) fn bar(&self, what: &str, total: Option<u64>) -> ProgressBar {
        let bar = bar(what, total);
        *lock(&self.bar) = bar.clone();
        bar
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The line of a heartbeat.
fn line(seconds: u64, bar: &ProgressBar) -> String {
    let what = bar.message();
    match bar.length() {
        Some(all) => {
            format!("{seconds} s: {what}, {} of {}", grouped(bar.position()), grouped(all))
        }
        None => format!("{seconds} s: {what}"),
    }
}

/// A count with separators, such as `1,000,000`.
pub(crate) fn grouped(count: u64) -> String {
    indicatif::HumanCount(count).to_string()
}
