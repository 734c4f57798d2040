//! Asks the user before a repair loses data.

use std::io::{IsTerminal, Write};

/// Exit status of fsck(8) for a repair that the user declined.
pub const CANCELLED: u8 = 32;

/// The reason why nothing is done with `-n`.
pub const AS_N_SAYS: &str = "nothing was changed, as -n says";
/// The reason why nothing is given up if no user can be asked.
pub const NOBODY_AGREED: &str =
    "the repair would lose data: -y agrees to it, or run this in a terminal";

/// The decision on a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Apply it.
    Apply,
    /// Do not apply it, for this reason.
    Keep(&'static str),
    /// The user answered no.
    Cancel,
}

/// The user's answer; `nobody` is the reason to report if no user can be asked.
pub fn consent(question: &str, nobody: &'static str, ask: impl Fn(&str) -> Option<bool>) -> Answer {
    match ask(question) {
        Some(true) => Answer::Apply,
        Some(false) => Answer::Cancel,
        None => Answer::Keep(nobody),
    }
}

/// Asks on the terminal; `None` without a terminal or an answer.
pub fn ask(question: &str) -> Option<bool> {
    let (input, mut prompt) = (std::io::stdin(), std::io::stderr());
    if !input.is_terminal() || !prompt.is_terminal() {
        return None;
    }
    prompt.write_all(format!("{question} [y/N] ").as_bytes()).ok()?;
    let mut line = String::new();
    input.read_line(&mut line).ok()?;
    Some(matches!(line.trim(), "y" | "Y" | "yes"))
}
