//! `furrow raid create`: makes an array on empty drives.

use super::client;
use super::devices;
use crate::daemon::config;
use crate::holds::Holds;
use crate::in_use::PATIENCE;
use crate::show;
use anyhow::{Result, anyhow, bail};
use furrow_raid::{Config, Level, MetaPlace, Options, Shape};
use furrow_rt::Rt;
use furrow_zone::ZonedDevice;
use serde_json::json;
use std::io::Write;
use std::rc::Rc;

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Make an array on empty drives
///
/// The drives become members 0, 1 and so on in the given order. The array is not started: see
/// furrow raid assemble.
#[derive(clap::Args)]
pub struct Args {
    /// Drives, in the order of members; they must be alike except for the number of zones
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// RAID level: 0 (no redundancy), 01 (mirrored pairs), 4, 5 (one parity), 6 (two parities)
    #[arg(long, short_alias = 'l')]
    level: Level,
    /// Name of the array and of its export: letters, digits, '.', '_' and '-', the first a letter,
    /// a digit or '_'
    #[arg(long, short_alias = 'n', value_parser = parse_name, allow_hyphen_values = true)]
    name: String,
    /// Size of small chunks, of which stripes for small writes consist
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk, default_value = "4KiB")]
    chunk_small: u32,
    /// Size of large chunks, of which stripes for large writes consist: a multiple of the
    /// small size
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk, default_value = "16KiB")]
    chunk_large: u32,
    /// Stripes of a group, within which Zone Append may reorder chunks; 1: Zone Write only; all: no
    /// groups (default: 256, or 1 if the drives have no out-of-band area)
    #[arg(long, value_name = "STRIPES", value_parser = parse_group)]
    group: Option<u32>,
    /// Number of segments open for small writes
    #[arg(long, value_name = "N", default_value_t = 1)]
    small_streams: u32,
    /// Number of segments open for large writes (default: as many as the drives' active zones
    /// allow, up to 3)
    #[arg(long, value_name = "N")]
    large_streams: Option<u32>,
    /// Percent of the volume's size that is kept free in addition, 7 to 100: more makes cleaning
    /// cheaper
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    reserve: u32,
    /// A spare drive, which replaces a member that fails; may be given several times
    #[arg(long, value_name = "DEVICE")]
    spare: Vec<String>,
    /// Overwrite drives that hold data
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() || text.len() > 64 || !text.chars().all(fits) || text.starts_with(['.', '-'])
    {
        return Err(
            "expected up to 64 letters, digits, '.', '_' and '-', no '.' or '-' first".to_owned()
        );
    }
    Ok(text.to_owned())
}

/// Parses a number of bytes as a number of blocks of a chunk.
fn parse_chunk(text: &str) -> Result<u32, String> {
    let bytes = furrow_zone::size::parse(text)?.0;
    match u32::try_from(bytes / BLOCK) {
        Ok(blocks) if blocks > 0 && bytes.is_multiple_of(BLOCK) => Ok(blocks),
        _ => Err(format!("a chunk of {bytes} bytes: expected a multiple of 4KiB")),
    }
}

fn parse_group(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(Config::UNGROUPED),
        text => match text.parse() {
            Ok(0) | Err(_) => Err("expected a number of stripes from 1, or all".to_owned()),
            Ok(group) => Ok(group),
        },
    }
}

/// Runs the command.
///
/// # Errors
/// An error if the drives or options do not suit such an array; then nothing was written. Also an
/// error if a drive fails while the array is made.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let arguments = [&args.devices[..], &args.spare[..]].concat();
    let specs = devices::listed(&arguments)?;
    // The level and the number of drives are checked before any drive is opened.
    furrow_raid::Placement::new(args.level, args.devices.len() as u32)?;
    if let Some(other) = client::running().iter().find(|other| other.status.array == args.name) {
        bail!(
            "an array named {} runs already (UUID {}): choose another name",
            args.name,
            other.status.uuid
        );
    }
    let rt = Rt::new(config()?);
    let all: Result<Vec<_>, _> =
        specs.iter().map(|spec| devices::open(&rt, spec, PATIENCE)).collect();
    let all: Vec<Rc<dyn ZonedDevice>> = all?;
    let mut drives = all.clone();
    let spares = drives.split_off(args.devices.len());
    // The defaults follow from the drive that allows the fewest active zones. `Shape::new` refuses
    // drives that are not alike.
    let fewest = drives.iter().map(|drive| drive.geometry());
    let fewest = fewest.min_by_key(|geometry| geometry.max_active.unwrap_or(u32::MAX));
    let defaults = Config::new(args.level, fewest.expect("invariant: a level has drives"));
    let config = Config {
        label: args.name.clone(),
        small: args.small_streams,
        large: args.large_streams.unwrap_or(defaults.large),
        chunk_small: args.chunk_small,
        chunk_large: args.chunk_large,
        group: args.group.unwrap_or(defaults.group),
        reserve: args.reserve,
        ..defaults
    };
    let geometries: Vec<_> = drives.iter().map(|drive| drive.geometry()).collect();
    let shape = Shape::new(&config, &geometries)
        .map_err(|error| anyhow!(named_drives(&error.to_string(), &args.devices)))?;
    for (drive, argument) in all.iter().zip(&arguments) {
        if !args.force {
            let drive = drive.clone();
            let holds = rt.block_on(async move { Holds::of(&*drive).await })?;
            holds.refuse_used(argument, "--force")?;
        }
    }
    drop(all);
    for spare in &spares {
        shape.check_replacement(&config, &**spare)?;
    }
    let (engine, force, group) = (rt.clone(), args.force, config.group);
    let made = rt.block_on(async move {
        let options = Options::default();
        let volume = furrow_raid::create(&engine, drives, &config, &options, force).await?;
        let uuid = volume.uuid();
        for spare in spares {
            volume.add_spare(spare, force).await?;
        }
        volume.stop().await?;
        Ok::<_, furrow_zone::Error>(uuid)
    });
    rt.clear();
    print(args, (&shape, group), &made?.to_string(), out)
}

/// The space of the drives by use, in bytes; the sum is the size of all zones of the array.
fn space(shape: &Shape, reserve: u32) -> Vec<(String, u64)> {
    let placement = &shape.placement;
    let (n, k) = (u64::from(placement.n), u64::from(placement.k));
    let (slots, rows) = (u64::from(shape.slots), u64::from(shape.rows));
    let zone = u64::from(shape.capacity);
    let raw = u64::from(shape.zones) * zone * n;
    let redundancy = slots * rows * (n - k);
    let held = slots * rows * k;
    // The reserve also covers what cleaning always needs: the blocks that windows list for each
    // segment, and whole segments.
    let of_reserve = |blocks: u64| blocks * u64::from(reserve) / 100;
    let map = 2 * u64::from(shape.mappings);
    let kept = of_reserve(shape.blocks + map);
    let logs = raw - slots * zone * n;
    let frames = slots * n * (zone - rows);
    let rest = held.saturating_sub(shape.blocks + kept + map);
    let redundant = match placement.level {
        Level::Raid0 => "redundancy: none at this level",
        Level::Raid01 => "copies: every block is on two drives",
        Level::Raid4 | Level::Raid5 if placement.n == 2 => {
            "parity: of two drives it is a mirror, half of the segments"
        }
        Level::Raid4 | Level::Raid5 => "parity: one drive's share of the segments",
        Level::Raid6 => "parity: two drives' share of the segments",
    };
    let all = [
        ("the volume".to_owned(), shape.blocks),
        (redundant.to_owned(), redundancy),
        (format!("reserve, {reserve} % of the volume: keeps cleaning cheap (--reserve)"), kept),
        ("segments that are open or that cleaning needs".to_owned(), rest),
        ("the volume's map".to_owned(), map),
        ("zones for the array's state".to_owned(), logs),
        ("ends of zones: headers, footers, what chunks do not fill".to_owned(), frames),
    ];
    all.into_iter().map(|(what, blocks)| (what, blocks * BLOCK)).collect()
}

/// Replaces drive numbers in `message` by the drives' names.
fn named_drives(message: &str, names: &[String]) -> String {
    let mut message = message.to_owned();
    // The pattern includes "has", so that drive 1 does not match the start of "drive 12 has".
    for (index, name) in names.iter().enumerate().rev() {
        message = message.replace(&format!("drive {index} has"), &format!("{name} has"));
    }
    message
}

fn print(
    args: &Args,
    (shape, group): (&Shape, u32),
    uuid: &str,
    out: &mut dyn Write,
) -> Result<u8> {
    let (drives, tolerates) = (shape.placement.n, shape.placement.tolerates());
    let (size, raw) = (
        shape.blocks * BLOCK,
        u64::from(shape.zones) * u64::from(shape.capacity) * u64::from(drives) * BLOCK,
    );
    if args.json {
        let document = json!({
            "version": super::status::VERSION,
            "array": args.name,
            "uuid": uuid,
            "level": args.level.name(),
            "devices": args.devices,
            "spares": args.spare,
            "size_bytes": size,
            "raw_bytes": raw,
            "space": space(shape, args.reserve).iter().map(|(what, bytes)| {
                json!({ "what": what, "bytes": bytes })
            }).collect::<Vec<_>>(),
            "tolerates": tolerates,
            "segments": shape.slots,
            "rows": shape.rows,
            "metadata": if shape.meta == MetaPlace::InBand { "stripes" } else { "out-of-band" },
        });
        show::json(out, &document)?;
        return Ok(0);
    }
    writeln!(out, "{}: array made", args.name)?;
    let may = match tolerates {
        0 => "none: what a drive holds is lost with it".to_owned(),
        1 if args.level == Level::Raid01 => "1, and one of each pair".to_owned(),
        some => some.to_string(),
    };
    let group = match group {
        Config::UNGROUPED => "no groups".to_owned(),
        1 => "Zone Write only".to_owned(),
        group => format!("groups of {group} stripes"),
    };
    let metadata = match shape.meta {
        MetaPlace::InBand => {
            "in stripes of its own, as the drives have no out-of-band area: at least 1/64 of the \
             space, and each write waits for such a stripe (docs/use/volumes.md in \
             /usr/share/doc/furrow)"
        }
        MetaPlace::OutOfBand => "in the out-of-band area of each block",
    };
    let space = space(shape, args.reserve);
    let mut facts = vec![
        ("UUID", uuid.to_owned()),
        ("level", format!("{} of {drives} drives", args.level)),
        ("members", args.devices.join(" ")),
        ("size", format!("{} of {} on the drives", show::bytes(size), show::bytes(raw))),
        ("may fail", may),
        (
            "chunks",
            format!(
                "{} and {}, {group}",
                show::bytes(u64::from(args.chunk_small) * BLOCK),
                show::bytes(u64::from(args.chunk_large) * BLOCK)
            ),
        ),
        ("segments", format!("{} of {} rows", shape.slots, shape.rows)),
        ("metadata", metadata.to_owned()),
    ];
    for (index, (what, bytes)) in space.iter().enumerate() {
        let head = if index == 0 { "space" } else { "" };
        let share = *bytes as f64 * 100.0 / raw as f64;
        facts.push((head, format!("{:>8} {share:>5.1} %  {what}", show::bytes(*bytes))));
    }
    if !args.spare.is_empty() {
        facts.push(("spares", args.spare.join(" ")));
    }
    show::facts(out, (2, 9), facts)?;
    let all = [&args.devices[..], &args.spare[..]].concat();
    writeln!(out, "start it: furrow raid assemble {}", all.join(" "))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_where_they_are_given() {
        assert_eq!(parse_chunk("16KiB"), Ok(4));
        for wrong in ["0", "1KiB", "5000", "x"] {
            assert!(parse_chunk(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_group("all"), Ok(Config::UNGROUPED));
        assert!(parse_group("0").is_err() && parse_group("-1").is_err());
        assert_eq!(parse_name("a-1.b_c"), Ok("a-1.b_c".to_owned()));
        for wrong in ["", "a b", "a/b", ".a", "-a", "ü", &"x".repeat(65)] {
            assert!(parse_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn messages_name_drives_as_the_user_does() {
        let names: Vec<String> = (0..13).map(|i| format!("d{i}.zns")).collect();
        let text = "drive 12 has zone capacity 5, drive 1 has 4: alike";
        assert_eq!(named_drives(text, &names), "d12.zns has zone capacity 5, d1.zns has 4: alike");
    }
}
