//! TPC-H's own answers at scale factor 1, as the crate `tpchgen` has them, with two exceptions: its
//! answer to query 17 is not TPC-H's, and it has lost the last two digits of query 11's keys.

use crate::engine::QueryAnswer;
use anyhow::{Result, bail};
use tpchgen::q_and_a::answers_sf1;

/// Maximum difference from a number that was printed with two digits, some rounded and some cut
/// off. Whole numbers must be equal.
const TOLERANCE: f64 = 0.01;

/// The answer to query 17 in TPC-H's specification (2.4.17). The crate has 348406.02.
const ANSWER_17: &str = "348406.05";

/// A column whose last digits the crate has cut off: query, column, digits. They are not compared.
const CUT_OFF: (u8, usize, usize) = (11, 0, 2);

/// Compares an answer with TPC-H's.
///
/// # Errors
/// The first cell that differs.
pub(crate) fn check(number: u8, answer: &QueryAnswer) -> Result<()> {
    let Some(expected) = answers_sf1::answer(i32::from(number)) else {
        bail!("TPC-H has no answer to query {number}");
    };
    let lines: Vec<_> = expected.lines().filter(|line| !line.is_empty()).skip(1).collect();
    if lines.len() != answer.len() {
        bail!("query {number} has {} rows instead of {}", answer.len(), lines.len());
    }
    for (row, (line, cells)) in lines.iter().zip(answer).enumerate() {
        let line = if number == 17 { ANSWER_17 } else { *line };
        let expected: Vec<_> = line.split('|').map(str::trim).collect();
        if expected.len() != cells.len() {
            bail!("query {number} has {} columns, not {}", cells.len(), expected.len());
        }
        for (column, (found, expected)) in cells.iter().zip(expected).enumerate() {
            let is_cut_off = (number, column) == (CUT_OFF.0, CUT_OFF.1);
            let digits = found.len().saturating_sub(if is_cut_off { CUT_OFF.2 } else { 0 });
            let found = &found[..digits];
            let is_equal = match (found.trim().parse::<f64>(), expected.parse::<f64>()) {
                (Ok(found), Ok(expected)) => (found - expected).abs() <= TOLERANCE,
                _ => found.trim() == expected,
            };
            if !is_equal {
                bail!("query {number}, row {row}: {found:?} instead of {expected:?}");
            }
        }
    }
    Ok(())
}
