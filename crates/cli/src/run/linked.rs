//! Checks that a program is linked to the RocksDB that the plugin was built for.
//!
//! Two RocksDBs in one process crash before the plugin runs, so the launcher checks first: it makes
//! the program's own dynamic linker list the libraries, without running the program.

use anyhow::{Result, bail};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Java's launcher library, which every Java virtual machine that is started by name needs.
const JAVA: &str = "libjli.so";

/// Name of RocksDB's shared library, before the version.
const ROCKSDB: &str = "librocksdb.so";
/// Number of bytes at the front of a program that contain its headers.
const FRONT: u64 = 64 << 10;

/// Compares the RocksDB that `program` would load with the one that `plugin` was built for. A file
/// that is not in this machine's program format, such as a script, is not checked.
///
/// # Errors
/// An error if the two differ, or the plugin's RocksDB is not installed.
pub fn check(program: &OsStr, plugin: &Path) -> Result<()> {
    let Some(path) = find(program) else { return Ok(()) };
    let Some(linker) = linker(&path) else { return Ok(()) };
    let needed = list(&linker, &path);
    let (wanted, found) = (rocksdb_of(&list(&linker, plugin)), rocksdb_of(&needed));
    let (name, plugin) = (program.display(), plugin.display());
    match (found, wanted) {
        (Some(found), Some(wanted)) if found.name != wanted.name => bail!(
            "{name} is linked to {}, but the plugin {plugin} was built for {}; build it for that \
             RocksDB: make -C plugins/rocksdb ROCKSDB=DIRECTORY",
            found.name,
            wanted.name
        ),
        (_, Some(wanted)) if !wanted.is_there => {
            bail!("{plugin}: {} is not installed: install RocksDB's library", wanted.name)
        }
        (None, Some(wanted)) => {
            crate::complain(&format!(
                "{name} is not linked to {}; of the programs that it starts, only those that are \
                 linked to it will use the store",
                wanted.name
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether `program` is the launcher of a Java virtual machine. A script that starts one is not.
pub fn is_java(program: &OsStr) -> bool {
    let Some(path) = find(program) else { return false };
    let Some(linker) = linker(&path) else { return false };
    list(&linker, &path).lines().any(|line| line.trim().starts_with(JAVA))
}

/// A library that a program needs.
#[derive(Debug, PartialEq, Eq)]
struct Library {
    name: String,
    is_there: bool,
}

/// RocksDB in the output of a dynamic linker: lines of `NAME => PATH (ADDRESS)`.
fn rocksdb_of(listed: &str) -> Option<Library> {
    let mut lines = listed.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with(ROCKSDB))?;
    let (name, path) = line.split_once(" => ").unwrap_or((line, ""));
    Some(Library { name: name.to_owned(), is_there: !path.contains("not found") })
}

fn list(linker: &Path, what: &Path) -> String {
    let output = Command::new(linker).arg("--list").arg(what).env_remove("LD_PRELOAD").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The file of a program as execvp(3) finds it, with symbolic links resolved: a program such as
/// java may find its libraries relative to its real place.
fn find(program: &OsStr) -> Option<PathBuf> {
    let found = match program.as_bytes().contains(&b'/') {
        true => PathBuf::from(program),
        false => {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path)
                .map(|part| part.join(program))
                .find(|path| path.is_file())?
        }
    };
    Some(found.canonicalize().unwrap_or(found))
}

/// The dynamic linker that a program names.
fn linker(program: &Path) -> Option<PathBuf> {
    let mut front = Vec::new();
    File::open(program).ok()?.take(FRONT).read_to_end(&mut front).ok()?;
    interpreter(&front).map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

/// The interpreter of a 64-bit little-endian ELF file (gABI, "Program Header": `PT_INTERP`).
fn interpreter(file: &[u8]) -> Option<&[u8]> {
    const INTERPRETER: u32 = 3;
    let at = |from: u64, len: u64| {
        let from = usize::try_from(from).ok()?;
        file.get(from..from.checked_add(usize::try_from(len).ok()?)?)
    };
    let u16_at = |from| Some(u16::from_le_bytes(at(from, 2)?.try_into().ok()?));
    let u32_at = |from| Some(u32::from_le_bytes(at(from, 4)?.try_into().ok()?));
    let u64_at = |from| Some(u64::from_le_bytes(at(from, 8)?.try_into().ok()?));
    if at(0, 6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (u64_at(32)?, u16_at(54)?, u16_at(56)?);
    let headers = (0..u64::from(count)).map(|index| table.checked_add(index * u64::from(size)));
    let header = headers.flatten().find(|header| u32_at(*header) == Some(INTERPRETER))?;
    let name = at(u64_at(header.checked_add(8)?)?, u64_at(header.checked_add(32)?)?)?;
    name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rocksdb_is_found_in_what_a_dynamic_linker_lists() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n\
                      \tlibrocksdb.so.9.10 => /lib/librocksdb.so.9.10 (0x0)\n";
        let is = |name: &str, is_there| Some(Library { name: name.to_owned(), is_there });
        assert_eq!(rocksdb_of(listed), is("librocksdb.so.9.10", true));
        assert_eq!(rocksdb_of("librocksdb.so.7.8 => not found"), is("librocksdb.so.7.8", false));
        assert_eq!(rocksdb_of("\tlibc.so.6 => /lib/libc.so.6 (0x0)\nstatically linked"), None);
    }

    #[test]
    fn this_program_names_its_dynamic_linker_and_a_damaged_one_is_no_panic() {
        let this = std::fs::read("/proc/self/exe").expect("this program");
        let front = &this[..4096.min(this.len())];
        let name = interpreter(front).expect("linked dynamically");
        assert!(Path::new(OsStr::from_bytes(name)).is_file());
        let mut damaged = front.to_vec();
        for at in 0..1024 {
            let was = std::mem::replace(&mut damaged[at], 0xff);
            interpreter(&damaged);
            damaged[at] = was;
            interpreter(&front[..at]);
        }
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
    }
}
