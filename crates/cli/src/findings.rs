//! The findings of a check as text, for file systems and for file stores.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};

/// Number of findings printed without -v.
pub const SHOWN: usize = 20;

/// A violation that a check found. Damaged blocks of one file are many violations with one cause.
pub trait Violation: Display {
    /// If the violation is a damaged block of a file: the text that names the file, and the kind
    /// of structure.
    fn block_of(&self) -> Option<(String, &str)>;

    /// Number of further violations in the same file and structure that were only counted.
    fn counted(&self, _of: &Self::Counts) -> u64 {
        0
    }

    /// The type that holds the counts of violations that are not listed.
    type Counts: ?Sized;
}

/// The state of the checked drive with respect to a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// There is no repair.
    Unchanged,
    /// The repair comes after this check.
    ToRepair,
    /// The repair came before this check.
    Repaired,
}

/// The result of a check.
pub struct Findings<'a, T: Violation> {
    /// The device that was checked.
    pub device: &'a str,
    /// The violations found.
    pub found: &'a [T],
    /// The number of further violations, which were only counted.
    pub more: u64,
    /// Numbers of violations per file that were only counted.
    pub counts: &'a T::Counts,
    /// Notes, not counted as errors.
    pub notes: &'a [String],
    /// The plural noun for a violation.
    pub noun: &'a str,
    /// Whether the drive was or will be repaired.
    pub drive: Drive,
}

/// Groups findings by `key`, in the order of the first finding of each group. A finding without a
/// key forms a separate group.
pub fn groups<'a, T, K: Ord>(found: &'a [T], key: impl Fn(&'a T) -> Option<K>) -> Vec<Vec<&'a T>> {
    let (mut groups, mut places) = (Vec::<Vec<&T>>::new(), BTreeMap::new());
    for one in found {
        let place = key(one).map(|key| *places.entry(key).or_insert(groups.len()));
        match place.and_then(|place| groups.get_mut(place)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

impl<T: Violation> Findings<'_, T> {
    /// Prints the notes and the violations; with `verbose`, all that are kept.
    ///
    /// # Errors
    /// An error if writing fails.
    pub fn print(&self, out: &mut dyn Write, verbose: bool) -> io::Result<()> {
        let (device, noun) = (self.device, self.noun);
        let shown = if verbose { usize::MAX } else { SHOWN };
        let mut hidden = self.found.len() as u64 + self.more;
        for group in groups(self.found, Violation::block_of).into_iter().take(shown) {
            let counted = group[0].counted(self.counts);
            let printed = if verbose { group.len() } else { 1 };
            for one in &group[..printed] {
                writeln!(out, "{device}: {}", crate::show::printable(&one.to_string()))?;
            }
            if let more @ 1.. = (group.len() - printed) as u64 + counted {
                let blocks = crate::show::count(more, "more damaged block");
                let hint = match (verbose, counted) {
                    (true, _) => ", only counted".to_owned(),
                    (false, 0) => " (-v shows each)".to_owned(),
                    (false, _) => format!(" (-v shows the first {})", group.len()),
                };
                writeln!(out, "{device}: and {blocks} of the same file{hint}")?;
            }
            hidden -= group.len() as u64 + counted;
        }
        if hidden > 0 {
            let hint = if verbose { ", only counted" } else { " (-v shows more)" };
            writeln!(out, "{device}: and {hidden} more {noun}{hint}")?;
        }
        for note in self.notes {
            writeln!(out, "{device}: note: {note}")?;
        }
        Ok(())
    }

    /// The number of errors and whether anything was changed, as text; `None` if there are
    /// no errors.
    pub fn errors(&self) -> Option<String> {
        let errors = self.found.len() as u64 + self.more;
        let changed = match self.drive {
            Drive::Unchanged => ", nothing was changed",
            Drive::ToRepair => "",
            Drive::Repaired => " left",
        };
        (errors > 0).then(|| format!("{}{changed}", crate::show::count(errors, "ERROR")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Violation for String {
        /// Counts by the name of the file.
        type Counts = BTreeMap<&'static str, u64>;

        fn block_of(&self) -> Option<(String, &str)> {
            self.split_once(": ").map(|(name, _)| (name.to_owned(), "data"))
        }

        fn counted(&self, of: &Self::Counts) -> u64 {
            let name = self.split_once(": ").map(|(name, _)| name);
            name.and_then(|name| of.get(name)).copied().unwrap_or(0)
        }
    }

    #[test]
    fn damaged_blocks_of_one_file_are_one_line_and_a_number() {
        let found = ["/a: block 0", "/a: block 1", "/b: block 0", "/a: block 7", "the ring"];
        let found = found.map(str::to_owned);
        let (device, noun, notes, drive) = ("d.zns", "findings", &[], Drive::Unchanged);
        let counts = &BTreeMap::new();
        let findings = Findings { device, found: &found, more: 0, counts, notes, noun, drive };
        let print = |verbose| {
            let mut out = Vec::new();
            findings.print(&mut out, verbose).unwrap();
            String::from_utf8(out).unwrap()
        };
        let few = "d.zns: /a: block 0\n\
                   d.zns: and 2 more damaged blocks of the same file (-v shows each)\n\
                   d.zns: /b: block 0\n\
                   d.zns: the ring\n";
        assert_eq!(print(false), few);
        assert_eq!(print(true).lines().count(), 5);
        assert_eq!(findings.errors().as_deref(), Some("5 ERRORS, nothing was changed"));
    }

    #[test]
    fn blocks_that_were_only_counted_are_told_with_their_file() {
        let found = ["/a: block 0", "/a: block 1", "/b: block 0"].map(str::to_owned);
        let counts = &BTreeMap::from([("/a", 1200)]);
        let (device, noun, notes, drive) = ("d.zns", "findings", &[], Drive::Unchanged);
        let findings = Findings { device, found: &found, more: 1200, counts, notes, noun, drive };
        let print = |verbose| {
            let mut out = Vec::new();
            findings.print(&mut out, verbose).unwrap();
            String::from_utf8(out).unwrap()
        };
        let few = "d.zns: /a: block 0\n\
                   d.zns: and 1201 more damaged blocks of the same file (-v shows the first 2)\n\
                   d.zns: /b: block 0\n";
        assert_eq!(print(false), few);
        let all = "d.zns: /a: block 0\n\
                   d.zns: /a: block 1\n\
                   d.zns: and 1200 more damaged blocks of the same file, only counted\n\
                   d.zns: /b: block 0\n";
        assert_eq!(print(true), all);
    }

    fn printed(count: usize, verbose: bool) -> (String, Option<String>) {
        let found: Vec<String> = (0..count).map(|index| format!("block {index}\n")).collect();
        let notes = ["what a crash left".to_owned()];
        let (device, found, noun, drive) = ("d.zns", &found, "problems", Drive::Unchanged);
        let (notes, counts) = (&notes, &BTreeMap::new());
        let findings = Findings { device, found, more: 5, counts, notes, noun, drive };
        let mut out = Vec::new();
        findings.print(&mut out, verbose).unwrap();
        (String::from_utf8(out).unwrap(), findings.errors())
    }

    #[test]
    fn findings_are_printed_up_to_a_limit_and_counted_beyond() {
        let (text, errors) = printed(30, false);
        assert!(text.starts_with("d.zns: block 0\\n\nd.zns: block 1"), "{text}");
        assert!(text.contains("and 15 more problems (-v shows more)\n"), "{text}");
        assert!(text.ends_with("d.zns: note: what a crash left\n"), "{text}");
        assert_eq!(errors.as_deref(), Some("35 ERRORS, nothing was changed"));
        let (text, _) = printed(30, true);
        assert!(
            text.contains("block 29") && text.contains("and 5 more problems, only counted\n"),
            "{text}"
        );
    }
}
