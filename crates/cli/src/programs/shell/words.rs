//! Parses the shell's commands.

use crate::programs::client;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Maximum length of a line, in bytes.
pub(super) const LINE_BYTES: usize = 4096;

#[derive(Debug, Parser)]
#[command(
    multicall = true,
    max_term_width = 100,
    about = "Keys and values are whole numbers from 0 to 2^64 - 1, or byte strings if the cluster has these: 'user\\x00', in quotes because of the backslash. `help COMMAND` says more."
)]
struct ShellWords {
    #[command(subcommand)]
    command: ShellCommand,
}

/// A parsed command of the shell.
#[derive(Debug, Subcommand)]
pub(super) enum ShellCommand {
    #[command(flatten)]
    Client(client::ClientCommand),
    /// Show the state of the cluster, and whether it serves
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Leave, as Ctrl-D does
    #[command(alias = "exit")]
    Quit,
}

/// The meaning of a line.
#[derive(Debug)]
pub(super) enum ParsedLine {
    /// Nothing: the line is empty or a comment.
    Nothing,
    /// Show this help text.
    Help(String),
    /// Run this command.
    Command(Box<ShellCommand>),
}

/// Parses a line. An error describes in one line what is wrong. `more_help` is appended to the
/// help.
pub(super) fn parse(line: &str, more_help: &str) -> Result<ParsedLine, String> {
    if line.len() > LINE_BYTES {
        return Err(format!("the line is longer than {LINE_BYTES} bytes"));
    }
    if line.trim_start().starts_with('#') {
        return Ok(ParsedLine::Nothing);
    }
    let words = shlex::split(line).ok_or("unclosed quotation mark, or nothing after a `\\`")?;
    if words.is_empty() {
        return Ok(ParsedLine::Nothing);
    }
    let known = ShellWords::command().after_help(more_help.to_owned());
    let read =
        known.try_get_matches_from(words).and_then(|found| ShellWords::from_arg_matches(&found));
    match read {
        Ok(ShellWords { command: ShellCommand::Client(client::ClientCommand::Load(load)) })
            if load.file.as_os_str() == "-" =>
        {
            Err("the shell reads stdin itself: name a file".to_owned())
        }
        Ok(words) => Ok(ParsedLine::Command(Box::new(words.command))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(ParsedLine::Help(error.render().to_string()))
            }
            _ => Err(farleaf_command_line::exit::first_paragraph(&error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::{OperationLine, RangeArguments, ScanArguments};

    fn line(text: &str) -> Option<OperationLine> {
        match parse(text, "") {
            Ok(ParsedLine::Command(command)) => match *command {
                ShellCommand::Client(command) => command.line(),
                _ => None,
            },
            _ => None,
        }
    }

    fn help(text: &str) -> String {
        match parse(text, "the end") {
            Ok(ParsedLine::Help(help)) => help,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn lines_are_commands() {
        ShellWords::command().debug_assert();
        let (key, value) = (|| "5".to_owned(), || "6".to_owned());
        assert_eq!(line("get 5"), Some(OperationLine::Get { key: key() }));
        assert_eq!(
            line("  put  5 \"6\" "),
            Some(OperationLine::Put { key: key(), value: value() })
        );
        assert_eq!(line("insert 5 6"), Some(OperationLine::Insert { key: key(), value: value() }));
        assert_eq!(line("update 5 6"), Some(OperationLine::Update { key: key(), value: value() }));
        assert_eq!(line("remove 5"), Some(OperationLine::Remove { key: key() }));
        assert_eq!(line("flush"), Some(OperationLine::Flush));
        // Quotes preserve backslashes, as in other shells.
        assert_eq!(line("get 'a\\x00'"), Some(OperationLine::Get { key: "a\\x00".to_owned() }));
        let range = |start: Option<&str>, end: Option<&str>, prefix: Option<&str>| {
            let [start, end, prefix] = [start, end, prefix].map(|text| text.map(str::to_owned));
            RangeArguments { start, end, prefix }
        };
        let scan = |start, prefix, limit, reverse| {
            Some(OperationLine::Scan(ScanArguments {
                range: range(start, None, prefix),
                limit,
                reverse,
            }))
        };
        let both = range(Some("7"), Some("9"), Some("1"));
        let counted = OperationLine::Count(both.clone());
        assert_eq!(line("count 7 --end 9 --prefix 1"), Some(counted));
        let scanned = ScanArguments { range: both, limit: 100, reverse: true };
        let words = "scan --prefix 1 7 --reverse --end 9";
        assert_eq!(line(words), Some(OperationLine::Scan(scanned)));
        let exchange =
            OperationLine::CompareExchange { key: key(), expected: value(), new: "7".to_owned() };
        assert_eq!(line("compare-exchange 5 6 7"), Some(exchange));
        assert_eq!(line("scan 7 --limit 3 --reverse"), scan(Some("7"), None, 3, true));
        assert_eq!(line("scan"), scan(None, None, 100, false));
        assert_eq!(line("scan --prefix ''"), scan(None, Some(""), 100, false));
        for (text, expected) in [("status --json", "Status"), ("quit", "Quit"), ("exit", "Quit")] {
            let asked = format!("{:?}", parse(text, "").unwrap());
            assert!(asked.contains(expected), "{asked}");
        }
        for nothing in ["", "  ", "# get 5", "  #"] {
            assert!(matches!(parse(nothing, ""), Ok(ParsedLine::Nothing)), "{nothing}");
        }
        assert!(matches!(parse("load records.csv", ""), Ok(ParsedLine::Command(_))));
    }

    #[test]
    fn mistakes_are_one_line() {
        let long = format!("get {}", "1".repeat(LINE_BYTES));
        let mistakes = [
            "got 5",
            "get",
            "get -1",
            "put 1",
            "get 1 2",
            "compare-exchange 1 2",
            "\"get",
            "load -",
            &long,
        ];
        for text in mistakes {
            let said = parse(text, "").map(drop).unwrap_err();
            assert!(!said.is_empty() && !said.starts_with("error"), "{text}: {said}");
        }
    }

    #[test]
    fn help_names_every_command() {
        let all = help("help");
        let commands = ["get", "put", "insert", "update", "remove", "scan", "load", "bench"];
        let commands = commands.into_iter().chain(["compare-exchange", "count"]);
        for command in commands.chain(["export", "flush", "status", "quit"]) {
            assert!(all.lines().any(|line| line.trim_start().starts_with(command)), "{all}");
        }
        assert!(all.contains("the end"), "{all}");
        let scan = help("help scan");
        assert!(scan.contains("--limit") && scan.contains("--reverse"), "{scan}");
        assert_eq!(scan, help("scan --help"));
    }
}
