//! Tests fsck with one flipped field of every structure on the drive.
//!
//! There are two columns for each field. *Raw*: bits of the field are flipped as damage would flip
//! them; all flips must be detected. *Forged*: the same flips, with every checksum from the block
//! up to the checkpoint corrected, so that only fsck's knowledge of the field's meaning can detect
//! them. [`FREE`] lists the fields for which this is impossible, with the reason; all other flips
//! must be detected.
//!
//! `cargo test -p furrow-fs fsck_fields -- --nocapture` prints the table.

#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

pub mod drive;
mod sites;

use drive::{Chain, Drive, Map};
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::dump::{Part, Which, dump};
use furrow_fs::format::BLOCK;
use furrow_fs::{
    Fs, FsckOptions, Ino, Kind, MkfsOptions, MountOptions, NewNode, RenameMode, SetAttr, WriteData,
    XattrMode, fsck,
};
use furrow_rt::{Config, Rt};
use furrow_zone::{Result, ZonedDevice};
use sites::Site;
use std::collections::BTreeSet;
use std::rc::Rc;

const SPEC: &str = "zones=40,zone-size=1MiB,zone-capacity=256KiB,max-active=14,channels=1";

/// Fields for which some or all forged changes cannot be detected: (structure, field, reason).
const FREE: &[(&str, &str, &str)] = &[
    ("RecordHeader, of the superblock", "epoch", "any up to the checkpoint's"),
    ("RecordHeader, of the superblock", "checkpoint", "any up to the newest"),
    ("RecordHeader, of a delta block", "checkpoint", "any up to the newest"),
    ("RecordHeader, of a table page", "checkpoint", "any up to the newest"),
    ("RecordHeader, of the last sync record", "length", "a longer one looks torn by a crash"),
    ("CheckpointBody", "flags", "an unmount may have been unclean with no record left"),
    ("CheckpointBody", "sync_sequence", "there is no record to compare it with"),
    ("CheckpointBody", "namespace_sequence", "there is no record to compare it with"),
    ("CheckpointBody", "written", "any time"),
    ("CheckpointBody", "generation", "any above those in use"),
    ("Descriptor, free", "generation", "nothing of that generation is left"),
    ("Descriptor, active", "generation", "said again by closed segments only"),
    ("Descriptor, full", "state", "written to the end and parked are both possible"),
    ("SitEntry", "changed", "any time"),
    ("SitEntry, in a unit", "stream", "said again by closed segments only"),
    ("NodeHeader", "checkpoint", "any up to the newest"),
    ("InodeHead", "generation", "any below the next"),
    ("InodeHead", "mode", "any permissions"),
    ("InodeHead", "uid", "any owner"),
    ("InodeHead", "gid", "any group"),
    ("InodeHead", "rdev", "any device"),
    ("InodeHead", "size", "any that the blocks allow"),
    ("TimeStamp", "seconds", "any time"),
    ("TimeStamp", "nanoseconds", "any time"),
    ("file content", "bytes", "any content"),
    ("symbolic link target", "bytes", "any content"),
    ("SummaryEntry, stale", "node", "of a block no longer in use"),
    ("SummaryEntry, stale", "slot", "of a block no longer in use"),
    ("sync item range", "first", "a hint, not replayed"),
    ("sync item range", "blocks", "a hint, not replayed"),
    ("sync item depends", "write pointer", "less is satisfied too"),
    ("sync item create", "inode", "names are not replayed by fsck"),
    ("sync item create", "generation", "names are not replayed by fsck"),
    ("sync item create", "mode", "any permissions"),
    ("sync item attributes", "mode", "any permissions"),
    ("sync item attributes", "uid", "any owner"),
    ("sync item attributes", "gid", "any group"),
    ("sync item attributes", "inode", "another inode is possible"),
    ("sync item xattrs", "inode", "another inode is possible"),
    ("sync item xattrs", "attributes", "any value"),
    ("sync item create with", "parent", "names are not replayed by fsck"),
    ("sync item create with", "attributes", "any value"),
    ("XattrHead", "the name's bytes", "any name"),
    ("sync item create", "uid", "any owner"),
    ("sync item create", "gid", "any group"),
    ("sync item create", "rdev", "any device"),
    ("sync item", "seconds", "any time"),
    ("sync item", "nanoseconds", "any time"),
    ("sync item", "name", "any name; names are not replayed by fsck"),
    ("sync item", "old name", "any name; names are not replayed by fsck"),
    ("sync item", "new name", "any name; names are not replayed by fsck"),
    ("sync item link", "inode", "names are not replayed by fsck"),
    ("sync item rename", "mode", "names are not replayed by fsck"),
    ("sync item freed", "node", "names and frees are not replayed by fsck"),
    ("sync item freed", "inode", "not replayed: the NAT says it"),
    ("sync item allocated", "stream", "another stream is possible"),
    ("sync item allocated", "superzone", "another superzone is possible"),
];

fn options() -> MkfsOptions {
    MkfsOptions { label: "flip".into(), segment_blocks: Some(16), ..MkfsOptions::default() }
}

async fn write(fs: &Fs, ino: Ino, block: u64, len: usize) -> Result<()> {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
    fs.write(ino, WriteData::copy(fs.pool(), block * 4096, &bytes)).await
}

/// Makes a file system with an example of every structure.
async fn populate(fs: &Fs) -> Result<()> {
    let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?;
    let below = fs.create(dir.ino, b"below", &NewNode::directory()).await?;
    let flat = fs.create(dir.ino, b"flat", &NewNode::file()).await?;
    write(fs, flat.ino, 0, 9000).await?;
    write(fs, flat.ino, 5, 100).await?;
    fs.link(flat.ino, below.ino, b"second").await?;
    let tall = fs.create(dir.ino, b"tall", &NewNode::file()).await?;
    write(fs, tall.ino, 0, 9000).await?;
    write(fs, tall.ino, 600, 9000).await?;
    let high = fs.create(dir.ino, b"high", &NewNode::file()).await?;
    write(fs, high.ino, 460_000, 9000).await?;
    fs.create(dir.ino, b"link", &NewNode::symlink(b"flat")).await?;
    let special = NewNode { kind: Kind::CharDevice, rdev: 0x103, ..NewNode::file() };
    fs.create(dir.ino, b"device", &special).await?;
    fs.setxattr(flat.ino, b"user.short", b"value", XattrMode::Set).await?;
    fs.setxattr(tall.ino, b"user.long", &[7; 9000], XattrMode::Set).await?;
    // Make an orphan: remove the name of an open file.
    let orphan = fs.create(dir.ino, b"orphan", &NewNode::file()).await?;
    write(fs, orphan.ino, 0, 5000).await?;
    fs.open(orphan.ino).await?;
    fs.unlink(dir.ino, b"orphan").await?;
    Ok(())
}

/// The drive that `work` on a new file system leaves.
fn after<W: Future<Output = Result<()>> + 'static>(
    rt: &Rt,
    work: impl FnOnce(Fs) -> W + 'static,
) -> Drive {
    let geometry = furrow_zone::spec::parse_geometry(SPEC).unwrap();
    let medium = Medium::memory(&geometry);
    let emulator = Emulator::new(rt, geometry, medium, Options::simulated()).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(emulator);
    let on = rt.clone();
    let drive = rt.block_on(async move {
        Fs::format(&on, device.clone(), &options()).await?;
        let fs = Fs::mount(&on, device.clone(), MountOptions::default()).await?;
        populate(&fs).await?;
        work(fs).await?;
        Ok::<Drive, furrow_zone::Error>(Drive::read(&*device).await)
    });
    rt.clear();
    drive.unwrap()
}

/// The drive after a clean unmount, used long enough to have tables, table pages and
/// closed segments.
fn clean(rt: &Rt) -> Drive {
    after(rt, |fs| async move {
        // Make checkpoints until the delta log is merged into the tables, and a few more.
        let file = fs.create(Ino::ROOT, b"often", &NewNode::file()).await?;
        for round in 0..90 {
            write(&fs, file.ino, round % 3, 4096).await?;
            if round % 20 == 0 {
                fs.fsync(file.ino, false).await?;
            }
            fs.sync().await?;
        }
        fs.unmount().await
    })
}

/// The drive that a crash leaves, with records in the sync log that the next mount replays.
fn crashed(rt: &Rt) -> Drive {
    after(rt, |fs| async move {
        fs.sync().await?;
        let flat = fs.lookup(Ino::ROOT, b"dir").await?.ino;
        let flat = fs.lookup(flat, b"flat").await?.ino;
        write(&fs, flat, 2, 9000).await?;
        fs.fsync(flat, false).await?;
        // The record of a new file contains the change that makes its node.
        let small = fs.create(Ino::ROOT, b"small", &NewNode::file()).await?;
        write(&fs, small.ino, 0, 9000).await?;
        fs.fsync(small.ino, false).await?;
        // This file's changes are too large for a record, so the record states the place of
        // its node.
        let whole = fs.create(Ino::ROOT, b"whole", &NewNode::file()).await?;
        write(&fs, whole.ino, 0, 150 * 4096).await?;
        fs.fsync(whole.ino, false).await?;
        let new = fs.create(Ino::ROOT, b"new", &NewNode::file()).await?;
        // Make a directory whose access list is inherited by new inodes in it.
        let list = [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255];
        let list = [&list[..], &[16, 0, 7, 0, 255, 255, 255, 255]].concat();
        let list = [&list[..], &[32, 0, 5, 0, 255, 255, 255, 255]].concat();
        let dir = fs.lookup(Ino::ROOT, b"dir").await?.ino;
        fs.setxattr(dir, b"system.posix_acl_default", &list, XattrMode::Set).await?;
        fs.create(dir, b"inherits", &NewNode::file()).await?;
        fs.fsync(dir, false).await?;
        fs.link(new.ino, Ino::ROOT, b"linked").await?;
        fs.rename((Ino::ROOT, b"linked"), (Ino::ROOT, b"renamed"), RenameMode::Replace).await?;
        fs.unlink(Ino::ROOT, b"renamed").await?;
        write(&fs, new.ino, 447, 3 * 4096).await?;
        fs.fsync(new.ino, false).await?;
        fs.setattr(new.ino, SetAttr { size: Some(0), ..SetAttr::default() }).await?;
        write(&fs, new.ino, 0, 300_000).await?;
        fs.fsync(new.ino, false).await?;
        fs.fsync(Ino::ROOT, false).await
    })
}

/// All findings on `drive`, or the error that ended fsck.
fn findings(rt: &Rt, drive: Drive) -> Vec<String> {
    let options = FsckOptions::default();
    match rt.block_on(async move { fsck(Rc::new(drive), &options).await }) {
        Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// The first finding on `drive`, if any.
fn first_finding(rt: &Rt, drive: Drive) -> Option<String> {
    findings(rt, drive).into_iter().next()
}

/// Number of detected flips, and number of all flips that changed anything.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    detected: u32,
    of: u32,
}

impl Tally {
    fn add(&mut self, changed: bool, detected: bool) {
        self.of += u32::from(changed);
        self.detected += u32::from(changed && detected);
    }
    fn show(self) -> String {
        match (self.detected, self.of) {
            (_, 0) => "—".into(),
            (n, of) if n == of => "yes".into(),
            (0, _) => "no".into(),
            (n, of) => format!("{n} of {of}"),
        }
    }
}

struct Row {
    structure: String,
    field: &'static str,
    raw: Tally,
    forged: Tally,
}

/// The bits to flip in a field of `bits` bits: low, middle, high.
fn bits(bits: usize) -> Vec<usize> {
    let mut chosen = vec![0, bits / 2 + 1, bits - 1];
    chosen.dedup();
    chosen
}

fn test_sites(rt: &Rt, drive: &Drive, map: &Map, sites: Vec<Site>, rows: &mut Vec<Row>) {
    assert_eq!(first_finding(rt, drive.clone()), None, "the drive must be whole");
    for site in sites {
        let mut row = Row {
            structure: site.structure,
            field: site.field,
            raw: Tally::default(),
            forged: Tally::default(),
        };
        for bit in bits(site.size * 8) {
            let mut raw = drive.clone();
            raw.flip(site.at, bit);
            row.raw.add(true, first_finding(rt, raw.clone()).is_some());
            map.repair(&mut raw, site.chain);
            let same = raw.bytes(site.at, site.size) == drive.bytes(site.at, site.size);
            let detected = first_finding(rt, raw);
            row.forged.add(!same, detected.is_some());
        }
        rows.push(row);
    }
}

#[test]
fn a_map_of_blocks_that_lost_every_bit_is_found_once() {
    let rt = Rt::new(Config::simulated(5));
    let drive = clean(&rt);
    let map = Map::of(&drive);
    let sites = sites::of_clean(&drive, &map);
    let maps = sites.iter().filter(|s| s.structure.starts_with("SitEntry") && s.field == "map");
    let mut tried = 0;
    for site in maps {
        let (mut forged, bytes) = (drive.clone(), drive.bytes(site.at, site.size).to_vec());
        for bit in (0..site.size * 8).filter(|bit| bytes[bit / 8] >> (bit % 8) & 1 != 0) {
            forged.flip(site.at, bit);
        }
        map.repair(&mut forged, site.chain);
        let all = findings(&rt, forged);
        let of_map: Vec<&String> = all.iter().filter(|text| text.contains(": map, ")).collect();
        let distinct: BTreeSet<&String> = of_map.iter().copied().collect();
        assert!(!of_map.is_empty() && distinct.len() == of_map.len(), "{of_map:#?}");
        tried += 1;
    }
    assert!(tried > 0, "no map");
}

#[test]
fn one_flipped_field_of_every_structure() {
    let rt = Rt::new(Config::simulated(5));
    let mut rows = Vec::new();
    let drive = clean(&rt);
    let map = Map::of(&drive);
    let sites = sites::of_clean(&drive, &map);
    test_sites(&rt, &drive, &map, sites, &mut rows);
    let drive = crashed(&rt);
    let map = Map::of(&drive);
    let sites = sites::of_crashed(&drive, &map);
    test_sites(&rt, &drive, &map, sites, &mut rows);

    println!("| structure | field | raw flip detected | forged flip detected |");
    println!("|---|---|---|---|");
    let (mut wrong, mut used) = (Vec::new(), Vec::new());
    for Row { structure, field, raw, forged } in &rows {
        let free = FREE.iter().find(|(s, f, _)| structure.starts_with(s) && f == field);
        let why = match free {
            Some((_, _, why)) if forged.detected != forged.of => format!(": {why}"),
            _ => String::new(),
        };
        println!("| {structure} | `{field}` | {} | {}{why} |", raw.show(), forged.show());
        if raw.detected != raw.of {
            wrong.push(format!("{structure}.{field}: raw flips {}", raw.show()));
        }
        let missed = forged.detected != forged.of;
        if missed && free.is_none() {
            wrong.push(format!("{structure}.{field}: forged flips {}", forged.show()));
        }
        if let (true, Some(free)) = (missed, free) {
            used.push(free);
        }
    }
    for free in FREE.iter().filter(|free| !used.contains(free)) {
        wrong.push(format!("{}.{}: detected, so it should not be listed", free.0, free.1));
    }
    let total = |pick: fn(&Row) -> Tally| {
        let (detected, of) = (0, 0);
        rows.iter().map(pick).fold((detected, of), |(d, o), t| (d + t.detected, o + t.of))
    };
    let (raw, forged) = (total(|row| row.raw), total(|row| row.forged));
    println!(
        "{} fields; raw flips {} of {} detected; forged {} of {}",
        rows.len(),
        raw.0,
        raw.1,
        forged.0,
        forged.1
    );
    assert!(rows.len() > 200);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A part that `furrow dump` can show, chosen by a number.
fn part(draw: u64) -> Part {
    let node = (draw >> 8) as u32 % 40;
    match draw % 9 {
        0 => Part::Superblock,
        1 => Part::Checkpoint,
        2 => Part::Nat(0..=u32::MAX),
        3 => Part::Sit(0..=u32::MAX),
        4 => Part::Node(Which::Number(node)),
        5 => Part::Node(Which::Path(b"/dir/tall".to_vec())),
        6 => Part::Directory(Which::Number(node)),
        7 => Part::Directory(Which::Path(b"dir/below".to_vec())),
        _ => Part::Segment(node),
    }
}

/// Fields are overwritten with random bytes, and checksums corrected: no bytes may make fsck or a
/// dump panic or hang.
#[test]
fn forged_bytes_are_survived() {
    let rt = Rt::new(Config::simulated(6));
    let mut rng = furrow_rt::Rng::new(11);
    let mut found = 0;
    for (drive, of) in [
        (clean(&rt), sites::of_clean as fn(&Drive, &Map) -> Vec<Site>),
        (crashed(&rt), sites::of_crashed),
    ] {
        let map = Map::of(&drive);
        let sites = of(&drive, &map);
        for _ in 0..1000 {
            let mut forged = drive.clone();
            // Overwrite a run of bytes that begins with a field, so that neighbouring fields are
            // wrong in a consistent way. The run ends within the block.
            let site = &sites[rng.below(sites.len() as u64) as usize];
            let room = BLOCK - site.at.1 % BLOCK;
            let len = [site.size, 16, 64, 600][rng.below(4) as usize].min(room);
            let mask = [0xff, 0x01, 0x80][rng.below(3) as usize];
            let old = forged.bytes(site.at, len);
            let new: Vec<u8> = old.iter().map(|byte| byte ^ (rng.next() as u8 & mask)).collect();
            forged.store(site.at, &new);
            map.repair(&mut forged, site.chain);
            let shown = (Rc::new(forged.clone()), part(rng.next()));
            // The dump may be refused or shown, but must end.
            let _ = rt.block_on(async move { dump(shown.0, &shown.1).await });
            found += u32::from(first_finding(&rt, forged).is_some());
        }
    }
    assert!(found > 1000, "only {found} of 2000 detected");
}

#[test]
fn what_is_no_file_system_is_refused() {
    let rt = Rt::new(Config::simulated(7));
    let drive = clean(&rt);
    let map = Map::of(&drive);
    let refused = |drive: Drive| {
        let options = FsckOptions::default();
        let result = rt.block_on(async move { fsck(Rc::new(drive), &options).await });
        let error = result.err().unwrap();
        assert_eq!(error.kind(), furrow_zone::ErrorKind::WrongFormat, "{error}");
        error.to_string()
    };
    let mut blank = drive.clone();
    for zone in 0..2 {
        for offset in 0..drive.written(zone) {
            blank.store((zone * drive.capacity() + offset, 0), &[0; BLOCK]);
        }
    }
    assert!(refused(blank).contains("no Furrow file system"));
    let version = (map.superblocks[0], 6);
    for (at, bytes, word) in [
        (version, &[2, 0][..], "version 2"),
        ((map.superblocks[0], 96 + 16), &[16][..], "features 0x10"),
        ((map.superblocks[0], 96 + 8), &[8][..], "features 0x8"),
    ] {
        let mut newer = drive.clone();
        newer.store(at, bytes);
        map.repair(&mut newer, Chain::Superblock);
        let message = refused(newer);
        assert!(message.contains(word) && message.contains("newer"), "{message}");
    }
}
