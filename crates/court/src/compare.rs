//! The same work on each file system, counted at the drive: bytes, commands, flushes, resets.
//!
//! No times: on an emulated processor they would say nothing. The kernel's limits of dirty data are
//! set to the same bytes for all file systems; Furrow's own cache below the kernel's gets a limit
//! of the same size.

use crate::host::{Used, serve};
use crate::kind::{Kind, run};
use anyhow::{Context as _, Result, bail};
use furrow_emu::{Emulator, Medium, Options};
use furrow_rt::{Nanos, Rng, Rt};
use furrow_ublk::{Counts, Tap};
use furrow_zone::Geometry;
use furrow_zone::spec::parse_geometry;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

const PLACE: &str = "/mnt";

/// How long all phases may take, in nanoseconds.
const PATIENCE: u64 = 900 * Nanos::SECOND;

/// The drive: 1 GiB in sequential zones, behind conventional ones for metadata.
pub const DRIVE: &str = "zones=88,zone-size=16MiB,conventional=24,max-open=16,max-active=32,\
                         volatile-cache=on";

/// Bytes at which the kernel holds writers up (`vm.dirty_bytes`).
pub const DIRTY: u64 = 32 << 20;

/// Bytes at which the kernel begins to write back (`vm.dirty_background_bytes`).
pub const BACKGROUND: u64 = 16 << 20;

/// Bytes of the file that is written and overwritten.
const FILE: u64 = 256 << 20;

/// Random overwrites of 4 KiB.
const OVERWRITES: u64 = 32768;

/// Files made and made durable.
const FILES: u64 = 500;

/// Bytes of each of these.
const SMALL: u64 = 16 << 10;

/// What is measured, in this order.
pub const PHASES: [&str; 6] = ["sequential", "random", "create", "fill", "full", "read"];

/// One phase on one file system.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Bytes that the program asked for.
    pub asked: u64,
    /// What the drive did.
    pub counts: Counts,
}

/// Each count's median of several runs, and the bytes asked, which are the same in each.
pub fn median(measures: &[Measure]) -> Option<Measure> {
    let first = measures.first()?;
    let counts = Counts::by_field(|field| {
        let mut values: Vec<u64> = measures.iter().map(|measure| field(&measure.counts)).collect();
        values.sort_unstable();
        values[(values.len() - 1) / 2]
    });
    Some(Measure { asked: first.asked, counts })
}

/// All phases on one new file system, or why one failed.
///
/// # Errors
/// If the file system cannot be made, mounted or unmounted, or a drive cannot be served.
pub fn measure(kind: Kind, seed: u64) -> Result<Vec<(String, Result<Measure, String>)>> {
    for (key, value) in [("dirty_bytes", DIRTY), ("dirty_background_bytes", BACKGROUND)] {
        std::fs::write(format!("/proc/sys/vm/{key}"), value.to_string())?;
    }
    let geometry = parse_geometry(DRIVE)?;
    let tap = Rc::new(Tap::default());
    // The user's thread asks for the counts, which the server's thread has.
    let (ask, asked) = channel();
    let (tell, told) = channel();
    let counter = tap.clone();
    let open = move |rt: &Rt| -> Result<Emulator> {
        let drive = emulator(rt, &geometry)?;
        let engine = rt.clone();
        rt.spawn_detached(async move { answer(&engine, &counter, asked, &tell).await });
        Ok(drive)
    };
    match serve(open, &tap, PATIENCE, move |device| use_it(kind, device, seed, &ask, &told))? {
        Used::Ended(measured) => measured,
        Used::Hung(said) => bail!("it hangs: {}", said.join("\n")),
    }
}

fn emulator(rt: &Rt, geometry: &Geometry) -> Result<Emulator> {
    let medium = Medium::memory(geometry);
    Ok(Emulator::new(rt, geometry.clone(), medium, Options::fast())?)
}

/// Answers questions for the counts until nobody asks any more.
async fn answer(rt: &Rt, tap: &Tap, asked: Receiver<()>, tell: &Sender<Counts>) {
    loop {
        match asked.try_recv() {
            Ok(()) if tell.send(tap.counts()).is_err() => return,
            Ok(()) => {}
            Err(std::sync::mpsc::TryRecvError::Empty) => {
                rt.sleep(20 * furrow_rt::Nanos::MILLI).await;
            }
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
        }
    }
}

fn use_it(
    kind: Kind,
    device: &str,
    seed: u64,
    ask: &Sender<()>,
    told: &Receiver<Counts>,
) -> Result<Vec<(String, Result<Measure, String>)>> {
    kind.make(device)?;
    kind.mount(device, PLACE)?;
    let place = Path::new(PLACE);
    let counts = || -> Result<Counts> {
        ask.send(())?;
        Ok(told.recv()?)
    };
    let mut phases = Vec::new();
    for phase in PHASES {
        drop_caches()?;
        let before = counts()?;
        let asked = match phase {
            "sequential" => sequential(place),
            "random" => random(place, seed),
            "create" => create(place),
            "fill" => fill(place),
            "full" => full(place, seed),
            _ => read(place),
        };
        let synced = asked.and_then(|asked| kind.sync(PLACE).map(|()| asked));
        let after = counts()?;
        let measured = synced.map(|asked| Measure { asked, counts: after.since(&before) });
        let failed = measured.is_err();
        phases.push((phase.to_owned(), measured.map_err(|error| format!("{error:#}"))));
        if failed {
            break;
        }
    }
    kind.unmount(PLACE)?;
    Ok(phases)
}

fn drop_caches() -> Result<()> {
    run(&["sync"])?;
    Ok(std::fs::write("/proc/sys/vm/drop_caches", "3")?)
}

/// Bytes that no file system can compress.
fn noise(rng: &mut Rng, bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

/// A file of 256 MiB in writes of 1 MiB, one fsync.
fn sequential(place: &Path) -> Result<u64> {
    let file = File::create_new(place.join("big"))?;
    let data = noise(&mut Rng::new(1), 1 << 20);
    for at in 0..FILE >> 20 {
        file.write_all_at(&data, at << 20)?;
    }
    file.sync_all()?;
    Ok(FILE)
}

/// 4 KiB at random places of that file, one fsync.
fn random(place: &Path, seed: u64) -> Result<u64> {
    let file = OpenOptions::new().write(true).open(place.join("big"))?;
    let mut rng = Rng::new(seed);
    let data = noise(&mut Rng::new(2), 4096);
    for _ in 0..OVERWRITES {
        file.write_all_at(&data, rng.below(FILE / 4096) * 4096)?;
    }
    file.sync_all()?;
    Ok(OVERWRITES * 4096)
}

/// Files of 16 KiB, each made, written, and durable by fsync.
fn create(place: &Path) -> Result<u64> {
    std::fs::create_dir(place.join("small"))?;
    let data = noise(&mut Rng::new(3), SMALL);
    for number in 0..FILES {
        let file = File::create_new(place.join(format!("small/{number}")))?;
        file.write_all_at(&data, 0)?;
        file.sync_all()?;
    }
    Ok(FILES * SMALL)
}

/// A file that fills the file system to 85 % of its own size, one fsync.
fn fill(place: &Path) -> Result<u64> {
    let space = rustix::fs::statvfs(place)?;
    let (size, used) = (space.f_blocks, space.f_blocks - space.f_bavail.min(space.f_blocks));
    let wanted = ((size * 85 / 100).saturating_sub(used) * space.f_frsize) >> 20;
    let file = File::create_new(place.join("fill"))?;
    let data = noise(&mut Rng::new(4), 1 << 20);
    for at in 0..wanted {
        file.write_all_at(&data, at << 20).with_context(|| format!("MiB {at} of {wanted}"))?;
    }
    file.sync_all()?;
    Ok(wanted << 20)
}

/// 4 KiB at random places of that file, one fsync.
fn full(place: &Path, seed: u64) -> Result<u64> {
    let file = OpenOptions::new().write(true).open(place.join("fill"))?;
    let blocks = file.metadata()?.len() / 4096;
    let mut rng = Rng::new(seed ^ 5);
    let data = noise(&mut Rng::new(6), 4096);
    for number in 0..OVERWRITES {
        let at = rng.below(blocks) * 4096;
        file.write_all_at(&data, at).with_context(|| format!("overwrite {number}"))?;
    }
    file.sync_all()?;
    Ok(OVERWRITES * 4096)
}

/// The first file is read once.
fn read(place: &Path) -> Result<u64> {
    let file = File::open(place.join("big"))?;
    let mut data = vec![0; 1 << 20];
    for at in 0..FILE >> 20 {
        file.read_exact_at(&mut data, at << 20)?;
    }
    Ok(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_taken_of_each_count() {
        let measure = |flushes, resets| Measure {
            asked: 10,
            counts: Counts { flushes, resets, ..Counts::default() },
        };
        let counts = median(&[measure(1, 9), measure(5, 7), measure(3, 8)]).unwrap().counts;
        assert_eq!((counts.flushes, counts.resets, counts.writes), (3, 8, 0));
        assert!(median(&[]).is_none());
    }
}
