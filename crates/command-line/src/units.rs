//! Parsers of numbers as people write them: `20_000_000`, `20M`, `64Mi`.

use farleaf_bench::driver::MeasurementMoment;
use farleaf_bench::strings::KeyForm;
use farleaf_fabric::numbers::{BYTES, THOUSANDS, scaled};
use farleaf_page::MAX_BLOCK_BYTES;
use std::ops::RangeInclusive;

/// Parses a count: digits, optionally with `_` between them and a suffix `k`, `M`, `G` or `T`
/// (thousands, millions, thousand millions, million millions).
pub fn count(text: &str) -> Result<u64, String> {
    let expected = "expected a whole number such as 500000, 500_000, 500k, 20M, 1G or 1T";
    scaled(text, &THOUSANDS).ok_or_else(|| expected.to_owned())
}

/// Parses a count of at least 1.
pub fn positive(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("must be at least 1".to_owned()),
        count => Ok(count),
    }
}

/// A parser of counts from `least` to `most`.
pub fn limited<T: TryFrom<u64>>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let number = count(text)?;
        let inside = Some(number).filter(|number| (least..=most).contains(number));
        let number = inside.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("{text} is not in {least}..={most}"))
    }
}

/// The largest integer up to which every JSON reader is exact.
const EXACT_IN_JSON: u64 = 1 << 53;

/// Parses a seed, which reports contain as a JSON number.
pub fn seed(text: &str) -> Result<u64, String> {
    limited(0, EXACT_IN_JSON)(text)
}

/// Parses a weight: a count of at least 1 that reports contain.
pub fn weight(text: &str) -> Result<u64, String> {
    positive(text).and_then(|_| limited(1, EXACT_IN_JSON)(text))
}

/// Parses bytes: like [`count`], and with `Ki`, `Mi`, `Gi` or `Ti` for powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let expected = "expected a number of bytes such as 4096, 64Ki, 512Mi, 2Gi, 1G or 1Ti";
    scaled(text, &BYTES).ok_or_else(|| expected.to_owned())
}

/// Parses the greatest length of a field of a CSV file.
pub fn field_bytes(text: &str) -> Result<usize, String> {
    let bytes = bytes(text)?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| (1..=1 << 30).contains(bytes));
    bytes.ok_or_else(|| "expected a number of bytes from 1 to 1Gi".to_owned())
}

/// Parses the fill of pages.
pub fn fill(text: &str) -> Result<f64, String> {
    within(text, 0.1, 1.0, "expected a number from 0.1 to 1.0")
}

/// Parses a percentage.
pub fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0, 100.0, "expected a number from 0 to 100")
}

/// Parses a cache size in percent of the loaded data. It may exceed 100, because inner nodes and
/// free space take room besides the records.
pub fn cache_percent(text: &str) -> Result<f64, String> {
    within(text, 0.0, 10_000.0, "expected a number from 0 to 10000")
}

/// Parses a time in seconds, up to a day.
pub fn seconds(text: &str) -> Result<f64, String> {
    within(text, 1e-6, 86_400.0, "expected a number of seconds from 0.000001 to 86400")
}

/// Parses a moment: a fraction of the run such as `50%`, or seconds.
pub fn moment(text: &str) -> Result<MeasurementMoment, String> {
    let wrong = || {
        "expected a part of the run above 0% and below 100%, such as 50%, or a number of seconds from \
         0.000001 to 86400"
            .to_owned()
    };
    match text.strip_suffix('%') {
        Some(percent) => part(percent)
            .map(|percent| MeasurementMoment::Share(percent / 100.0))
            .map_err(|_| wrong()),
        None => seconds(text)
            .map(|seconds| MeasurementMoment::Nanoseconds((seconds * 1e9) as u64))
            .map_err(|_| wrong()),
    }
}

/// Parses a percentage above 0 and below 100.
pub fn part(text: &str) -> Result<f64, String> {
    percent(text)
        .ok()
        .filter(|percent| *percent > 0.0 && *percent < 100.0)
        .ok_or_else(|| "expected a number above 0 and below 100".to_owned())
}

/// Parses a page size.
pub fn page_bytes(text: &str) -> Result<u64, String> {
    match text {
        "1k" | "1Ki" | "1024" => Ok(1024),
        "2k" | "2Ki" | "2048" => Ok(2048),
        "4k" | "4Ki" | "4096" => Ok(4096),
        _ => Err("expected 1k, 2k or 4k".to_owned()),
    }
}

/// Parses the form of keys: `None` for numbers.
pub fn key_form(text: &str) -> Result<Option<KeyForm>, String> {
    match text {
        "u64" => Ok(None),
        text => text.parse().map(Some),
    }
}

/// Parses a length of values, or a range of lengths.
pub fn value_bytes(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse(), most.parse()) {
        (Ok(least), Ok(most)) if least <= most => Ok(least..=most),
        _ => Err("expected a number of bytes, or a range such as 100-400".to_owned()),
    }
}

/// Parses the length of the longest values that leaves store.
pub fn inline_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| *bytes <= MAX_BLOCK_BYTES);
    bytes.ok_or_else(|| format!("expected a number of bytes up to {MAX_BLOCK_BYTES}"))
}

fn within(text: &str, least: f64, most: f64, expected: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| (least..=most).contains(number)).ok_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_bytes() {
        let counts = [("7", 7), ("20_000_000", 20_000_000), ("20M", 20_000_000), ("3k", 3_000)];
        assert!(counts.iter().all(|(text, number)| count(text) == Ok(*number)));
        assert_eq!((bytes("64Mi"), bytes("1G")), (Ok(64 << 20), Ok(1_000_000_000)));
        assert_eq!((bytes("10Ti"), bytes("3T")), (Ok(10 << 40), Ok(3_000_000_000_000)));
        assert!(bytes("16777216Ti").is_err(), "it does not fit 64 bits");
        for wrong in ["", "M", "-1", "1.5M", "1_", "_1", "1 M", "0x10", "99999999999G", "1KiB", "٣"]
        {
            assert!(count(wrong).is_err() && bytes(wrong).is_err(), "{wrong}");
        }
        assert!(count("1Mi").is_err() && positive("0").is_err());
    }

    #[test]
    fn limits_are_kept() {
        let parse = limited::<u16>(1, 2000);
        assert_eq!((parse("1"), parse("2k")), (Ok(1), Ok(2000)));
        assert_eq!(parse("0").unwrap_err(), "0 is not in 1..=2000");
        assert!(parse("2001").is_err() && parse("1M").is_err() && parse("x").is_err());
    }

    #[test]
    fn ranges_are_kept() {
        assert_eq!((fill("0.7"), percent("100"), seconds("2")), (Ok(0.7), Ok(100.0), Ok(2.0)));
        assert!(["0.05", "1.01", "NaN", "x"].iter().all(|text| fill(text).is_err()));
        assert!(["-1", "100.5", "inf"].iter().all(|text| percent(text).is_err()));
        assert!(["0", "-1", "1e9"].iter().all(|text| seconds(text).is_err()));
    }

    #[test]
    fn moments_are_parts_or_seconds() {
        assert_eq!(moment("50%"), Ok(MeasurementMoment::Share(0.5)));
        assert_eq!(moment("2.5"), Ok(MeasurementMoment::Nanoseconds(2_500_000_000)));
        for wrong in ["", "%", "0%", "100%", "-1%", "NaN%", "0", "-3", "x", "5s", "50 %"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_have_bounds() {
        assert_eq!(part("25"), Ok(25.0));
        assert!(["0", "100", "-5", "x"].iter().all(|text| part(text).is_err()));
    }

    #[test]
    fn forms_and_lengths() {
        assert_eq!(key_form("u64"), Ok(None));
        assert_eq!(key_form("file:a b"), Ok(Some(KeyForm::File("a b".into()))));
        assert!(key_form("words").is_err());
        assert_eq!(value_bytes("400"), Ok(400..=400));
        assert_eq!(value_bytes("8-100"), Ok(8..=100));
        assert!(["", "-", "9-8", "8-", "x"].iter().all(|text| value_bytes(text).is_err()));
    }
}
