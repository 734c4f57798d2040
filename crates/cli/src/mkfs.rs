//! `furrow mkfs`: makes a file system.

use crate::holds::{self, Holds};
use crate::in_use;
use crate::show;
use crate::target::source_name;
use furrow_fs::{Fs, MkfsOptions, MountOptions};
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
    #[arg(value_parser = crate::label::checked)]
    label: Option<String>,
    /// UUID (default: random)
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Overwrite a device that holds a file system or other data
    #[arg(short, long)]
    force: bool,
    /// Number of zones per superzone (default: chosen from the drive's channels and limits)
    #[arg(long, value_name = "ZONES")]
    width: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The new file system, as JSON; the text shows the same.
#[derive(serde::Serialize)]
struct Document {
    version: u32,
    device: String,
    uuid: String,
    label: String,
    width: u32,
    superzones: u32,
    main_bytes: u64,
    available_bytes: u64,
    zone_blocks: u64,
    zones: u64,
    max_active: Option<u32>,
    budget: Vec<Line>,
    profile: String,
    log_zones: u32,
}

#[derive(serde::Serialize)]
struct Line {
    what: String,
    zones: u32,
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
    holds::refuse_conventional(&*device)?;
    let name = source_name(&args.device);
    let geometry = device.geometry().clone();
    let (engine, at) = (rt.clone(), name.clone());
    let made = rt.block_on(async move {
        if !options.force {
            Holds::of(&*device).await?.refuse_used(&at, "-f")?;
        }
        let made = Fs::format(&engine, device.clone(), &options).await?;
        Ok::<_, Error>((made, available(&engine, device).await?))
    });
    rt.clear();
    let (made, available_bytes) = made?;
    in_use::warn_of_memory(&spec, "the file system");
    let line = |(what, zones)| Line { what, zones };
    let document = Document {
        version: 1,
        device: name,
        uuid: made.uuid,
        label: made.label,
        width: made.width,
        superzones: made.superzones,
        main_bytes: made.main_bytes,
        available_bytes,
        zone_blocks: geometry.zone_capacity.0,
        zones: u64::from(geometry.zones),
        max_active: made.max_active,
        budget: made.budget.into_iter().map(line).collect(),
        profile: made.profile,
        log_zones: made.log_zones,
    };
    match args.json {
        true => show::json(out, &document)?,
        false => print(out, &document)?,
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

fn print(out: &mut dyn Write, made: &Document) -> io::Result<()> {
    writeln!(out, "{}: file system made", made.device)?;
    let zone = show::bytes(made.zone_blocks * 4096);
    let label = if made.label.is_empty() { "(none)" } else { &made.label };
    let width = show::count(made.width.into(), "zone");
    let facts = [
        ("UUID", made.uuid.clone()),
        ("label", label.to_owned()),
        ("drive", format!("{} zones of {zone}", made.zones)),
        ("profile", made.profile.clone()),
        ("logs", format!("{} zones for checkpoints, logs and tables", made.log_zones)),
        ("superzones", format!("{} of {width}", made.superzones)),
        ("for files", show::bytes(made.available_bytes)),
    ];
    show::facts(out, (2, 11), facts)?;
    writeln!(out)?;
    let sum: u32 = made.budget.iter().map(|line| line.zones).sum();
    let limit = made.max_active.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    let last = [["sum".to_owned(), sum.to_string()], ["the drive allows".to_owned(), limit]];
    let budget = made.budget.iter().map(|line| [line.what.clone(), line.zones.to_string()]);
    show::plain(out, &["active zones for", "zones"], budget.chain(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_printed_with_its_sum() {
        let line = |what: &str, zones| Line { what: what.to_owned(), zones };
        let made = Document {
            version: 1,
            device: "d.zns".into(),
            uuid: "u".into(),
            label: String::new(),
            width: 1,
            superzones: 1,
            main_bytes: 0,
            available_bytes: 5 << 30,
            zone_blocks: 24_576,
            zones: 64,
            max_active: Some(14),
            budget: vec![line("streams", 6), line("sync log", 1)],
            profile: String::new(),
            log_zones: 2,
        };
        let mut out = Vec::new();
        print(&mut out, &made).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = |what: &str| {
            let line = text.lines().find(|line| line.starts_with(what)).expect("a row");
            line.split_whitespace().last().map(str::to_owned)
        };
        assert_eq!(row("sum").as_deref(), Some("7"));
        assert_eq!(row("the drive allows").as_deref(), Some("14"));
        assert!(text.contains("64 zones of 96.0 MiB"), "{text}");
        assert!(text.contains("for files   5.00 GiB"), "{text}");

        let json = serde_json::to_value(&made).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["budget"][1]["zones"], 1);
    }
}
