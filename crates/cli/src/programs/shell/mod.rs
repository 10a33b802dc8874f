//! `farleaf shell`: reads and changes a cluster's index from a prompt or a script.

mod history;
mod session;
mod words;

use super::client::{AbandonSignal, ClientCommand, ClusterAccess, CommandOutcome};
use super::status;
use super::terminal::TerminalModes;
use anyhow::Context;
use clap::Args;
use farleaf_command_line::output::{causes, error_line, is_broken_pipe, note};
use farleaf_fabric::listener::start_thread;
use history::HistoryFile;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use session::ShellSession;
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use words::{LINE_BYTES, ParsedLine, ShellCommand, parse};

/// Options of `farleaf shell`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf shell --dir /tmp/farleaf\n  farleaf shell --dir /tmp/farleaf < script\n\nIt has \
    the commands of `farleaf client`, `status` and `quit`; `help` lists them. Ctrl-C abandons the line, or a long command; \
    Ctrl-D ends. Lines are kept in $XDG_STATE_HOME/farleaf/history, or ~/.local/state/farleaf/history.\n\nIf stdin is no \
    terminal, each of its lines is a command; errors name the line, and the lines after a failed one still \
    run. # begins a comment.\n\nExit codes: 0 success, 1 a line of a script failed, 2 invalid \
    command line or file."
)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    access: ClusterAccess,
}

/// What the shell does after a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShellStep {
    Line,
    End,
}

struct ClusterShell<'a> {
    arguments: &'a ShellArguments,
    abandon: &'a AbandonSignal,
    session: ShellSession<'a>,
    /// Text at the end of the help.
    more_help: String,
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}

impl ClusterShell<'_> {
    /// Executes a line and prints its results, or `ok` if there are none. Returns the command's
    /// failure as the error.
    fn line(&mut self, text: &str) -> anyhow::Result<ShellStep> {
        let command = match parse(text, &self.more_help).map_err(anyhow::Error::msg)? {
            ParsedLine::Nothing => return Ok(ShellStep::Line),
            ParsedLine::Help(help) => {
                say(&help)?;
                return Ok(ShellStep::Line);
            }
            ParsedLine::Command(command) => command,
        };
        self.abandon.forget();
        let access = &self.arguments.access;
        match *command {
            ShellCommand::Quit => return Ok(ShellStep::End),
            ShellCommand::Status { json } => {
                anyhow::ensure!(status::show(&access.place, json)?, "the cluster does not serve");
            }
            ShellCommand::Client(command) => self.client(&command, access)?,
        }
        Ok(ShellStep::Line)
    }

    fn client(&mut self, command: &ClientCommand, access: &ClusterAccess) -> anyhow::Result<()> {
        let (outcome, is_printed) = match command.line() {
            Some(line) => self.session.run(&line),
            None => (command.run(access, self.abandon), true),
        };
        match outcome? {
            CommandOutcome::Done if is_printed => Ok(()),
            CommandOutcome::Done if matches!(command, ClientCommand::Scan(_)) => say("no records"),
            CommandOutcome::Done => say("ok"),
            CommandOutcome::No(why) => Err(anyhow::Error::msg(why)),
        }
    }
}

/// Runs the shell; returns whether all lines of a script succeeded.
pub(crate) fn run(arguments: &ShellArguments) -> anyhow::Result<bool> {
    // A cluster that does not serve now may serve later, but a location without a cluster is an
    // error.
    let place = &arguments.access.place;
    match place.find().and_then(|_| place.keys().map(drop)) {
        Err(error) if crate::is_callers(&error) => return Err(error),
        _ => {}
    }
    let is_interactive = io::stdin().is_terminal();
    let abandon = match is_interactive {
        true => AbandonSignal::on_interrupt().context("cannot catch Ctrl-C")?,
        false => AbandonSignal::default(),
    };
    let session = ShellSession::new(&arguments.access, &abandon);
    let shell = ClusterShell { arguments, abandon: &abandon, session, more_help: String::new() };
    if is_interactive { prompt(shell).map(|()| true) } else { script(shell) }
}

/// On a signal, restores the terminal and ends the program. Otherwise the terminal would stay in
/// the modes used for line editing.
fn restore_when_ended() -> anyhow::Result<()> {
    let Some(modes) = TerminalModes::now() else { return Ok(()) };
    let mut signals = Signals::new([SIGTERM, SIGHUP])?;
    let work = move || {
        if let Some(signal) = signals.forever().next() {
            modes.restore();
            // Turn off bracketed paste; the rest of the line is lost.
            let _ = io::stderr().write_all(b"\x1b[?2004l\n");
            std::process::exit(128 + signal);
        }
    };
    start_thread("signals".into(), work)?;
    Ok(())
}

fn prompt(mut shell: ClusterShell<'_>) -> anyhow::Result<()> {
    restore_when_ended().context("cannot catch signals")?;
    let config = Config::builder()
        .max_history_size(history::LINES)?
        .history_ignore_dups(true)?
        .history_ignore_space(true)
        .build();
    let mut editor: Editor<(), FileHistory> = Editor::with_config(config)?;
    let variable = |name| std::env::var_os(name);
    let path = history::file(variable("XDG_STATE_HOME"), variable("HOME"));
    let mut kept = HistoryFile::open(path, editor.history_mut());
    shell.more_help = match kept.path() {
        Some(path) => format!("Lines are kept in {}.", path.display()),
        None => "Lines are kept for this session only.".to_owned(),
    };
    note("`help` lists the commands; Ctrl-D ends.");
    loop {
        let text = match editor.readline("farleaf> ") {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            // The window size changed, or the input is not UTF-8.
            Err(ReadlineError::Signal(_)) => continue,
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                error_line(NOT_UTF_8);
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("cannot read stdin"),
        };
        if !text.trim().is_empty() {
            kept.add(&text, editor.history_mut());
        }
        match shell.line(&text) {
            Ok(ShellStep::Line) => {}
            Ok(ShellStep::End) => return Ok(()),
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => error_line(&causes(&error)),
        }
    }
}

/// Why a line of a script is no command.
const NOT_UTF_8: &str = "the line is not UTF-8; write other bytes as \\xNN, in quotes";

/// The next line of a script, without its line ending, or why it is no line; `None` at the end of
/// the script. Of a line that is too long only the length counts.
fn read_line(lines: &mut impl BufRead) -> io::Result<Option<Result<String, &'static str>>> {
    let mut line = Vec::new();
    let most = LINE_BYTES as u64 + 1;
    if lines.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let mut is_ended = line.ends_with(b"\n") || (line.len() as u64) < most;
    while !is_ended {
        let more = lines.fill_buf()?;
        let end = more.iter().position(|byte| *byte == b'\n');
        is_ended = end.is_some() || more.is_empty();
        let used = end.map_or(more.len(), |end| end + 1);
        lines.consume(used);
    }
    while line.pop_if(|last| matches!(last, b'\n' | b'\r')).is_some() {}
    if line.len() > LINE_BYTES {
        // It may end within a character, and is refused for its length.
        return Ok(Some(Ok("x".repeat(LINE_BYTES + 1))));
    }
    Ok(Some(String::from_utf8(line).map_err(|_| NOT_UTF_8)))
}

fn script(mut shell: ClusterShell<'_>) -> anyhow::Result<bool> {
    let mut all_done = true;
    for number in 1_u64.. {
        let read = read_line(&mut io::stdin().lock()).context("cannot read stdin")?;
        let Some(text) = read else { break };
        match text.map_err(anyhow::Error::msg).and_then(|text| shell.line(&text)) {
            Ok(ShellStep::Line) => {}
            Ok(ShellStep::End) => break,
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => {
                error_line(&format!("line {number}: {}", causes(&error)));
                all_done = false;
            }
        }
    }
    Ok(all_done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_one_line() {
        let long = "x".repeat(3 * LINE_BYTES);
        let text = format!("a\r\n{long}\n\nb");
        let mut lines = io::BufReader::with_capacity(100, text.as_bytes());
        let mut next = || read_line(&mut lines).unwrap().map(Result::unwrap);
        assert_eq!(next().as_deref(), Some("a"));
        assert_eq!(next().map(|line| line.len()), Some(LINE_BYTES + 1));
        assert_eq!((next().as_deref(), next().as_deref()), (Some(""), Some("b")));
        assert_eq!(next(), None);
    }

    /// Bytes that are not UTF-8 were stored as U+FFFD, and the line said `ok`.
    #[test]
    fn a_line_that_is_not_utf_8_is_refused() {
        let mut lines = &b"put a b\nput k \xff\xfe\r\nget a\n"[..];
        let mut next = || read_line(&mut lines).unwrap().unwrap();
        assert_eq!(next().as_deref(), Ok("put a b"));
        assert_eq!(next(), Err(NOT_UTF_8));
        assert_eq!(next().as_deref(), Ok("get a"));
        let long = "ß".repeat(LINE_BYTES);
        assert_eq!(
            read_line(&mut long.as_bytes()).unwrap().unwrap().unwrap().len(),
            LINE_BYTES + 1
        );
    }
}
