//! Allocation, holes, copies, locks, maps, direct I/O, access times and sizes, on a mount through
//! the kernel.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a server")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::engine::WRITEBACK;
use crate::common::place::{Place, errno, pattern};
use rustix::fs::{
    CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, copy_file_range, fallocate, flock,
    seek,
};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::Duration;

fn read_write(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
pub fn fallocate_and_seek_see_holes() {
    let Some(mut place) = Place::new("holes") else { return };
    let path = place.at("file");
    let file = read_write(&path);
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (100_000, 25 * 8));
    let mut expected = pattern(1 << 20, 3);
    file.write_all_at(&expected, 0).unwrap();
    // The kernel's cached pages of the range must be dropped, too.
    assert!(fs::read(&path).unwrap() == expected);
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 5000, 200_000).unwrap();
    expected[5000..205_000].fill(0);
    assert!(fs::read(&path).unwrap() == expected, "punched");
    fallocate(&file, FallocateFlags::ZERO_RANGE, (1 << 20) - 10, 5010).unwrap();
    expected.truncate((1 << 20) - 10);
    expected.resize((1 << 20) + 5000, 0);
    assert!(fs::read(&path).unwrap() == expected, "zeroed and longer");
    let end = (1 << 20) + 5000;
    fallocate(&file, FallocateFlags::ZERO_RANGE | keep, 300_000, end - 300_000).unwrap();
    expected[300_000..].fill(0);
    assert!(fs::read(&path).unwrap() == expected, "zeroed");
    // Blocks can be allocated up to the end of the last block, but not beyond, not even as part of
    // a range.
    fallocate(&file, keep, 0, end.next_multiple_of(4096)).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 8192, 204_800 - 8192).unwrap();
    for beyond in [keep, FallocateFlags::ZERO_RANGE | keep] {
        for (offset, length) in [(1 << 21, 1 << 20), (0, 2 * end), (end, 4096)] {
            let refused = fallocate(&file, beyond, offset, length);
            assert_eq!(refused, Err(Errno::OPNOTSUPP), "{beyond:?} {offset} {length}");
        }
    }
    assert_eq!(file.metadata().unwrap().len(), end);
    for odd in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, odd, 0, 4096), Err(Errno::OPNOTSUPP));
    }
    let much = fallocate(&file, FallocateFlags::empty(), 0, 1 << 40);
    assert_eq!(much, Err(Errno::NOSPC));

    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(8192));
    assert_eq!(seek(&file, SeekFrom::Data(8192)), Ok(204_800));
    assert_eq!(seek(&file, SeekFrom::Data(205_000)), Ok(205_000));
    assert_eq!(seek(&file, SeekFrom::Hole(205_000)), Ok((1 << 20) + 5000));
    assert_eq!(seek(&file, SeekFrom::Data(1 << 21)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::End(-1)), Ok((1 << 20) + 4999));
    drop(file);
    place.remount();
    assert!(fs::read(&path).unwrap() == expected, "after a remount");
}

#[test]
pub fn ranges_are_copied() {
    let Some(place) = Place::new("copy") else { return };
    let bytes = pattern(3_000_000, 5);
    fs::write(place.at("from"), &bytes).unwrap();
    let (from, to) = (File::open(place.at("from")).unwrap(), read_write(&place.at("to")));
    fs::write(place.at("to"), [1; 100]).unwrap();
    assert_eq!(fs::read(place.at("to")).unwrap(), [1; 100], "the kernel knows its old content");
    let (mut source, mut target) = (7, 50);
    while source < bytes.len() as u64 {
        let copied =
            copy_file_range(&from, Some(&mut source), &to, Some(&mut target), 1 << 30).unwrap();
        assert!(copied > 0);
    }
    let mut expected = vec![1; 50];
    expected.extend_from_slice(&bytes[7..]);
    assert!(fs::read(place.at("to")).unwrap() == expected);
    // cp finds the holes of a sparse file and keeps them.
    let sparse = read_write(&place.at("sparse"));
    sparse.write_all_at(b"far", 50 << 20).unwrap();
    let copied = Command::new("cp").args(["sparse", "copy"]).current_dir(place.at("")).status();
    assert!(copied.unwrap().success());
    let copy = fs::metadata(place.at("copy")).unwrap();
    assert!(copy.len() == (50 << 20) + 3 && copy.blocks() < 100, "{} blocks", copy.blocks());
}

#[test]
pub fn direct_io_and_maps_see_one_file() {
    let Some(mut place) = Place::new("direct") else { return };
    let path = place.at("file");
    let bytes = pattern(1 << 20, 11);
    fs::write(&path, &bytes).unwrap();
    let flags = OFlags::RDWR | OFlags::DIRECT;
    let direct = File::from(rustix::fs::open(&path, flags, Mode::empty()).unwrap());
    let mut block = vec![0; 8192];
    direct.read_exact_at(&mut block, 4096).unwrap();
    assert!(block == bytes[4096..12_288]);
    direct.write_all_at(&[7; 4096], 8192).unwrap();
    assert_eq!(fs::read(&path).unwrap()[8192..12_288], [7; 4096], "seen through the page cache");
    let buffered = read_write(&path);
    buffered.write_all_at(&[8; 4096], 16_384).unwrap();
    direct.read_exact_at(&mut block[..4096], 16_384).unwrap();
    assert_eq!(block[..4096], [8; 4096]);
    // An ordinary program maps files: shared maps change the file, private maps do not.
    let script = "import mmap,os,sys
f=os.open(sys.argv[1],os.O_RDWR)
shared=mmap.mmap(f,65536,mmap.MAP_SHARED)
private=mmap.mmap(f,65536,mmap.MAP_PRIVATE)
assert shared[8192]==7 and shared[16384]==8
private[0:4]=b'mine'
shared[5000:5006]=b'shared'
assert private[5000:5006]==b'shared' and shared[0:4]!=b'mine'
shared.flush()
assert os.pread(f,6,5000)==b'shared'
os.pwrite(f,b'written',200)
assert shared[200:207]==b'written'
";
    match Command::new("python3").args(["-c", script]).arg(&path).output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => eprintln!("SKIPPED maps: python3: {error}"),
    }
    drop((direct, buffered));
    place.remount();
    let found = fs::read(&path).unwrap();
    assert_eq!((&found[8192..12_288], found[16_384]), (&[7; 4096][..], 8));
    assert!(found[1000..4096] == bytes[1000..4096] && found[5000..5006] == *b"shared");
}

#[test]
pub fn locks_exclude_each_other() {
    let Some(place) = Place::new("locks") else { return };
    let path = place.at("file");
    let (one, two) = (read_write(&path), File::open(&path).unwrap());
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&two, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    flock(&one, FlockOperation::LockShared).unwrap();
    flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    drop(one);
    flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop(two);
    // POSIX locks, unlike those of flock(2) above, belong to a process, so a script with two
    // processes tests them.
    let script = "import fcntl,os,sys
f=os.open(sys.argv[1],os.O_RDWR)
fcntl.lockf(f,fcntl.LOCK_EX,10,5)
if os.fork()==0:
  g=os.open(sys.argv[1],os.O_RDWR)
  fcntl.lockf(g,fcntl.LOCK_EX|fcntl.LOCK_NB,5,0)
  try: fcntl.lockf(g,fcntl.LOCK_EX|fcntl.LOCK_NB,10,0)
  except OSError: os._exit(3)
  os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
";
    match Command::new("python3").args(["-c", script]).arg(&path).output() {
        Ok(done) => assert_eq!(done.status.code(), Some(3), "the second lock is refused"),
        Err(error) => eprintln!("SKIPPED POSIX locks: python3: {error}"),
    }
}

#[test]
pub fn reading_is_an_access() {
    let Some(mut place) = Place::new("atime") else { return };
    let path = place.at("file");
    fs::write(&path, "read me").unwrap();
    fs::create_dir(place.at("d")).unwrap();
    // The kernel caches data just written, and answers reads of it itself, so the file
    // is remounted.
    place.remount();
    let root = place.at("");
    let atime = |name: &str| {
        let metadata = fs::symlink_metadata(root.join(name)).unwrap();
        (metadata.atime(), metadata.atime_nsec())
    };
    let (before, directory) = (atime("file"), atime("d"));
    std::thread::sleep(Duration::from_millis(20));
    fs::read(&path).unwrap();
    let after = atime("file");
    assert!(after > before, "the first read after a change");
    fs::read_dir(place.at("d")).unwrap().count();
    assert!(atime("d") > directory);
    // With O_NOATIME, reading does not count as an access.
    let mtime = rustix::fs::Timespec { tv_sec: 1 << 31, tv_nsec: 0 };
    for quiet in ["quiet", "quiet-d"] {
        match quiet {
            "quiet" => fs::write(place.at(quiet), "read me").unwrap(),
            _ => fs::create_dir(place.at(quiet)).unwrap(),
        }
        let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = rustix::fs::Timestamps { last_access: omit, last_modification: mtime };
        rustix::fs::utimensat(CWD, place.at(quiet), &times, rustix::fs::AtFlags::empty()).unwrap();
    }
    place.remount();
    let before = (atime("quiet"), atime("quiet-d"));
    std::thread::sleep(Duration::from_millis(20));
    let quietly = |name: &str, flags: OFlags| {
        let flags = flags | OFlags::RDONLY | OFlags::NOATIME;
        File::from(rustix::fs::open(root.join(name), flags, Mode::empty()).unwrap())
    };
    assert_eq!(quietly("quiet", OFlags::empty()).read_to_end(&mut Vec::new()).unwrap(), 7);
    let listing = rustix::fs::Dir::read_from(quietly("quiet-d", OFlags::DIRECTORY)).unwrap();
    assert_eq!(listing.count(), 2, "itself and the one above");
    assert_eq!((atime("quiet"), atime("quiet-d")), before);
    fs::read_dir(place.at("quiet-d")).unwrap().count();
    assert!(atime("quiet-d") > before.1, "it would have been one");
    // A relative access time is not updated again.
    let direct = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap();
    File::from(direct).read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(atime("file"), after);
    place.remount();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.atime(), metadata.atime_nsec()), after, "kept");
}

#[test]
pub fn limits_are_those_promised() {
    let Some(mut place) = Place::new("limits") else { return };
    let file = read_write(&place.at("sparse"));
    let last = (u64::from(u32::MAX)) * 4096;
    file.write_all_at(b"end", last - 3).unwrap();
    match WRITEBACK.get() {
        false => assert_eq!(errno(file.write_all_at(b"x", last)), Errno::FBIG),
        // The kernel does not know the limit of sizes: it gets the error when it writes back.
        true => {
            let other = read_write(&place.at("beyond"));
            other.write_all_at(b"x", last).unwrap();
            assert_eq!(errno(other.sync_all()), Errno::FBIG);
            fs::remove_file(place.at("beyond")).unwrap();
        }
    }
    assert_eq!(errno(file.set_len(last + 1)), Errno::FBIG);
    let first = last - 4096;
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(first));
    drop(file);
    place.remount();
    let file = read_write(&place.at("sparse"));
    let mut end = [0; 4];
    assert_eq!(file.read_at(&mut end, last - 3).unwrap(), 3);
    assert_eq!((&end[..3], file.metadata().unwrap().len()), (&b"end"[..], last));
    file.set_len(1 << 43).unwrap();
    file.set_len(5).unwrap();
    assert_eq!(fs::read(place.at("sparse")).unwrap(), [0; 5]);
    drop(file);
    let mut appended = OpenOptions::new().append(true).open(place.at("sparse")).unwrap();
    appended.write_all(b"!").unwrap();
    assert_eq!(fs::read(place.at("sparse")).unwrap(), b"\0\0\0\0\0!");
}
