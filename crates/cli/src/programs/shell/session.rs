//! The shell's connection to its cluster, which may stop and start again.
//!
//! Each operation has its own endpoint, so that no operation is sent over a connection that broke
//! while the user was idle. After an error, the shell reads the current addresses of the servers
//! from the catalog.
//!
//! *Invariants*: an operation is retried at most once, and only if all of the following hold: the
//! servers have moved, the operation has printed nothing, and it either changes nothing or is known
//! not to have happened.

use crate::programs::client::{
    AbandonSignal, ClusterAccess, CommandOutcome, OpenedConnection, OperationLine, open,
};
use farleaf_command_line::output::is_broken_pipe;
use farleaf_index::IndexError;

/// Maximum number of requests of one operation in flight.
const DEPTH: usize = 256;

/// A connection to a cluster, reopened as needed.
pub(super) struct ShellSession<'a> {
    access: &'a ClusterAccess,
    abandon: &'a AbandonSignal,
    connection: Option<Box<dyn OpenedConnection>>,
}

/// Whether the operation is idempotent, and its error does not have to be reported.
fn is_harmless(line: &OperationLine, error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(IndexError::Indeterminate(_)) => line.is_reading(),
        // A second flush would succeed: a loss is reported once.
        Some(IndexError::ChangesLost { .. }) => false,
        Some(_) => true,
        None => false,
    }
}

impl<'a> ShellSession<'a> {
    /// Connects on first use.
    pub(super) fn new(access: &'a ClusterAccess, abandon: &'a AbandonSignal) -> Self {
        Self { access, abandon, connection: None }
    }

    /// Executes one operation and prints its results. Also returns whether it has printed anything.
    pub(super) fn run(&mut self, line: &OperationLine) -> (anyhow::Result<CommandOutcome>, bool) {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => match open(self.access, DEPTH, None) {
                Ok(connection) => connection,
                Err(error) => return (Err(error), false),
            },
        };
        let (outcome, is_printed) = connection.run(line, self.access.notation(), self.abandon);
        let error = match outcome {
            Err(error) if !is_broken_pipe(&error) && !self.abandon.is_wished() => error,
            outcome => {
                self.connection = Some(connection);
                return (outcome, is_printed);
            }
        };
        // If the catalog is down, the known servers may still be running.
        let fresh = open(self.access, DEPTH, Some(&*connection)).ok();
        let fresh = fresh.filter(|fresh| fresh.servers() != connection.servers());
        let have_moved = fresh.is_some();
        let connection = self.connection.insert(fresh.unwrap_or(connection));
        if have_moved && !is_printed && is_harmless(line, &error) {
            return connection.run(line, self.access.notation(), self.abandon);
        }
        (Err(error), is_printed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::client::{RangeArguments, ScanArguments};
    use farleaf_fabric::{FabricError, ServerId, Uncertainty};

    #[test]
    fn a_change_of_unknown_outcome_is_never_done_again() {
        let (server, why) = (ServerId::new(0), Uncertainty::ConnectionLost);
        let unknown = IndexError::Indeterminate(FabricError::Indeterminate { server, why });
        let unknown = anyhow::Error::from(unknown);
        let known = anyhow::Error::from(IndexError::Contended { retries: 3 });
        let lost = anyhow::Error::from(IndexError::ChangesLost { compute_server: 0 });
        let other = anyhow::Error::msg("stdout is full");
        let (key, value) = ("1".to_owned(), "1".to_owned());
        let range = RangeArguments::default();
        let scan = ScanArguments { range: range.clone(), limit: 1, reverse: false };
        let reading = [
            OperationLine::Get { key: key.clone() },
            OperationLine::Scan(scan),
            OperationLine::Count(range),
            OperationLine::Flush,
        ];
        let changes = [
            OperationLine::Put { key: key.clone(), value: value.clone() },
            OperationLine::Insert { key: key.clone(), value: value.clone() },
            OperationLine::Update { key: key.clone(), value: value.clone() },
            OperationLine::CompareExchange {
                key: key.clone(),
                expected: value.clone(),
                new: value,
            },
            OperationLine::Remove { key },
        ];
        assert!(reading.iter().all(|line| is_harmless(line, &unknown)));
        assert!(!changes.iter().any(|line| is_harmless(line, &unknown)));
        assert!(reading.iter().chain(&changes).all(|line| is_harmless(line, &known)));
        assert!(!reading.iter().chain(&changes).any(|line| is_harmless(line, &other)));
        assert!(!is_harmless(&OperationLine::Flush, &lost), "a second flush would succeed");
    }
}
