//! The same work on each file system, counted at the drive: bytes, commands, flushes, resets.
//!
//! The kernel's limits of dirty data are the same number of bytes for all file systems. Furrow has
//! a cache of its own, either below the kernel's or in the library, which has no kernel cache; it
//! gets a limit of the same size.
//!
//! Times are measured separately. The processor may be an emulated one, so the drive is made many
//! times slower than its model to keep the processor's share small. A time is a property of the
//! file system and the drive only if it is the same at two such factors.

use crate::contestant::{Contestant, FileSystem};
use crate::counts::Counts;
use crate::host::{Used, serve};
use crate::library::Library;
use anyhow::{Context as _, Result, bail};
use furrow_emu::Emulator;
use furrow_rt::{Nanos, Rng, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ZonedDevice};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Time limit for all phases, in nanoseconds: one limit if the work is counted, one if it is timed.
const PATIENCE: u64 = 900 * Nanos::SECOND;
const PATIENCE_TIMED: u64 = 3600 * Nanos::SECOND;

/// The drive: 1 GiB in sequential zones, preceded by conventional zones for metadata.
pub const DRIVE: &str = "zones=88,zone-size=16MiB,conventional=24,max-open=16,max-active=32,\
                         volatile-cache=on";

/// Number of dirty bytes at which the kernel makes writers wait (`vm.dirty_bytes`).
pub const DIRTY: u64 = 32 << 20;

/// Number of dirty bytes at which the kernel begins to write back (`vm.dirty_background_bytes`).
pub const BACKGROUND: u64 = 16 << 20;

/// The drive whose model is slowed down to measure times.
pub const MODEL: &str = "zn540-1t";

/// Size of each small file in bytes.
const SMALL: u64 = 16 << 10;

/// The work that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The phases of the work, in this order.
    pub phases: &'static [&'static str],
    /// Size in bytes of the file that is written and overwritten.
    file: u64,
    /// Number of random overwrites of 4 KiB.
    overwrites: u64,
    /// Number of files that are created and synced.
    files: u64,
    /// Whether the file system is mounted again before the file is read, because a daemon's cache
    /// could hold the file.
    reads_again: bool,
}

/// The work that is counted.
pub const COUNTED: Work = Work {
    phases: &["sequential", "random", "create", "fill", "full", "read"],
    file: 256 << 20,
    overwrites: 32768,
    files: 500,
    reads_again: false,
};

/// The work that is timed: like the counted work but smaller, because the drive is slow.
pub const TIMED: Work = Work {
    phases: &["sequential", "random", "create", "read"],
    file: 32 << 20,
    overwrites: 2048,
    files: 64,
    reads_again: true,
};

/// The measures of one phase on one file system.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Number of bytes that the program requested.
    pub asked: u64,
    /// Counts of what the drive did.
    pub counts: Counts,
    /// Seconds on the real clock until everything was durable.
    pub seconds: f64,
}

/// The median of each figure over several runs. The requested bytes are the same in each run.
pub fn median(measures: &[Measure]) -> Option<Measure> {
    let first = measures.first()?;
    let counts = Counts::by_field(|field| {
        let mut values: Vec<u64> = measures.iter().map(|measure| field(&measure.counts)).collect();
        values.sort_unstable();
        values[(values.len() - 1) / 2]
    });
    let mut seconds: Vec<f64> = measures.iter().map(|measure| measure.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    Some(Measure { asked: first.asked, counts, seconds: seconds[(seconds.len() - 1) / 2] })
}

/// Measures all phases of `work` on one new file system, up to the first that fails. With `slow`
/// the drive is that many times slower than [`MODEL`]; without it, the drive takes no time.
///
/// # Errors
/// If the file system cannot be made, mounted or unmounted, or a drive cannot be served.
pub fn measure(
    who: Contestant,
    work: Work,
    seed: u64,
    slow: Option<u32>,
) -> Result<Vec<(String, Result<Measure, String>)>> {
    for (key, value) in [("dirty_bytes", DIRTY), ("dirty_background_bytes", BACKGROUND)] {
        std::fs::write(format!("/proc/sys/vm/{key}"), value.to_string())?;
    }
    let timing = slow.map(|slow| format!(",timing=realtime,model={MODEL},time-scale={slow}"));
    let spec: DeviceSpec = format!("mem:{DRIVE}{}", timing.unwrap_or_default()).parse()?;
    let counts = Arc::new(Mutex::new(Counts::default()));
    let counted = counts.clone();
    let open = move |rt: &Rt| Ok(counted_drive(rt, &spec, counted)?);
    let patience = if slow.is_some() { PATIENCE_TIMED } else { PATIENCE };
    let using = move |device: &str| phases(who.begin(device, seed)?, work, seed, || *lock(&counts));
    match serve(open, patience, using)? {
        Used::Ended(measured) => measured,
        Used::Hung(said) => bail!("it hangs: {}", said.join("\n")),
    }
}

/// Measures the library alone, on a drive in memory in its own process: without the kernel, so that
/// it needs neither a guest nor root.
///
/// # Errors
/// If the file system cannot be made, mounted or unmounted.
pub fn measure_direct(
    drive: &str,
    work: Work,
    seed: u64,
) -> Result<Vec<(String, Result<Measure, String>)>> {
    let spec: DeviceSpec = format!("mem:{drive}").parse()?;
    let counts = Arc::new(Mutex::new(Counts::default()));
    let counted = counts.clone();
    let library =
        Library::on(seed, move |rt| Ok(counted_drive(rt, &spec, counted)? as Rc<dyn ZonedDevice>))?;
    phases(Box::new(library), work, seed, || *lock(&counts))
}

/// Opens a drive whose commands are counted.
fn counted_drive(
    rt: &Rt,
    spec: &DeviceSpec,
    counts: Arc<Mutex<Counts>>,
) -> Result<Rc<Emulator>, Error> {
    let drive: Rc<Emulator> = furrow_emu::open(rt, spec, Access::ReadWrite)?;
    drive.set_observer(Rc::new(move |drive, info| {
        let mut counts = lock(&counts);
        counts.failed = drive.counters().failed;
        counts.count(drive.geometry(), &info.command, info.fua);
    }));
    Ok(drive)
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all phases of `work` on the new file system `fs`. `counts` returns the counts of its drive.
fn phases(
    fs: Box<dyn FileSystem>,
    work: Work,
    seed: u64,
    counts: impl Fn() -> Counts,
) -> Result<Vec<(String, Result<Measure, String>)>> {
    let mut phases = Vec::new();
    for phase in work.phases {
        fs.drop_caches(work.reads_again && *phase == "read")?;
        let before = counts();
        let begun = Instant::now();
        let asked = match *phase {
            "sequential" => work.sequential(&*fs),
            "random" => work.random(&*fs, seed),
            "create" => work.create(&*fs),
            "fill" => fill(&*fs),
            "full" => work.full(&*fs, seed),
            _ => work.read(&*fs),
        };
        let synced = asked.and_then(|asked| fs.sync().map(|()| asked));
        let seconds = begun.elapsed().as_secs_f64();
        let after = counts();
        let measured = synced.map(|asked| Measure { asked, counts: after.since(&before), seconds });
        let failed = measured.is_err();
        phases.push(((*phase).to_owned(), measured.map_err(|error| format!("{error:#}"))));
        if failed {
            break;
        }
    }
    fs.end()?;
    Ok(phases)
}

/// Makes bytes that no file system can compress.
fn noise(rng: &mut Rng, bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

impl Work {
    /// Writes a file in writes of 1 MiB, with one fsync.
    fn sequential(&self, fs: &dyn FileSystem) -> Result<u64> {
        let file = fs.create("big")?;
        let data = noise(&mut Rng::new(1), 1 << 20);
        for at in 0..self.file >> 20 {
            file.write(&data, at << 20)?;
        }
        file.fsync()?;
        Ok(self.file)
    }

    /// Overwrites 4 KiB at random places of the file of phase `sequential`, with one fsync at
    /// the end.
    fn random(&self, fs: &dyn FileSystem, seed: u64) -> Result<u64> {
        let file = fs.open("big", true)?;
        let mut rng = Rng::new(seed);
        let data = noise(&mut Rng::new(2), 4096);
        for _ in 0..self.overwrites {
            file.write(&data, rng.below(self.file / 4096) * 4096)?;
        }
        file.fsync()?;
        Ok(self.overwrites * 4096)
    }

    /// Creates and writes files of 16 KiB, with an fsync of each.
    fn create(&self, fs: &dyn FileSystem) -> Result<u64> {
        fs.make_directory("small")?;
        let data = noise(&mut Rng::new(3), SMALL);
        for number in 0..self.files {
            let file = fs.create(&format!("small/{number}"))?;
            file.write(&data, 0)?;
            file.fsync()?;
        }
        Ok(self.files * SMALL)
    }

    /// Overwrites 4 KiB at random places of the file that [`fill`] wrote, with one fsync at
    /// the end.
    fn full(&self, fs: &dyn FileSystem, seed: u64) -> Result<u64> {
        let file = fs.open("fill", true)?;
        let blocks = file.size()? / 4096;
        let mut rng = Rng::new(seed ^ 5);
        let data = noise(&mut Rng::new(6), 4096);
        for number in 0..self.overwrites {
            let at = rng.below(blocks) * 4096;
            file.write(&data, at).with_context(|| format!("overwrite {number}"))?;
        }
        file.fsync()?;
        Ok(self.overwrites * 4096)
    }

    /// Reads the file of phase `sequential` once.
    fn read(&self, fs: &dyn FileSystem) -> Result<u64> {
        let file = fs.open("big", false)?;
        let mut data = vec![0; 1 << 20];
        for at in 0..self.file >> 20 {
            file.read(&mut data, at << 20)?;
        }
        Ok(self.file)
    }
}

/// Writes a file that fills the file system to 85 % of its own size, with one fsync.
fn fill(fs: &dyn FileSystem) -> Result<u64> {
    let (size, used) = fs.space()?;
    let wanted = (size / 100 * 85).saturating_sub(used) >> 20;
    let file = fs.create("fill")?;
    let data = noise(&mut Rng::new(4), 1 << 20);
    for at in 0..wanted {
        file.write(&data, at << 20).with_context(|| format!("MiB {at} of {wanted}"))?;
    }
    file.fsync()?;
    Ok(wanted << 20)
}

/// True if the times of a model measured at two factors agree within 15 %.
pub fn agree(one: f64, other: f64) -> bool {
    one.max(other) <= 1.15 * one.min(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_taken_of_each_count() {
        let measure = |flushes, resets| Measure {
            asked: 10,
            counts: Counts { flushes, resets, ..Counts::default() },
            seconds: resets as f64,
        };
        let all = median(&[measure(1, 9), measure(5, 7), measure(3, 8)]).unwrap();
        assert_eq!((all.counts.flushes, all.counts.resets, all.counts.writes), (3, 8, 0));
        assert!((all.seconds - 8.0).abs() < 1e-9);
        assert!(median(&[]).is_none());
    }

    #[test]
    fn the_library_does_all_phases_and_its_bytes_reach_the_drive() {
        let drive = "zones=96,zone-size=1MiB,max-open=14,max-active=14,volatile-cache=on";
        let work = Work { file: 8 << 20, overwrites: 512, files: 20, ..COUNTED };
        let found = measure_direct(drive, work, 1).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, COUNTED.phases);
        for (name, measure) in found {
            let Measure { asked, counts, .. } = measure.expect(&name);
            assert!(asked > 0, "{name}");
            if name == "read" {
                // The file was in no cache, so the drive was read.
                assert!(counts.read_bytes >= asked, "{name}: {counts:?}");
                continue;
            }
            let fsyncs = if name == "create" { work.files } else { 1 };
            // An overwrite may replace an earlier one that is not yet written.
            let least = if name == "random" || name == "full" { asked / 2 } else { asked };
            assert!(counts.sequential_bytes >= least, "{name}: {counts:?}");
            assert!(counts.flushes >= fsyncs, "{name}: {counts:?}");
        }
    }

    #[test]
    fn times_agree_within_15_percent() {
        assert!(agree(1.0, 1.14) && agree(1.14, 1.0));
        assert!(!agree(1.0, 1.16) && !agree(1.16, 1.0));
    }
}
