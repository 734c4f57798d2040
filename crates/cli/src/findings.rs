//! The findings of a check as text, for file systems and for file stores.

use std::fmt::Display;
use std::io::{self, Write};

/// Findings printed without -v.
pub const SHOWN: usize = 20;

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

impl<T: Display> Findings<'_, T> {
    /// Prints the notes and the violations, all of them if `verbose`.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn print(&self, out: &mut dyn Write, verbose: bool) -> io::Result<()> {
        let (device, noun) = (self.device, self.noun);
        let shown = if verbose { self.found.len() } else { SHOWN };
        for finding in self.found.iter().take(shown) {
            writeln!(out, "{device}: {}", crate::show::printable(&finding.to_string()))?;
        }
        let hidden = self.found.len().saturating_sub(shown) as u64 + self.more;
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
