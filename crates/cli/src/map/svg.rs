//! A map of zones as an SVG picture, for a light and for a dark page.
//!
//! Equal neighbours are one rectangle, filled with a pattern of cells, so the size of the file
//! depends on the number of runs of equal cells, not on the number of zones. The same map gives the
//! same bytes. Uses differ in letters as well as in colour.

use super::cells::{Cell, cells, zones_per_cell};
use super::{Style, style};
use crate::show::{self, escape};
use furrow_fuse::report::{MapPage, Zone};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Number of cells in a row: a multiple of the usual numbers of zones in a superzone.
const ROW: usize = 48;
/// Maximum number of rows.
const ROWS: usize = 24;
/// Width and height of a cell with the gap around it, in pixels.
const PITCH: usize = 12;
/// Left margin in pixels, for the number of a row's first zone.
const LEFT: usize = 44;
const WIDTH: usize = LEFT + ROW * PITCH;
/// Number of characters in a line of text.
const CHARACTERS: usize = 76;
/// Height of a line of text in pixels.
const LINE: usize = 18;
/// Number of steps in which the fill of a cell is shown.
const STEPS: f64 = 8.0;

/// Fill colours for a light and for a dark page by SGR colour; the text on them is dark on the
/// light page and light on the dark page.
const SHADES: [(u8, &str, &str); 14] = [
    (31, "#f0908a", "#9c3a34"),
    (32, "#7cc68d", "#2b7040"),
    (33, "#e3b86a", "#80590f"),
    (34, "#8db4f0", "#345f9f"),
    (35, "#c9a0e6", "#71429a"),
    (36, "#74c6cc", "#1f6b72"),
    (41, "#ff6b60", "#c22f26"),
    (90, "#c8cdd3", "#4a525b"),
    (91, "#f2ab8c", "#8c4a2a"),
    (92, "#a9cd6d", "#55701f"),
    (93, "#ddcf5c", "#6b6112"),
    (94, "#9aa6ee", "#4a52a6"),
    (95, "#e5a3cd", "#8c3f74"),
    (96, "#84d3c0", "#226b5b"),
];

/// The picture of `map`.
pub fn draw(map: &MapPage, styles: &[Style]) -> String {
    let each = zones_per_cell(map.zones.len(), ROW * ROWS);
    let all = cells(map, styles, each);
    let used: BTreeSet<usize> = map.zones.iter().map(|zone| style(zone, styles)).collect();
    let top = LINE + 6;
    let bottom = top + all.len().div_ceil(ROW) * PITCH + 8;
    let legend = bottom + used.len().div_ceil(2) * LINE;
    let zone = map.zone_blocks * 4096;
    let scale = match each {
        1 => "one zone".to_owned(),
        _ => {
            let bytes = show::bytes(zone * each as u64);
            format!(
                "{each} zones ({bytes}), by the use most frequent in them, free ones left aside"
            )
        }
    };
    let explained = format!(
        "A cell is {scale}. It is filled from below as far as it is valid (logs: written); a \
         capital is at least half full; framed is open."
    );
    let explained = show::wrap(&explained, CHARACTERS);
    let height = legend + explained.lines().count() * LINE;

    let title =
        format!("{}: {} of {}", map.device, show::count(map.total, "zone"), show::bytes(zone));
    let title = escape(&title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fm\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"Zone map of {title}\">\n"
    );
    look(&mut out, styles, &used);
    patterns(&mut out, &all);
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"14\">{title}</text>");
    for (at, row) in all.chunks(ROW).enumerate() {
        let y = top + at * PITCH;
        areas(&mut out, row, y);
        letters(&mut out, row, styles, y, at * ROW * each);
    }
    for (at, of) in used.iter().enumerate() {
        let x = LEFT + at % 2 * (WIDTH - LEFT) / 2;
        entry(&mut out, map, styles, *of, (x, bottom + at / 2 * LINE));
    }
    for (at, line) in explained.lines().enumerate() {
        let y = legend + at * LINE + 12;
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{y}\">{line}</text>");
    }
    out.push_str("</svg>\n");
    out
}

/// Writes the colours and fonts.
fn look(out: &mut String, styles: &[Style], used: &BTreeSet<usize>) {
    let mut light = String::from(
        ".fm text{font:12px ui-monospace,monospace;fill:#1f2328}.fm .z{font-size:9px}\
         .fm .n{text-anchor:end;font-size:10px}.fm .o{fill:none;stroke:#1f2328}",
    );
    let mut dark = String::from(".fm text{fill:#f0f3f6}.fm .o{stroke:#f0f3f6}");
    for at in used {
        let colour = styles[*at].colour;
        let shade = SHADES.iter().find(|(sgr, ..)| *sgr == colour).unwrap_or(&SHADES[7]);
        let _ = write!(light, ".fm .u{at}{{fill:{}}}", shade.1);
        let _ = write!(dark, ".fm .u{at}{{fill:{}}}", shade.2);
    }
    let _ = writeln!(out, "<style>{light}\n@media (prefers-color-scheme:dark){{{dark}}}</style>");
}

fn step(cell: &Cell) -> usize {
    match (cell.fill * STEPS) as usize {
        // A zone with a little content must not look empty.
        0 if cell.fill > 0.0 => 1,
        steps => steps,
    }
}

/// Writes a pattern for each use and fill that occurs.
fn patterns(out: &mut String, all: &[Cell]) {
    let looks: BTreeSet<(usize, usize)> = all.iter().map(|cell| (cell.style, step(cell))).collect();
    let inside = PITCH - 1;
    for (of, steps) in looks {
        let _ = write!(
            out,
            "<pattern id=\"p{of}-{steps}\" width=\"{PITCH}\" height=\"{PITCH}\" x=\"{LEFT}\" \
             patternUnits=\"userSpaceOnUse\"><rect class=\"u{of}\" width=\"{inside}\" \
             height=\"{inside}\" opacity=\".3\"/>"
        );
        if steps > 0 {
            let high = inside as f64 * steps as f64 / STEPS;
            let y = inside as f64 - high;
            let _ = write!(
                out,
                "<rect class=\"u{of}\" y=\"{y:.1}\" width=\"{inside}\" height=\"{high:.1}\"/>"
            );
        }
        out.push_str("</pattern>\n");
    }
}

/// Writes the coloured areas of a row, and frames around open cells.
fn areas(out: &mut String, row: &[Cell], y: usize) {
    let mut at = 0;
    for run in row.chunk_by(|one, other| one.style == other.style && step(one) == step(other)) {
        let (x, wide) = (LEFT + at * PITCH, run.len() * PITCH);
        let (of, steps) = (run[0].style, step(&run[0]));
        let _ = writeln!(
            out,
            "<path fill=\"url(#p{of}-{steps})\" d=\"M{x} {y}h{wide}v{PITCH}h-{wide}z\"/>"
        );
        at += run.len();
    }
    let mut at = 0;
    for run in row.chunk_by(|one, other| one.open == other.open) {
        if run[0].open {
            // A single path contains the frames around all these cells.
            let frames: String = (at..at + run.len())
                .map(|at| format!("M{}.5 {y}.5h10v10h-10z", LEFT + at * PITCH))
                .collect();
            let _ = writeln!(out, "<path class=\"o\" d=\"{frames}\"/>");
        }
        at += run.len();
    }
}

/// Writes the letters of a row, and the number of its first zone.
fn letters(out: &mut String, row: &[Cell], styles: &[Style], y: usize, first: usize) {
    let letters: String = row.iter().map(|cell| letter(&styles[cell.style], cell.fill)).collect();
    let (x, long) = (LEFT + 3, row.len() * PITCH - 6);
    let base = y + 9;
    let _ = writeln!(
        out,
        "<text class=\"n\" x=\"{}\" y=\"{base}\">{first}</text><text class=\"z\" x=\"{x}\" \
         y=\"{base}\" textLength=\"{long}\">{}</text>",
        LEFT - 6,
        escape(&letters)
    );
}

fn letter(style: &Style, fill: f64) -> char {
    if fill >= 0.5 { style.letter.to_ascii_uppercase() } else { style.letter }
}

/// Writes the entry of the legend for the use with index `of` in `styles`, at `(x, y)`.
fn entry(out: &mut String, map: &MapPage, styles: &[Style], of: usize, (x, y): (usize, usize)) {
    let zones: Vec<&Zone> = map.zones.iter().filter(|zone| style(zone, styles) == of).collect();
    let full: u64 = zones
        .iter()
        .map(|zone| if styles[of].by_written { zone.written } else { zone.valid })
        .sum();
    let share = show::percent(full, map.zone_blocks * zones.len() as u64);
    let share = match styles[of] {
        Style { name: "free" | "unused", .. } => String::new(),
        Style { by_written: true, .. } => format!(", {share} written"),
        _ => format!(", {share} valid"),
    };
    let text = format!("{} {}{share}", styles[of].name, show::count(zones.len() as u64, "zone"));
    let _ = writeln!(
        out,
        "<rect class=\"u{of}\" x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\"/><text x=\"{}\" \
         y=\"{}\">{}</text><text x=\"{}\" y=\"{}\">{}</text>",
        x + 4,
        y + 11,
        letter(&styles[of], 1.0),
        x + 22,
        y + 11,
        escape(&text)
    );
}
