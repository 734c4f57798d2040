//! Output whose lines fit the screen.

use crate::fit;
use crate::show::{self, Screen};
use std::io::{self, IsTerminal as _, Write};

/// Number of blanks before the continuation of a line, in addition to those before the line itself.
const INDENT: usize = 2;

/// A text on its way to a screen: its lines fit the screen, as [`lines`] makes them.
pub struct Folding<W: Write> {
    out: W,
    /// Number of columns of the screen; `None` without a screen: all lines stay as they are.
    width: Option<usize>,
    /// The line that has not ended.
    line: Vec<u8>,
}

/// Text for standard output; its lines stay as they are if `text` is false.
pub fn stdout(text: bool) -> Folding<io::StdoutLock<'static>> {
    let width = if text { show::width() } else { usize::MAX };
    Folding::new(io::stdout().lock(), Some(width).filter(|width| *width < usize::MAX))
}

/// The lines of `text` on a screen of `width` columns. Longer lines are broken between words, but
/// not within commands, which can then be pasted. Lines with escape sequences stay as they are,
/// because a command that writes escape sequences has fitted its lines to the screen already.
pub fn lines(text: &str, width: usize) -> Vec<String> {
    text.lines().flat_map(|line| folded(line, width)).collect()
}

fn folded(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width || line.contains('\x1b') {
        return vec![line.to_owned()];
    }
    let blanks = line.len() - line.trim_start_matches(' ').len();
    let indent = if blanks + INDENT < width / 2 { blanks + INDENT } else { 0 };
    let mut parts = fit::folded_around_commands(line, indent, width);
    parts.iter_mut().for_each(|part| part.truncate(part.trim_end().len()));
    parts
}

/// `message` in lines for standard error.
pub fn message(message: &str) -> String {
    match io::stderr().is_terminal() {
        true => {
            let width = Screen::of_stdout().width;
            fit::folded_around_commands(message, INDENT, width).join("\n")
        }
        false => message.to_owned(),
    }
}

impl<W: Write> Folding<W> {
    fn new(out: W, width: Option<usize>) -> Folding<W> {
        Folding { out, width, line: Vec::new() }
    }

    /// Writes out the line, which is complete now.
    fn end_line(&mut self, width: usize) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line) {
            Ok(text) => {
                folded(text, width).iter().try_for_each(|part| writeln!(self.out, "{part}"))
            }
            Err(_) => {
                self.out.write_all(&line)?;
                self.out.write_all(b"\n")
            }
        }
    }
}

impl<W: Write> Write for Folding<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(width) = self.width else { return self.out.write(bytes) };
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.extend_from_slice(end);
                    self.end_line(width)?;
                }
                None => self.line.extend_from_slice(piece),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&std::mem::take(&mut self.line))?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(pieces: &[&str], width: Option<usize>) -> String {
        let mut out = Vec::new();
        let mut folding = Folding::new(&mut out, width);
        for piece in pieces {
            folding.write_all(piece.as_bytes()).expect("memory takes all");
        }
        folding.flush().expect("memory takes all");
        String::from_utf8(out).expect("it was text")
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = ["m: data: /a/pa", "th: bytes 0 to 4095\n  inner line that is long\n"];
        assert_eq!(
            folded(&text, Some(20)),
            "m: data: /a/path:\n  bytes 0 to 4095\n  inner line that is\n    long\n"
        );
        assert_eq!(folded(&text, None), text.concat());
        assert_eq!(folded(&["no end, and long"], Some(8)), "no end, and long");
    }

    #[test]
    fn commands_and_lines_with_colours_stay_whole() {
        let command = "damaged (mend it: furrow scrub /mnt --repair), look\n";
        assert_eq!(
            folded(&[command], Some(20)),
            "damaged (mend it:\n  furrow scrub /mnt --repair),\n  look\n"
        );
        let coloured = "\x1b[31ma red line that is long\x1b[0m\n";
        assert_eq!(folded(&[coloured], Some(10)), coloured);
    }
}
