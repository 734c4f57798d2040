//! `furrow device`: creates images of emulated drives, shows drives and their models, and injects
//! faults.
//!
//! Tables are human-readable; `--json` is for programs and carries a version. This file knows
//! images only through the library's interface.

use crate::holds::Holds;
use crate::in_use;
use crate::show::{self, print_table};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use furrow_console::fit::{Column, Table};
use furrow_console::program::misused;
use furrow_drives::{Drive, soft};
use furrow_emu::{Emulator, Identity};
use furrow_log::Uuid;
use furrow_rt::{Config, Rt};
use furrow_soft::SoftDrive;
use furrow_zone::spec::{self, DeviceSpec, Node, Timing};
use furrow_zone::{
    Access, BlockCount, ByteLen, Geometry, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

mod check;
pub mod fault;
mod presets;
mod serve;
mod zone;

/// Version of the JSON documents printed here.
const JSON_VERSION: u32 = 1;

const AFTER_HELP: &str = "\
Examples:
  furrow device create disk.zns --preset pm1731a -o capacity=8GiB
  furrow device create --soft /dev/sdX --zone-size 64MiB
  furrow device show disk.zns
  furrow device report mem:zn540-1t --json
  furrow device presets pm1731a
  furrow device check /dev/nvme0n1
  furrow device serve disk.zns
  furrow device fault add disk.zns write-error --zone 3 --times 1";

/// Make and look at zoned drives
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct DeviceArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Create(Create),
    Check(check::CheckArgs),
    Show(Show),
    Report(Report),
    Serve(serve::ServeArgs),
    Fault(fault::FaultArgs),
    Presets(presets::PresetsArgs),
    Zone(zone::ZoneArgs),
}

/// Make an emulated drive in a sparse file, or soft zones
///
/// Soft zones (--soft) are zones on a block device that has none, or in a file whose blocks are all
/// allocated: for use, not for experiments.
#[derive(Args)]
struct Create {
    /// The file to make; with --soft a block device, or a file
    #[arg(value_name = "DEVICE")]
    image: String,
    /// Start from a known drive; 'furrow device create --help' lists them.
    #[arg(long, value_name = "NAME", long_help = preset_help(), hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(furrow_zone::presets::NAMES))]
    preset: Option<String>,
    /// Differences from the preset: key=value, joined by commas or given several times.
    #[arg(short, long, alias = "option", value_name = "KEY=VALUE,...")]
    #[arg(long_help = option_help())]
    options: Vec<String>,
    /// Make soft zones on a block device without zones, or in a file.
    #[arg(long, conflicts_with_all = ["preset", "options"])]
    soft: bool,
    /// Soft zones: bytes of each zone; without it 64MiB, or less on a small device, where a file
    /// system would have too few zones.
    #[arg(long, value_name = "SIZE")]
    zone_size: Option<String>,
    /// Soft zones in a file that does not exist: its size.
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Replace an existing file, or a drive's content, which is then lost.
    #[arg(short, long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show a drive's properties and how it is used
#[derive(Args)]
struct Show {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the drive's content as udev properties, in the form that a udev rule imports; nothing
    /// if the content is not Furrow's.
    #[arg(long, conflicts_with = "json")]
    udev: bool,
}

/// List zones: state, write pointer, capacity
///
/// Neighbouring equal zones are one line, unless --all.
#[derive(Args)]
struct Report {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// First zone to list.
    #[arg(long, value_name = "ZONE", default_value_t = 0)]
    first: u32,
    /// Number of zones to list.
    #[arg(long, value_name = "N")]
    count: Option<u32>,
    /// Print a line for each zone.
    #[arg(long)]
    all: bool,
    /// Print JSON: one object per zone.
    #[arg(long)]
    json: bool,
}

fn preset_help() -> String {
    let mut help = String::from("Start from a known drive:\n");
    for name in furrow_zone::presets::NAMES {
        let what = furrow_zone::presets::describe(name).unwrap_or_default();
        help.push_str(&format!("  {name:<13} {what}\n"));
    }
    help.push_str("Without one: 256 zones of 16 MiB.");
    help
}

fn option_help() -> String {
    let image = |key: &&spec::Key| key.is_of_geometry();
    let keys: Vec<&str> = spec::Key::ALL.iter().filter(image).map(|key| key.name()).collect();
    format!(
        "What differs from the preset: key=value, joined by commas or given several times.\n\
         Sizes are whole numbers with a unit (96MiB); limits may be 'none'; switches are on or \
         off.\nKeys: {}.",
        keys.join(", ")
    )
}

/// Runs `furrow device` and prints to `out`.
///
/// # Errors
/// An error if the device is damaged or of the wrong kind, or cannot be used.
pub fn run(args: DeviceArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    match args.action {
        Action::Create(args) => create(&args, out)?,
        Action::Check(args) => return check::run(&args, out),
        Action::Show(args) => show(&args, out)?,
        Action::Report(args) => report(&args, out)?,
        Action::Serve(args) => serve::run(&args, out)?,
        Action::Fault(args) => fault::run(&args, out)?,
        Action::Presets(args) => presets::run(&args, out)?,
        Action::Zone(args) => zone::run(&args, out)?,
    }
    Ok(0)
}

/// The path of the drive to make. Refuses an `image` that is more than a path: a drive in memory,
/// or a path with options of the drive.
fn path_to_make(image: &str) -> anyhow::Result<PathBuf> {
    let spec: DeviceSpec = image.parse()?;
    let plain = match &spec {
        DeviceSpec::Node(node) => *node == Node::new(node.path.clone()),
        DeviceSpec::Image(image) => image.run == spec::Run::default() && !image.sync,
        DeviceSpec::Memory(_) => false,
    };
    match spec.path().filter(|_| plain) {
        Some(path) => Ok(path.into()),
        None => anyhow::bail!(
            "{image}: not the path of a file: options of the drive go after -o, and a comma of the \
             path after a backslash"
        ),
    }
}

fn create(args: &Create, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.soft {
        return create_soft(args, out);
    }
    if args.size.is_some() || args.zone_size.is_some() {
        return Err(misused(
            "--size and --zone-size are of soft zones (--soft); an emulated drive takes both from \
             -o, as in -o capacity=8GiB,zone-size=16MiB",
        ));
    }
    let parts = args.preset.iter().chain(&args.options).map(String::as_str);
    let geometry = spec::parse_geometry(&parts.collect::<Vec<_>>().join(","))
        .map_err(|error| misused(&error.to_string()))?;
    let identity = Identity::fresh(args.preset.as_deref().unwrap_or_default())?;
    let path = path_to_make(&args.image)?;
    furrow_emu::create_image_as(&path, &geometry, &identity, args.force)
        .map_err(|error| in_use::explain_path(&path, error))?;
    let made = Made { uuid: Uuid(identity.uuid), zones: geometry.zones, soft: false };
    made.tell(args, geometry.bytes(geometry.zone_capacity), geometry.capacity(), out)
}

/// A new drive, as `furrow device create` reports it.
struct Made {
    uuid: Uuid,
    zones: u32,
    soft: bool,
}

impl Made {
    /// Prints the properties of the new drive, with the capacity of each zone and of all zones.
    fn tell(
        &self,
        args: &Create,
        zone: ByteLen,
        capacity: ByteLen,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let Made { uuid, zones, soft } = self;
        if args.json {
            let mut value = json!({
                "version": JSON_VERSION,
                "device": args.image,
                "uuid": uuid.to_string(),
                "zones": zones,
                "zone_capacity_bytes": zone.0,
                "capacity_bytes": capacity.0,
            });
            if *soft {
                value["soft"] = json!(true);
            }
            return show::json(out, &value);
        }
        let kind = if *soft { "soft zones, " } else { "" };
        let (name, all, zone) = (&args.image, size(capacity), size(zone));
        let zones = show::count(u64::from(*zones), "zone");
        Ok(writeln!(out, "{name}: {kind}{all} in {zones} of {zone}, UUID {uuid}")?)
    }
}

fn create_soft(args: &Create, out: &mut dyn Write) -> anyhow::Result<()> {
    let bytes = |option: &str, text: &str| {
        let amount = furrow_zone::size::parse(text);
        amount.map_err(|why| misused(&format!("--{option} {text}: the value {why}")))
    };
    let zone = args.zone_size.as_deref().map(|text| bytes("zone-size", text)).transpose()?;
    if let Some(Err(why)) = zone.map(furrow_soft::format::zone_blocks) {
        return Err(misused(&format!("--zone-size: {why}")));
    }
    let wanted = args.size.as_deref().map(|text| bytes("size", text)).transpose()?;
    let path = path_to_make(&args.image)?;
    let made = soft::create(&path, zone, wanted, args.force)
        .map_err(|error| in_use::explain_path(&path, error))?;
    let (name, zones) = (&args.image, made.layout.zones);
    let zone = ByteLen(u64::from(made.layout.zone_blocks) * 4096);
    let capacity = ByteLen(u64::from(zones) * zone.0);
    if let Some(why) = check::no_file_system(name)? {
        let size = ByteLen(made.layout.blocks * 4096);
        let smaller = soft::usual_zone(size);
        let again = match smaller.0 < zone.0 {
            true => {
                let zone = self::size(smaller).replace(' ', "");
                format!(" for a file system: --force --zone-size {zone} makes them again")
            }
            false => " for a file system".to_owned(),
        };
        crate::complain(&format!("warning: {why}{again}"));
    }
    Made { uuid: made.uuid, zones, soft: true }.tell(args, zone, capacity, out)
}

/// An open drive, and the executor on which it runs.
struct Opened {
    rt: Rt,
    drive: Rc<dyn ZonedDevice>,
    kind: Drive,
}

impl Opened {
    /// The drive, if it is emulated.
    fn emulated(&self) -> Option<&Rc<Emulator>> {
        match &self.kind {
            Drive::Emulated(drive) => Some(drive),
            _ => None,
        }
    }

    /// The drive, if it has soft zones.
    fn soft(&self) -> Option<&Rc<SoftDrive>> {
        match &self.kind {
            Drive::Soft(drive) => Some(drive),
            _ => None,
        }
    }
}

/// Opens `device`, and warns of damage that was repaired.
fn open(device: &str, access: Access) -> anyhow::Result<Opened> {
    let spec: DeviceSpec = device.parse()?;
    // A drive with virtual time can be inspected too.
    let config = match how_it_runs(&spec).timing {
        Timing::Virtual => Config::simulated(0),
        _ => Config::real(),
    };
    let rt = Rt::new(config);
    crate::limits::check(&spec, access)?;
    let kind = Drive::open(&rt, &spec, access).map_err(|error| in_use::explain(&spec, error))?;
    let drive = kind.zoned();
    in_use::warn(&*drive);
    Ok(Opened { rt, drive, kind })
}

/// The timing options with which the drive of `spec` runs.
fn how_it_runs(spec: &DeviceSpec) -> spec::Run {
    match spec {
        DeviceSpec::Memory(memory) => memory.run.clone(),
        DeviceSpec::Image(image) => image.run.clone(),
        DeviceSpec::Node(_) => spec::Run::default(),
    }
}

/// The name of the timing model that `run` selects; without one, the model of the `preset` that the
/// drive was made from.
fn model_name<'a>(run: &'a spec::Run, preset: &'a str) -> &'a str {
    let preset = if preset.is_empty() { "plain" } else { preset };
    run.model.as_deref().unwrap_or(preset)
}

/// Rows that describe the timing of a drive, as text.
fn timing_rows(run: &spec::Run, preset: &str) -> Vec<(&'static str, String)> {
    let (model, scale) = (model_name(run, preset), run.time_scale.unwrap_or(1));
    let mut rows = match run.timing {
        Timing::Off => return vec![("timing", "off: commands take no time".to_owned())],
        Timing::Virtual => vec![("timing", format!("virtual, as {model}"))],
        Timing::Realtime if scale == 1 => vec![("timing", format!("realtime, as {model}"))],
        Timing::Realtime => {
            vec![("timing", format!("realtime, as {model}, {scale} times slower"))]
        }
    };
    if !run.parameters.is_empty() {
        let changed = run.parameters.iter().map(|(key, value)| format!("{key}={value}"));
        rows.push(("but for", changed.collect::<Vec<_>>().join(", ")));
    }
    rows
}

fn timing_json(run: &spec::Run, preset: &str) -> Value {
    if run.timing == Timing::Off {
        return Value::Null;
    }
    let changed: serde_json::Map<String, Value> =
        run.parameters.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    json!({
        "mode": run.timing.to_string(),
        "model": model_name(run, preset),
        "scale": run.time_scale.unwrap_or(1),
        "changed": changed,
    })
}

fn zones_of(opened: &Opened, first: u32, count: u32) -> anyhow::Result<Vec<ZoneReport>> {
    let drive = opened.drive.clone();
    let asked = drive.clone();
    let reports = opened.rt.block_on(async move { asked.report(ZoneId(first), count).await });
    reports.map_err(|status| anyhow::anyhow!("{}: report zones: {status}", drive.name()))
}

/// Prints properties of a device for udev: the array that serves the device, and the
/// device's content.
fn show_udev(device: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut all = crate::tags::of_volume(device);
    match open(device, Access::ReadOnly) {
        Ok(opened) => {
            // The claim on the device ends here, so that a command that opens the device now does
            // not fail: it only waits for the record lock until this read ends.
            drop(furrow_linux::claim::hand_over(device.as_ref()));
            let drive = opened.drive.clone();
            all.extend(opened.rt.block_on(async move { crate::tags::properties(&*drive).await })?);
        }
        // A volume need not have zones, and may be in use, so failing to open it is not an error.
        Err(_) if !all.is_empty() => all.push(("FURROW_UNREAD", "1".to_owned())),
        Err(error) => {
            all = crate::tags::of_member(device);
            if all.is_empty() {
                return Err(error);
            }
        }
    }
    Ok(all.iter().try_for_each(|(name, value)| writeln!(out, "{name}={value}"))?)
}

fn show(args: &Show, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.udev {
        return show_udev(&args.device, out);
    }
    let opened = open(&args.device, Access::ReadOnly)?;
    let (drive, emulated, soft) = (&opened.drive, opened.emulated(), opened.soft());
    let geometry = drive.geometry();
    let zones = zones_of(&opened, 0, geometry.zones)?;
    let asked = drive.clone();
    let (holds, identity) = opened.rt.block_on(async move {
        let holds = Holds::of(&*asked).await?;
        // `identity` fails if the content is of another format: no UUID or label is shown then.
        let identity = holds.identity(&*asked).await.unwrap_or_default();
        Ok::<_, furrow_zone::Error>((holds, identity))
    })?;
    let image = emulated.and_then(|drive| {
        drive.with_image(|image| {
            (Uuid(image.uuid()).to_string(), image.preset().to_owned(), image.allocated_bytes())
        })
    });
    let spec: DeviceSpec = args.device.parse()?;
    let run = how_it_runs(&spec);
    let preset = match (&spec, &image) {
        (DeviceSpec::Memory(memory), _) => memory.preset().unwrap_or_default(),
        (_, Some((_, preset, _))) => preset.as_str(),
        _ => "",
    };
    if args.json {
        let mut value = show_json(&**drive, &zones, image.as_ref());
        value["soft"] = json!(soft.map(|soft| soft.superblock().uuid.to_string()));
        value["write_streams"] = json!(soft.map(|soft| soft.streams()));
        value["timing"] = timing_json(&run, preset);
        let (uuid, label) = identity.unzip();
        let uuid = uuid.map(|uuid| uuid.to_string());
        value["content"] = json!({ "kind": holds.word(), "uuid": uuid, "label": label });
        return show::json(out, &value);
    }
    let mut rows = vec![("device", drive.name()), ("content", holds.describe())];
    // The description already contains the array's name.
    let is_member = matches!(holds, Holds::Member(_));
    if let Some((_, label)) = identity.filter(|(_, label)| !label.is_empty() && !is_member) {
        rows.push(("label", label));
    }
    if let Some(soft) = soft {
        rows.push(("kind", "soft zones on a plain drive".to_owned()));
        rows.push(("UUID", soft.superblock().uuid.to_string()));
        rows.push(("write streams", soft::streams(soft)));
    }
    if let Some((uuid, preset, allocated)) = &image {
        rows.push(("UUID", uuid.clone()));
        if !preset.is_empty() {
            rows.push(("made from", preset.clone()));
        }
        rows.push(("on the host", size(ByteLen(*allocated))));
    }
    describe(geometry, &mut rows);
    if emulated.is_some() {
        rows.extend(timing_rows(&run, preset));
    }
    rows.push(("zone states", states(geometry, &zones)));
    let written = written_blocks(geometry, &zones);
    rows.push(("written", size(geometry.bytes(BlockCount(written)))));
    if emulated.is_some() {
        rows.push(("faults", faults(&**drive).to_string()));
    }
    Ok(print_rows(out, rows)?)
}

/// Prints the known properties of a drive: the names in a column, each followed by its value.
fn print_rows(out: &mut dyn Write, rows: Vec<(&'static str, String)>) -> std::io::Result<()> {
    let longest = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    show::facts(out, (0, longest + 1), rows)
}

/// Number of faults that are waiting to be injected into `drive`.
fn faults(drive: &dyn ZonedDevice) -> usize {
    drive.fault_injection().map_or(0, |injection| injection.faults().len())
}

fn describe(geometry: &Geometry, rows: &mut Vec<(&'static str, String)>) {
    let bytes = |blocks| size(geometry.bytes(blocks));
    let limit = |limit: Option<u32>| limit.map_or("no limit".to_owned(), |l| l.to_string());
    let transfer = |limit: Option<BlockCount>| {
        limit.map_or("no limit".to_owned(), |l| size(geometry.bytes(l)))
    };
    let known = |n: Option<u16>| n.map_or("unknown".to_owned(), |n| n.to_string());
    let yes = |yes: bool, a: &str, b: &str| if yes { a.to_owned() } else { b.to_owned() };
    rows.push(("capacity", size(geometry.capacity())));
    rows.push(("zones", geometry.zones.to_string()));
    if geometry.conventional_zones > 0 {
        rows.push(("conventional zones", geometry.conventional_zones.to_string()));
    }
    rows.push(("zone size", bytes(geometry.zone_size)));
    rows.push(("zone capacity", bytes(geometry.zone_capacity)));
    rows.push(("block", size(geometry.block_size)));
    if geometry.oob_bytes > 0 {
        rows.push(("out-of-band", format!("{} B per block", geometry.oob_bytes)));
    }
    rows.push(("most open", limit(geometry.max_open)));
    rows.push(("most active", limit(geometry.max_active)));
    let append = match geometry.append_limit() {
        Some(BlockCount(0)) => "none: it takes writes only".to_owned(),
        limit => transfer(limit),
    };
    rows.push(("largest append", append));
    rows.push(("largest transfer", transfer(geometry.max_transfer)));
    rows.push(("reads across zones", yes(geometry.read_across_zones, "allowed", "refused")));
    rows.push((
        "unwritten blocks",
        yes(geometry.unwritten_reads_fail, "reading fails", "read as zeros"),
    ));
    rows.push((
        "write cache",
        yes(geometry.volatile_cache, "volatile: flush it", "survives a power cut"),
    ));
    rows.push((
        "channels, dies",
        format!("{}, {}", known(geometry.channels), known(geometry.dies)),
    ));
}

fn written_blocks(geometry: &Geometry, zones: &[ZoneReport]) -> u64 {
    let sequential = zones.iter().filter(|zone| !geometry.is_conventional(zone.zone));
    sequential.map(|zone| zone.write_pointer.0).sum()
}

const STATES: [(ZoneState, &str, &str); 7] = [
    (ZoneState::Empty, "empty", "empty"),
    (ZoneState::ImplicitlyOpen, "implicitly open", "implicitly-open"),
    (ZoneState::ExplicitlyOpen, "explicitly open", "explicitly-open"),
    (ZoneState::Closed, "closed", "closed"),
    (ZoneState::Full, "full", "full"),
    (ZoneState::ReadOnly, "read-only", "read-only"),
    (ZoneState::Offline, "offline", "offline"),
];

fn state_name(geometry: &Geometry, zone: &ZoneReport, for_json: bool) -> &'static str {
    if geometry.is_conventional(zone.zone) && zone.state == ZoneState::Full {
        return "conventional";
    }
    let found = STATES.iter().find(|(state, ..)| *state == zone.state);
    found.map_or("unknown", |(_, people, json)| if for_json { json } else { people })
}

/// The number of zones in each state, in the order of [`STATES`].
fn count_states(
    geometry: &Geometry,
    zones: &[ZoneReport],
    for_json: bool,
) -> Vec<(&'static str, usize)> {
    let names = STATES.iter().map(|(_, people, json)| if for_json { *json } else { *people });
    names
        .chain(["conventional"])
        .map(|name| {
            let same = |zone: &&ZoneReport| state_name(geometry, zone, for_json) == name;
            (name, zones.iter().filter(same).count())
        })
        .collect()
}

fn states(geometry: &Geometry, zones: &[ZoneReport]) -> String {
    let counts = count_states(geometry, zones, false);
    let present = counts.into_iter().filter(|(_, count)| *count > 0);
    present.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

fn show_json(
    drive: &dyn ZonedDevice,
    zones: &[ZoneReport],
    image: Option<&(String, String, u64)>,
) -> Value {
    let geometry = drive.geometry();
    let states: serde_json::Map<String, Value> = count_states(geometry, zones, true)
        .into_iter()
        .map(|(name, count)| (name.to_owned(), json!(count)))
        .collect();
    json!({
        "version": JSON_VERSION,
        "device": drive.name(),
        "image": image.map(|(uuid, preset, allocated)| json!({
            "uuid": uuid,
            "preset": if preset.is_empty() { Value::Null } else { json!(preset) },
            "allocated_bytes": allocated,
        })),
        "capacity_bytes": geometry.capacity().0,
        "zones": geometry.zones,
        "conventional_zones": geometry.conventional_zones,
        "zone_size_blocks": geometry.zone_size.0,
        "zone_capacity_blocks": geometry.zone_capacity.0,
        "block_bytes": geometry.block_size.0,
        "oob_bytes": geometry.oob_bytes,
        "max_open": geometry.max_open,
        "max_active": geometry.max_active,
        "max_append_blocks": geometry.append_limit().map(|blocks| blocks.0),
        "max_transfer_blocks": geometry.max_transfer.map(|blocks| blocks.0),
        "read_across_zones": geometry.read_across_zones,
        "unwritten_reads_fail": geometry.unwritten_reads_fail,
        "volatile_cache": geometry.volatile_cache,
        "channels": geometry.channels,
        "dies": geometry.dies,
        "zone_states": states,
        "written_blocks": written_blocks(geometry, zones),
        "faults": faults(drive),
        "warnings": drive.warnings(),
    })
}

fn report(args: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    let opened = open(&args.device, Access::ReadOnly)?;
    let drive = &opened.drive;
    let geometry = drive.geometry();
    if args.first >= geometry.zones {
        anyhow::bail!("{}: no zone {}: it has {} zones", drive.name(), args.first, geometry.zones);
    }
    let zones = zones_of(&opened, args.first, args.count.unwrap_or(u32::MAX))?;
    if args.json {
        let zones: Vec<Value> = zones
            .iter()
            .map(|zone| {
                json!({
                    "zone": zone.zone.0,
                    "start_lba": geometry.start(zone.zone).0,
                    "state": state_name(geometry, zone, true),
                    "write_pointer": zone.write_pointer.0,
                    "capacity": zone.capacity.0,
                })
            })
            .collect();
        let value = json!({ "version": JSON_VERSION, "device": drive.name(), "zones": zones });
        return show::json(out, &value);
    }
    let amount = |head| Column::amount(head, 0);
    let (state, pointer) = (Column::word("state", 0), amount("write pointer"));
    let columns = [amount("zones"), amount("first block"), state, pointer, amount("capacity")];
    let mut table = Table::new(&columns);
    let same = |a: &ZoneReport, b: &ZoneReport| {
        let what = |zone: &ZoneReport| (zone.state, zone.write_pointer, zone.capacity);
        !args.all
            && what(a) == what(b)
            && geometry.is_conventional(a.zone) == geometry.is_conventional(b.zone)
    };
    for run in zones.chunk_by(same) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let name = match run.len() {
            1 => first.zone.to_string(),
            _ => format!("{}-{}", first.zone, last.zone),
        };
        table.add_row([
            name,
            geometry.start(first.zone).to_string(),
            state_name(geometry, first, false).to_owned(),
            first.write_pointer.to_string(),
            first.capacity.to_string(),
        ]);
    }
    Ok(print_table(out, &table)?)
}

/// An amount as text, in the largest unit that keeps at least one digit before the point.
fn size(bytes: ByteLen) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes.0 >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let whole = bytes.0 as f64 / (1u64 << (10 * unit)) as f64;
    if bytes.0.is_multiple_of(1 << (10 * unit)) {
        format!("{whole:.0} {}", UNITS[unit])
    } else {
        format!("{whole:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        let shown = [0, 512, 4096, 5000, 16 << 20, (8 << 30) + 1].map(|n| size(ByteLen(n)));
        assert_eq!(shown, ["0 B", "512 B", "4 KiB", "4.9 KiB", "16 MiB", "8.0 GiB"]);
    }
}
