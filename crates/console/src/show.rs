//! Output of the commands: amounts, tables, colour, the width of the terminal.

use crate::fit::{self, Column, Table};
pub use furrow_zone::words::count;
use serde::Serialize;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

/// Bytes as text: three significant digits, four from 1000 on, and a binary unit.
pub fn bytes(amount: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if amount < 1024 {
        return format!("{amount} B");
    }
    let mut value = amount as f64 / 1024.0;
    let mut unit = 0;
    // 1023.5 would be rounded to 1024.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Nanoseconds as text: three significant digits and a unit; from 100 s on, whole seconds. The unit
/// is ASCII, because a terminal may know nothing else.
pub fn time(nanoseconds: u64) -> String {
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..999_500 => (nanoseconds as f64 / 1e3, "us"),
        999_500..999_500_000 => (nanoseconds as f64 / 1e6, "ms"),
        _ => (nanoseconds as f64 / 1e9, "s"),
    };
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// A bar of ten cells.
pub fn bar(percent: f64) -> String {
    let full = (percent / 10.0).clamp(0.0, 10.0) as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(10 - full))
}

/// Parses a number of seconds between two outputs.
///
/// # Errors
/// An error if the text is not a number from 0.1 to the seconds of a day.
pub fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds, from 0.1 to 86400".to_owned()),
    }
}

/// `part` of `whole` in percent, to a tenth; `-` if `whole` is 0. Only a `part` of 0 is shown as
/// zero, and only the whole as 100 %.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    match tenths {
        1000 if part < whole => ">99.9%".to_owned(),
        tenths => of_tenths(part, tenths as u64),
    }
}

/// `parts` of `whole` in percent, to a tenth. The rounded shares add up to the share of all parts
/// together, because the parts with the largest remainders are rounded up.
pub fn shares(parts: &[u64], whole: u64) -> Vec<String> {
    if whole == 0 {
        return vec!["-".to_owned(); parts.len()];
    }
    let scaled = |part: u64| u128::from(part) * 1000;
    let whole = u128::from(whole);
    let mut tenths: Vec<u128> = parts.iter().map(|part| scaled(*part) / whole).collect();
    let sum: u128 = parts.iter().map(|part| scaled(*part)).sum();
    let missing = (sum + whole / 2) / whole - tenths.iter().sum::<u128>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(scaled(parts[*index]) % whole));
    for index in order.into_iter().take(missing as usize) {
        tenths[index] += 1;
    }
    parts.iter().zip(tenths).map(|(part, tenths)| of_tenths(*part, tenths as u64)).collect()
}

fn of_tenths(part: u64, tenths: u64) -> String {
    match tenths {
        0 if part > 0 => "<0.1%".to_owned(),
        _ => format!("{}.{}%", tenths / 10, tenths % 10),
    }
}

/// Prints a JSON document.
///
/// # Errors
/// The error of writing.
pub fn json(out: &mut dyn Write, document: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    Ok(writeln!(out)?)
}

/// Prints a JSON document in one line, for a command that prints one after another.
///
/// # Errors
/// The error of writing.
pub fn json_line(out: &mut dyn Write, document: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, document)?;
    Ok(writeln!(out)?)
}

/// Prints `text` after `label`. If the screen is too narrow, the text continues below its
/// beginning; commands in it stay whole.
///
/// # Errors
/// The error of writing.
pub fn fact(out: &mut dyn Write, label: &str, text: &str) -> io::Result<()> {
    let (indent, text) = (label.chars().count(), format!("{label}{text}"));
    let lines = fit::folded_around_commands(&text, indent, width());
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Prints facts, each after its name: the names stand in a column of `room` characters after
/// `indent` blanks.
///
/// # Errors
/// The error of writing.
pub fn facts<'a>(
    out: &mut dyn Write,
    (indent, room): (usize, usize),
    facts: impl IntoIterator<Item = (&'a str, String)>,
) -> io::Result<()> {
    let mut facts = facts.into_iter();
    facts.try_for_each(|(name, text)| fact(out, &format!("{:indent$}{name:<room$} ", ""), &text))
}

/// Prints a table that is at most as wide as the screen: see [`fit::table`].
///
/// # Errors
/// The error of writing.
pub fn rows(
    out: &mut dyn Write,
    columns: &[Column<'_>],
    rows: impl IntoIterator<Item = impl Into<Vec<String>>>,
) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.into_iter().map(Into::into).collect();
    fit::table(columns, &rows, width()).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// A plain table: `head` has the headings of its columns; the first column is aligned left, the
/// others right.
pub fn table<'a>(head: &[&'a str]) -> Table<'a> {
    let column = |(at, head): (usize, &&'a str)| match at {
        0 => Column::word(head, 0),
        _ => Column::amount(head, 0),
    };
    Table::new(&head.iter().enumerate().map(column).collect::<Vec<_>>())
}

/// Prints a plain table of `rows` under `head`, in full: see [`table`].
///
/// # Errors
/// The error of writing.
pub fn plain<T: Into<String>>(
    out: &mut dyn Write,
    head: &[&str],
    rows: impl IntoIterator<Item = impl IntoIterator<Item = T>>,
) -> io::Result<()> {
    let mut table = table(head);
    rows.into_iter().for_each(|row| table.add_row(row));
    print_table(out, &table)
}

/// Prints `table` in full, even if the screen is narrower.
///
/// # Errors
/// The error of writing.
pub fn print_table(out: &mut dyn Write, table: &Table<'_>) -> io::Result<()> {
    table.lines(usize::MAX).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The width of the screen to which texts and tables are made to fit. If standard output is not a
/// terminal, nothing is broken or left out, whatever COLUMNS says: a program may read the output.
pub fn width() -> usize {
    match io::stdout().is_terminal() {
        true => Screen::of_stdout().width,
        false => usize::MAX,
    }
}

/// A name in a form that is safe to print on a terminal: control characters are escaped.
pub fn printable(name: &str) -> String {
    let spelt = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    name.chars().map(spelt).collect()
}

/// `text` escaped for XML or HTML, in content and in attributes. Control characters, which neither
/// format allows, become the replacement character.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            c => out.push(c),
        }
    }
    out
}

/// `text` in lines of at most `width` columns, broken between words.
pub fn wrap(text: &str, width: usize) -> String {
    let (mut out, mut column) = (String::with_capacity(text.len() + 1), 0);
    for word in text.split_whitespace() {
        let long = word.chars().count();
        if column > 0 && column + 1 + long > width {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += long;
    }
    out.push('\n');
    out
}

/// Writes `text` to standard error. A failure to write does not end the program, because the exit
/// status carries the same information.
pub fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Shows progress on standard error: on a terminal in place of the previous line, elsewhere as a
/// new line.
pub fn redraw(line: &str, terminal: bool) {
    if terminal {
        say(&format!("\r{line}\x1b[K"));
    } else {
        say(&format!("{line}\n"));
    }
}

/// The abilities of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Width in columns.
    pub width: usize,
    /// Height in lines.
    pub height: usize,
    /// True if colours are understood and wanted.
    pub colour: bool,
}

impl Screen {
    /// The present abilities of standard output: 80 columns, 24 lines and no colour if it is not a
    /// terminal; no colour with NO_COLOR (if not empty) or TERM=dumb. COLUMNS and LINES override
    /// the size.
    pub fn of_stdout() -> Screen {
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let extent = |name: &str, of_terminal: Option<u16>, least: usize, usual: usize| {
            let given = set(name).and_then(|number| number.parse().ok());
            let extent = given.or_else(|| of_terminal.map(usize::from));
            extent.filter(|extent| *extent >= least).unwrap_or(usual)
        };
        let width = extent("COLUMNS", size.as_ref().ok().map(|size| size.ws_col), 20, 80);
        let height = extent("LINES", size.as_ref().ok().map(|size| size.ws_row), 5, 24);
        let dumb = set("TERM").is_none_or(|term| term == "dumb");
        let colour = size.is_ok() && !dumb && set("NO_COLOR").is_none();
        Screen { width, height, colour }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits() {
        for (amount, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10_239, "10.0 KiB"),
            (1_048_575, "1.00 MiB"),
            (96 << 20, "96.0 MiB"),
            (4 << 40, "4.00 TiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(amount), text);
        }
    }

    #[test]
    fn the_bar_fills_from_the_left_and_intervals_are_checked() {
        assert_eq!(bar(0.0), "[..........]");
        assert_eq!(bar(59.0), "[#####.....]");
        assert_eq!(bar(100.0), "[##########]");
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "NaN", "inf", "1e9"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percent_shows_little_as_little_and_survives_nothing() {
        for (part, whole, text) in [
            (1, 1000, "0.1%"),
            (16 << 10, 205 << 20, "<0.1%"),
            (0, 1000, "0.0%"),
            (1000, 1000, "100.0%"),
            (99_999, 100_000, ">99.9%"),
            (2, 3, "66.7%"),
            (u64::MAX, u64::MAX, "100.0%"),
            (0, 0, "-"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn shares_add_up() {
        assert_eq!(shares(&[1, 1, 1], 3), ["33.4%", "33.3%", "33.3%"]);
        assert_eq!(shares(&[999_990, 10, 0], 1_000_000), ["100.0%", "<0.1%", "0.0%"]);
        assert_eq!(shares(&[1, 2], 0), ["-", "-"]);
        let tenths = |share: &String| -> u64 {
            share.replace("<0.1", "0.0").replace(['.', '%'], "").parse().unwrap()
        };
        for seed in 1..500u64 {
            let parts: Vec<u64> = (1..8).map(|n| (seed * n * 2_654_435_761) % (10 << n)).collect();
            let whole: u64 = parts.iter().sum();
            let sum: u64 = shares(&parts, whole).iter().map(tenths).sum();
            assert!(whole == 0 || sum == 1000, "{parts:?}: {sum}");
        }
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("a bc def", 4), "a bc\ndef\n");
        assert_eq!(wrap("abcdefg h", 4), "abcdefg\nh\n");
        assert_eq!(wrap("", 4), "\n");
    }

    #[test]
    fn tables_end_where_their_text_ends() {
        let mut some = table(&["what", "bytes"]);
        some.add_row(["data", "17"]);
        let mut out = Vec::new();
        print_table(&mut out, &some).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| !line.ends_with(' ') && !line.starts_with(' ')), "{text}");
    }
}
