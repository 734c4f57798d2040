//! `furrow kv map`: a picture of the zones of a store and their content.

use super::drive::Looked;
use super::kind::{self, Kind, Kinds};
use super::running;
use crate::map::{Form, Style};
use crate::show;
use crate::target::source_name;
use furrow_fuse::report::{MapPage, Zone};
use furrow_kv::{FileId, ZoneInfo, ZoneUse};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Show the content of each zone of a store
///
/// A picture with one cell per zone, in the order of the drive: a letter for the kind of files with
/// the most valid blocks in it, a capital if at least half of the zone is valid. If the picture
/// would not fit the screen, a cell stands for several zones, and a line says for how many. A
/// second table shows the number of zones with files of each kind, and the number of zones with
/// that kind alone. If a program uses the store, that program answers.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    #[command(flatten)]
    form: Form,
}

const STYLES: [Style; 10] = [
    Style { name: "ring", letter: 'r', colour: 35, by_written: true },
    Style { name: "blob", letter: 'b', colour: 34, by_written: false },
    Style { name: "sst", letter: 's', colour: 32, by_written: false },
    Style { name: "wal", letter: 'w', colour: 31, by_written: false },
    Style { name: "manifest", letter: 'm', colour: 93, by_written: false },
    Style { name: "other", letter: 'o', colour: 36, by_written: false },
    Style { name: "garbage", letter: 'g', colour: 33, by_written: false },
    Style { name: "free", letter: '.', colour: 90, by_written: false },
    Style { name: "unused", letter: '-', colour: 90, by_written: false },
    Style { name: "retired", letter: 'x', colour: 41, by_written: false },
];

/// Runs the command.
///
/// # Errors
/// An error if there is no store.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let (uuid, label, zone_blocks, zones) = match Looked::open(&args.device) {
        Ok(looked) => {
            let store = looked.store();
            let files = kind::files(store);
            let each = |zone: ZoneInfo| {
                let kinds = kinds_in(&zone, &files);
                (zone, kinds)
            };
            let zones: Vec<_> = store.zones().into_iter().map(each).collect();
            let label = store.label().to_owned();
            (store.uuid().to_string(), label, store.zone_blocks(), zones)
        }
        Err(error) => {
            let running = running::instead(&args.device, error)?;
            let (zone_blocks, zones) = running.zones()?;
            let (uuid, label) = running.names();
            (uuid.to_owned(), label.to_owned(), zone_blocks, zones)
        }
    };
    let device = source_name(&args.device);
    if args.form.json {
        let each = zones.iter().map(|(zone, kinds)| {
            let kinds = kinds.iter().map(|(kind, blocks)| (kind.name().to_owned(), json!(blocks)));
            json!({
                "zone": zone.zone.0,
                "use": zone.usage.name(),
                "active": zone.active,
                "written": zone.written,
                "valid": zone.valid,
                "kinds": kinds.collect::<Map<_, _>>(),
            })
        });
        let document = json!({
            "version": super::VERSION,
            "device": device,
            "uuid": uuid,
            "zone_blocks": zone_blocks,
            "total": zones.len(),
            "zones": each.collect::<Vec<_>>(),
        });
        show::json(out, &document)?;
        return Ok(0);
    }
    let page = MapPage {
        version: super::VERSION,
        device: crate::map::titled(&device, &label),
        zone_blocks: u64::from(zone_blocks),
        total: zones.len() as u64,
        zones: zones.iter().map(|(zone, kinds)| cell(zone, kinds)).collect(),
    };
    let mut below = Vec::new();
    print_kinds(&mut below, &zones)?;
    let below = String::from_utf8_lossy(&below);
    crate::map::show(out, &page, &STYLES, &args.form, &below)?;
    Ok(0)
}

fn kinds_in(zone: &ZoneInfo, files: &BTreeMap<FileId, Kind>) -> Kinds {
    let mut kinds = Kinds::new();
    for (file, blocks) in &zone.files {
        if let Some(kind) = files.get(file) {
            *kinds.entry(*kind).or_default() += u64::from(*blocks);
        }
    }
    kinds
}

/// The zone as a cell of the picture. An open or full zone is shown as the kind of files with the
/// most valid blocks in it, or as garbage if it has no valid block.
fn cell(zone: &ZoneInfo, kinds: &Kinds) -> Zone {
    let most = kinds.iter().max_by_key(|(_, blocks)| **blocks);
    let usage = match zone.usage {
        ZoneUse::Conventional => "unused",
        ZoneUse::Ring => "ring",
        ZoneUse::Failed => "retired",
        ZoneUse::Free => "free",
        ZoneUse::Open | ZoneUse::Full => most.map_or("garbage", |(kind, _)| kind.name()),
    };
    Zone {
        zone: u64::from(zone.zone.0),
        usage: usage.to_owned(),
        open: zone.active,
        written: u64::from(zone.written),
        valid: u64::from(zone.valid),
    }
}

fn print_kinds(out: &mut dyn Write, zones: &[(ZoneInfo, Kinds)]) -> io::Result<()> {
    let rows = Kind::ALL.map(|kind| {
        let homes = zones.iter().filter(|(_, kinds)| kinds.contains_key(&kind));
        let alone = homes.clone().filter(|(_, kinds)| kinds.len() == 1).count();
        let valid: u64 = homes.clone().filter_map(|(_, kinds)| kinds.get(&kind)).sum();
        let (homes, alone) = (homes.count().to_string(), alone.to_string());
        [kind.name().to_owned(), homes, alone, show::bytes(valid * 4096)]
    });
    show::plain(out, &["kind", "in zones", "alone in", "valid"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_zone::ZoneId;

    fn zone(usage: ZoneUse, valid: u32) -> ZoneInfo {
        ZoneInfo {
            zone: ZoneId(7),
            usage,
            active: usage == ZoneUse::Open,
            written: 100,
            valid,
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn a_cell_is_what_takes_most_of_the_zone() {
        let kinds: Kinds = [(Kind::Blob, 30), (Kind::Wal, 31), (Kind::Other, 1)].into();
        assert_eq!(cell(&zone(ZoneUse::Full, 62), &kinds).usage, "wal");
        assert_eq!(cell(&zone(ZoneUse::Full, 0), &Kinds::new()).usage, "garbage");
        assert_eq!(cell(&zone(ZoneUse::Free, 0), &Kinds::new()).usage, "free");
        assert_eq!(cell(&zone(ZoneUse::Failed, 62), &kinds).usage, "retired");
        assert!(cell(&zone(ZoneUse::Open, 1), &kinds).open);
    }

    #[test]
    fn every_use_has_a_cell_of_its_own() {
        for name in Kind::ALL.map(Kind::name).into_iter().chain(["ring", "free", "garbage"]) {
            assert_eq!(STYLES.iter().filter(|style| style.name == name).count(), 1, "{name}");
        }
        let mut letters: Vec<char> = STYLES.iter().map(|style| style.letter).collect();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), STYLES.len());
    }

    #[test]
    fn kinds_are_counted_where_they_live() {
        let one = (zone(ZoneUse::Full, 9), Kinds::from([(Kind::Sst, 9)]));
        let two = (zone(ZoneUse::Full, 9), Kinds::from([(Kind::Sst, 4), (Kind::Blob, 5)]));
        let mut out = Vec::new();
        print_kinds(&mut out, &[one, two]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            (row("sst"), row("blob"), row("wal")),
            ("2 1".into(), "1 0".into(), "0 0".into())
        );
    }
}
