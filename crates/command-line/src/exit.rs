//! How a command ends: 0 success, 1 failure, 2 invalid command line or input file. An error is one
//! line on stderr.
//!
//! *Thread safety*: plain functions.

use crate::output;
use clap::error::ErrorKind;
use farleaf_bench::InputError;
use farleaf_bench::report::Report;
use farleaf_bench::sizing::PoolSizeError;
use std::process::ExitCode;

/// The command line is invalid: exit code 2.
#[derive(Debug)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Fails with this message and exit code 2.
///
/// # Errors
/// Always: a [`UsageError`].
pub fn usage<T>(message: impl Into<String>) -> anyhow::Result<T> {
    Err(UsageError(message.into()).into())
}

/// Whether the user's input caused the error: the command line, or an input file.
pub fn is_callers(error: &anyhow::Error) -> bool {
    error.is::<UsageError>()
        || error.chain().any(|cause| cause.is::<InputError>() || cause.is::<PoolSizeError>())
}

/// Reports how a command ended; `Ok(false)` is a failure that it has described itself. Errors of
/// which `is_callers` is true are the user's ([`is_callers`] and those of the program).
pub fn end(
    outcome: anyhow::Result<bool>,
    is_callers: impl FnOnce(&anyhow::Error) -> bool,
) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader closed the output, for example a pager.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error_line(&output::causes(&error));
            ExitCode::from(if is_callers(&error) { 2 } else { 1 })
        }
    }
}

/// Prints help and version to stdout unchanged; prints an error as one line. `missing` says what to
/// do if there is no command.
pub fn explain(error: &clap::Error, missing: &str) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has closed the pipe is not an error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            output::error_line(missing);
        }
        _ => output::error_line(&first_paragraph(error)),
    }
    ExitCode::from(2)
}

/// The description of a command-line error, without clap's hints.
pub fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\nUsage:", "\nFor more information"].map(|mark| text.find(mark));
    let end = end.into_iter().flatten().min().unwrap_or(text.len());
    text[..end].to_owned()
}

/// Fails if operations of the run have failed.
///
/// # Errors
/// How many, and why the first one did.
pub fn check_errors(report: &Report) -> anyhow::Result<()> {
    let Some(first) = &report.first_error else { return Ok(()) };
    let Report { index, workload, .. } = report;
    let (errors, operations) = (output::grouped(report.errors), output::grouped(report.operations));
    anyhow::bail!(
        "{index} on {workload}: {errors} of {operations} operations failed, the first one: {first}"
    )
}
