//! Parsers of moments, intervals and planned changes.

use crate::units;
use farleaf_bench::driver::{Change, Moment, PlannedChange};

/// Parses a moment: a fraction of the run such as `50%`, or seconds.
pub(crate) fn moment(text: &str) -> Result<Moment, String> {
    let wrong = || {
        "expected a part of the run above 0% and below 100%, such as 50%, or a number of seconds from \
         0.000001 to 86400"
            .to_owned()
    };
    match text.strip_suffix('%') {
        Some(percent) => {
            part(percent).map(|percent| Moment::Share(percent / 100.0)).map_err(|_| wrong())
        }
        None => units::seconds(text)
            .map(|seconds| Moment::Nanoseconds((seconds * 1e9) as u64))
            .map_err(|_| wrong()),
    }
}

/// Parses a percentage above 0 and below 100.
pub(crate) fn part(text: &str) -> Result<f64, String> {
    units::percent(text)
        .ok()
        .filter(|percent| *percent > 0.0 && *percent < 100.0)
        .ok_or_else(|| "expected a number above 0 and below 100".to_owned())
}

/// Parses a time in milliseconds, from a nanosecond to an hour.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|ms| (1e-6..=3.6e6).contains(ms))
        .ok_or_else(|| "expected a number of milliseconds from 0.000001 to 3600000".to_owned())
}

/// Parses a move of keys, `FROM:TO[:PERCENT]@MOMENT`.
pub(super) fn planned_move(text: &str) -> Result<PlannedChange, String> {
    let wrong = || {
        "expected FROM:TO[:PERCENT]@MOMENT, such as 0:1:50@40% or 2:3@1.5: two numbers of compute servers, how \
         much of the first one's range moves, and when"
            .to_owned()
    };
    let (what, at) = text.split_once('@').ok_or_else(wrong)?;
    let at = moment(at)?;
    let mut parts = what.split(':');
    let mut server = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(wrong);
    let (from, to): (u16, u16) = (server()?, server()?);
    let part = match parts.next() {
        None => 1.0,
        Some(percent) => units::percent(percent)
            .ok()
            .filter(|percent| *percent > 0.0 && *percent <= 100.0)
            .ok_or_else(wrong)
            .map(|percent| percent / 100.0)?,
    };
    match parts.next() {
        None => Ok(PlannedChange { at, change: Change::Move { from, to, part } }),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_parts_or_seconds() {
        assert_eq!(moment("50%"), Ok(Moment::Share(0.5)));
        assert_eq!(moment("2.5"), Ok(Moment::Nanoseconds(2_500_000_000)));
        for wrong in ["", "%", "0%", "100%", "-1%", "NaN%", "0", "-3", "x", "5s", "50 %"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn intervals_and_distances_have_bounds() {
        assert_eq!((interval("0.5"), part("25")), (Ok(0.5), Ok(25.0)));
        assert!(["0", "-1", "1e9", "NaN", "ms"].iter().all(|text| interval(text).is_err()));
        assert!(["0", "100", "-5", "x"].iter().all(|text| part(text).is_err()));
    }

    #[test]
    fn moves_are_read_and_nonsense_is_not() {
        let planned =
            |at, part| PlannedChange { at, change: Change::Move { from: 0, to: 3, part } };
        assert_eq!(planned_move("0:3:50@40%"), Ok(planned(Moment::Share(0.4), 0.5)));
        assert_eq!(planned_move("0:3@1.5"), Ok(planned(Moment::Nanoseconds(1_500_000_000), 1.0)));
        for nonsense in
            ["", "0:1", "0@1", "0:1:0@1", "0:1:101@1", "0:1:5:6@1", "a:1@1", "0:-1@1", "0:1@x", "@"]
        {
            assert!(planned_move(nonsense).is_err(), "{nonsense}");
        }
    }
}
