//! Tests that pictures of maps fit the screen, state their scale, and can be read without colour.

use super::cells::{Cell, cells, zones_per_cell};
use super::text::Part;
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

/// A map of `zones` zones that contains some zones of every use.
fn busy(zones: usize) -> MapPage {
    let one = |at: usize| match at {
        0..=12 => (STYLES[at].name, 60, 40, at == 1),
        _ if at < zones / 3 => ("data-warm", 100, 99, false),
        _ if at < zones / 2 => ("data-cold", 100, 30, false),
        _ => ("free", 0, 0, false),
    };
    map(&(0..zones).map(one).collect::<Vec<_>>())
}

fn screen(width: usize, height: usize, colour: bool) -> Screen {
    Screen { width, height, colour }
}

fn drawn(map: &MapPage, screen: Screen) -> String {
    text::draw(map, &STYLES, screen, Part::Fitting, "")
}

/// `text` without colour sequences.
fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once('m').unwrap().1)
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
fn letters_say_use_and_fill_and_rows_wrap() {
    let mut zones = vec![("checkpoint", 60, 0, true), ("data-hot", 100, 49, false)];
    zones.extend([("data-warm", 100, 50, false); 20]);
    zones.push(("free", 0, 0, false));
    let text = drawn(&map(&zones), screen(24, 24, false));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(" 0 KhDDDDDDDDDDDDDDDDDD"));
    assert_eq!(lines.next(), Some("20 DD."));
    assert!(!text.contains('\x1b'));
    assert!(text.lines().any(|line| line.starts_with("data-warm") && line.contains("20")));
    assert!(text.contains("cells: one zone each; a"), "{text}");
    assert!(text.ends_with("d.zns: 23 zones of 400\nKiB\n"), "{text}");
}

#[test]
fn colour_says_the_same_again_and_what_is_full_or_open() {
    let zones = [("data-cold", 100, 100, true), ("node-hot", 100, 20, false)];
    let text = drawn(&map(&zones), screen(80, 24, true));
    assert!(text.starts_with("0 \x1b[4;7;34mC\x1b[0m\x1b[91mm\x1b[0m\n"), "{text:?}");
    assert!(text.contains(" \x1b[7;34mC\x1b[0m "), "the table has its colour: {text:?}");
    let long = map(&[("data-warm", 100, 100, false); 50]);
    assert_eq!(
        drawn(&long, screen(80, 24, true)).lines().next().unwrap().matches('\x1b').count(),
        2
    );
    for (width, zones) in [(40, 60), (80, 300), (200, 5000)] {
        let map = busy(zones);
        let picture = |text: &str| text.split("\n\n").take(2).collect::<Vec<_>>().join("\n\n");
        let coloured = plain(&drawn(&map, screen(width, 50, true)));
        let letters = drawn(&map, screen(width, 50, false));
        assert_eq!(picture(&coloured), picture(&letters));
        assert!(coloured.is_ascii());
    }
}

#[test]
fn the_map_of_any_drive_fits_screens_of_40_80_and_200_columns() {
    let sizes = [(40, 30), (40, 50), (80, 24), (80, 40), (200, 24), (200, 60)];
    for (width, height) in sizes {
        for zones in [1, 13, 96, 904, 5000, 40_704] {
            for (colour, below) in [(false, ""), (true, ""), (false, "a b\n1 2\n")] {
                let map = MapPage { device: "a/folder/of/drives/d.zns".into(), ..busy(zones) };
                let size = screen(width, height, colour);
                let text = plain(&text::draw(&map, &STYLES, size, Part::Fitting, below));
                let wide = text.lines().map(str::len).max().unwrap();
                assert!(wide <= width, "{wide} of {width}:\n{text}");
                // The last line of the screen is for the prompt.
                let high = text.lines().count() + 1;
                assert!(high <= height, "{high} of {height}, {zones} zones:\n{text}");
                let first = text.lines().next().unwrap();
                let (number, row) = first.trim_start().split_once(' ').unwrap();
                assert_eq!(number, "0");
                // The first row shows all zones, or is at least about half as wide as the screen.
                let filled = row.len() == zones || row.len() * 2 + 20 > width;
                assert!(filled, "no more zones per cell than needed:\n{text}");
            }
        }
    }
}

#[test]
fn the_scale_is_said_and_rows_begin_with_the_number_of_their_first_zone() {
    let map = busy(40_704);
    let text = drawn(&map, screen(80, 24, false));
    assert!(text.contains("cells: 256 zones (100 MiB) each, by the use"), "{text}");
    let rows: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    let starts: Vec<usize> =
        rows.iter().map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(starts, [0, 70 * 256, 140 * 256]);
    let cells: usize = rows.iter().map(|row| row.split_whitespace().nth(1).unwrap().len()).sum();
    assert_eq!(cells, 40_704_usize.div_ceil(256));
    // All zones are drawn if the user asks for it, whatever the size of the screen.
    let all = text::draw(&map, &STYLES, screen(80, 24, false), Part::AllZones, "");
    assert!(all.contains("cells: one zone each"));
    assert_eq!(all.lines().take_while(|line| !line.is_empty()).count(), 40_704_usize.div_ceil(70));
}

#[test]
fn a_summary_is_the_table_alone() {
    let (map, size) = (busy(500), screen(80, 24, false));
    let text = text::draw(&map, &STYLES, size, Part::Summary, "more\n");
    assert!(text.starts_with("use "), "{text}");
    assert!(text.ends_with("\n\nd.zns: 500 zones of 400 KiB\n\nmore\n"), "{text}");
    assert!(text.contains("valid of zones") && !text.contains("cells:"), "{text}");
    let narrow = text::draw(&map, &STYLES, screen(40, 24, false), Part::Summary, "");
    assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
    assert!(narrow.lines().any(|line| line.starts_with("data-cold") && line.ends_with("30.1%")));
}

#[test]
fn a_cell_of_several_zones_has_their_most_frequent_use_but_free() {
    let free = ("free", 0, 0, false);
    let some = ("data-warm", 100, 100, false);
    let many =
        map(&[free, free, free, some, free, free, free, free, some, ("node-hot", 9, 9, true)]);
    let at = |name: &str| STYLES.iter().position(|style| style.name == name).unwrap();
    let found = cells(&many, &STYLES, 4);
    let cell = |name, fill, open| Cell { style: at(name), fill, open };
    assert_eq!(found[..2], [cell("data-warm", 0.25, false), cell("free", 0.0, false)]);
    // The last cell has only two zones, with two uses: the first use in the styles stands for both.
    assert_eq!((found[2].style, found[2].open), (at("data-warm"), true));
    assert!((found[2].fill - 0.545).abs() < 1e-9, "{}", found[2].fill);
    assert_eq!(found.len(), 3);
    assert_eq!(zones_per_cell(10, 10), 1);
    assert_eq!(zones_per_cell(11, 10), 2);
    assert_eq!(zones_per_cell(81, 10), 16);
    assert_eq!(zones_per_cell(0, 0), 1);
}

#[test]
fn a_use_of_another_version_and_an_empty_drive_are_no_panic() {
    let text = drawn(&map(&[("moon", 1, 1, false)]), screen(20, 5, true));
    assert!(plain(&text).starts_with("0 -\n"), "{text}");
    let mut none = map(&[]);
    none.zone_blocks = 0;
    drawn(&none, screen(20, 5, false));
    svg::draw(&none, &STYLES);
}

#[test]
fn the_svg_is_small_the_same_each_time_and_right_in_the_dark() {
    let map = busy(40_704);
    let picture = svg::draw(&map, &STYLES);
    assert_eq!(picture, svg::draw(&map, &STYLES));
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(picture.ends_with("</svg>\n"));
    assert!(picture.len() < 12_000, "{} bytes", picture.len());
    let dark = picture.split_once("@media (prefers-color-scheme:dark)").expect("dark colours").1;
    for (at, style) in STYLES.iter().enumerate() {
        // Each use has a colour for light and for dark pages, and an entry of the legend.
        assert!(dark.contains(&format!(".u{at}{{fill:#")), "{}", style.name);
        assert_eq!(picture.matches(&format!(".u{at}{{fill:#")).count(), 2, "{}", style.name);
        assert!(picture.contains(&format!(">{} ", style.name)), "{}", style.name);
    }
    assert!(picture.contains("A cell is 64 zones (25.0 MiB)"), "{picture}");
    // Every cell has a letter.
    let letters: usize = picture
        .split("textLength=")
        .skip(1)
        .map(|part| part.split(['>', '<']).nth(1).unwrap().len())
        .sum();
    assert_eq!(letters, 40_704 / 64);
    let hostile = MapPage { device: "<&\">".into(), ..busy(20) };
    assert!(svg::draw(&hostile, &STYLES).contains("&lt;&amp;&quot;&gt;: 20 zones"));
}

#[test]
fn an_svg_replaces_an_svg_and_nothing_else() {
    let place = std::env::temp_dir().join(format!("furrow-map-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let (new, drive) = (place.join("new.svg"), place.join("drive.zns"));
    save(&new, "<svg>1</svg>\n").unwrap();
    save(&new, "<svg>2</svg>\n").unwrap();
    assert_eq!(fs::read_to_string(&new).unwrap(), "<svg>2</svg>\n");
    fs::write(&drive, "FURROW").unwrap();
    let error = save(&drive, "<svg></svg>\n").unwrap_err().to_string();
    assert!(error.contains("is not an SVG file"), "{error}");
    assert_eq!(fs::read_to_string(&drive).unwrap(), "FURROW");
    assert!(save(&place, "<svg></svg>\n").is_err());
    fs::remove_dir_all(&place).unwrap();
}
