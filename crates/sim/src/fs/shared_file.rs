//! Clients that share files: writes, appends, truncations, holes, reads and fsyncs of the same
//! files at once, and a power cut in the middle.
//!
//! On a copy of a life's drive, the harness makes files of its own, and several clients open each
//! of them. Their operations overlap, so the order in which the engine applies them is not visible
//! from outside. Yet some results are impossible. A read or a crash must not show what operation A
//! wrote to a sector if operation B overwrote it, came later and is in effect. B came later than A
//! if B began after A was answered. B is in effect for a read that began after B was answered.
//! After a crash, B is in effect if an fsync that began after B was answered has been answered too.
//! The same holds for the size. The copy is discarded afterwards.

use crate::fs::crash::Setup;
use crate::fs::history::History;
use crate::fs::observe::{Trouble, check, told};
use crate::fs::op::SECTOR;
use furrow_emu::{Emulator, Fates, Options};
use furrow_fs::{Allocate, Fs, Ino, NewNode, SetAttr, WriteData};
use furrow_rt::buf::is_zero;
use furrow_rt::{Nanos, Rng, Rt};
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Number of clients that share the files.
const CLIENTS: u64 = 3;
/// Number of shared files.
const FILES: u64 = 2;
/// First sectors of the areas in which operations begin: one at the beginning of a file, one around
/// the first block that needs a leaf of pointers.
const AREAS: [u64; 2] = [0, 440 * 8];
/// Number of sectors of an area.
const AREA: u64 = 20 * 8;
/// Maximum number of sectors of one operation.
const LONGEST: u64 = 40;

/// The effect of an operation on a file, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Writes `version` to `sectors` sectors from `first` on.
    Write { first: u64, sectors: u64, version: u64 },
    /// Sets the size.
    Truncate { size: u64 },
    /// Makes a hole, without changing the size.
    Punch { first: u64, sectors: u64 },
    /// Makes everything durable that was answered before.
    Fsync,
}

/// An operation on a file: its change, and the events of its submission and its answer.
#[derive(Clone, Copy, Debug)]
struct Entry {
    file: usize,
    change: Change,
    begin: usize,
    /// Event of the answer; `None` if there was none.
    end: Option<usize>,
}

/// The log of all operations of the clients.
#[derive(Default)]
struct Log {
    entries: Vec<Entry>,
    /// Number of events so far: submissions and answers.
    events: usize,
}

impl Log {
    fn event(&mut self) -> usize {
        self.events += 1;
        self.events
    }

    fn begin(&mut self, file: usize, change: Change) -> usize {
        let begin = self.event();
        self.entries.push(Entry { file, change, begin, end: None });
        self.entries.len() - 1
    }

    /// The event at which the last answered fsync of `file` began: it covers the operations that
    /// were answered before.
    fn durable(&self, file: usize) -> usize {
        let synced = self.entries.iter().filter(|entry| {
            entry.file == file && entry.change == Change::Fsync && entry.end.is_some()
        });
        synced.map(|entry| entry.begin).max().unwrap_or(0)
    }

    /// Checks the found content of `sector` of `file`: a version, or zeros. Operations answered
    /// before event `floor` are in effect.
    fn check_sector(
        &self,
        (file, sector): (usize, u64),
        found: Option<u64>,
        floor: usize,
    ) -> std::result::Result<(), String> {
        // The effect of an operation on this sector, if it has one.
        let effect = |change: Change| match change {
            Change::Write { first, sectors, version } => {
                (first..first + sectors).contains(&sector).then_some(Some(version))
            }
            Change::Punch { first, sectors } => {
                (first..first + sectors).contains(&sector).then_some(None)
            }
            Change::Truncate { size } => (size <= sector).then_some(None),
            Change::Fsync => None,
        };
        let of_file = self.entries.iter().filter(|entry| entry.file == file);
        let effects: Vec<(&Entry, Option<u64>)> =
            of_file.filter_map(|entry| Some((entry, effect(entry.change)?))).collect();
        let what = match found {
            Some(version) => format!("version {version}"),
            None => "zeros".to_owned(),
        };
        judge(&effects, found, floor, |_, _| true)
            .map_err(|why| format!("sector {sector} of file {file} holds {what}: {why}"))
    }

    /// Checks the found size of a file, in sectors.
    fn check_size(&self, file: usize, found: u64, floor: usize) -> std::result::Result<(), String> {
        let effect = |change: Change| match change {
            Change::Write { first, sectors, .. } => Some(first + sectors),
            Change::Truncate { size } => Some(size),
            _ => None,
        };
        let of_file = self.entries.iter().filter(|entry| entry.file == file);
        let effects: Vec<(&Entry, Option<u64>)> =
            of_file.filter_map(|entry| Some((entry, Some(effect(entry.change)?)))).collect();
        // A write changes the size only if it ends beyond the old size. The size is 0 before
        // all writes.
        let found =
            Some(found).filter(|found| *found > 0 || effects.iter().any(|e| e.1 == Some(0)));
        judge(&effects, found, floor, |entry, size| match entry.change {
            Change::Truncate { .. } => true,
            _ => size > found,
        })
        .map_err(|why| format!("file {file} has {found:?} sectors: {why}"))
    }
}

/// Checks that `found` may be the result of `effects`, on a sector or size that was zero before.
/// Effects answered before event `floor` have happened. `undoes` says whether a later effect would
/// have replaced `found`.
fn judge(
    effects: &[(&Entry, Option<u64>)],
    found: Option<u64>,
    floor: usize,
    undoes: impl Fn(&Entry, Option<u64>) -> bool,
) -> std::result::Result<(), String> {
    let in_effect = |entry: &Entry| entry.end.is_some_and(|end| end < floor);
    let overtaken = |after: Option<usize>| {
        effects.iter().find(|(later, value)| {
            let is_later = after.is_some_and(|after| later.begin > after);
            is_later && in_effect(later) && undoes(later, *value)
        })
    };
    // Tries the latest operation first, since it most often explains what was found.
    let givers = effects.iter().rev().filter(|(_, value)| *value == found);
    // Before all operations, sectors are zeros and the size is 0.
    let first = found.is_none().then_some(Some(0));
    let mut last = None;
    for end in givers.map(|(entry, _)| entry.end).chain(first) {
        match overtaken(end) {
            None => return Ok(()),
            Some((later, _)) => last = Some(**later),
        }
    }
    Err(match last {
        Some(later) => format!("{later:?} came later, and is in effect"),
        None => "nobody wrote that".to_owned(),
    })
}

/// The bytes of a sector.
fn sector_of(sector: u64, version: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for pair in bytes.chunks_exact_mut(16) {
        pair[..8].copy_from_slice(&version.to_le_bytes());
        pair[8..].copy_from_slice(&sector.to_le_bytes());
    }
    bytes
}

/// The version in the bytes of `sector`; `None` if these are zeros.
fn version_of(bytes: &[u8], sector: u64) -> std::result::Result<Option<u64>, String> {
    if is_zero(bytes) {
        return Ok(None);
    }
    let version = bytes.first_chunk().map_or(0, |version| u64::from_le_bytes(*version));
    match bytes == &sector_of(sector, version)[..bytes.len()] {
        true => Ok(Some(version)),
        false => Err(format!("sector {sector} holds bytes that nobody wrote")),
    }
}

/// One of the clients that share the files.
struct Client {
    fs: Fs,
    files: Rc<Vec<Ino>>,
    log: Rc<RefCell<Log>>,
    versions: Rc<Cell<u64>>,
    rng: Rng,
    rt: Rt,
}

impl Client {
    /// Works until an error ends the loop, at the latest when the drive is gone.
    async fn work(mut self) -> std::result::Result<(), String> {
        let files = self.files.clone();
        for ino in files.iter() {
            self.fs.open(*ino).await.map_err(|error| error.to_string())?;
        }
        loop {
            // Virtual time passes only while all tasks wait.
            if self.rng.one_in(4) {
                self.rt.sleep(1 + self.rng.below(Nanos::MICRO)).await;
            }
            let file = self.rng.below(FILES) as usize;
            match self.step(file).await? {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) => return Err(error.to_string()),
            }
            self.fs.audit_changed().map_err(|error| error.to_string())?;
        }
    }

    async fn step(&mut self, file: usize) -> std::result::Result<Result<()>, String> {
        let ino = self.files[file];
        let mut first = AREAS[self.rng.below(2) as usize] + self.rng.below(AREA);
        let mut sectors = 1 + self.rng.below(LONGEST);
        if self.rng.one_in(3) {
            // Widen the range to whole blocks.
            (first, sectors) = (first / 8 * 8, sectors.next_multiple_of(8));
        }
        let change = match self.rng.below(12) {
            0..=3 => self.write(first, sectors),
            4 | 5 => {
                // An append at the current end: others may append meanwhile.
                match self.fs.getattr(ino).await {
                    Ok(attr) if attr.size / (SECTOR as u64) < 2 * AREAS[1] => {
                        self.write(attr.size / SECTOR as u64, sectors)
                    }
                    Ok(_) => Change::Truncate { size: first },
                    Err(error) => return Ok(Err(error)),
                }
            }
            6 => Change::Truncate { size: first },
            7 => Change::Punch { first, sectors },
            8 | 9 => return self.read(file, first, sectors).await,
            _ => Change::Fsync,
        };
        let id = self.log.borrow_mut().begin(file, change);
        let done = self.perform(ino, change).await;
        let mut log = self.log.borrow_mut();
        let end = log.event();
        match &done {
            Ok(()) => log.entries[id].end = Some(end),
            // A failed operation changed nothing, so it is excluded from the checks.
            Err(_) => log.entries[id].file = usize::MAX,
        }
        Ok(done)
    }

    fn write(&self, first: u64, sectors: u64) -> Change {
        self.versions.set(self.versions.get() + 1);
        Change::Write { first, sectors, version: self.versions.get() }
    }

    async fn perform(&self, ino: Ino, change: Change) -> Result<()> {
        let bytes = |sectors: u64| sectors * SECTOR as u64;
        match change {
            Change::Write { first, sectors, version } => {
                let content: Vec<u8> =
                    (first..first + sectors).flat_map(|at| sector_of(at, version)).collect();
                let data = WriteData::copy(self.fs.pool(), bytes(first), &content);
                self.fs.write(ino, data).await
            }
            Change::Truncate { size } => {
                let changes = SetAttr { size: Some(bytes(size)), ..SetAttr::default() };
                self.fs.setattr(ino, changes).await.map(drop)
            }
            Change::Punch { first, sectors } => {
                self.fs.fallocate(ino, Allocate::Punch, bytes(first), bytes(sectors)).await
            }
            Change::Fsync => self.fs.fsync(ino, false).await,
        }
    }

    async fn read(
        &self,
        file: usize,
        first: u64,
        sectors: u64,
    ) -> std::result::Result<Result<()>, String> {
        let floor = self.log.borrow_mut().event();
        let (at, length) = (first * SECTOR as u64, sectors as usize * SECTOR);
        let found = match self.fs.read(self.files[file], at, length).await {
            Ok(found) => found.to_vec(),
            Err(error) => return Ok(Err(error)),
        };
        let log = self.log.borrow();
        for (sector, bytes) in (first..).zip(found.chunks(SECTOR)) {
            log.check_sector((file, sector), version_of(bytes, sector)?, floor)
                .map_err(|why| format!("a read: {why}"))?;
        }
        Ok(Ok(()))
    }
}

/// Lets clients share files on `drive`, which is a copy, cuts the power, and compares the remaining
/// files. Returns false if there was no space for the test.
///
/// # Errors
/// Names the found content or size, and the operation that contradicts it.
pub async fn share(
    rt: Rt,
    drive: Emulator,
    setup: Setup,
    history: History,
    seed: u64,
) -> std::result::Result<bool, Trouble> {
    let mut rng = Rng::new(seed ^ 0x5ba_7ed);
    let fs = Fs::mount(&rt, Rc::new(drive.clone()), setup.mount.clone()).await;
    let fs = fs.map_err(told("mount"))?;
    check(&fs, &history.cut(history.mark())).await?;
    let mut files = Vec::new();
    let made = async {
        for n in 0..FILES {
            let name = format!("shared file {n}");
            files.push(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino);
        }
        fs.sync().await
    };
    match made.await {
        Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(false),
        made => made.map_err(told("set-up"))?,
    }
    let (files, log) = (Rc::new(files), Rc::new(RefCell::new(Log::default())));
    let versions = Rc::new(Cell::new(0));
    let failed: Rc<RefCell<Option<String>>> = Rc::default();
    for number in 0..CLIENTS {
        let client = Client {
            fs: fs.clone(),
            files: files.clone(),
            log: log.clone(),
            versions: versions.clone(),
            rt: rt.clone(),
            rng: Rng::new(seed ^ (number + 1).wrapping_mul(0xa076_1d64_78bd_642f)),
        };
        let failed = failed.clone();
        rt.spawn_detached(async move {
            if let Err(why) = client.work().await {
                failed.borrow_mut().get_or_insert(format!("client {number}: {why}"));
            }
        });
    }
    let events = 40 + rng.below(500) as usize;
    while log.borrow().events < events && failed.borrow().is_none() {
        rt.sleep(1 + rng.below(Nanos::MICRO)).await;
    }
    if let Some(why) = failed.take() {
        return Err(why.into());
    }
    let left = drive.snapshot().power_cut(&Fates::seeded(rng.next()));
    let entries = log.borrow().entries.clone();
    let log = Log { entries, events: log.borrow().events };
    // The clients notice that their drive is gone; their answers no longer matter.
    let _ = drive.inject(furrow_emu::Fault::new(furrow_emu::FaultKind::PowerCut));
    drop(fs);
    let after = Emulator::from_snapshot(&rt, &left, Options::simulated());
    let fs = Fs::mount(&rt, Rc::new(after), setup.mount.clone()).await;
    let fs = fs.map_err(told("mount after a power cut"))?;
    for (file, ino) in files.iter().enumerate() {
        compare(&fs, &log, file, *ino).await.map_err(|why| format!("after a power cut: {why}"))?;
    }
    fs.audit().map_err(told("audit"))?;
    fs.unmount().await.map_err(told("unmount"))?;
    Ok(true)
}

/// Compares a file with the operations of the clients.
async fn compare(fs: &Fs, log: &Log, file: usize, ino: Ino) -> std::result::Result<(), String> {
    let text = |error: Error| error.to_string();
    let size = fs.getattr(ino).await.map_err(text)?.size;
    let found = fs.read(ino, 0, size as usize).await.map_err(text)?.to_vec();
    if found.len() as u64 != size || size % SECTOR as u64 != 0 {
        return Err(format!("file {file} of {size} bytes shows {}", found.len()));
    }
    let floor = log.durable(file);
    log.check_size(file, size / SECTOR as u64, floor)?;
    for (sector, bytes) in (0..).zip(found.chunks(SECTOR)) {
        log.check_sector((file, sector), version_of(bytes, sector)?, floor)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of operations on one file: each with the events of its submission and its answer.
    fn log(of: &[(Change, usize, Option<usize>)]) -> Log {
        let entry = |&(change, begin, end): &(Change, usize, Option<usize>)| Entry {
            file: 0,
            change,
            begin,
            end,
        };
        Log { entries: of.iter().map(entry).collect(), events: 100 }
    }

    fn write(version: u64) -> Change {
        Change::Write { first: 0, sectors: 2, version }
    }

    #[test]
    fn only_what_nothing_later_undid_may_be_found() {
        // 2 overlaps 1; 3 comes after both; the fsync covers 1 and 2 only.
        let log = log(&[
            (write(1), 1, Some(4)),
            (write(2), 2, Some(5)),
            (Change::Fsync, 6, Some(9)),
            (write(3), 7, Some(10)),
            (Change::Truncate { size: 1 }, 11, None),
        ]);
        let floor = log.durable(0);
        assert_eq!(floor, 6);
        let sector = |sector, found| log.check_sector((0, sector), found, floor).is_ok();
        assert!(sector(0, Some(1)) && sector(0, Some(2)) && sector(0, Some(3)));
        assert!(!sector(0, None), "what was synced is lost");
        assert!(!sector(0, Some(4)), "nobody wrote that");
        // The truncation was not answered: it may or may not have happened.
        assert!(sector(1, None) && sector(1, Some(3)));
        // This read began after 3 was answered.
        assert!(log.check_sector((0, 0), Some(1), 11).is_err(), "stale");
        assert!(log.check_sector((0, 0), Some(3), 11).is_ok());
        let size = |found| log.check_size(0, found, floor).is_ok();
        assert!(size(2) && size(1) && !size(0) && !size(3));
    }

    #[test]
    fn a_file_that_was_cut_and_synced_does_not_grow_back() {
        let log = log(&[
            (write(1), 1, Some(2)),
            (Change::Truncate { size: 0 }, 3, Some(4)),
            (Change::Write { first: 4, sectors: 1, version: 2 }, 5, Some(6)),
            (Change::Fsync, 7, Some(8)),
        ]);
        let floor = log.durable(0);
        assert!(log.check_sector((0, 0), None, floor).is_ok());
        assert!(log.check_sector((0, 0), Some(1), floor).is_err(), "data that was cut off");
        assert!(log.check_size(0, 5, floor).is_ok());
        assert!(log.check_size(0, 0, floor).is_err());
    }

    #[test]
    fn sectors_name_what_they_hold() {
        let mut bytes = sector_of(7, 3);
        assert_eq!(version_of(&bytes, 7), Ok(Some(3)));
        assert!(version_of(&bytes, 8).is_err(), "of another place");
        bytes[100] ^= 1;
        assert!(version_of(&bytes, 7).is_err());
        assert_eq!(version_of(&[0; SECTOR], 7), Ok(None));
    }
}
