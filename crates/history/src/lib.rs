//! The operations of the clients of an index as a [`History`], and the [`checker`] that decides
//! whether a correct index could have given these answers. The simulator and `farleaf torture`
//! record their runs in this form.
//!
//! Keys and values are numbers. Layouts of other keys are checked by the names of their keys
//! ([`farleaf_index::ByName`]).

#![forbid(unsafe_code)]

pub mod checker;
mod history;

pub use history::{
    ClientAction, ClientOperation, History, HistoryMoment, HistoryRecorder, InvokedOperation,
    OperationOutcome,
};
