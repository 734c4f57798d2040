//! `furrow device check`: finds the obstacles between a drive and each front end, before anything
//! is written.
//!
//! The check makes a file system and a store on a view of the drive that stays in memory, and
//! computes the shape of a volume. So each answer comes from the front end itself. Serving a file
//! system or a volume to others also needs something of this machine (FUSE, ublk), which is checked
//! even if the drive cannot be opened.

use crate::holds::Holds;
use crate::show;
use clap::Args;
use furrow_drives::{Drive, soft as soft_zones};
use furrow_fs::{Fs, MkfsOptions};
use furrow_kv::{FormatOptions, Store};
use furrow_raid::{Config, Level, Shape};
use furrow_rt::{Config as RtConfig, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, Overlay, ZonedDevice};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

/// Version of the JSON document.
const JSON_VERSION: u32 = 1;
/// Number of drives of the volume whose shape the check computes.
const MEMBERS: usize = 4;

/// Find obstacles between a drive and each front end
///
/// The check writes nothing, unless --repair is given. The exit status is 0 if a file system, a
/// volume and a store can all use the drive, and 1 if an obstacle stands between the drive and one
/// of the three. The drive's content is named, and does not count as an obstacle: --force
/// overwrites it. Missing parts of this machine (FUSE, ublk), needed to mount or serve, are named,
/// and do not count either.
#[derive(Args)]
pub(super) struct CheckArgs {
    #[arg(help = crate::target::DEVICE)]
    device: String,
    /// Soft zones: rewrite the damaged parts of their journal, and accept the loss of parts without
    /// a copy. Losses are named; without --repair such a drive is only opened for reading.
    #[arg(long)]
    repair: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The kernel's device that every mount needs.
const FUSE: &str = "/dev/fuse";

/// A front end, and the reason why it cannot use the drive.
struct Fit {
    front_end: &'static str,
    why: Option<String>,
    /// True if the obstacle is a property of the drive; false if this machine lacks something.
    counts: bool,
}

/// Runs the command; prints to `out`. Returns 1 if there is an obstacle.
pub(super) fn run(args: &CheckArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    let spec: DeviceSpec = args.device.parse()?;
    let (mut obstacles, mut by_id) = (Vec::<(&str, String)>::new(), None);
    let lost_front = spec.path().and_then(|path| furrow_drives::lost_front(Path::new(path)));
    let mut soft = soft_zones::is_soft(&spec);
    if let (Some(path), Some(_), true) = (spec.path(), &lost_front, args.repair) {
        soft_zones::restore_front(path).map_err(|error| crate::in_use::explain(&spec, error))?;
        soft = true;
    }
    let mut streams = None;
    if let Some(lost) = lost_front.filter(|_| !args.repair) {
        obstacles = vec![("damaged", lost.to_string())];
    } else if let DeviceSpec::Node(node) = &spec {
        let path = Path::new(&node.path);
        let found = match soft {
            true => furrow_linux::plain_obstacles(path),
            false => furrow_linux::obstacles(path),
        };
        obstacles = found.into_iter().map(|obstacle| (obstacle.code, obstacle.what)).collect();
        by_id = furrow_linux::by_id(path);
    }
    if args.repair && !soft {
        let what = "no soft zones: --repair is only for soft zones; file systems, volumes and \
                    stores on a drive have their own commands";
        anyhow::bail!("{}: {what}", args.device);
    }
    let rt = Rt::new(crate::daemon::config()?);
    let mut drive_fits = Err("not tried: the drive cannot be used".to_owned());
    let access = if args.repair { Access::AcceptLoss } else { Access::ReadOnly };
    let opened = Drive::open(&rt, &spec, access);
    if let Ok(Drive::Soft(drive)) = &opened {
        streams = Some((drive.streams(), soft_zones::streams(drive)));
        if let Some(lost) = drive.lost().filter(|_| !args.repair) {
            let what = format!("{lost}: restore a copy, or accept the loss with --repair");
            obstacles.push(("damaged", what));
        }
    }
    let opened = opened.map(|drive| drive.zoned());
    match opened.map_err(|error| crate::in_use::explain(&spec, error)) {
        // If the kernel's description of the drive shows obstacles, they explain more than
        // this error.
        Err(error) if obstacles.is_empty() => obstacles.push(("unusable", error.to_string())),
        Err(_) => {}
        Ok(drive) if drive.geometry().conventional_zones >= drive.geometry().zones => {
            let what = format!(
                "all of its {} are conventional, none is for sequential writes: Furrow needs a \
                 zoned drive",
                show::count(u64::from(drive.geometry().zones), "zone")
            );
            obstacles.push(("conventional", what));
        }
        Ok(drive) => {
            let told = |text: &&String| !obstacles.iter().any(|(_, what)| what.starts_with(*text));
            let warnings: Vec<_> = drive.warnings().iter().filter(told).cloned().collect();
            // A repair writes both copies of the superblock.
            let done = |text: &str| match args.repair && soft && text.contains("superblock") {
                true => format!("{text}, and it is rewritten"),
                false => text.to_owned(),
            };
            obstacles.extend(warnings.iter().map(|text| ("warning", done(text))));
            let engine = rt.clone();
            let tried = rt.block_on(async move {
                let holds = Holds::of(&*drive).await?;
                Ok::<_, Error>((holds, try_all(&engine, drive).await))
            });
            let (holds, tried) = tried?;
            if !matches!(holds, Holds::Nothing) {
                obstacles.push(("not-empty", format!("it holds {}", holds.describe())));
            }
            drive_fits = Ok(tried);
        }
    }
    rt.clear();
    let fits = all_fits(drive_fits);
    let stopped = fits.iter().any(|fit| fit.counts && fit.why.is_some());
    let in_the_way = |code: &str| !matches!(code, "warning" | "not-empty");
    let status = u8::from(stopped || obstacles.iter().any(|(code, _)| in_the_way(code)));
    if args.json {
        let fits = fits.iter().map(
            |fit| json!({ "front_end": fit.front_end, "fits": fit.why.is_none(), "why": fit.why }),
        );
        let obstacles = obstacles.iter().map(|(code, what)| json!({ "code": code, "what": what }));
        let document = json!({
            "version": JSON_VERSION,
            "device": args.device,
            "by_id": by_id.map(|path| path.display().to_string()),
            "soft_zones": soft,
            "write_streams": streams.map(|(count, _)| count),
            "obstacles": obstacles.collect::<Vec<_>>(),
            "front_ends": fits.collect::<Vec<_>>(),
        });
        show::json(out, &document)?;
        return Ok(status);
    }
    match by_id {
        Some(path) => writeln!(out, "{} ({})", args.device, path.display())?,
        None => writeln!(out, "{}", args.device)?,
    }
    if soft {
        writeln!(out, "  it has soft zones")?;
    }
    if let Some((1.., streams)) = &streams {
        writeln!(out, "  write streams: {streams}")?;
    }
    for (_, what) in obstacles {
        writeln!(out, "  {what}")?;
    }
    for Fit { front_end, why, .. } in &fits {
        writeln!(out, "  {front_end}: {}", why.as_deref().unwrap_or("fits"))?;
    }
    Ok(status)
}

/// The reason why no file system can be made on the soft zones that `device` names; `None` if one
/// can be made.
///
/// # Errors
/// An error if the soft zones cannot be opened.
pub(super) fn no_file_system(device: &str) -> Result<Option<Error>, Error> {
    let spec: DeviceSpec = device.parse()?;
    let rt = Rt::new(RtConfig::real());
    let drive = soft_zones::open(&rt, &spec, Access::ReadOnly)?;
    let engine = rt.clone();
    let why = rt.block_on(async move { try_file_system(&engine, drive).await });
    rt.clear();
    Ok(why)
}

/// For each front end, the reason why the drive does not suit it; `None` if it does.
struct Tried {
    fs: Option<Error>,
    volume: Option<Error>,
    store: Option<Error>,
    zoned: Option<Error>,
}

/// Tries to make a file system on a view of `drive`; returns why that is impossible.
async fn try_file_system(rt: &Rt, drive: Rc<dyn ZonedDevice>) -> Option<Error> {
    match Overlay::new(rt, drive).await {
        Ok(view) => {
            let options = MkfsOptions { force: true, ..MkfsOptions::default() };
            Fs::format(rt, Rc::new(view), &options).await.err()
        }
        Err(error) => Some(error),
    }
}

/// Tries each front end on a view of `drive`.
async fn try_all(rt: &Rt, drive: Rc<dyn ZonedDevice>) -> Tried {
    let fs = try_file_system(rt, drive.clone()).await;
    let store = match Overlay::new(rt, drive.clone()).await.map(Rc::new) {
        Ok(view) => {
            let options = FormatOptions { force: true, ..FormatOptions::default() };
            Store::format(rt, view, &options).await.err()
        }
        Err(error) => Some(error),
    };
    let geometry = drive.geometry();
    let config = Config::new(Level::Raid5, geometry);
    let volume = Shape::new(&config, &[geometry; MEMBERS]).err();
    let zoned = furrow_ublk::Drive::new(drive.clone()).err();
    Tried { fs, volume, store, zoned }
}

/// The results for all front ends, from the attempts on the drive (or the reason why there were
/// none) and from the abilities of this machine.
fn all_fits(tried: Result<Tried, String>) -> Vec<Fit> {
    let tell = |error: Option<Error>| error.map(|error| error.to_string());
    let [fs, volume, store, zoned] = match tried {
        Ok(tried) => [tried.fs, tried.volume, tried.store, tried.zoned].map(tell),
        Err(why) => [(); 4].map(|()| Some(why.clone())),
    };
    let fuse = File::options().read(true).write(true).open(FUSE).err();
    let fuse = fuse.map(|error| format!("{FUSE}: {error}: load it: modprobe fuse"));
    let ublk = |zoned| tell(furrow_ublk::available(zoned).err());
    // Missing parts of the machine are reported first, because they can be installed.
    let on = |machine: Option<String>, base: &Option<String>, word: &str| {
        machine.or_else(|| base.as_ref().map(|_| format!("needs a {word} on the drive")))
    };
    let of_drive = |front_end, why| Fit { front_end, why, counts: true };
    let of_machine = |front_end, why| Fit { front_end, why, counts: false };
    let (mount, nbd) = (on(fuse, &fs, "file system"), on(None, &volume, "volume"));
    let block_device = on(ublk(false), &volume, "volume");
    let zoned = match (ublk(true), zoned) {
        (Some(machine), Some(drive)) => Some(format!("{drive}; {machine}")),
        (machine, drive) => drive.or(machine),
    };
    vec![
        of_drive("file system", fs),
        of_drive("volume (RAID-5 of four such drives)", volume),
        of_drive("store", store),
        of_machine("mount (FUSE)", mount),
        of_machine("volume over NBD", nbd),
        of_machine("volume as a block device (ublk)", block_device),
        of_machine("drive as a zoned block device (ublk)", zoned),
    ]
}
