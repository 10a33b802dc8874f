//! TPC-H's own answers at scale factor 1.

use crate::engine::Answer;
use anyhow::{Result, bail};
use tpchgen::q_and_a::answers_sf1;

/// How far a number may be from the one that was printed with two digits.
const TOLERANCE: f64 = 0.01;
/// The same for query 17, a sum that is divided by 7: engines divide decimals with other digits, so
/// TPC-H lets ratios differ by 1%. This is less.
const TOLERANCE_17: f64 = 0.05;

/// A column whose last digits the crate has cut off: query, column, digits.
const CUT_OFF: (u8, usize, usize) = (11, 0, 2);

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
    let tolerance = if number == 17 { TOLERANCE_17 } else { TOLERANCE };
    for (row, (line, cells)) in lines.iter().zip(answer).enumerate() {
        let expected: Vec<_> = line.split('|').map(str::trim).collect();
        if expected.len() != cells.len() {
            bail!("query {number} has {} columns, not {}", cells.len(), expected.len());
        }
        for (column, (found, expected)) in cells.iter().zip(expected).enumerate() {
            let is_cut_off = (number, column) == (CUT_OFF.0, CUT_OFF.1);
            let digits = found.len().saturating_sub(if is_cut_off { CUT_OFF.2 } else { 0 });
            let found = &found[..digits];
            let is_equal = match (found.trim().parse::<f64>(), expected.parse::<f64>()) {
                (Ok(found), Ok(expected)) => (found - expected).abs() <= tolerance,
                _ => found.trim() == expected,
            };
            if !is_equal {
                bail!("query {number}, row {row}: {found:?} instead of {expected:?}");
            }
        }
    }
    Ok(())
}
