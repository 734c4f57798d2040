//! A mount for a test to work in.

use super::engine::{GEOMETRY, Mounted, image};
use super::{Scratch, skip};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A drive that is soon full.
pub const SMALL: &str = "capacity=96MiB,zone-size=1MiB,max-active=32";

/// A file system mounted for one test, with its directory.
pub struct Place {
    pub scratch: Scratch,
    pub image: String,
    mounted: Option<Mounted>,
}

impl Place {
    /// `None` if the test is to be skipped.
    pub fn new(name: &str) -> Option<Place> {
        Place::on(name, GEOMETRY)
    }

    pub fn on(name: &str, geometry: &str) -> Option<Place> {
        if skip() {
            return None;
        }
        let scratch = Scratch::new(name);
        let image = image(&scratch.file("disk.zns"), geometry);
        let mounted = Some(Mounted::new(&image, &scratch.mount_point(), Duration::from_secs(1)));
        Some(Place { scratch, image, mounted })
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.scratch.mount_point().join(name)
    }

    pub fn remount(&mut self) {
        self.mounted.take().unwrap().end();
        let directory = self.scratch.mount_point();
        self.mounted = Some(Mounted::new(&self.image, &directory, Duration::from_secs(1)));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take()
            && !std::thread::panicking()
        {
            mounted.end();
        }
    }
}

pub fn errno<T>(result: std::io::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("should fail"),
        Err(error) => Errno::from_io_error(&error).expect("an errno"),
    }
}

pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Bytes that do not repeat.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out
}
