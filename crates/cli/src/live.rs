//! Output that is repeated: on a terminal in place and as large as the screen, until `q` or Ctrl-C;
//! elsewhere one frame after another, until the program is ended.

use crate::show::{self, Screen};
use anyhow::{Context as _, Result};
use furrow_console::folding;
use furrow_fuse::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{IsTerminal as _, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes that Ctrl-C and Ctrl-Z send while keys are read.
const INTERRUPT: u8 = 3;
const SUSPEND: u8 = 26;

/// Frames on standard output, one after another.
pub struct Live {
    terminal: Option<Terminal>,
    first: bool,
}

/// A terminal in which frames replace each other. The terminal is restored at the end.
struct Terminal {
    /// The state of the terminal before this program began to read keys; `None` if it reads none.
    before: Option<Termios>,
    /// Readable once a signal has asked this program to end.
    ended: UnixStream,
    shown: bool,
}

impl Live {
    /// Begins repeated output; `in_place` is false for output that programs read.
    ///
    /// # Errors
    /// An error if signals cannot be received.
    pub fn begin(in_place: bool) -> Result<Live> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let terminal = match in_place && !dumb && std::io::stdout().is_terminal() {
            true => Some(Terminal::begin()?),
            false => None,
        };
        Ok(Live { terminal, first: true })
    }

    /// Whether frames replace each other.
    pub fn is_in_place(&self) -> bool {
        self.terminal.is_some()
    }

    /// Shows a frame. On a terminal, lines that do not fit the screen are replaced by their count.
    ///
    /// # Errors
    /// An error if writing fails.
    pub fn show(&mut self, out: &mut dyn Write, lines: &[String]) -> std::io::Result<()> {
        let first = std::mem::replace(&mut self.first, false);
        match &mut self.terminal {
            None if first => {}
            None => writeln!(out)?,
            Some(terminal) => {
                terminal.shown = true;
                out.write_all(&in_place(lines, Screen::of_stdout().height, first))?;
                return out.flush();
            }
        }
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()
    }

    /// Shows a frame of lines that may be wider than the screen.
    ///
    /// # Errors
    /// An error if writing fails.
    pub fn show_text(&mut self, out: &mut dyn Write, text: &[u8]) -> std::io::Result<()> {
        self.show(out, &folding::lines(&String::from_utf8_lossy(text), show::width()))
    }

    /// Waits; returns false if the user wants to end.
    ///
    /// # Errors
    /// An error if the keys cannot be read.
    pub fn wait(&mut self, time: Duration) -> Result<bool> {
        let Some(terminal) = &mut self.terminal else {
            std::thread::sleep(time);
            return Ok(true);
        };
        match terminal.wait(time)? {
            Waited::Over => Ok(true),
            Waited::Ended => Ok(false),
            Waited::Resumed => {
                self.first = true;
                Ok(true)
            }
        }
    }
}

/// The bytes that show `lines` on a screen of `height` lines, in place of the previous frame.
fn in_place(lines: &[String], height: usize, first: bool) -> Vec<u8> {
    // Lines do not wrap and nothing scrolls. Each line is cleared before it is written: clearing
    // afterwards would erase the last character of a line as wide as the screen.
    let mut bytes =
        Vec::from(if first { &b"\x1b[?7l\x1b[2J\x1b[H"[..] } else { b"\x1b[?7l\x1b[H" });
    let hidden = lines.len().saturating_sub(height);
    let shown = if hidden > 0 { height - 1 } else { lines.len() };
    for (index, line) in lines[..shown].iter().enumerate() {
        bytes.extend_from_slice(if index > 0 { b"\r\n\x1b[K" } else { b"\x1b[K" });
        bytes.extend_from_slice(line.as_bytes());
    }
    if hidden > 0 {
        let more = show::count(hidden as u64 + 1, "more line");
        bytes.extend_from_slice(format!("\r\n\x1b[K{more}").as_bytes());
    }
    let below = lines.len() < height;
    bytes.extend_from_slice(if below { b"\r\n\x1b[J\x1b[?7h" } else { b"\x1b[?7h" });
    bytes
}

/// The outcome of a wait.
enum Waited {
    Over,
    Ended,
    /// The program was stopped and continued, so the screen has to be redrawn.
    Resumed,
}

impl Terminal {
    fn begin() -> Result<Terminal> {
        let (ended, ends) = UnixStream::pair().context("a socket for signals")?;
        Signals::block(true)?.on_first(move |_| {
            // The write fails only if the program is ending already.
            let _ = (&ends).write_all(b"s");
        })?;
        let mut terminal = Terminal { before: None, ended, shown: false };
        terminal.read_keys();
        Ok(terminal)
    }

    /// Switches the terminal to single keys without echo, if standard input is a terminal.
    fn read_keys(&mut self) {
        let input = std::io::stdin();
        let Ok(before) = tcgetattr(&input) else { return };
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        if tcsetattr(&input, OptionalActions::Now, &keys).is_ok() {
            self.before = Some(before);
        }
    }

    fn restore(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
        if std::mem::replace(&mut self.shown, false) {
            let _ = std::io::stdout().write_all(b"\r\n");
            let _ = std::io::stdout().flush();
        }
    }

    fn wait(&mut self, time: Duration) -> Result<Waited> {
        let until = Instant::now() + time;
        let input = std::io::stdin();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut ends = vec![PollFd::new(&self.ended, PollFlags::IN)];
            if self.before.is_some() {
                ends.push(PollFd::new(&input, PollFlags::IN));
            }
            let limit = Timespec::try_from(left).context("the time to wait")?;
            match poll(&mut ends, Some(&limit)) {
                Ok(0) => return Ok(Waited::Over),
                // The size of the terminal has changed.
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).context("waiting for keys"),
                Ok(_) => {}
            }
            if !ends[0].revents().is_empty() {
                return Ok(Waited::Ended);
            }
            let mut key = [0];
            match rustix::io::read(&input, &mut key) {
                Ok(1) if matches!(key[0], b'q' | b'Q' | INTERRUPT) => return Ok(Waited::Ended),
                Ok(1) if key[0] == SUSPEND => {
                    self.restore();
                    kill_process(getpid(), Signal::TSTP).context("SIGTSTP")?;
                    self.read_keys();
                    return Ok(Waited::Resumed);
                }
                Ok(1) | Err(Errno::INTR) => {}
                // The terminal is gone.
                _ => return Ok(Waited::Ended),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_high_as_the_screen_and_its_head_stays() {
        let lines: Vec<String> = (0..9).map(|number| format!("line {number}")).collect();
        let text = |height| String::from_utf8(in_place(&lines, height, true)).unwrap();
        let all = text(9);
        assert!(all.contains("line 0\r\n\x1b[Kline 1") && all.contains("line 8"), "{all:?}");
        assert_eq!(all.matches("\r\n").count(), 8, "nothing scrolls");
        let less = text(4);
        assert!(less.contains("line 0") && less.contains("line 2"), "{less:?}");
        assert!(!less.contains("line 3") && less.contains("6 more lines"), "{less:?}");
        assert_eq!(less.matches("\r\n").count(), 3, "nothing scrolls");
    }
}
