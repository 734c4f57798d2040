//! Tests that programs which copy a file, or look for its holes, see data stored through a shared
//! map that the kernel has not passed on yet.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a server")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::place::Place;
use std::process::Command;

/// One process maps each file, stores data, and keeps the file mapped. Another process runs the
/// programs; it has never had the file open, because a close would pass the stores on.
const COPIES: &str = r#"
import mmap, os, subprocess, sys
os.chdir(sys.argv[1])
SIZE, PLACES = 1 << 20, [8192, 524288, 1000000]
SEEK = """
import os, sys
fd, found, at = os.open(sys.argv[1], os.O_RDONLY), [], 0
size = os.fstat(fd).st_size
while at < size:
    try: data = os.lseek(fd, at, os.SEEK_DATA)
    except OSError: break
    at = os.lseek(fd, data, os.SEEK_HOLE)
    assert at > data, (at, data)
    found.append((data, at))
with open(sys.argv[2], 'wb') as out:
    out.truncate(size)
    for data, end in found: os.pwrite(out.fileno(), os.pread(fd, end - data, data), data)
"""
RANGE = """
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_CREAT | os.O_RDWR)
done, size = 0, os.fstat(a).st_size
while done < size: done += os.copy_file_range(a, b, size - done, done, done)
"""
WAYS = {
    "cp": ["cp"],
    "sparse": ["cp", "--sparse=always"],
    "plain": ["cp", "--sparse=never"],
    "reflink": ["cp", "--reflink=auto"],
    "seek": ["python3", "-c", SEEK],
    "range": ["python3", "-c", RANGE],
    "direct": ["sh", "-c", "dd if=$0 of=$1 bs=64k iflag=direct status=none"],
    "tar": ["sh", "-c", "mkdir t && tar -cSf - $0 | tar -xSf - -C t && mv t/$0 $1 && rmdir t"],
}
ask, asked = os.pipe()
told, tell = os.pipe()
if os.fork() == 0:
    os.close(asked)
    for way in os.fdopen(ask):
        way = way.strip()
        done = subprocess.run(WAYS[way] + [way, way + ".copy"])
        os.write(tell, b"y" if done.returncode == 0 else b"n")
    os._exit(0)
os.close(ask)
wrong = []
for way in WAYS:
    fd = os.open(way, os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, SIZE)
    # One block is known, so that not all of the file is a hole.
    os.pwrite(fd, b"known", 65536)
    stored = mmap.mmap(fd, SIZE)
    for at in PLACES: stored[at:at + 5] = b"hello"
    os.write(asked, way.encode() + b"\n")
    worked = os.read(told, 1) == b"y"
    expected = bytearray(SIZE)
    for at in PLACES: expected[at:at + 5] = b"hello"
    expected[65536:65541] = b"known"
    if not worked or open(way + ".copy", "rb").read() != bytes(expected): wrong.append(way)
    if bytes(stored) != bytes(expected): wrong.append(way + ": the map itself")
# A file of which the server has nothing: programs take 0 blocks for a hole without asking.
fd = os.open("none", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, SIZE)
stored = mmap.mmap(fd, SIZE)
stored[4096:4101] = b"hello"
if os.stat("none").st_blocks == 0: wrong.append("no blocks")
sys.exit(", ".join(wrong) or 0)
"#;

#[test]
pub fn stores_through_a_map_are_no_holes() {
    let Some(place) = Place::new("maps") else { return };
    let out = Command::new("python3").args(["-c", COPIES]).arg(place.at("")).output();
    match out {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
        Err(error) => eprintln!("SKIPPED maps: python3: {error}"),
    }
}
