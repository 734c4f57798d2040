//! A workload by seed: the calls that a program makes, and the state of each file and name after
//! each call.
//!
//! Calls are numbered from 0. The history keeps every state of a file or a name, with the number of
//! the call that caused it. So the oracle can tell which states are possible after a power cut.

use furrow_rt::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a block of a file.
pub const BLOCK: u64 = 4096;

/// Number of directories: 0 is the top, and the others are in it.
pub const DIRECTORIES: u8 = 3;

/// Number of names in each directory.
const NAMES: u8 = 6;

/// Size in bytes up to which appends let a file grow.
const LARGEST: u64 = 320 << 10;

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The directory.
    pub directory: u8,
    /// Number of the name in its directory.
    pub number: u8,
}

impl Name {
    /// Path of the name below the top.
    pub fn path(self) -> String {
        format!("{}f{}", directory_path(self.directory), self.number)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path())
    }
}

/// The path of a directory below the top: empty, or with a slash at its end.
pub fn directory_path(directory: u8) -> String {
    if directory == 0 { String::new() } else { format!("d{directory}/") }
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes an empty file.
    Create(Name),
    /// Writes `length` bytes at `offset`.
    Write {
        /// The file's name.
        name: Name,
        /// First byte to write.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Sets the size.
    Truncate {
        /// The file's name.
        name: Name,
        /// New size in bytes.
        size: u64,
    },
    /// fsync of a file.
    Fsync(Name),
    /// fdatasync of a file.
    Fdatasync(Name),
    /// Gives a file another name, which may be another file's.
    Rename(Name, Name),
    /// Removes a file.
    Unlink(Name),
    /// fsync of a directory.
    FsyncDirectory(u8),
    /// Makes the whole file system durable: by syncfs, or by Furrow's own command.
    Sync,
}

impl Op {
    /// True if the call makes something durable when it succeeds: an fsync or a sync.
    pub fn promises(self) -> bool {
        matches!(self, Op::Fsync(_) | Op::Fdatasync(_) | Op::FsyncDirectory(_) | Op::Sync)
    }
}

/// All states of a file.
#[derive(Clone, Debug, Default)]
pub struct FileHistory {
    /// Every size, with the call that caused it.
    pub sizes: Vec<(usize, u64)>,
    /// For each block, every content with the call that wrote it; bytes beyond the end of the file
    /// are zeros.
    pub blocks: Vec<Vec<(usize, Vec<u8>)>>,
    /// Calls after which the whole file was durable.
    pub syncs: Vec<usize>,
}

/// A workload, and every state of its files and names.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls.
    pub ops: Vec<Op>,
    /// All files, by number.
    pub files: Vec<FileHistory>,
    /// For each name, its changes: the call, and the file that the name stood for from then on.
    pub names: BTreeMap<Name, Vec<(usize, Option<usize>)>>,
    /// For each directory, the calls after which its names were durable.
    pub syncs: [Vec<usize>; DIRECTORIES as usize],
}

/// The bytes that call `op` writes from `offset` on.
pub fn pattern(op: usize, offset: u64, length: u64) -> Vec<u8> {
    let word = |at: u64| {
        let mut x = (op as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ (x >> 27)).to_le_bytes()
    };
    (offset..offset + length).map(|at| word(at / 8)[(at % 8) as usize]).collect()
}

impl History {
    /// Draws the workload of `seed` with `calls` calls.
    pub fn generate(seed: u64, calls: usize) -> History {
        let mut rng = Rng::new(seed ^ 0xc0_0047);
        let mut history = History::default();
        let mut next: Vec<Op> = Vec::new();
        while history.ops.len() < calls {
            let op = match next.pop() {
                Some(op) => op,
                None => history.draw(&mut rng, &mut next),
            };
            history.apply(op);
        }
        history
    }

    /// The same history without the promises of `calls`.
    #[must_use]
    pub fn without_promises(&self, calls: &BTreeSet<usize>) -> History {
        let mut history = self.clone();
        let files = history.files.iter_mut().map(|file| &mut file.syncs);
        files
            .chain(&mut history.syncs)
            .for_each(|syncs| syncs.retain(|call| !calls.contains(call)));
        history
    }

    /// The file that `name` stands for after the calls so far.
    pub fn file(&self, name: Name) -> Option<usize> {
        self.names.get(&name).and_then(|was| was.last()).and_then(|(_, file)| *file)
    }

    fn size(&self, name: Name) -> u64 {
        let file = self.file(name).and_then(|file| self.files[file].sizes.last());
        file.map_or(0, |(_, size)| *size)
    }

    /// Draws a call that can be made now. The calls that must follow the drawn call go to `next`,
    /// in reverse order.
    fn draw(&self, rng: &mut Rng, next: &mut Vec<Op>) -> Op {
        let any = |rng: &mut Rng| Name {
            directory: rng.below(u64::from(DIRECTORIES)) as u8,
            number: rng.below(u64::from(NAMES)) as u8,
        };
        let used: Vec<Name> =
            self.names.keys().copied().filter(|name| self.file(*name).is_some()).collect();
        let lot = rng.below(100);
        if used.is_empty() || lot < 14 {
            let name = any(rng);
            if self.file(name).is_none() {
                if rng.one_in(2) {
                    next.push(Op::FsyncDirectory(name.directory));
                }
                if rng.one_in(2) {
                    next.push(Op::Fsync(name));
                }
                next.push(Op::Write { name, offset: 0, length: 1 + rng.below(40 << 10) });
                return Op::Create(name);
            }
        }
        let Some(name) = used.get(rng.below(used.len().max(1) as u64) as usize).copied() else {
            return Op::Sync;
        };
        let size = self.size(name);
        if (14..68).contains(&lot) {
            match rng.below(4) {
                0 => next.push(Op::Fsync(name)),
                1 => next.push(Op::Fdatasync(name)),
                _ => {}
            }
        }
        match lot {
            14..40 => {
                let most = if rng.one_in(4) { 160 << 10 } else { 20 << 10 };
                let length = 1 + rng.below(most);
                if size + length > LARGEST {
                    return Op::Truncate { name, size: rng.below(size + 1) };
                }
                Op::Write { name, offset: size, length }
            }
            40..60 => {
                let offset = rng.below(size + 1);
                let offset = if rng.one_in(2) { offset / BLOCK * BLOCK } else { offset };
                Op::Write { name, offset, length: 1 + rng.below(24 << 10) }
            }
            60..68 => Op::Truncate { name, size: rng.below(size + size / 4 + 1) },
            68..75 => Op::Fsync(name),
            75..80 => Op::Fdatasync(name),
            80..89 => {
                let to = any(rng);
                if to == name {
                    return Op::Fsync(name);
                }
                if rng.one_in(2) {
                    next.push(Op::FsyncDirectory(to.directory));
                    if name.directory != to.directory && rng.one_in(2) {
                        next.push(Op::FsyncDirectory(name.directory));
                    }
                }
                Op::Rename(name, to)
            }
            89..93 => {
                if rng.one_in(2) {
                    next.push(Op::FsyncDirectory(name.directory));
                }
                Op::Unlink(name)
            }
            93..99 => Op::FsyncDirectory(rng.below(u64::from(DIRECTORIES)) as u8),
            _ => Op::Sync,
        }
    }

    /// Records a call and its effects.
    pub fn apply(&mut self, op: Op) {
        let call = self.ops.len();
        self.ops.push(op);
        match op {
            Op::Create(name) => {
                self.files.push(FileHistory { sizes: vec![(call, 0)], ..Default::default() });
                let file = self.files.len() - 1;
                self.names.entry(name).or_default().push((call, Some(file)));
            }
            Op::Write { name, offset, length } => {
                if let Some(file) = self.file(name) {
                    self.files[file].write(call, offset, &pattern(call, offset, length));
                }
            }
            Op::Truncate { name, size } => {
                if let Some(file) = self.file(name) {
                    self.files[file].truncate(call, size);
                }
            }
            Op::Fsync(name) | Op::Fdatasync(name) => {
                if let Some(file) = self.file(name) {
                    self.files[file].syncs.push(call);
                }
            }
            Op::Rename(from, to) => {
                let file = self.file(from);
                self.names.entry(from).or_default().push((call, None));
                self.names.entry(to).or_default().push((call, file));
            }
            Op::Unlink(name) => self.names.entry(name).or_default().push((call, None)),
            Op::FsyncDirectory(directory) => self.syncs[usize::from(directory)].push(call),
            Op::Sync => {
                self.files.iter_mut().for_each(|file| file.syncs.push(call));
                self.syncs.iter_mut().for_each(|syncs| syncs.push(call));
            }
        }
    }
}

impl FileHistory {
    /// The size before the next call.
    pub fn size(&self) -> u64 {
        self.sizes.last().map_or(0, |(_, size)| *size)
    }

    fn block(&self, index: usize) -> Vec<u8> {
        let last = self.blocks.get(index).and_then(|block| block.last());
        last.map_or_else(|| vec![0; BLOCK as usize], |(_, content)| content.clone())
    }

    fn set(&mut self, call: usize, index: usize, content: Vec<u8>) {
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Vec::new());
        }
        self.blocks[index].push((call, content));
    }

    fn write(&mut self, call: usize, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        for index in offset / BLOCK..end.div_ceil(BLOCK) {
            let mut content = self.block(index as usize);
            let from = offset.max(index * BLOCK);
            let to = end.min((index + 1) * BLOCK);
            let into = (from - index * BLOCK) as usize..(to - index * BLOCK) as usize;
            content[into].copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            self.set(call, index as usize, content);
        }
        self.sizes.push((call, self.size().max(end)));
    }

    fn truncate(&mut self, call: usize, size: u64) {
        for index in size / BLOCK..self.blocks.len() as u64 {
            let mut content = self.block(index as usize);
            let from = size.saturating_sub(index * BLOCK).min(BLOCK) as usize;
            content[from..].fill(0);
            self.set(call, index as usize, content);
        }
        self.sizes.push((call, size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_workload_and_every_call_can_be_made() {
        let history = History::generate(3, 600);
        assert_eq!(history.ops, History::generate(3, 600).ops);
        assert_ne!(history.ops, History::generate(4, 600).ops);
        let mut again = History::default();
        let mut kinds = [0; 9];
        for op in &history.ops {
            let exists = |name| again.file(name).is_some();
            let (kind, possible) = match *op {
                Op::Create(name) => (0, !exists(name)),
                Op::Write { name, .. } => (1, exists(name)),
                Op::Truncate { name, .. } => (2, exists(name)),
                Op::Fsync(name) => (3, exists(name)),
                Op::Fdatasync(name) => (4, exists(name)),
                Op::Rename(name, to) => (5, exists(name) && name != to),
                Op::Unlink(name) => (6, exists(name)),
                Op::FsyncDirectory(_) => (7, true),
                Op::Sync => (8, true),
            };
            assert!(possible, "{op:?}");
            kinds[kind] += 1;
            again.apply(*op);
        }
        assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    }

    #[test]
    fn a_file_is_what_the_calls_made_of_it() {
        let name = Name { directory: 0, number: 0 };
        let mut history = History::default();
        history.apply(Op::Create(name));
        history.apply(Op::Write { name, offset: 4000, length: 5000 });
        history.apply(Op::Truncate { name, size: 5000 });
        history.apply(Op::Write { name, offset: 8000, length: 10 });
        let file = &history.files[0];
        assert_eq!(file.sizes, [(0, 0), (1, 9000), (2, 5000), (3, 8010)]);
        let second = &file.blocks[1];
        assert_eq!(second.iter().map(|(call, _)| *call).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(second[0].1, pattern(1, 4096, 4096));
        assert_eq!(second[2].1[..904], pattern(1, 4096, 904));
        assert!(second[2].1[904..8000 - 4096].iter().all(|byte| *byte == 0));
        assert_eq!(second[2].1[8000 - 4096..8010 - 4096], pattern(3, 8000, 10));
        assert_eq!(file.blocks[0][0].1[4000..], pattern(1, 4000, 96));
        assert!(file.blocks[2][1].1.iter().all(|byte| *byte == 0));
    }
}
