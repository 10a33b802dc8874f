//! Logs of the programs: lines on stderr, through `tracing`.
//!
//! *Thread safety*: any number of threads.

use std::io::IsTerminal;
use std::str::FromStr;
use tracing_subscriber::filter::LevelFilter;

/// The environment variable that sets the log level if no flag does.
pub const VARIABLE: &str = "FARLEAF_LOG";

/// A log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(LevelFilter);

impl Default for LogLevel {
    fn default() -> Self {
        Self(LevelFilter::INFO)
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ["off", "error", "warn", "info", "debug", "trace"]
            .contains(&text)
            .then(|| text.parse().ok().map(Self))
            .flatten()
            .ok_or_else(|| "expected off, error, warn, info, debug or trace".to_owned())
    }
}

impl LogLevel {
    /// The level of the flag if given, otherwise of the environment variable, otherwise the
    /// default.
    ///
    /// # Errors
    /// One line if the variable does not name a level.
    pub fn choose(flag: Option<Self>) -> Result<Self, String> {
        match (flag, std::env::var(VARIABLE)) {
            (Some(level), _) => Ok(level),
            (None, Ok(text)) if !text.is_empty() => {
                text.parse().map_err(|why| format!("the variable {VARIABLE} is `{text}`: {why}"))
            }
            _ => Ok(Self::default()),
        }
    }
}

/// Sends this process's log to stderr. Only the first call has an effect.
pub fn start(level: LogLevel) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level.0)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A full disk must not end a server, and reporting a failed write to stderr would panic.
        .log_internal_errors(false)
        .finish();
    // A subscriber may already be set, for example in tests.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
