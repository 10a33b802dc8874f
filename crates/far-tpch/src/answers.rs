//! TPC-H's own answers at scale factor 1.

use crate::engine::Answer;
use anyhow::{Result, bail};
use tpchgen::q_and_a::answers_sf1;

/// How far a number may be from the one that was printed with two digits.
const TOLERANCE: f64 = 0.01;

/// Compares an answer with TPC-H's.
///
/// # Errors
/// The first cell that differs.
pub(crate) fn check(number: u8, answer: &Answer) -> Result<()> {
    let Some(expected) = answers_sf1::answer(i32::from(number)) else {
        bail!("TPC-H has no answer to query {number}");
    };
    let lines: Vec<_> = expected.lines().filter(|line| !line.is_empty()).skip(1).collect();
    if lines.len() != answer.len() {
        bail!("query {number} has {} rows instead of {}", answer.len(), lines.len());
    }
    for (row, (line, cells)) in lines.iter().zip(answer).enumerate() {
        let expected: Vec<_> = line.split('|').map(str::trim).collect();
        if expected.len() != cells.len() {
            bail!("query {number} has {} columns, not {}", cells.len(), expected.len());
        }
        for (found, expected) in cells.iter().zip(expected) {
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
