//! Output whose lines fit the screen.

use crate::fit;
use crate::show::Screen;
use std::io::{self, IsTerminal as _, Write};

/// Blanks before what continues a line, in addition to those before the line itself.
const INDENT: usize = 2;

/// A text on its way to a screen: lines that are longer than the screen is wide are broken between
/// words, but not within commands, which can then be pasted. Lines with escape sequences stay as
/// they are: whoever sends them knows the screen.
pub struct Folding<W: Write> {
    out: W,
    /// Columns of the screen; `None` if there is none: all lines stay as they are.
    width: Option<usize>,
    /// The line that has not ended.
    line: Vec<u8>,
}

/// Text for standard output, as it is if `text` is false.
pub fn stdout(text: bool) -> Folding<io::StdoutLock<'static>> {
    let out = io::stdout();
    // Programs that read a pipe expect whole lines.
    let width = (text && out.is_terminal()).then(|| Screen::of_stdout().width);
    Folding::new(out.lock(), width)
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

    /// Passes on the line, which ends here.
    fn end_line(&mut self, width: usize) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        match std::str::from_utf8(&line) {
            Ok(text) if text.chars().count() > width && !text.contains('\x1b') => {
                let blanks = text.len() - text.trim_start_matches(' ').len();
                let indent = if blanks + INDENT < width / 2 { blanks + INDENT } else { 0 };
                for part in fit::folded_around_commands(text, indent, width) {
                    writeln!(self.out, "{}", part.trim_end())?;
                }
                Ok(())
            }
            _ => {
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
