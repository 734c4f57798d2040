//! Values of the model's parameters in their text form: `8.35us`, `2.44GB/s`, `67%`,
//! `4KiB:4.99us/8KiB:5.43us`. Decimals are read with integers only, so a parameter is the same
//! number on every machine.

use furrow_zone::{ByteLen, size};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A value that is written in a device spec or a model file. Its printed form can be read back.
pub trait Quantity: Sized {
    /// Reads `text`.
    ///
    /// # Errors
    /// A clause to append to the text: what is wrong and what is expected.
    fn read(text: &str) -> Result<Self, String>;

    /// Shows the value so that [`Quantity::read`] reads the same value again.
    fn show(&self) -> String;
}

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

/// A rate in bytes per second; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

/// An amount of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A number of things; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u32);

/// A share in thousandths, written as a percentage. It may exceed 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(pub u32);

/// A parameter that is on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch(pub bool);

/// Nanoseconds as a function of bytes: straight lines between points, constant below the first
/// point, and the last line continued above the last point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve(Vec<(u64, u64)>);

/// Reads a number with up to nine decimals that is followed by one of `units`. Returns the value in
/// the smallest unit, rounded to a whole number.
fn decimal(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let expected = || {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        format!("expected a number and one of {}", names.join(", "))
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let Some((_, factor)) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(expected());
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 {
        return Err(expected());
    }
    if number.ends_with('.') {
        return Err(expected());
    }
    let too_large = || "is too large".to_owned();
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let scale = 10u128.pow(part.len() as u32);
    let part: u128 = if part.is_empty() { 0 } else { part.parse().map_err(|_| too_large())? };
    let value = (u128::from(whole) * scale + part) * u128::from(*factor);
    // The value is rounded to the nearest whole unit: `2.35us` stays exact, and no parameter needs
    // a fraction of a nanosecond.
    u64::try_from((value + scale / 2) / scale).map_err(|_| too_large())
}

const TIMES: &[(&str, u64)] = &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", SECOND)];

impl Quantity for Time {
    fn read(text: &str) -> Result<Time, String> {
        if text == "0" {
            return Ok(Time(0));
        }
        decimal(text, TIMES).map(Time)
    }

    fn show(&self) -> String {
        let (unit, factor) = match self.0 {
            0 => return "0".to_owned(),
            ns if ns < 1_000 => ("ns", 1),
            ns if ns < 1_000_000 => ("us", 1_000),
            ns if ns < SECOND => ("ms", 1_000_000),
            _ => ("s", SECOND),
        };
        let digits = factor.ilog10() as usize;
        let text = format!("{}.{:0digits$}", self.0 / factor, self.0 % factor);
        let text = if digits == 0 { text.split('.').next().unwrap_or("0") } else { &text };
        let text = match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.'),
            false => text,
        };
        format!("{text}{unit}")
    }
}

const RATES: &[(&str, u64)] = &[
    ("B/s", 1),
    ("KB/s", 1_000),
    ("MB/s", 1_000_000),
    ("GB/s", 1_000_000_000),
    ("KiB/s", 1 << 10),
    ("MiB/s", 1 << 20),
    ("GiB/s", 1 << 30),
];

impl Quantity for Rate {
    fn read(text: &str) -> Result<Rate, String> {
        match decimal(text, RATES)? {
            0 => Err("is 0: a rate must be above 0".to_owned()),
            rate => Ok(Rate(rate)),
        }
    }

    fn show(&self) -> String {
        let fits = |factor: u64| self.0.is_multiple_of(factor) && self.0 >= factor;
        let unit = RATES.iter().rev().find(|(_, factor)| fits(*factor));
        let (name, factor) = unit.copied().unwrap_or(("B/s", 1));
        format!("{}{name}", self.0 / factor)
    }
}

impl Rate {
    /// Nanoseconds that `bytes` take, rounded up.
    pub fn time(self, bytes: u64) -> u64 {
        // 64 bits suffice up to 18 GB; above that the cost of a wider division does not matter.
        match bytes.checked_mul(SECOND) {
            Some(product) => product.div_ceil(self.0),
            None => (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(self.0)) as u64,
        }
    }
}

impl Quantity for Bytes {
    fn read(text: &str) -> Result<Bytes, String> {
        size::parse(text).map(|bytes| Bytes(bytes.0))
    }

    fn show(&self) -> String {
        let decimal = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        let fits = |unit: &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(unit.1);
        match decimal.iter().find(fits) {
            Some((name, factor)) => format!("{}{name}", self.0 / factor),
            None => size::show(ByteLen(self.0)),
        }
    }
}

impl Quantity for Count {
    fn read(text: &str) -> Result<Count, String> {
        match text.parse() {
            Ok(count @ 1..=1_000_000) => Ok(Count(count)),
            _ => Err("is not a whole number from 1 to 1000000".to_owned()),
        }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl Quantity for Share {
    fn read(text: &str) -> Result<Share, String> {
        match decimal(text, &[("%", 10)]) {
            Ok(share @ 0..=1_000_000) => Ok(Share(share as u32)),
            _ => Err("is not a share: expected per cent, as in 67% or 2.5%".to_owned()),
        }
    }

    fn show(&self) -> String {
        match self.0 % 10 {
            0 => format!("{}%", self.0 / 10),
            tenth => format!("{}.{tenth}%", self.0 / 10),
        }
    }
}

impl Share {
    /// Returns this share of `amount`.
    pub fn of(self, amount: u64) -> u64 {
        (u128::from(amount) * u128::from(self.0) / 1_000) as u64
    }
}

impl Quantity for Switch {
    fn read(text: &str) -> Result<Switch, String> {
        match text {
            "on" => Ok(Switch(true)),
            "off" => Ok(Switch(false)),
            _ => Err("is neither on nor off".to_owned()),
        }
    }

    fn show(&self) -> String {
        if self.0 { "on" } else { "off" }.to_owned()
    }
}

impl Quantity for Curve {
    fn read(text: &str) -> Result<Curve, String> {
        let point = |part: &str| {
            let (bytes, time) = part.split_once(':').ok_or_else(|| {
                format!("has {part:?}: expected points of BYTES:TIME, as in 4KiB:5us/8KiB:6us")
            })?;
            Ok((Bytes::read(bytes)?.0, Time::read(time)?.0))
        };
        let points = text.split('/').map(point).collect::<Result<Vec<_>, String>>()?;
        if points.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return Err("has points whose sizes do not rise".to_owned());
        }
        Ok(Curve(points))
    }

    fn show(&self) -> String {
        let point =
            |(bytes, time): &(u64, u64)| format!("{}:{}", Bytes(*bytes).show(), Time(*time).show());
        self.0.iter().map(point).collect::<Vec<_>>().join("/")
    }
}

impl Curve {
    /// The nanoseconds that the curve gives for `bytes` bytes.
    #[inline]
    pub fn at(&self, bytes: u64) -> u64 {
        let points = &self.0;
        let (first, last) = (points[0], points[points.len() - 1]);
        if bytes <= first.0 || points.len() == 1 {
            return if bytes <= first.0 { first.1 } else { last.1 };
        }
        let above = points.iter().position(|point| bytes <= point.0).unwrap_or(points.len() - 1);
        let (low, high) = (points[above - 1], points[above]);
        let run = i128::from(bytes - low.0) * (i128::from(high.1) - i128::from(low.1));
        // A falling line must not go below 0.
        (i128::from(low.1) + run / i128::from(high.0 - low.0)).max(0) as u64
    }
}

/// In data files and JSON a quantity has its text form, so that printed values can be typed in
/// again.
macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                $name::read(text).map_err(|what| format!("`{text}` {what}"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.show())
            }
        }

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

as_text!(Time Bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_shows_the_same() {
        fn again<Q: Quantity + PartialEq + std::fmt::Debug>(text: &str, value: Q) {
            assert_eq!(Q::read(text).as_ref(), Ok(&value), "{text}");
            assert_eq!(Q::read(&value.show()).as_ref(), Ok(&value), "{text} as {}", value.show());
        }
        again("8.35us", Time(8_350));
        again("0", Time(0));
        again("14us", Time(14_000));
        again("1.63ms", Time(1_630_000));
        again("2s", Time(2_000_000_000));
        again("7ns", Time(7));
        again("2.44GB/s", Rate(2_440_000_000));
        again("1186MiB/s", Rate(1186 << 20));
        again("999B/s", Rate(999));
        for (text, bytes) in [
            ("24MiB", 24 << 20),
            ("4KiB", 4096),
            ("10GB", 10_000_000_000),
            ("512", 512),
            ("1025KiB", 1025 << 10),
            ("0", 0),
        ] {
            again(text, Bytes(bytes));
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        for (text, time) in [("250ms", 250_000_000), ("1.5ms", 1_500_000), ("0", 0)] {
            again(text, Time(time));
            assert_eq!(Time(time).to_string(), text);
        }
        again("67%", Share(670));
        again("2.5%", Share(25));
        again("579%", Share(5790));
        again("128", Count(128));
        again("on", Switch(true));
        again("4KiB:4.99us/8KiB:5.43us", Curve(vec![(4096, 4990), (8192, 5430)]));
    }

    #[test]
    fn says_what_is_wrong() {
        assert!(Time::read("8.35").is_err() && Time::read("1.2.3us").is_err());
        for text in ["", "5", "s", "3h"] {
            let error = text.parse::<Time>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("ns"), "{error}");
        }
        assert!("4 KiB".parse::<Bytes>().unwrap_err().contains("`4 KiB`"));
        assert!(Time::read("us").is_err() && Time::read("1.us").is_err());
        assert!(Time::read("99999999999999s").unwrap_err().contains("large"));
        assert!(Rate::read("0MB/s").is_err() && Rate::read("45MB").is_err());
        assert!(Count::read("0").is_err() && Share::read("7").is_err());
        assert!(Curve::read("8KiB:1us/4KiB:2us").unwrap_err().contains("rise"));
        assert!(Curve::read("4KiB").unwrap_err().contains("BYTES:TIME"));
    }

    #[test]
    fn curves_are_level_then_straight_then_go_on() {
        let curve = Curve::read("4KiB:10us/8KiB:20us/16KiB:60us").unwrap();
        let at = |kib: u64| curve.at(kib << 10);
        assert_eq!((at(0), at(4), at(6), at(8)), (10_000, 10_000, 15_000, 20_000));
        assert_eq!((at(12), at(16), at(24)), (40_000, 60_000, 100_000));
        assert_eq!(Curve::read("4KiB:3us").unwrap().at(1 << 30), 3_000);
        let falls = Curve::read("4KiB:3us/8KiB:1us").unwrap();
        assert_eq!((falls.at(6 << 10), falls.at(1 << 20)), (2_000, 0));
    }

    #[test]
    fn a_rate_takes_its_time() {
        assert_eq!(Rate(1 << 30).time(1 << 30), SECOND);
        assert_eq!(Rate(3).time(1), 333_333_334);
        assert_eq!(Rate(1_000_000_000).time(1 << 40), 1 << 40);
    }
}
