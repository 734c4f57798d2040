//! Amounts as the data files write them: bytes (`128KiB`, `10GB`) and times (`250ms`, `20s`).
//!
//! Both are read from and shown as text, so that a scenario printed is a scenario that can be
//! typed in again.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub u64);

const TIMES: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let bytes = furrow_zone::size::parse(text).map_err(|what| format!("`{text}` {what}"))?;
        Ok(Bytes(bytes.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimal = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        let fits = |unit: &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(unit.1);
        match decimal.iter().find(fits) {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => f.write_str(&furrow_zone::size::show(furrow_zone::ByteLen(self.0))),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = TIMES.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let nanoseconds =
            number.parse::<u64>().ok().zip(factor).and_then(|(n, f)| n.checked_mul(f));
        nanoseconds.map(Span).ok_or_else(|| {
            format!("`{text}` is no time: expected a whole number and ns, us, ms or s, as in 250ms")
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |unit: &&(&str, u64)| self.0.is_multiple_of(unit.1);
        match TIMES.iter().rev().find(fits) {
            Some((name, factor)) if self.0 > 0 => write!(f, "{}{name}", self.0 / factor),
            _ => f.write_str("0s"),
        }
    }
}

macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

as_text!(Bytes Span);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_as_they_are_read() {
        for text in ["4KiB", "2MiB", "10GB", "512", "96MiB", "1025KiB", "0"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        for text in ["250ms", "20s", "1500us", "7ns", "0s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["", "5", "s", "1.5s", "9999999999999s", "3h"] {
            assert!(text.parse::<Span>().unwrap_err().contains("250ms"), "{text}");
        }
        assert!("4 KiB".parse::<Bytes>().unwrap_err().contains("`4 KiB`"));
    }
}
