//! The findings of a check as text, for file systems and for file stores.

use std::fmt::Display;
use std::io::{self, Write};

/// Findings printed without -v.
pub const SHOWN: usize = 20;

/// A violation. Damaged blocks of one file are many violations with one cause.
pub trait Violation: Display {
    /// Whether both are damaged blocks of one file.
    fn same_file(&self, other: &Self) -> bool;
}

/// The result of a check.
pub struct Findings<'a, T> {
    /// The device that was checked.
    pub device: &'a str,
    /// The violations found.
    pub found: &'a [T],
    /// The number of further violations, which were only counted.
    pub more: u64,
    /// Notes, which are no errors.
    pub notes: &'a [String],
    /// The plural noun for a violation.
    pub noun: &'a str,
    /// They are what a repair has left.
    pub repaired: bool,
}

impl<T: Violation> Findings<'_, T> {
    /// Prints the notes and the violations, all of them if `verbose`.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn print(&self, out: &mut dyn Write, verbose: bool) -> io::Result<()> {
        let (device, noun) = (self.device, self.noun);
        let shown = if verbose { self.found.len() } else { SHOWN };
        let mut hidden = self.found.len() as u64 + self.more;
        let joined = |a: &T, b: &T| !verbose && a.same_file(b);
        for run in self.found.chunk_by(joined).take(shown) {
            writeln!(out, "{device}: {}", crate::show::printable(&run[0].to_string()))?;
            if let more @ 1.. = run.len() - 1 {
                let blocks = crate::show::count(more as u64, "more damaged block");
                writeln!(out, "{device}: and {blocks} of the same file (-v shows each)")?;
            }
            hidden -= run.len() as u64;
        }
        if hidden > 0 {
            let hint = if verbose { "" } else { " (-v shows more)" };
            writeln!(out, "{device}: and {hidden} more {noun}{hint}")?;
        }
        for note in self.notes {
            writeln!(out, "{device}: note: {note}")?;
        }
        Ok(())
    }

    /// How many errors there are, if any, and whether something was changed.
    pub fn errors(&self) -> Option<String> {
        let errors = self.found.len() as u64 + self.more;
        let changed = if self.repaired { " left" } else { ", nothing was changed" };
        (errors > 0).then(|| format!("{}{changed}", crate::show::count(errors, "ERROR")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Violation for String {
        fn same_file(&self, other: &String) -> bool {
            let name = |text: &str| text.split_once(": ").map(|(name, _)| name.to_owned());
            name(self).is_some_and(|own| name(other) == Some(own))
        }
    }

    #[test]
    fn damaged_blocks_of_one_file_are_one_line_and_a_number() {
        let found = ["/a: block 0", "/a: block 1", "/a: block 7", "/b: block 0", "the ring"];
        let found = found.map(str::to_owned);
        let (device, noun) = ("d.zns", "findings");
        let findings =
            Findings { device, found: &found, more: 0, notes: &[], noun, repaired: false };
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

    fn printed(count: usize, verbose: bool) -> (String, Option<String>) {
        let found: Vec<String> = (0..count).map(|index| format!("block {index}\n")).collect();
        let notes = ["what a crash left".to_owned()];
        let (device, found, noun) = ("d.zns", &found, "problems");
        let findings = Findings { device, found, more: 5, notes: &notes, noun, repaired: false };
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
        assert!(text.contains("block 29") && text.contains("and 5 more problems\n"), "{text}");
    }
}
