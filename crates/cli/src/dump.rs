//! `furrow dump`: the structures of a file system, as they are on the device.

use crate::holds::Needs;
use crate::show;
use crate::target::{self, source_name};
use crate::visit::visit;
use clap::Subcommand;
use furrow_fs::dump::{Dump, Part, Value, Which, dump};
use furrow_zone::Access;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use std::io::{self, Write};
use std::ops::RangeInclusive;

/// Show the structures of a file system
///
/// Shows the structures of the newest checkpoint on a device that is not mounted; nothing is
/// written. The readable parts of damaged structures are shown; findings go to standard error (with
/// --json, to `findings`), and the exit status is 1.
#[derive(clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Each copy of the superblock
    Superblock {
        #[arg(help = crate::target::DEVICE)]
        device: String,
    },
    /// The newest whole checkpoint: heads of streams, delta log, table pages, superzones, orphans
    Checkpoint {
        #[arg(help = crate::target::DEVICE)]
        device: String,
    },
    /// The node address table: where each node is
    Nat {
        #[arg(help = crate::target::DEVICE)]
        device: String,
        /// Only these nodes: N, or FIRST-LAST
        #[arg(value_name = "NODES", value_parser = range)]
        range: Option<RangeInclusive<u32>>,
    },
    /// The segment information table: the valid blocks of each segment
    Sit {
        #[arg(help = crate::target::DEVICE)]
        device: String,
        /// Only these segments: N, or FIRST-LAST
        #[arg(value_name = "SEGMENTS", value_parser = range)]
        range: Option<RangeInclusive<u32>>,
    },
    /// A node: an inode, or a part of a file's tree
    Node {
        #[arg(help = crate::target::DEVICE)]
        device: String,
        /// Number of the node (an inode has the number of its node), or the path of a file, from
        /// `/` on
        #[arg(value_name = "NODE|PATH", value_parser = which)]
        node: Which,
    },
    /// The names in a directory
    Directory {
        #[arg(help = crate::target::DEVICE)]
        device: String,
        /// Inode number, or path from the root directory
        #[arg(value_name = "INODE|PATH", default_value = "/", value_parser = which)]
        directory: Which,
    },
    /// A segment: the owners of its blocks, and which blocks are valid
    Segment {
        #[arg(help = crate::target::DEVICE)]
        device: String,
        /// Number of the segment, as in the segment information table
        #[arg(value_name = "SEGMENT")]
        segment: u32,
    },
}

fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err("expected a number, or a range as in 10-20".to_owned()),
    }
}

fn which(text: &str) -> Result<Which, String> {
    match text.parse() {
        Ok(number) => Ok(Which::Number(number)),
        Err(_) if text.starts_with('/') => Ok(Which::Path(text.into())),
        Err(_) => Err("expected a number, or a path that begins with /".to_owned()),
    }
}

impl What {
    /// The device, the name of the part to show, and the part.
    fn parts(self) -> (String, &'static str, Part) {
        let all = || 0..=u32::MAX;
        match self {
            What::Superblock { device } => (device, "superblock", Part::Superblock),
            What::Checkpoint { device } => (device, "checkpoint", Part::Checkpoint),
            What::Nat { device, range } => (device, "nat", Part::Nat(range.unwrap_or_else(all))),
            What::Sit { device, range } => (device, "sit", Part::Sit(range.unwrap_or_else(all))),
            What::Node { device, node } => (device, "node", Part::Node(node)),
            What::Directory { device, directory } => {
                (device, "directory", Part::Directory(directory))
            }
            What::Segment { device, segment } => (device, "segment", Part::Segment(segment)),
        }
    }
}

/// Runs the command.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let json = args.json;
    let (device, name, part) = args.what.parts();
    let device = target::unmounted(device.as_ref())?;
    let dumped = visit(&device, Access::ReadOnly, Needs::FileSystem, async move |_, drive| {
        dump(drive, &part).await
    })?;
    let device = source_name(&device);
    if json {
        let document = Document { device: &device, part: name, dump: &dumped };
        show::json(out, &document)?;
    } else {
        print(out, &dumped.value, 0)?;
        // The flush keeps the order of lines if both streams go to one place.
        out.flush()?;
        for finding in &dumped.findings {
            crate::complain(&format!("{device}: {finding}"));
        }
        for note in &dumped.notes {
            crate::complain(&format!("{device}: note: {note}"));
        }
    }
    Ok(u8::from(!dumped.findings.is_empty()))
}

struct Document<'a> {
    device: &'a str,
    part: &'a str,
    dump: &'a Dump,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let findings: Vec<serde_json::Value> =
            self.dump.findings.iter().map(crate::fsck::finding).collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", &1)?;
        map.serialize_entry("device", self.device)?;
        map.serialize_entry("part", self.part)?;
        map.serialize_entry("value", &Json(&self.dump.value))?;
        map.serialize_entry("findings", &findings)?;
        map.serialize_entry("notes", &self.dump.notes)?;
        map.end()
    }
}

/// A value as JSON, with its fields in the order in which the device stores them.
struct Json<'a>(&'a Value);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(number) => serializer.serialize_u64(*number),
            Value::Signed(number) => serializer.serialize_i64(*number),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(list) => serializer.collect_seq(list.iter().map(Json)),
            Value::Fields(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, Json(value))))
            }
        }
    }
}

/// The text of a value, if it fits into a table cell.
fn cell(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::Signed(number) => Some(number.to_string()),
        // Names come from the medium: no control characters on the terminal.
        Value::Text(text) => Some(folded(text).chars().flat_map(visible).collect()),
        Value::List(list) if list.is_empty() => Some("none".to_owned()),
        Value::List(_) => None,
        Value::Fields(fields) => {
            let parts = fields.iter().map(|(name, value)| match value {
                Value::Number(_) | Value::Signed(_) | Value::Text(_) => {
                    Some(format!("{name} {}", cell(value)?))
                }
                Value::List(_) | Value::Fields(_) => None,
            });
            let parts: Option<Vec<String>> = parts.collect();
            parts.filter(|parts| parts.len() <= 2).map(|parts| parts.join(", "))
        }
    }
}

/// Shortens bytes in hexadecimal that end in many zero bytes: the zero bytes are only counted.
/// Other text stays as it is.
fn folded(text: &str) -> String {
    const MANY: usize = 64;
    let rest = text.trim_end_matches('0');
    let rest = &text[..rest.len().next_multiple_of(2).min(text.len())];
    let zeros = (text.len() - rest.len()) / 2;
    match zeros > MANY && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => format!("{rest} and {zeros} zero bytes").trim_start_matches(" and ").to_owned(),
        false => text.to_owned(),
    }
}

fn visible(character: char) -> Vec<char> {
    match character.is_control() {
        true => character.escape_default().collect(),
        false => vec![character],
    }
}

/// Prints `value`: fields below each other, and lists of similar values as tables.
fn print(out: &mut dyn Write, value: &Value, depth: usize) -> io::Result<()> {
    let indent = "  ".repeat(depth);
    match value {
        Value::Fields(fields) => {
            let width = fields.iter().filter(|(_, value)| cell(value).is_some());
            let width = width.map(|(name, _)| name.len()).max().unwrap_or(0);
            for (name, value) in fields {
                match cell(value) {
                    Some(text) => {
                        writeln!(out, "{}", format!("{indent}{name:width$}  {text}").trim_end())?
                    }
                    None => {
                        writeln!(out, "{indent}{name}")?;
                        print(out, value, depth + 1)?;
                    }
                }
            }
            Ok(())
        }
        Value::List(list) => match rows(list) {
            Some((head, rows)) => {
                let mut table = show::table(&head);
                for row in rows {
                    table.add_row(row);
                }
                for line in table.lines(usize::MAX) {
                    writeln!(out, "{indent}{line}")?;
                }
                Ok(())
            }
            None => {
                for (index, value) in list.iter().enumerate() {
                    if index > 0 {
                        writeln!(out)?;
                    }
                    print(out, value, depth)?;
                }
                Ok(())
            }
        },
        scalar => writeln!(out, "{indent}{}", cell(scalar).unwrap_or_default()),
    }
}

/// Head and rows of a table, if all fields of the list fit cells.
fn rows(list: &[Value]) -> Option<(Vec<&'static str>, Vec<Vec<String>>)> {
    let fields = |value: &'_ Value| match value {
        Value::Fields(fields) => Some(fields.clone()),
        _ => None,
    };
    let list: Vec<_> = list.iter().map(fields).collect::<Option<_>>()?;
    // The columns of the longest row: some rows have fewer fields.
    let longest = list.iter().max_by_key(|fields| fields.len())?;
    let head: Vec<&'static str> = longest.iter().map(|(name, _)| *name).collect();
    let row = |fields: &furrow_fs::dump::Fields| {
        let value = |name: &&str| {
            let found = fields.iter().find(|(field, _)| field == name);
            found.map_or(Some(String::new()), |(_, value)| cell(value))
        };
        head.iter().map(value).collect::<Option<Vec<String>>>()
    };
    let rows = list.iter().map(row).collect::<Option<_>>()?;
    Some((head, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value() -> Value {
        let row = |number, name: &str| {
            Value::Fields(vec![("node", Value::Number(number)), ("name", name.into())])
        };
        let time = Value::Fields(vec![("seconds", Value::Signed(-1))]);
        Value::Fields(vec![
            ("title", "a\u{1b}[31mb".into()),
            ("time", time),
            ("none", Value::List(Vec::new())),
            ("rows", Value::List(vec![row(7, "x"), row(300, "long")])),
        ])
    }

    #[test]
    fn fields_are_lines_and_lists_are_tables() {
        let mut out = Vec::new();
        print(&mut out, &value(), 0).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "title  a\\u{1b}[31mb\ntime   seconds -1\nnone   none\nrows\n  \
                        node  name\n  7        x\n  300   long\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn many_zeros_at_the_end_of_bytes_are_a_number() {
        let zeros = "0".repeat(1600);
        assert_eq!(folded(&zeros), "800 zero bytes");
        assert_eq!(folded(&format!("a150{zeros}")), "a150 and 800 zero bytes");
        assert_eq!(folded("a1000000"), "a1000000");
        assert_eq!(folded(&format!("name{zeros}")), format!("name{zeros}"));
    }

    #[test]
    fn json_keeps_the_order_of_the_medium() {
        let text = serde_json::to_string(&Json(&value())).unwrap();
        let expected = "{\"title\":\"a\\u001b[31mb\",\"time\":{\"seconds\":-1},\"none\":[],\
                        \"rows\":[{\"node\":7,\"name\":\"x\"},{\"node\":300,\"name\":\"long\"}]}";
        assert_eq!(text, expected);
    }

    #[test]
    fn ranges_and_paths_are_read() {
        assert_eq!(range("7"), Ok(7..=7));
        assert_eq!(range("7-9"), Ok(7..=9));
        for wrong in ["", "-", "9-7", "x", "1-", "-1"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(which("12"), Ok(Which::Number(12)));
        assert_eq!(which("/12"), Ok(Which::Path("/12".into())));
        assert!(which("12x").is_err());
    }
}
