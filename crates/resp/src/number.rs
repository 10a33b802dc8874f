//! Numbers in values and arguments: integers of 64 bits, and decimal fractions.
//!
//! *Thread safety*: plain functions.

/// Digits behind the point that sums are exact to.
const FRACTION_DIGITS: u32 = 17;
const SCALE: i128 = 10_i128.pow(FRACTION_DIGITS);
/// The longest text of a number with a fraction: any double without an exponent is shorter.
const MAX_TEXT_BYTES: usize = 400;

/// An integer in its only form: no plus sign, no leading zeros, no spaces.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_canonical.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// A cursor: digits only.
pub(crate) fn cursor(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// The sum of two decimal numbers as text, or `None` if it is infinite or no number. Exact up to 17
/// digits behind the point and 20 before it, and otherwise as a sum of doubles.
pub(crate) fn add_decimals(left: &DecimalNumber, right: &DecimalNumber) -> Option<String> {
    if let (Some(left), Some(right)) = (left.scaled, right.scaled)
        && let Some(sum) = left.checked_add(right)
    {
        return Some(scaled_text(sum));
    }
    let sum = left.double + right.double;
    sum.is_finite().then(|| format!("{sum}"))
}

/// A number of a value or an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecimalNumber {
    double: f64,
    /// Multiplied by 10^17, if that is exact.
    scaled: Option<i128>,
}

impl DecimalNumber {
    /// Parses digits with an optional sign, fraction and exponent.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_TEXT_BYTES)?;
        if ["inf", "+inf", "-inf", "infinity"].iter().any(|it| text.eq_ignore_ascii_case(it)) {
            // Any sum with it is refused, as one that is infinite.
            return Some(Self { double: f64::INFINITY, scaled: None });
        }
        let begins = |c: char| c.is_ascii_digit() || "+-.".contains(c);
        let is_inner = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        if !text.starts_with(begins) || !text.chars().all(is_inner) {
            return None;
        }
        let double = text.parse::<f64>().ok().filter(|double| double.is_finite())?;
        Some(Self { double, scaled: scaled(text) })
    }
}

fn scaled(text: &str) -> Option<i128> {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().ok()?),
        None => (text, 0),
    };
    let is_negative = mantissa.starts_with('-');
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let whole = whole.trim_start_matches(['+', '-']);
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let digits_behind = i32::try_from(fraction.len()).ok()?;
    let power = exponent.checked_add(FRACTION_DIGITS as i32)?.checked_sub(digits_behind)?;
    let factor = 10_i128.checked_pow(u32::try_from(power).ok()?)?;
    let scaled = digits.checked_mul(factor)?;
    Some(if is_negative { -scaled } else { scaled })
}

fn scaled_text(sum: i128) -> String {
    let sign = if sum < 0 { "-" } else { "" };
    let (whole, fraction) =
        (sum.unsigned_abs() / SCALE as u128, sum.unsigned_abs() % SCALE as u128);
    let fraction = format!("{fraction:017}");
    match fraction.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        fraction => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("", None),
            ("-", None),
            ("1.0", None),
        ] {
            assert_eq!(integer(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(cursor(b"18446744073709551616"), None);
        assert_eq!(cursor(b"-1"), None);
    }

    #[test]
    fn sums_are_exact() {
        let sum = |left: &str, right: &str| {
            let parse = |text: &str| DecimalNumber::parse(text.as_bytes()).unwrap();
            add_decimals(&parse(left), &parse(right))
        };
        for (left, right, expected) in [
            ("1", "-1.1", "-0.1"),
            ("3.0e3", "200", "3200"),
            ("17179869184", "1.5", "17179869185.5"),
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e-3", "0", "0.005"),
            ("-1.5", "1.5", "0"),
            ("1e30", "1", "1000000000000000000000000000000"),
            ("0e2147483647", "1", "1"),
            ("0.00e-2147483648", "1", "1"),
            ("-0.0", "0e0", "0"),
        ] {
            assert_eq!(sum(left, right).as_deref(), Some(expected), "{left} + {right}");
        }
        assert_eq!(sum("1.7e308", "1.7e308"), None);
        assert_eq!(sum("1", "+inf"), None);
        for large in ["1e100", "-1.7976931348623157e308", "5e-324", "-2.2250738585072014e-308"] {
            let once = sum("0", large).unwrap();
            assert_eq!(once.parse(), large.parse::<f64>());
            let twice = sum(&once, large).and_then(|twice| twice.parse::<f64>().ok());
            let expected = large.parse::<f64>().unwrap() * 2.0;
            assert_eq!(twice, expected.is_finite().then_some(expected), "{large}");
        }
        for bad in ["", "abc", "1 ", " 1", "nan", "1e", "--1", "1e999"] {
            assert_eq!(DecimalNumber::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
