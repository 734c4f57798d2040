//! A map of zones as text: letters, in colour if the terminal shows it.
//!
//! Letters distinguish uses everywhere; colour only helps. Only ASCII is printed, whatever the
//! locale is.

use super::cells::{Cell, cells, zones_per_cell};
use super::{Style, style};
use crate::show::{self, Screen};
use furrow_fuse::report::{MapPage, Zone};
use std::fmt::Write as _;

/// The part of a map that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Only the table.
    Summary,
    /// A picture that fits the screen together with the text below it.
    Fitting,
    /// A picture with a cell for each zone.
    AllZones,
}

/// The picture, a table of uses, and an explanation of the cells; then `below`.
pub fn draw(map: &MapPage, styles: &[Style], screen: Screen, part: Part, below: &str) -> String {
    let mut rest = summary(map, styles, screen);
    let zone = map.zone_blocks * 4096;
    if part == Part::Summary {
        let _ = write!(rest, "\n{}", drive(map, zone, screen));
        return with(rest, below);
    }
    let label = map.total.saturating_sub(1).to_string().len();
    let room = screen.width.saturating_sub(label + 1).max(10);
    // Cells are easier to count in rows of a multiple of ten.
    let row = room / 10 * 10;
    let explained = |each: usize| {
        let each = match each {
            1 => "one zone each".to_owned(),
            _ => format!(
                "{each} zones ({}) each, by the use most frequent in them, free ones left aside",
                show::bytes(zone * each as u64)
            ),
        };
        let filled =
            if screen.colour { ", filled from 7/8, underlined if one is open" } else { "" };
        let cells = format!("cells: {each}; a capital is at least half valid{filled}");
        let cells = show::wrap(&cells, screen.width);
        format!("\n{cells}{}", drive(map, zone, screen))
    };
    let each = match part {
        Part::AllZones => 1,
        _ => {
            // Counts the lines of the explanation for more zones than cells, which is the
            // longer one.
            let lines = |text: &str| text.lines().count();
            // The path of a drive may be longer than a line.
            let long = |line: &str| line.chars().count().saturating_sub(1) / screen.width.max(1);
            let path: usize = drive(map, zone, screen).lines().map(long).sum();
            let under = 1 + lines(&rest) + lines(&explained(2)) + path + lines(below);
            // One line is for the next prompt, and one more comes before `below`.
            let rows = screen.height.saturating_sub(under + 1 + usize::from(!below.is_empty()));
            zones_per_cell(map.zones.len(), rows.max(1) * row)
        }
    };
    let mut out = String::new();
    for (at, chunk) in cells(map, styles, each).chunks(row).enumerate() {
        let _ = write!(out, "{:>label$} ", at * row * each);
        paint(&mut out, chunk, styles, screen.colour);
        out.push('\n');
    }
    out.push('\n');
    rest.push_str(&explained(each));
    out.push_str(&rest);
    with(out, below)
}

fn with(text: String, below: &str) -> String {
    if below.is_empty() { text } else { format!("{text}\n{below}") }
}

/// The drive, in as many lines as the screen needs.
fn drive(map: &MapPage, zone: u64, screen: Screen) -> String {
    let (zones, each) = (show::count(map.total, "zone"), show::bytes(zone));
    show::wrap(&format!("{}: {zones} of {each}", map.device), screen.width)
}

fn letter(style: &Style, full: bool) -> char {
    if full { style.letter.to_ascii_uppercase() } else { style.letter }
}

/// Appends a row of cells. Neighbours with the same look share one colour sequence.
fn paint(out: &mut String, row: &[Cell], styles: &[Style], colour: bool) {
    let mut look = String::new();
    for cell in row {
        let style = &styles[cell.style];
        let filled = if cell.fill >= 0.875 { "7;" } else { "" };
        let open = if cell.open { "4;" } else { "" };
        let wanted = format!("{open}{filled}{}", style.colour);
        if colour && wanted != look {
            let reset = if look.is_empty() { "" } else { "\x1b[0m" };
            let _ = write!(out, "{reset}\x1b[{wanted}m");
            look = wanted;
        }
        out.push(letter(style, cell.fill >= 0.5));
    }
    if !look.is_empty() {
        out.push_str("\x1b[0m");
    }
}

/// The table of uses, without the columns that the screen is too narrow for.
fn summary(map: &MapPage, styles: &[Style], screen: Screen) -> String {
    const HEAD: [&str; 7] = ["use", "cell", "zones", "open", "written", "valid", "valid of zones"];
    const NARROW: [&str; 5] = ["use", "cell", "zones", "open", "valid"];
    let mut rows: Vec<(&Style, [String; 7])> = Vec::new();
    for (at, of) in styles.iter().enumerate() {
        let zones: Vec<&Zone> = map.zones.iter().filter(|zone| style(zone, styles) == at).collect();
        if zones.is_empty() {
            continue;
        }
        let written: u64 = zones.iter().map(|zone| zone.written).sum();
        let valid: u64 = zones.iter().map(|zone| zone.valid).sum();
        let row = [
            of.name.to_owned(),
            letter(of, true).to_string(),
            zones.len().to_string(),
            zones.iter().filter(|zone| zone.open).count().to_string(),
            show::bytes(written * 4096),
            show::bytes(valid * 4096),
            show::percent(valid, map.zone_blocks * zones.len() as u64),
        ];
        rows.push((of, row));
    }
    let mut wide = show::table(&HEAD);
    let mut narrow = show::table(&NARROW);
    for (_, row) in &rows {
        wide.add_row(row);
        narrow.add_row([&row[0], &row[1], &row[2], &row[3], &row[6]]);
    }
    let mut text = wide.lines(usize::MAX);
    if text.iter().any(|line| line.len() > screen.width) {
        text = narrow.lines(usize::MAX);
    }
    let mut out = String::new();
    // Colour is added after the layout of the table, because colour sequences would count as width.
    for (at, line) in text.iter().enumerate() {
        let row = at.checked_sub(1).and_then(|at| rows.get(at)).filter(|_| screen.colour);
        let _ = match row {
            Some((style, _)) => {
                let letter = letter(style, true);
                let painted = format!(" \x1b[7;{}m{letter}\x1b[0m ", style.colour);
                writeln!(out, "{}", line.replacen(&format!(" {letter} "), &painted, 1))
            }
            None => writeln!(out, "{line}"),
        };
    }
    out
}
