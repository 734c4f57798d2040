//! Fills a file system and overwrites it until it has to clean, as after long use. Then checks that
//! cleaning moved every block with its content.

use super::files::Files;
use super::plan::{BLOCK, FileId, Plan};
use super::progress::Progress;
use anyhow::{Context, bail};
use furrow_rt::Rng;

/// Number of blocks of each file: 1 MiB.
pub const FILE_BLOCKS: u64 = 256;
/// Maximum number of blocks of one overwrite.
const WRITE_BLOCKS_MAX: u64 = 16;
/// Number of overwrites between two checks of how much was cleaned.
const ROUND: u32 = 256;

/// Files of one size, overwritten in random places.
pub struct Aging<'a> {
    folder: &'a str,
    plan: Plan,
    rng: Rng,
    /// For each file, the version of each block.
    versions: Vec<Vec<u64>>,
}

impl<'a> Aging<'a> {
    /// Files below `folder`, which [`Aging::fill`] makes. `seed` determines their content and the
    /// places of overwrites.
    pub fn new(folder: &'a str, seed: u64) -> Aging<'a> {
        Aging { folder, plan: Plan { seed }, rng: Rng::new(seed), versions: Vec::new() }
    }

    fn path(&self, index: usize) -> String {
        format!("{}/f{index}", self.folder)
    }

    /// Writes `count` files.
    ///
    /// # Errors
    /// The first error of the file system, with the operation that failed.
    pub fn fill(
        &mut self,
        files: &dyn Files,
        count: u64,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let folder = self.folder;
        files.make_folder(folder, 0o755).with_context(|| format!("mkdir {folder}"))?;
        for index in 0..count as usize {
            let path = self.path(index);
            let open = files.open(&path, true).with_context(|| format!("creating {path}"))?;
            let data = self.plan.payload(id(index), 1, 0, FILE_BLOCKS * BLOCK as u64);
            open.write_at(0, &data).with_context(|| format!("writing {path}"))?;
            self.versions.push(vec![1; FILE_BLOCKS as usize]);
            progress.add(1, data.len() as u64);
        }
        Ok(())
    }

    /// Overwrites random ranges of random files until `done` returns true. `done` is called first,
    /// and then after every `ROUND` overwrites. The second result of `done`, the number of steps
    /// done so far, goes to `progress`.
    ///
    /// # Errors
    /// The first error of the file system; also an error if `bytes_max` bytes were written
    /// before `done`.
    pub fn overwrite(
        &mut self,
        files: &dyn Files,
        bytes_max: u64,
        progress: &Progress,
        mut done: impl FnMut() -> anyhow::Result<(bool, u64)>,
    ) -> anyhow::Result<()> {
        let (mut bytes, mut steps) = (0, 0);
        loop {
            let (over, now) = done()?;
            progress.add(now.saturating_sub(steps), 0);
            steps = now.max(steps);
            if over {
                return Ok(());
            }
            if bytes > bytes_max {
                bail!("{} MiB were overwritten, and nothing was cleaned", bytes >> 20);
            }
            for _ in 0..ROUND {
                let written = self.overwrite_one(files)?;
                progress.add(0, written);
                bytes += written;
            }
        }
    }

    /// Overwrites one range; returns the number of its bytes.
    fn overwrite_one(&mut self, files: &dyn Files) -> anyhow::Result<u64> {
        let index = self.rng.below(self.versions.len() as u64) as usize;
        let first = self.rng.below(FILE_BLOCKS);
        let count = (1 + self.rng.below(WRITE_BLOCKS_MAX)).min(FILE_BLOCKS - first);
        let range = first as usize..(first + count) as usize;
        // The whole range gets one version, which is newer than the version of any block in
        // the range.
        let version = 1 + self.versions[index][range.clone()].iter().max().copied().unwrap_or(0);
        let data = self.plan.payload(id(index), version, first, count * BLOCK as u64);
        let path = self.path(index);
        let what = || format!("overwriting blocks {range:?} of {path}");
        let open = files.open(&path, false).with_context(what)?;
        open.write_at(first * BLOCK as u64, &data).with_context(what)?;
        self.versions[index][range].fill(version);
        Ok(data.len() as u64)
    }

    /// Compares every block with its last version.
    ///
    /// # Errors
    /// The first difference, or the first error of the file system.
    pub fn compare(&self, files: &dyn Files, progress: &Progress) -> anyhow::Result<()> {
        let mut found = vec![0; FILE_BLOCKS as usize * BLOCK + 1];
        let mut expected = [0; BLOCK];
        for (index, versions) in self.versions.iter().enumerate() {
            let path = self.path(index);
            let open = files.open(&path, false).with_context(|| format!("opening {path}"))?;
            let length = open.read_at(0, &mut found).with_context(|| format!("reading {path}"))?;
            if length != found.len() - 1 {
                bail!("{path}: {length} bytes, expected {}", found.len() - 1);
            }
            for (number, (block, version)) in found.chunks(BLOCK).zip(versions).enumerate() {
                self.plan.content(id(index), number as u64, *version, &mut expected);
                if block != expected {
                    bail!("{path}: block {number} is not the last version written, {version}");
                }
            }
            progress.add(1, length as u64);
        }
        Ok(())
    }

    /// The number of files.
    pub fn count(&self) -> u64 {
        self.versions.len() as u64
    }
}

/// The id by which the plan knows the file number `index`. No writer of the load has the writer
/// number of this id.
fn id(index: usize) -> FileId {
    FileId { writer: u32::MAX, index: index as u32 }
}
