//! Tests of dumps of a small file system, intact and damaged.

#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[allow(dead_code, reason = "fsck's tests use the rest")]
use crate::fsck_fields::drive::Drive;
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::dump::{Dump, Part, Value, Which, dump};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{Error, ErrorKind};
use std::rc::Rc;

fn number(value: &Value) -> u64 {
    match value {
        Value::Number(number) => *number,
        other => panic!("no number: {other:?}"),
    }
}

/// The value at the end of `path`.
fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, name| match value {
        Value::Fields(fields) => {
            let found = fields.iter().find(|(field, _)| field == name);
            &found.unwrap_or_else(|| panic!("no {name} in {fields:?}")).1
        }
        other => panic!("no fields: {other:?}"),
    })
}

fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    match at(value, path) {
        Value::List(list) => list,
        other => panic!("no list: {other:?}"),
    }
}

const SPEC: &str = "zones=40,zone-size=1MiB,zone-capacity=256KiB,max-active=14,channels=1";

/// A drive with a directory of 300 files, of which the first has content.
fn made(rt: &Rt) -> Drive {
    let geometry = furrow_zone::spec::parse_geometry(SPEC).unwrap();
    let medium = Medium::memory(&geometry);
    let emulator = Rc::new(Emulator::new(rt, geometry, medium, Options::simulated()).unwrap());
    let on = rt.clone();
    let drive = rt.block_on(async move {
        let options = MkfsOptions { segment_blocks: Some(16), ..MkfsOptions::default() };
        Fs::format(&on, emulator.clone(), &options).await?;
        let fs = Fs::mount(&on, emulator.clone(), MountOptions::default()).await?;
        let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?;
        for file in 0..300 {
            let name = format!("file {file} with a name that takes some room");
            let file = fs.create(dir.ino, name.as_bytes(), &NewNode::file()).await?;
            if name.starts_with("file 0 ") {
                fs.write(file.ino, WriteData::copy(fs.pool(), 0, &[7; 9000])).await?;
            }
        }
        fs.unmount().await?;
        Ok::<Drive, Error>(Drive::read(&*emulator).await)
    });
    rt.clear();
    drive.unwrap()
}

fn shown(rt: &Rt, drive: &Drive, part: &Part) -> Result<Dump, Error> {
    let (drive, part) = (Rc::new(drive.clone()), part.clone());
    rt.block_on(async move { dump(drive, &part).await })
}

/// Dumps `part` of an intact drive.
fn whole(rt: &Rt, drive: &Drive, part: Part) -> Value {
    let dump = shown(rt, drive, &part).unwrap();
    assert_eq!(dump.findings, [], "{part:?}");
    dump.value
}

fn file_0() -> Which {
    Which::Path(b"dir/file 0 with a name that takes some room".to_vec())
}

#[test]
fn what_one_part_says_the_others_show() {
    let rt = Rt::new(Config::simulated(3));
    let drive = made(&rt);
    let copies = whole(&rt, &drive, Part::Superblock);
    let streams = at(&list(&copies, &["copies"])[0], &["body", "streams"]).clone();
    let checkpoint = whole(&rt, &drive, Part::Checkpoint);
    let heads = list(&checkpoint, &["heads"]).len() as u64;
    assert!((2..=number(&streams)).contains(&heads), "{heads} heads of {streams:?} streams");
    assert_eq!(at(&checkpoint, &["body", "inodes"]), &Value::Number(302));

    let nat = whole(&rt, &drive, Part::Nat(0..=u32::MAX));
    assert!(list(&nat, &["nat"]).len() >= 302);
    let one = whole(&rt, &drive, Part::Nat(1..=1));
    assert_eq!(list(&one, &["nat"]).len(), 1);

    let path = Which::Path(b"/dir/".to_vec());
    let directory = whole(&rt, &drive, Part::Directory(path));
    let entries = list(&directory, &["entries"]);
    assert_eq!(entries.len(), 300);
    let file = whole(&rt, &drive, Part::Node(file_0()));
    assert_eq!(at(&file, &["inode", "size"]), &Value::Number(9000));
    let blocks: u64 = list(&file, &["blocks"]).iter().map(|run| number(at(run, &["count"]))).sum();
    assert_eq!(blocks, 3);

    // The file's block must be valid in its segment, and owned by the file.
    let node = number(at(&file, &["node"]));
    let place = at(&list(&file, &["blocks"])[0], &["at"]).clone();
    let sit = whole(&rt, &drive, Part::Sit(0..=u32::MAX));
    let mut found = false;
    for entry in list(&sit, &["sit"]) {
        let segment = number(at(entry, &["segment"])) as u32;
        let segment = whole(&rt, &drive, Part::Segment(segment));
        for block in list(&segment, &["blocks"]) {
            if *at(block, &["at"]) == place {
                assert_eq!(number(at(block, &["node"])), node);
                assert_eq!(at(block, &["state"]), &Value::Text("valid".into()));
                found = true;
            }
        }
    }
    assert!(found, "{place:?} is in no segment");
}

#[test]
fn what_is_not_there_is_said() {
    let rt = Rt::new(Config::simulated(3));
    let drive = made(&rt);
    for (part, kind, words) in [
        (Part::Node(Which::Number(0)), ErrorKind::NotFound, "no node 0"),
        (Part::Node(Which::Number(u32::MAX)), ErrorKind::NotFound, "nodes are 1 to"),
        (Part::Node(Which::Number(1279)), ErrorKind::NotFound, "not in use"),
        (Part::Segment(u32::MAX), ErrorKind::NotFound, "no segment"),
        (Part::Directory(Which::Path(b"/x".into())), ErrorKind::NotFound, "no name `x`"),
        (Part::Directory(Which::Number(4)), ErrorKind::NotDirectory, "not a directory"),
    ] {
        let error = shown(&rt, &drive, &part).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

fn address(value: &Value) -> u32 {
    number(at(value, &["nat", "addr"])) as u32
}

#[test]
fn what_is_damaged_is_said_and_shown_all_the_same() {
    let rt = Rt::new(Config::simulated(3));
    let good = made(&rt);
    let node = whole(&rt, &good, Part::Node(file_0()));

    // Damage a node: flip one bit of its size.
    let mut drive = good.clone();
    drive.flip((address(&node), 72), 0);
    let dump = shown(&rt, &drive, &Part::Node(file_0())).unwrap();
    assert!(dump.findings[0].to_string().contains("checksum"), "{:?}", dump.findings);
    assert_ne!(at(&dump.value, &["inode"]), at(&node, &["inode"]));
    assert_eq!(at(&dump.value, &["blocks"]), at(&node, &["blocks"]));

    // Damage a directory block: the names in the other blocks are still shown.
    let dir = whole(&rt, &good, Part::Node(Which::Path(b"/dir".into())));
    let first = number(at(&list(&dir, &["blocks"])[0], &["addr"])) as u32;
    let mut drive = good.clone();
    drive.store((first, 0), &[0xff; 4096]);
    let part = Part::Directory(Which::Path(b"/dir".into()));
    let dump = shown(&rt, &drive, &part).unwrap();
    assert!(dump.findings[0].to_string().starts_with("directory: "), "{:?}", dump.findings);
    let names = list(&dump.value, &["entries"]).len();
    assert!((1..300).contains(&names), "{names} names");

    // Damage one copy of the superblock, and then the delta log.
    let zone = number(at(&list(&whole(&rt, &good, Part::Superblock), &["copies"])[0], &["zone"]));
    let mut drive = good.clone();
    drive.flip((zone as u32 * good.capacity(), 200), 3);
    let dump = shown(&rt, &drive, &Part::Superblock).unwrap();
    assert!(dump.findings[0].to_string().starts_with("superblock: "), "{:?}", dump.findings);
    assert_eq!(list(&dump.value, &["copies"]).len(), 2);

    let checkpoint = whole(&rt, &good, Part::Checkpoint);
    let extent = list(&checkpoint, &["extents"]).last().unwrap();
    let superblock = whole(&rt, &good, Part::Superblock);
    let delta = at(&list(&superblock, &["copies"])[0], &["body", "delta_start"]);
    let block = number(at(extent, &["first"])) as u32;
    let mut drive = good.clone();
    drive.flip((number(delta) as u32 * good.capacity() + block, 300), 0);
    let dump = shown(&rt, &drive, &Part::Nat(0..=u32::MAX)).unwrap();
    assert!(!dump.findings.is_empty() && !dump.notes.is_empty(), "{dump:?}");
}

#[test]
fn no_bytes_make_it_panic() {
    let rt = Rt::new(Config::simulated(3));
    let good = made(&rt);
    let mut rng = Rng::new(5);
    let (mut wrong, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut drive = good.clone();
        // Choose a block in a metadata zone or in one of the first zones behind these.
        let zone = rng.below(20) as u32;
        let Some(offset) = rng.next().checked_rem(drive.written(zone).into()) else { continue };
        let length = [1, 16, 4096][rng.below(3) as usize];
        let at = (zone * drive.capacity() + offset as u32, rng.below(4097 - length) as usize);
        let noise: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
        drive.store(at, &noise);
        for part in [
            Part::Superblock,
            Part::Checkpoint,
            Part::Nat(0..=u32::MAX),
            Part::Sit(0..=u32::MAX),
            Part::Node(file_0()),
            Part::Directory(Which::Path(b"/dir".into())),
            Part::Segment(rng.below(40) as u32),
        ] {
            match shown(&rt, &drive, &part) {
                Ok(dump) => wrong += u32::from(!dump.findings.is_empty()),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(wrong > 100, "{wrong} with findings, {refused} refused");
}
