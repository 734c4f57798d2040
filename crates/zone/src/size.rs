//! Amounts of bytes in text form: `4096`, `16KiB`, `2GB`.
//!
//! Whole numbers with an optional unit, in either case, without a space. An amount is shown with
//! the largest binary unit that divides it, so that showing and reading again changes nothing.

use crate::ByteLen;

const UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Reads an amount of bytes.
///
/// # Errors
/// A clause that says what is wrong with `text`; the caller puts the name of the value before it.
pub fn parse(text: &str) -> Result<ByteLen, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("is not a size: expected a whole number and a unit, as in 8GiB".into());
    }
    let factor = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None if unit.starts_with('.') => {
            return Err("is not a whole number: use a smaller unit, as in 1536MiB".into());
        }
        None => return Err(format!("has the unknown unit {unit:?}: {}", known_units())),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .map(ByteLen)
        .ok_or_else(|| "is too large: at most 2^64 − 1 bytes".into())
}

fn known_units() -> String {
    "expected KiB, MiB, GiB, TiB, KB, MB, GB, TB, or none for bytes".into()
}

/// Shows `bytes` so that [`parse`] reads the same amount again.
pub fn show(bytes: ByteLen) -> String {
    let fits = |unit: &&(&str, u64)| {
        bytes.0 >= unit.1 && unit.1.is_power_of_two() && bytes.0.is_multiple_of(unit.1)
    };
    match UNITS.iter().find(fits) {
        Some((name, factor)) if *factor > 1 => format!("{}{name}", bytes.0 / factor),
        _ => bytes.0.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units_of_both_kinds() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4KiB", 4096),
            ("4kib", 4096),
            ("96MB", 96_000_000),
            ("8GiB", 8 << 30),
            ("3TB", 3_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text).unwrap(), ByteLen(bytes), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, part) in [
            ("", "not a size"),
            ("GiB", "not a size"),
            ("-1", "not a size"),
            ("1.5GiB", "whole number"),
            ("8G", "unknown unit \"G\""),
            ("8 GiB", "unknown unit"),
            ("18446744073709551616", "too large"),
            ("16777216TiB", "too large"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn shows_what_it_reads() {
        for bytes in [0, 1, 1000, 1024, 1536, 1 << 20, 3 << 30, 1 << 40, u64::MAX, 96_000_000] {
            assert_eq!(parse(&show(ByteLen(bytes))).unwrap(), ByteLen(bytes));
        }
        assert_eq!(show(ByteLen(96 << 20)), "96MiB");
        assert_eq!(show(ByteLen(1000)), "1000");
    }
}
