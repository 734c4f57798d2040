//! `furrow mkfs`: makes a file system.

use crate::holds::Holds;
use crate::in_use;
use crate::show;
use crate::target::source_name;
use anyhow::bail;
use furrow_fs::{Fs, MkfsOptions, MkfsReport, MountOptions};
use furrow_log::record::Uuid;
use furrow_rt::Rt;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ZonedDevice};
use std::io::{self, Write};
use std::rc::Rc;

/// Make a file system
///
/// Everything on the device is lost. Prints the chosen geometry and the number of active zones that
/// the file system uses at once, which the drive must allow.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Volume label, at most 63 bytes
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<String>,
    /// UUID; drawn at random if absent
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Overwrite a device that holds a file system or other data
    #[arg(short, long)]
    force: bool,
    /// Zones per superzone; without it chosen from the drive's channels and limits
    #[arg(long, value_name = "ZONES")]
    width: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Document<'a> {
    version: u32,
    device: &'a str,
    uuid: &'a str,
    label: &'a str,
    width: u32,
    superzones: u32,
    main_bytes: u64,
    available_bytes: u64,
    zone_blocks: u64,
    zones: u64,
    max_active: Option<u32>,
    budget: Vec<Line<'a>>,
    profile: &'a str,
    log_zones: u32,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    what: &'a str,
    zones: u32,
}

/// The drive a file system was made on.
struct Drive {
    name: String,
    zones: u64,
    zone_blocks: u64,
    /// Bytes that can be written to files.
    available: u64,
}

/// Runs the command.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let spec: DeviceSpec = args.device.parse()?;
    let options = MkfsOptions {
        label: args.label.unwrap_or_default(),
        uuid: args.uuid,
        width: args.width,
        force: args.force,
        ..MkfsOptions::default()
    };
    let rt = Rt::new(crate::daemon::config()?);
    let device = in_use::open_now(&rt, &spec, Access::ReadWrite)?;
    let geometry = device.geometry();
    if geometry.conventional_zones >= geometry.zones {
        bail!(
            "{}: all of its {} zones are conventional, none is for sequential writes: Furrow \
             needs a zoned drive",
            device.name(),
            geometry.zones
        );
    }
    let mut drive = Drive {
        available: 0,
        name: source_name(&args.device),
        zones: u64::from(device.geometry().zones),
        zone_blocks: device.geometry().zone_capacity.0,
    };
    let engine = rt.clone();
    let name = drive.name.clone();
    let made = rt.block_on(async move {
        if !options.force {
            Holds::of(&*device).await?.refuse_used(&name, "-f")?;
        }
        let made = Fs::format(&engine, device.clone(), &options).await?;
        Ok::<_, anyhow::Error>((made, available(&engine, device).await?))
    });
    rt.clear();
    let (made, available) = made?;
    drive.available = available;
    in_use::warn_of_memory(&spec, "the file system");
    if args.json {
        print_json(out, &drive, &made)?;
    } else {
        print(out, &drive, &made)?;
    }
    Ok(0)
}

/// The bytes that can be written to files, as `df` shows them.
async fn available(rt: &Rt, device: Rc<dyn ZonedDevice>) -> Result<u64, Error> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = Fs::mount(rt, device, options).await?;
    let space = fs.statfs();
    fs.unmount().await?;
    Ok(space.blocks_available * u64::from(space.block_size))
}

fn print_json(out: &mut dyn Write, drive: &Drive, made: &MkfsReport) -> anyhow::Result<()> {
    let document = Document {
        version: 1,
        device: &drive.name,
        uuid: &made.uuid,
        label: &made.label,
        width: made.width,
        superzones: made.superzones,
        main_bytes: made.main_bytes,
        available_bytes: drive.available,
        zone_blocks: drive.zone_blocks,
        zones: drive.zones,
        max_active: made.max_active,
        budget: made.budget.iter().map(|(what, zones)| Line { what, zones: *zones }).collect(),
        profile: &made.profile,
        log_zones: made.log_zones,
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)?;
    Ok(())
}

fn print(out: &mut dyn Write, drive: &Drive, made: &MkfsReport) -> io::Result<()> {
    writeln!(out, "{}: file system made", drive.name)?;
    let zone = show::bytes(drive.zone_blocks * 4096);
    let label = if made.label.is_empty() { "(none)" } else { &made.label };
    for (what, value) in [
        ("UUID", made.uuid.clone()),
        ("label", label.to_owned()),
        ("drive", format!("{} zones of {zone}", drive.zones)),
        ("profile", made.profile.clone()),
        ("logs", format!("{} zones for checkpoints, logs and tables", made.log_zones)),
        (
            "superzones",
            format!("{} of {}", made.superzones, show::count(made.width.into(), "zone")),
        ),
        ("for files", show::bytes(drive.available)),
    ] {
        writeln!(out, "  {what:<11} {value}")?;
    }
    writeln!(out)?;
    let mut table = show::table(&["active zones for", "zones"]);
    for (what, zones) in &made.budget {
        table.add_row([what.clone(), zones.to_string()]);
    }
    let sum: u32 = made.budget.iter().map(|(_, zones)| zones).sum();
    table.add_row(["sum".to_owned(), sum.to_string()]);
    let limit = made.max_active.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    table.add_row(["the drive allows".to_owned(), limit]);
    show::print_table(out, &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_printed_with_its_sum() {
        let drive =
            Drive { name: "d.zns".into(), zones: 64, zone_blocks: 24_576, available: 5 << 30 };
        let made = MkfsReport {
            uuid: "u".into(),
            budget: vec![("streams".into(), 6), ("sync log".into(), 1)],
            max_active: Some(14),
            ..MkfsReport::default()
        };
        let mut out = Vec::new();
        print(&mut out, &drive, &made).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = |what: &str| {
            let line = text.lines().find(|line| line.starts_with(what)).expect("a row");
            line.split_whitespace().last().map(str::to_owned)
        };
        assert_eq!(row("sum").as_deref(), Some("7"));
        assert_eq!(row("the drive allows").as_deref(), Some("14"));
        assert!(text.contains("64 zones of 96.0 MiB"), "{text}");
        assert!(text.contains("for files   5.00 GiB"), "{text}");

        let mut out = Vec::new();
        print_json(&mut out, &drive, &made).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["budget"][1]["zones"], 1);
    }
}
