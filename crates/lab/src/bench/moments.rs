//! Parsers of intervals and planned changes.

use farleaf_bench::driver::{PlannedChange, TopologyChange};
use farleaf_command_line::units::{self, moment};

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
        None => Ok(PlannedChange { at, change: TopologyChange::Move { from, to, part } }),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_bench::driver::MeasurementMoment;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("0.5"), Ok(0.5));
        assert!(["0", "-1", "1e9", "NaN", "ms"].iter().all(|text| interval(text).is_err()));
    }

    #[test]
    fn moves_are_read_and_nonsense_is_not() {
        let planned =
            |at, part| PlannedChange { at, change: TopologyChange::Move { from: 0, to: 3, part } };
        assert_eq!(planned_move("0:3:50@40%"), Ok(planned(MeasurementMoment::Share(0.4), 0.5)));
        assert_eq!(
            planned_move("0:3@1.5"),
            Ok(planned(MeasurementMoment::Nanoseconds(1_500_000_000), 1.0))
        );
        for nonsense in
            ["", "0:1", "0@1", "0:1:0@1", "0:1:101@1", "0:1:5:6@1", "a:1@1", "0:-1@1", "0:1@x", "@"]
        {
            assert!(planned_move(nonsense).is_err(), "{nonsense}");
        }
    }
}
