//! Structures of the medium as names and values, from the field tables that the format declares: a
//! field added to a structure is shown without a change here.

use crate::format::TimeStamp;
use furrow_log::layout::Layout;
use furrow_log::record::Uuid;
use furrow_rt::buf::is_zero;
use std::fmt::Write as _;

/// A value to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A count, an address, an index.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Text, or bytes in hexadecimal.
    Text(String),
    /// Several values of one kind.
    List(Vec<Value>),
    /// Named values, in the order of the medium.
    Fields(Fields),
}

/// Named values.
pub type Fields = Vec<(&'static str, Value)>;

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Number(number.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

/// The fields of the structure `layout` at the front of `bytes`, as far as `bytes` reaches.
/// Reserved bytes are shown only if they are not zero.
pub(super) fn fields(layout: &Layout, bytes: &[u8]) -> Fields {
    let mut all = Fields::new();
    for field in layout.fields {
        let Some(bytes) = bytes.get(field.offset..field.offset + field.size) else { break };
        if field.name.starts_with("reserved") && is_zero(bytes) {
            continue;
        }
        all.push((field.name, value(field.name, bytes)));
    }
    all
}

fn value(name: &str, bytes: &[u8]) -> Value {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
    match (name, bytes.len()) {
        ("label", _) => {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Value::Text(String::from_utf8_lossy(&bytes[..end]).into_owned())
        }
        ("device" | "object", 16) => {
            let mut uuid = [0; 16];
            uuid.copy_from_slice(bytes);
            Value::Text(Uuid(uuid).to_string())
        }
        ("magic", 4) => Value::Text(bytes.escape_ascii().to_string()),
        ("crc" | "kind", 2 | 4) => Value::Text(hex(number(bytes), bytes.len())),
        ("mode", 2) => Value::Text(format!("{:04o}", number(bytes))),
        ("hash_seed", 8) => Value::Text(hex(number(bytes), 8)),
        ("created" | "written" | "seconds", 8) => Value::Signed(number(bytes) as i64),
        (_, TimeStamp::SIZE) if name.ends_with("time") => {
            Value::Fields(fields(&TimeStamp::LAYOUT, bytes))
        }
        (_, 1 | 2 | 4 | 8) => Value::Number(number(bytes)),
        _ => Value::Text(bytes.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })),
    }
}

fn hex(number: u64, size: usize) -> String {
    format!("{number:0width$x}", width = 2 * size)
}

/// The numbers of the set bits of `map`, as runs: `0-3 7`.
pub(super) fn runs(map: &[u8]) -> String {
    let set = |bit: usize| map[bit / 8] >> (bit % 8) & 1 == 1;
    let (mut text, mut bit) = (String::new(), 0);
    while bit < map.len() * 8 {
        if !set(bit) {
            bit += 1;
            continue;
        }
        let first = bit;
        while bit < map.len() * 8 && set(bit) {
            bit += 1;
        }
        let space = if text.is_empty() { "" } else { " " };
        let _ = match bit - first {
            1 => write!(text, "{space}{first}"),
            _ => write!(text, "{space}{first}-{}", bit - 1),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{LAYOUTS, NatEntry, SuperblockBody};
    use zerocopy::IntoBytes;

    #[test]
    fn every_field_of_every_structure_is_shown_whatever_the_bytes() {
        for layout in LAYOUTS {
            let shown = fields(layout, &vec![0xff; layout.size]);
            let names: Vec<&str> = shown.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, layout.fields.iter().map(|f| f.name).collect::<Vec<_>>());
            assert!(fields(layout, &vec![0xff; layout.size - 1]).len() < shown.len());
        }
        let empty = fields(&SuperblockBody::LAYOUT, &[0; SuperblockBody::SIZE]);
        assert!(!empty.iter().any(|(name, _)| *name == "reserved"));
    }

    #[test]
    fn numbers_are_what_the_structure_holds() {
        let entry =
            NatEntry { addr: 7.into(), crc: 0xab.into(), ino: 300.into(), reserved: 0.into() };
        let expected = vec![
            ("addr", Value::Number(7)),
            ("crc", Value::Text("000000ab".into())),
            ("ino", Value::Number(300)),
        ];
        assert_eq!(fields(&NatEntry::LAYOUT, entry.as_bytes()), expected);
    }

    #[test]
    fn maps_are_runs() {
        assert_eq!(runs(&[0; 8]), "");
        assert_eq!(runs(&[0b1000_1111, 0b1]), "0-3 7-8");
        assert_eq!(runs(&[0, 0b1000_0000]), "15");
    }
}
