//! `furrow kv mkfs`: makes a file store.

use crate::daemon::config;
use crate::holds::{self, Holds, Needs};
use crate::in_use;
use crate::show;
use crate::target::source_name;
use crate::visit;
use furrow_kv::{FormatOptions, Snapshot, Store};
use furrow_log::record::Uuid;
use furrow_rt::Rt;
use furrow_zone::Access;
use serde_json::json;
use std::io::Write;

/// Make a file store
///
/// Everything on the device is lost.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Label, at most 63 bytes
    #[arg(short = 'L', long, value_name = "LABEL", default_value = "", hide_default_value = true)]
    #[arg(value_parser = crate::label::checked)]
    label: String,
    /// UUID (default: random)
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Overwrite a device that holds a file store or other data
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// An error if the drive is not empty and `--force` is missing, or the drive does not suit a store.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<u8> {
    let rt = Rt::new(config()?);
    let device = visit::open(&rt, &args.device, Access::ReadWrite, Needs::Store)?;
    let geometry = device.geometry().clone();
    holds::refuse_conventional(&*device)?;
    let name = source_name(&args.device);
    let options = FormatOptions {
        label: args.label.clone(),
        uuid: args.uuid,
        force: args.force,
        ..FormatOptions::default()
    };
    let (engine, at) = (rt.clone(), name.clone());
    let made = rt.block_on(async move {
        if !options.force {
            Holds::of(&*device).await?.refuse_used(&at, "-f")?;
        }
        Store::format(&engine, device.clone(), &options).await?;
        Snapshot::open(device).await
    });
    rt.clear();
    let made = made?;
    in_use::warn_of_memory(&args.device.parse()?, "the store");
    let (uuid, space, zone) = (made.uuid(), made.space(), u64::from(made.zone_blocks()) * 4096);
    let (half, _) = made.ring();
    if args.json {
        let document = json!({
            "version": super::VERSION,
            "device": name,
            "uuid": uuid.to_string(),
            "label": args.label,
            "zones": geometry.zones,
            "zone_bytes": zone,
            "ring_bytes": u64::from(made.ring_zones().0.count()) * zone,
            "size_bytes": space.capacity,
        });
        show::json(out, &document)?;
        return Ok(0);
    }
    writeln!(out, "{name}: file store made")?;
    let label = if args.label.is_empty() { "(none)" } else { &args.label };
    let (half, spares) = (show::bytes(half), made.ring_zones().0.spares);
    let ring = format!("two halves of {half} for names and places of files, and spares: {spares}");
    let facts = [
        ("UUID", uuid.to_string()),
        ("label", label.to_owned()),
        ("drive", format!("{} zones of {}", geometry.zones, show::bytes(zone))),
        ("ring", ring),
        ("for files", show::bytes(space.capacity)),
    ];
    show::facts(out, (2, 9), facts)?;
    Ok(0)
}
