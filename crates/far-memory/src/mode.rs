//! The ways to notice faults.
//!
//! *Thread safety*: plain values.

use std::fmt;

/// How accesses to pages outside the buffer are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultMode {
    /// By `userfaultfd`.
    Userfaultfd {
        /// Whether system calls wait for pages too. Otherwise a system call that reads a page
        /// outside the buffer, or writes a page that is not changed, fails with `EFAULT`.
        kernel_faults: bool,
    },
    /// By memory protection and the handler of SIGSEGV. A system call on a page outside the buffer,
    /// or one that writes a page that is not changed, fails with `EFAULT`.
    Signal,
}

/// A way to notice faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultProvider {
    /// `userfaultfd`, as far as it is allowed.
    Userfaultfd,
    /// Memory protection and signals.
    Signal,
}

impl fmt::Display for FaultMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Userfaultfd { kernel_faults: true } => "userfaultfd",
            Self::Userfaultfd { kernel_faults: false } => {
                "userfaultfd in user mode: system calls on pages outside the buffer fail"
            }
            Self::Signal => "signals: system calls on pages outside the buffer fail",
        })
    }
}
