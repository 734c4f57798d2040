//! Tables that fit a screen: columns of higher rank are left out if the width does not suffice, and
//! a column of names is shortened. No row is longer than the screen is wide.

/// Blanks between two columns of a table.
const GAP: usize = 2;
/// Smallest width to which a column of names is shortened, unless its heading is wider.
const LEAST: usize = 8;
/// Smallest width to which a column of names is shortened to make space for columns of a rank
/// above 1.
const COMFORTABLE: usize = 20;
/// Replaces the part of a name that is left out. It is ASCII, because a terminal may know
/// nothing else.
const LEFT_OUT: &str = "...";

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    head: &'a str,
    rank: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The cells are aligned right.
    Amount,
    /// The cells are aligned left.
    Word,
    /// The cells are aligned left, and shortened at the front if necessary: the end of a path tells
    /// more than its beginning.
    Name,
}

impl<'a> Column<'a> {
    /// A column of amounts under `head`. Columns of a higher `rank` are left out first, those of
    /// rank 0 never.
    pub const fn amount(head: &'a str, rank: u8) -> Column<'a> {
        Column { head, rank, kind: Kind::Amount }
    }

    /// A column of words, such as states.
    pub const fn word(head: &'a str, rank: u8) -> Column<'a> {
        Column { head, rank, kind: Kind::Word }
    }

    /// A column of names or paths.
    pub const fn name(head: &'a str, rank: u8) -> Column<'a> {
        Column { head, rank, kind: Kind::Name }
    }
}

/// A table that grows row by row.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    columns: Vec<Column<'a>>,
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    /// A table without rows.
    pub fn new(columns: &[Column<'a>]) -> Table<'a> {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// A table whose columns are all aligned left.
    pub fn of_words(head: &[&'a str]) -> Table<'a> {
        let columns = head.iter().map(|head| Column::word(head, 0)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row. Cells that are missing at its end are empty.
    pub fn add_row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines of the table for a screen of this width, as [`table`] makes them.
    pub fn lines(&self, width: usize) -> Vec<String> {
        table(&self.columns, &self.rows, width)
    }
}

/// The lines of a table for a screen that is `width` characters wide. Each row has a cell for each
/// of `columns`. No line is wider than the screen, and none ends in blanks.
pub fn table(columns: &[Column<'_>], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let cell = |row: &Vec<String>, at: usize| row.get(at).cloned().unwrap_or_default();
    let length = |text: &str| text.chars().count();
    let natural: Vec<usize> = (0..columns.len())
        .map(|at| {
            let cells = rows.iter().map(|row| length(&cell(row, at)));
            cells.max().unwrap_or_default().max(length(columns[at].head))
        })
        .collect();
    let at_least = |at: usize, name: usize| match columns[at].kind {
        Kind::Name => natural[at].min(name.max(length(columns[at].head))),
        Kind::Amount | Kind::Word => natural[at],
    };
    let needed = |shown: &[usize], name: usize| {
        let columns: usize = shown.iter().map(|at| at_least(*at, name)).sum();
        columns + GAP * shown.len().saturating_sub(1)
    };
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|at| columns[*at].rank);
    let mut shown = Vec::new();
    for at in order {
        shown.push(at);
        let name = if columns[at].rank > 1 { COMFORTABLE } else { LEAST };
        if columns[at].rank > 0 && needed(&shown, name) > width {
            shown.pop();
            break;
        }
    }
    shown.sort_unstable();
    // The columns of names share the remaining width equally, up to the width that each needs.
    let mut spare = width.saturating_sub(needed(&shown, LEAST));
    let mut widths: Vec<usize> = shown.iter().map(|at| at_least(*at, LEAST)).collect();
    loop {
        let short = |at: usize| natural[shown[at]] > widths[at];
        let narrow: Vec<usize> = (0..shown.len()).filter(|at| short(*at)).collect();
        let share = spare.checked_div(narrow.len()).unwrap_or(0);
        if share == 0 {
            break;
        }
        for at in narrow {
            let more = (natural[shown[at]] - widths[at]).min(share);
            (widths[at], spare) = (widths[at] + more, spare - more);
        }
    }
    let line = |cells: Vec<String>| {
        let mut line = String::new();
        for ((at, text), width) in shown.iter().zip(cells).zip(&widths) {
            let gap = if line.is_empty() { 0 } else { GAP };
            let text = shortened(&text, *width);
            line.extend(std::iter::repeat_n(' ', gap));
            // `format!` allows widths only below 65,536, and names can be longer.
            let blanks = " ".repeat(width.saturating_sub(length(&text)));
            line += &match columns[*at].kind {
                Kind::Amount => blanks + &text,
                Kind::Word | Kind::Name => text + &blanks,
            };
        }
        line.chars().take(width).collect::<String>().trim_end().to_owned()
    };
    let heads = shown.iter().map(|at| columns[*at].head.to_owned()).collect();
    let rows = rows.iter().map(|row| shown.iter().map(|at| cell(row, *at)).collect());
    std::iter::once(heads).chain(rows).map(line).collect()
}

/// `text`, without its beginning if it is wider than `width`.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = text.chars().skip(length - width.saturating_sub(LEFT_OUT.len()));
    LEFT_OUT.chars().take(width).chain(kept).collect()
}

/// `text` in lines of at most `width` columns, broken between words; lines after the first begin
/// with `indent` blanks. A word that is longer than a line is broken.
pub fn folded(text: &str, indent: usize, width: usize) -> Vec<String> {
    fold(text, indent, width, |_| false)
}

/// The character that joins the words of a command while lines are folded.
const JOINED: char = '\u{1f}';

/// Like [`folded`], but commands stay in one line, so that they can be pasted, even if the line is
/// then longer than `width`. A command begins with `furrow`, and ends before a `)`, a semicolon, a
/// backquote or the end of the text.
pub fn folded_around_commands(text: &str, indent: usize, width: usize) -> Vec<String> {
    let mut joined = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("furrow ") {
        let (before, command) = rest.split_at(at);
        let end = command.find([')', ';', '`']).unwrap_or(command.len());
        joined.push_str(before);
        joined.extend(command[..end].chars().map(|c| if c == ' ' { JOINED } else { c }));
        rest = &command[end..];
    }
    joined.push_str(rest);
    let lines = fold(&joined, indent, width, |word| word.contains(JOINED));
    lines.into_iter().map(|line| line.replace(JOINED, " ")).collect()
}

fn fold(text: &str, indent: usize, width: usize, is_whole: fn(&str) -> bool) -> Vec<String> {
    let width = width.max(indent + 1);
    let words = text.trim_start_matches(' ');
    let (mut lines, mut line) = (Vec::new(), " ".repeat((text.len() - words.len()).min(width / 2)));
    let blank = |line: &str| line.chars().all(|c| c == ' ');
    for word in words.split(' ') {
        let mut word = word.to_owned();
        let length = |text: &str| text.chars().count();
        if !blank(&line) && length(&line) + 1 + length(&word) > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
        if !blank(&line) {
            line.push(' ');
        }
        while !is_whole(&word) && length(&line) + length(&word) > width {
            let room = width - length(&line);
            line.extend(word.chars().take(room));
            word = word.chars().skip(room).collect();
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
        line += &word;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<'_>; 4] = [
        Column::name("mount", 0),
        Column::amount("read/s", 1),
        Column::amount("mean time", 2),
        Column::word("state", 0),
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        vec![
            row(["/mnt", "1.00 MiB", "12.3 ms", "ONLINE"]),
            row(["/a/long/path/to/a/mount", "0 B", "-", "FAILED"]),
        ]
    }

    #[test]
    fn a_name_may_be_longer_than_the_widest_format() {
        let columns = [Column::name("path", 0), Column::amount("bytes", 0)];
        let rows = vec![vec!["x".repeat(70_000), "1".to_owned()]];
        let lines = table(&columns, &rows, usize::MAX);
        assert_eq!(lines[1].len(), 70_000 + GAP + "bytes".len());
        assert!(lines[1].ends_with("  1"), "aligned right");
    }

    #[test]
    fn columns_of_names_share_what_is_left() {
        const COLUMNS: [Column<'_>; 3] =
            [Column::name("from", 0), Column::amount("size", 0), Column::name("on", 0)];
        let row = ["/a/long/path/to/a/drive", "7", "/mnt/long/path/to/a/mount"].map(Into::into);
        let at = |width| table(&COLUMNS, &[row.to_vec()], width)[1].clone();
        assert_eq!(at(40), "...th/to/a/drive     7  ...th/to/a/mount");
        assert_eq!(at(80), "/a/long/path/to/a/drive     7  /mnt/long/path/to/a/mount");
    }

    #[test]
    fn what_fits_is_shown_in_full() {
        let lines = table(&COLUMNS, &rows(), 80);
        assert_eq!(
            lines,
            [
                "mount                      read/s  mean time  state",
                "/mnt                     1.00 MiB    12.3 ms  ONLINE",
                "/a/long/path/to/a/mount       0 B          -  FAILED",
            ]
        );
    }

    #[test]
    fn names_are_shortened_and_then_columns_left_out() {
        let at = |width| table(&COLUMNS, &rows(), width);
        assert_eq!(at(50)[2], "...ng/path/to/a/mount       0 B          -  FAILED");
        assert_eq!(at(40)[0], "mount                     read/s  state");
        assert_eq!(at(40)[2], "...ong/path/to/a/mount       0 B  FAILED");
        assert_eq!(at(30)[2], "...o/a/mount       0 B  FAILED");
        assert_eq!(at(20)[2], "...o/a/mount  FAILED");
        for width in 0..90 {
            for line in at(width) {
                assert!(line.chars().count() <= width && !line.ends_with(' '), "{width}: {line}");
            }
        }
    }

    #[test]
    fn commands_are_not_broken() {
        let text = "to mend them: furrow raid scrub a --repair; or write them";
        let lines = folded_around_commands(text, 2, 20);
        let expected = ["to mend them:", "  furrow raid scrub a --repair;", "  or write them"];
        assert_eq!(lines, expected);
        assert_eq!(folded_around_commands(text, 2, 80), [text]);
        assert_eq!(
            folded_around_commands("furrowed one two", 0, 8),
            folded("furrowed one two", 0, 8)
        );
    }

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(folded("one two three", 2, 9), ["one two", "  three"]);
        assert_eq!(folded("one two", 2, 7), ["one two"]);
        assert_eq!(folded("abcdefghij k", 1, 4), ["abcd", " efg", " hij", " k"]);
        assert_eq!(folded("  indented line", 2, 80), ["  indented line"]);
        for width in 1..20 {
            for line in folded("a line of words, and averylongone", 3, width) {
                assert!(line.chars().count() <= width.max(4), "{width}: {line:?}");
            }
        }
    }
}
