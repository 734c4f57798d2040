//! `furrow top`: shows mounts and arrays at work, again and again.
//!
//! A frame is made of two samples some time apart. It shows the differences of counters, and the
//! state at the second sample. The sources are the same as for other commands: `report` for a
//! mount, the daemon for an array. No query causes I/O on a drive.

mod print;

use crate::live::Live;
use crate::raid::client::{self, Seen};
use crate::raid::status::{self, Status};
use crate::show;
use crate::target::Target;
use anyhow::{Result, anyhow};
use furrow_fuse::endpoint;
use furrow_fuse::report::{self, MapPage, Stat};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of the JSON document.
const VERSION: u32 = 2;
/// Requests of the kernel that are shown.
const SHOWN: [&str; 3] = ["read", "write", "fsync"];

/// Show what mounts and arrays are doing
///
/// Throughput, latency, cleaning, zones by state, members; as many columns as fit the terminal. On
/// a terminal the frame is redrawn until q or Ctrl-C; elsewhere frames follow each other, with
/// --json one document per line. Rates and times are averages since the previous frame. Exit status
/// with --once: 1 if a mount or array gave no answer.
#[derive(clap::Args)]
pub struct Args {
    /// Mounts (directory or device) and arrays (name or UUID) (default: all)
    #[arg(value_name = "DIR|DEVICE|ARRAY")]
    targets: Vec<OsString>,
    /// Print one frame, after the time of --every
    #[arg(long)]
    once: bool,
    /// Seconds between frames
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = show::interval)]
    #[arg(alias = "interval", short_alias = 'i')]
    every: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The mounts and arrays to show.
struct Wanted {
    /// `None` means all mounts.
    mounts: Option<Vec<PathBuf>>,
    arrays: Option<Vec<String>>,
}

/// The state of all mounts and arrays at one time.
struct Sample {
    at: Instant,
    mounts: Vec<(PathBuf, Result<(Stat, MapPage)>)>,
    arrays: Vec<Status>,
    /// The reasons why arrays could not be queried.
    unasked: Vec<String>,
}

#[derive(Serialize)]
struct Frame {
    version: u32,
    /// Seconds that rates are averaged over.
    seconds: f64,
    mounts: Vec<Mount>,
    arrays: Vec<Array>,
    /// Mounts and arrays that could not be queried, each with the reason.
    unasked: Vec<String>,
}

#[derive(Serialize)]
struct Mount {
    directory: String,
    device: String,
    read_only: bool,
    failure: Option<String>,
    /// Bytes per second that users read, unless the kernel had them cached.
    read_bytes_per_second: f64,
    /// Bytes per second that users wrote, and that were written to the drive.
    user_bytes_per_second: f64,
    drive_bytes_per_second: f64,
    /// Requests by name.
    requests: BTreeMap<&'static str, Requests>,
    /// Superzones cleaned per second, and bytes per second moved by cleaning.
    cleaned_per_second: f64,
    moved_bytes_per_second: f64,
    used_bytes: u64,
    size_bytes: u64,
    /// Bytes that users can still write, as in `furrow df`: less than what is not in use, because
    /// some space is kept free for cleaning.
    available_bytes: u64,
    zones: Zones,
    permits_held: u32,
    permits_limit: u32,
}

#[derive(Serialize)]
struct Requests {
    per_second: f64,
    /// Average duration in nanoseconds; none if there was no request.
    mean_ns: Option<u64>,
}

impl Requests {
    /// Computes rate and mean from the count and the total nanoseconds, before and now.
    fn since(before: (u64, u64), now: (u64, u64), seconds: f64) -> Requests {
        let more = now.0.saturating_sub(before.0);
        let mean_ns = now.1.saturating_sub(before.1).checked_div(more);
        Requests { per_second: per_second(Some(before.0), now.0, seconds), mean_ns }
    }
}

/// Zones of a drive by their state.
#[derive(Default, Serialize)]
struct Zones {
    empty: u64,
    /// Zones that are being written.
    open: u64,
    /// Zones that are partly written and not being written.
    partial: u64,
    full: u64,
    retired: u64,
    /// Zones by use, as `furrow map` names them.
    uses: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct Array {
    array: String,
    uuid: String,
    state: String,
    problem: Option<String>,
    read_bytes_per_second: f64,
    written_bytes_per_second: f64,
    /// Requests of clients by kind: read, write, flush.
    requests: BTreeMap<String, Requests>,
    /// Average nanoseconds that a written block waited for its stripe.
    mean_wait_ns: Option<u64>,
    /// Segments by state: free, open, sealed, truncated, releasing.
    segments: BTreeMap<String, u64>,
    /// Segments emptied per second, and bytes per second moved by cleaning.
    cleaned_per_second: f64,
    moved_bytes_per_second: f64,
    used_bytes: u64,
    size_bytes: u64,
    clients: u64,
    rebuild: Option<status::Rebuild>,
    scrub: Option<status::Scrub>,
    members: Vec<status::Member>,
}

/// Runs the command.
///
/// # Errors
/// An error if a name is neither a mount nor a running array.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let wanted = Wanted::of(&args.targets)?;
    let mut live = Live::begin(!args.json && !args.once)?;
    let mut before = wanted.sample()?;
    loop {
        if !live.wait(args.every)? {
            return Ok(0);
        }
        let now = wanted.sample()?;
        let frame = Frame::of(&before, &now);
        match (args.json, args.once) {
            (true, true) => show::json(out, &frame)?,
            (true, false) => show::json_line(out, &frame)?,
            _ => {
                let width = show::width();
                let head = live.is_in_place().then(|| frame.head(args.every, width));
                let lines: Vec<String> = head.into_iter().chain(frame.lines(width)).collect();
                live.show(out, &lines)?;
            }
        }
        if args.json {
            out.flush()?;
        }
        if args.once {
            return Ok(u8::from(!frame.unasked.is_empty()));
        }
        before = now;
    }
}

impl Wanted {
    fn of(targets: &[OsString]) -> Result<Wanted> {
        if targets.is_empty() {
            return Ok(Wanted { mounts: None, arrays: None });
        }
        let (mut mounts, mut arrays) = (Vec::new(), Vec::new());
        for target in targets {
            let name = target.to_string_lossy();
            match Target::find(target) {
                Ok(Target::Mounted(directory)) => {
                    // A directory that is not a mount would never have figures to show.
                    report::ask_status(&directory)?;
                    mounts.push(directory);
                }
                found => match client::find(&name) {
                    Ok(array) => arrays.push(array.status.uuid),
                    Err(error) => {
                        found?;
                        return Err(anyhow!("{name}: not mounted, and {error}"));
                    }
                },
            }
        }
        Ok(Wanted { mounts: Some(mounts), arrays: Some(arrays) })
    }

    fn sample(&self) -> Result<Sample> {
        let mounts = match &self.mounts {
            Some(named) => named.clone(),
            None => endpoint::mounted()?.into_iter().map(|mount| mount.directory).collect(),
        };
        let ask =
            |directory: &Path| Ok((report::ask_stat(directory)?, report::ask_map(directory)?));
        let mounts = mounts.into_iter().map(|directory| {
            let asked = ask(&directory);
            (directory, asked)
        });
        let is_wanted =
            |uuid: &String| self.arrays.as_ref().is_none_or(|wanted| wanted.contains(uuid));
        let seen = match self.arrays.as_ref().is_some_and(Vec::is_empty) {
            true => Ok(Seen::default()),
            false => client::visible(),
        };
        let (running, unasked) = match seen {
            Ok(Seen { running, silent }) => {
                let silent = silent.iter().filter(|one| is_wanted(&one.uuid));
                (running, silent.map(|one| one.error().to_string()).collect())
            }
            Err(error) => (Vec::new(), vec![error.to_string()]),
        };
        let arrays = running.into_iter().map(|array| array.status);
        let arrays = arrays.filter(|status| is_wanted(&status.uuid));
        Ok(Sample {
            mounts: mounts.collect(),
            arrays: arrays.collect(),
            unasked,
            at: Instant::now(),
        })
    }
}

impl Frame {
    fn of(before: &Sample, now: &Sample) -> Frame {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let (mut mounts, mut unasked) = (Vec::new(), Vec::new());
        for (directory, asked) in &now.mounts {
            let earlier = before.mounts.iter().find(|(other, _)| other == directory);
            let earlier = earlier.and_then(|(_, asked)| asked.as_ref().ok()).map(|(stat, _)| stat);
            match asked {
                Ok((stat, map)) => mounts.push(mount(directory, earlier, stat, map, seconds)),
                Err(error) => unasked.push(format!("{error:#}")),
            }
        }
        let arrays = now.arrays.iter().map(|status| {
            let earlier = before.arrays.iter().find(|other| other.uuid == status.uuid);
            array(earlier, status, seconds)
        });
        unasked.extend(now.unasked.clone());
        Frame { version: VERSION, seconds, mounts, arrays: arrays.collect(), unasked }
    }
}

/// The increase of a counter per second; never negative, as a counter may have restarted.
fn per_second(before: Option<u64>, now: u64, seconds: f64) -> f64 {
    let more = now.saturating_sub(before.unwrap_or(now));
    if seconds > 0.0 { more as f64 / seconds } else { 0.0 }
}

fn mount(
    directory: &Path,
    before: Option<&Stat>,
    now: &Stat,
    map: &MapPage,
    seconds: f64,
) -> Mount {
    // A new mount, with another daemon, counts from 0.
    let before = before.filter(|before| before.status.info.pid == now.status.info.pid);
    let (old, new) = (before.map(|stat| stat.status.counters), now.status.counters);
    let rate = |count: fn(&report::Traffic) -> u64| {
        per_second(old.as_ref().map(count), count(&new), seconds)
    };
    let requests = SHOWN.into_iter().map(|name| {
        let find = |stat: &Stat| {
            let found = stat.operations.iter().find(|operation| operation.name == name);
            found.map_or((0, 0), |operation| (operation.count, operation.total_ns))
        };
        let now = find(now);
        (name, Requests::since(before.map_or(now, find), now, seconds))
    });
    let space = &now.status.space;
    let block = u64::from(space.block_size);
    Mount {
        directory: directory.display().to_string(),
        device: now.status.info.device.clone(),
        read_only: now.status.info.read_only,
        failure: now.status.failure.clone(),
        read_bytes_per_second: rate(|t| t.read_bytes),
        user_bytes_per_second: rate(|t| t.user_bytes),
        drive_bytes_per_second: rate(|t| t.host_bytes),
        requests: requests.collect(),
        cleaned_per_second: rate(|t| t.clean_victims),
        moved_bytes_per_second: rate(|t| (t.clean_data_blocks + t.clean_node_blocks) * 4096),
        used_bytes: space.blocks.saturating_sub(space.blocks_free) * block,
        size_bytes: space.blocks * block,
        available_bytes: space.blocks_available * block,
        zones: Zones::of(map),
        permits_held: now.permits.held,
        permits_limit: now.permits.limit,
    }
}

impl Zones {
    fn of(map: &MapPage) -> Zones {
        let mut zones = Zones::default();
        for zone in &map.zones {
            let state = match zone {
                zone if zone.usage == "retired" => &mut zones.retired,
                zone if zone.open => &mut zones.open,
                zone if zone.written == 0 => &mut zones.empty,
                zone if zone.written >= map.zone_blocks => &mut zones.full,
                _ => &mut zones.partial,
            };
            *state += 1;
            *zones.uses.entry(zone.usage.clone()).or_default() += 1;
        }
        zones
    }
}

fn array(before: Option<&Status>, now: &Status, seconds: f64) -> Array {
    let before = before.filter(|before| before.pid == now.pid);
    let counter = |status: &Status, name: &str| status.counters.get(name).copied().unwrap_or(0);
    let old = |name: &str| before.map(|status| counter(status, name));
    let rate = |name: &str| per_second(old(name), counter(now, name), seconds);
    let more = |name: &str| {
        let now = counter(now, name);
        now.saturating_sub(old(name).unwrap_or(now))
    };
    let requests = now.requests.iter().map(|(kind, requests)| {
        let before = before.and_then(|status| status.requests.get(kind)).unwrap_or(requests);
        let since = (before.count, before.total_ns);
        (kind.clone(), Requests::since(since, (requests.count, requests.total_ns), seconds))
    });
    Array {
        array: now.array.clone(),
        uuid: now.uuid.clone(),
        state: now.state.clone(),
        problem: now.problem.clone(),
        read_bytes_per_second: rate("read") * 4096.0,
        written_bytes_per_second: rate("written") * 4096.0,
        requests: requests.collect(),
        mean_wait_ns: more("waited").checked_div(more("written")),
        segments: now.segments.clone(),
        cleaned_per_second: rate("cleaned"),
        moved_bytes_per_second: rate("moved") * 4096.0,
        used_bytes: now.used_bytes,
        size_bytes: now.size_bytes,
        clients: now.clients,
        rebuild: now.rebuild.clone(),
        scrub: now.scrub.clone().filter(|scrub| scrub.running),
        members: now.members.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_interval_and_never_below_nothing() {
        assert_eq!(per_second(Some(10), 30, 2.0), 10.0);
        // A new counter has rate 0, and so has a counter that restarted.
        assert_eq!(per_second(None, 30, 2.0), 0.0);
        assert_eq!(per_second(Some(30), 10, 2.0), 0.0);
        assert_eq!(per_second(Some(0), 10, 0.0), 0.0);
    }

    #[test]
    fn every_zone_is_in_one_state() {
        let zone = |usage: &str, open, written| report::Zone {
            zone: 0,
            usage: usage.to_owned(),
            open,
            written,
            valid: 0,
        };
        let zones = vec![
            zone("free", false, 0),
            zone("data-hot", true, 0),
            zone("data-hot", false, 99),
            zone("data-cold", false, 100),
            zone("retired", true, 7),
        ];
        let map = MapPage { version: 1, device: "d".into(), zone_blocks: 100, total: 5, zones };
        let Zones { empty, open, partial, full, retired, uses } = Zones::of(&map);
        assert_eq!((empty, open, partial, full, retired), (1, 1, 1, 1, 1));
        assert_eq!(uses["data-hot"], 2);
    }
}
