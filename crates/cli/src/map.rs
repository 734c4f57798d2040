//! `furrow map`: a picture of the zones and their content.

use crate::show::{self, Screen};
use crate::target::Target;
use furrow_fuse::report::{MapPage, Zone};
use std::ffi::OsString;
use std::io::{self, Write};

/// Show which zone holds what
///
/// One cell per zone, in the order of the drive: its use and how full it is.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or device
    #[arg(value_name = "DIR|DEVICE")]
    target: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How a use of zones is drawn.
pub struct Style {
    /// The use. Every map has "unused", which also stands for unknown uses.
    pub name: &'static str,
    /// Without colour; capital if at least half of the zone is valid.
    pub letter: char,
    /// SGR colour (foreground).
    pub colour: u8,
    /// What counts as full: valid blocks or, for logs, whose blocks all count, written blocks.
    pub by_written: bool,
}

const STYLES: [Style; 13] = [
    Style { name: "checkpoint", letter: 'k', colour: 35, by_written: true },
    Style { name: "delta-log", letter: 'l', colour: 95, by_written: true },
    Style { name: "tables", letter: 't', colour: 33, by_written: true },
    Style { name: "sync-log", letter: 's', colour: 93, by_written: true },
    Style { name: "data-hot", letter: 'h', colour: 31, by_written: false },
    Style { name: "data-warm", letter: 'd', colour: 32, by_written: false },
    Style { name: "data-cold", letter: 'c', colour: 34, by_written: false },
    Style { name: "node-hot", letter: 'm', colour: 91, by_written: false },
    Style { name: "node-warm", letter: 'n', colour: 92, by_written: false },
    Style { name: "node-cold", letter: 'o', colour: 94, by_written: false },
    Style { name: "free", letter: '.', colour: 90, by_written: false },
    Style { name: "unused", letter: '-', colour: 90, by_written: false },
    Style { name: "retired", letter: 'x', colour: 41, by_written: false },
];

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let map = Target::find(&args.target)?.map()?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &map)?;
        writeln!(out)?;
    } else {
        draw(out, &map, &STYLES, Screen::of_stdout())?;
    }
    Ok(0)
}

fn style<'a>(zone: &Zone, styles: &'a [Style]) -> &'a Style {
    const UNUSED: Style = Style { name: "unused", letter: '-', colour: 90, by_written: false };
    // A use that this version does not know is drawn as unused, and listed below by its name.
    styles.iter().find(|style| style.name == zone.usage).unwrap_or(&UNUSED)
}

/// The share of `zone` that is full, 0 to 1.
fn fill(zone: &Zone, style: &Style, capacity: u64) -> f64 {
    let blocks = if style.by_written { zone.written } else { zone.valid };
    if capacity == 0 { 0.0 } else { (blocks as f64 / capacity as f64).min(1.0) }
}

fn cell(zone: &Zone, capacity: u64, style: &Style, colour: bool) -> String {
    let fill = fill(zone, style, capacity);
    if !colour {
        let full = fill >= 0.5;
        return if full { style.letter.to_ascii_uppercase() } else { style.letter }.to_string();
    }
    let shape = match style.name {
        "free" | "unused" | "retired" => style.letter,
        _ if fill >= 0.875 => '█',
        _ if fill >= 0.5 => '▓',
        _ if fill >= 0.125 => '▒',
        _ => '░',
    };
    let open = if zone.open { "1;4;" } else { "" };
    format!("\x1b[{open}{}m{shape}\x1b[0m", style.colour)
}

/// Draws the picture, the legend and a table of uses in these `styles`.
///
/// # Errors
/// Errors of writing.
pub fn draw(
    out: &mut dyn Write,
    map: &MapPage,
    styles: &[Style],
    screen: Screen,
) -> io::Result<()> {
    let label = map.total.saturating_sub(1).to_string().len();
    let room = screen.width.saturating_sub(label + 1).max(10);
    // Zones in rows of a round number are easier to count.
    let row = if room >= 10 { room / 10 * 10 } else { room };
    for chunk in map.zones.chunks(row) {
        write!(out, "{:>label$} ", chunk.first().map_or(0, |zone| zone.zone))?;
        for zone in chunk {
            let style = style(zone, styles);
            out.write_all(cell(zone, map.zone_blocks, style, screen.colour).as_bytes())?;
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    summary(out, map, styles, screen)?;
    let cells = if screen.colour {
        "cells: ░ below 1/8 valid, ▒ below 1/2, ▓ below 7/8, █ above; underlined: open"
    } else {
        "cells: a capital is at least half valid"
    };
    writeln!(
        out,
        "\n{cells}\n{}: {} zones of {}",
        map.device,
        map.total,
        show::bytes(map.zone_blocks * 4096)
    )
}

fn summary(out: &mut dyn Write, map: &MapPage, styles: &[Style], screen: Screen) -> io::Result<()> {
    let mut table =
        show::table(&["use", "cell", "zones", "open", "written", "valid", "valid of zones"]);
    for style in styles {
        let zones: Vec<&Zone> = map.zones.iter().filter(|zone| zone.usage == style.name).collect();
        if zones.is_empty() {
            continue;
        }
        let written: u64 = zones.iter().map(|zone| zone.written).sum();
        let valid: u64 = zones.iter().map(|zone| zone.valid).sum();
        let capacity = map.zone_blocks * zones.len() as u64;
        let letter = if screen.colour { style.letter } else { style.letter.to_ascii_uppercase() };
        table.add_row([
            style.name.to_owned(),
            if screen.colour { "█".to_owned() } else { letter.to_string() },
            zones.len().to_string(),
            zones.iter().filter(|zone| zone.open).count().to_string(),
            show::bytes(written * 4096),
            show::bytes(valid * 4096),
            show::percent(valid, capacity),
        ]);
    }
    let mut text = Vec::new();
    show::print_table(&mut text, &table)?;
    // Colour is added after the layout of the table: it would count as width.
    for line in String::from_utf8_lossy(&text).lines() {
        let style = styles.iter().find(|style| line.split_whitespace().next() == Some(style.name));
        match style.filter(|_| screen.colour) {
            Some(style) => {
                let shape = match style.name {
                    "free" | "unused" | "retired" => style.letter,
                    _ => '█',
                };
                let painted = format!("\x1b[{}m{shape}\x1b[0m", style.colour);
                writeln!(out, "{}", line.replacen('█', &painted, 1))?;
            }
            None => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_fs::ZoneUse;
    use furrow_fuse::report::use_name;

    fn map(zones: &[(&str, u64, u64, bool)]) -> MapPage {
        MapPage {
            version: 1,
            device: "d.zns".into(),
            zone_blocks: 100,
            total: zones.len() as u64,
            zones: zones
                .iter()
                .enumerate()
                .map(|(zone, &(usage, written, valid, open))| Zone {
                    zone: zone as u64,
                    usage: usage.into(),
                    open,
                    written,
                    valid,
                })
                .collect(),
        }
    }

    fn drawn(map: &MapPage, screen: Screen) -> String {
        let mut out = Vec::new();
        draw(&mut out, map, &STYLES, screen).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_use_has_a_cell_of_its_own() {
        for usage in [
            ZoneUse::Checkpoint,
            ZoneUse::DeltaLog,
            ZoneUse::Tables,
            ZoneUse::SyncLog,
            ZoneUse::Free,
            ZoneUse::Data(0),
            ZoneUse::Data(1),
            ZoneUse::Data(2),
            ZoneUse::Node(0),
            ZoneUse::Node(1),
            ZoneUse::Node(2),
            ZoneUse::Unused,
            ZoneUse::Retired,
        ] {
            assert_eq!(STYLES.iter().filter(|style| style.name == use_name(usage)).count(), 1);
        }
        let mut letters: Vec<char> = STYLES.iter().map(|style| style.letter).collect();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), STYLES.len());
    }

    #[test]
    fn without_colour_letters_say_use_and_fill_and_rows_wrap() {
        let mut zones = vec![("checkpoint", 60, 0, true), ("data-hot", 100, 49, false)];
        zones.extend([("data-warm", 100, 50, false); 20]);
        zones.push(("free", 0, 0, false));
        let text = drawn(&map(&zones), Screen { width: 24, colour: false });
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(" 0 KhDDDDDDDDDDDDDDDDDD"));
        assert_eq!(lines.next(), Some("20 DD."));
        assert!(!text.contains('\x1b'));
        assert!(text.lines().any(|line| line.starts_with("data-warm") && line.contains("20")));
        assert!(text.ends_with("d.zns: 23 zones of 400 KiB\n"), "{text}");
    }

    #[test]
    fn with_colour_shades_say_fill() {
        let zones = [("data-cold", 100, 100, true), ("node-hot", 100, 20, false)];
        let text = drawn(&map(&zones), Screen { width: 80, colour: true });
        assert!(text.starts_with("0 \x1b[1;4;34m█\x1b[0m\x1b[91m▒\x1b[0m\n"), "{text:?}");
        assert!(text.contains("\x1b[34m█\x1b[0m"));
    }

    #[test]
    fn a_use_of_another_version_and_an_empty_drive_are_no_panic() {
        drawn(&map(&[("moon", 1, 1, false)]), Screen { width: 20, colour: true });
        let mut none = map(&[]);
        none.zone_blocks = 0;
        drawn(&none, Screen { width: 20, colour: false });
    }
}
