//! The steps of each file of the load, as a pure function of (seed, file, step).
//!
//! The journal of a load therefore records an acknowledged fsync as (file, step): the checker
//! repeats the file's steps and so knows the content of every block. Content is computed from its
//! place (seed, file, block, version), so the checker notices misplaced data.

use furrow_rt::Rng;

/// Bytes per block of content.
pub const BLOCK: usize = 4096;
/// Maximum number of blocks of one write.
const WRITE_BLOCKS_MAX: u64 = 16;
/// Minimum and maximum number of steps of a file.
const LIFE: (u64, u64) = (6, 40);

/// One file of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// The number of the writer that owns the file.
    pub writer: u32,
    /// The number of the file among those of its writer.
    pub index: u32,
}

/// An action that a step performs on its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes `length` bytes from block `first` on. The version of the content is the number of
    /// the step.
    Write { first: u64, length: u64 },
    /// Truncates the file to `size` bytes.
    Truncate { size: u64 },
    /// Renames the file to the other of its two names.
    Rename,
    /// Removes the file.
    Remove,
}

/// An action that follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Nothing: the next step follows at once.
    Nothing,
    /// fsync of the file.
    Sync,
    /// fdatasync of the file.
    SyncData,
    /// fsync of the folder, after a removal.
    SyncFolder,
}

/// Content of one block: its first `length` bytes are those of version `version`, the others
/// are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub version: u64,
    pub length: usize,
}

/// The expected state of a file after a number of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Number of steps done.
    pub steps: u64,
    /// Length of the file in bytes; `None` after the removal of the file.
    pub size: Option<u64>,
    /// True if the file has its second name.
    pub renamed: bool,
    /// One entry per block below `size`; `None` is a hole.
    pub blocks: Vec<Option<Block>>,
}

/// The steps of all files of a load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
}

impl Plan {
    fn rng(self, file: FileId, step: u64) -> Rng {
        let mut mixed = self.seed;
        for part in [u64::from(file.writer), u64::from(file.index), step] {
            mixed = Rng::new(mixed ^ part.wrapping_mul(0xa076_1d64_78bd_642f)).next();
        }
        Rng::new(mixed)
    }

    /// The number of steps of `file`, including its removal if it is removed.
    pub fn life(self, file: FileId) -> u64 {
        LIFE.0 + self.rng(file, 0).below(LIFE.1 - LIFE.0 + 1)
    }

    /// True if the last step of `file` is its removal.
    fn is_removed(self, file: FileId) -> bool {
        self.rng(file, 0).next() & 3 == 0
    }

    /// The number of steps between two fsyncs of `file`.
    pub fn period(self, file: FileId) -> u64 {
        1 + self.rng(file, 0).next() % 4
    }

    /// Step number `state.steps + 1` of the file in this state.
    pub fn step(self, file: FileId, state: &State) -> Step {
        let step = state.steps + 1;
        if step == self.life(file) && self.is_removed(file) {
            return Step::Remove;
        }
        let mut rng = self.rng(file, step);
        let size = state.size.unwrap_or(0);
        match rng.below(10) {
            0 if size > 0 => Step::Truncate { size: rng.below(size) },
            1 if step > 1 => Step::Rename,
            _ => {
                // Most writes append, as files grow; the others overwrite or leave a hole.
                let end = size.div_ceil(BLOCK as u64);
                let first = if rng.one_in(3) { rng.below(end + 4) } else { end };
                let mut length = (1 + rng.below(WRITE_BLOCKS_MAX)) * BLOCK as u64;
                // A block has only one version, so a write must not change a part of it: only a
                // write that reaches the end of the file may have an odd length.
                if first * BLOCK as u64 + length >= size && rng.one_in(2) {
                    length -= rng.below(BLOCK as u64 - 1);
                    length = length.max(size.saturating_sub(first * BLOCK as u64));
                }
                Step::Write { first, length }
            }
        }
    }

    /// The action that follows step number `step`. `done` is what that step has done.
    pub fn follow(self, file: FileId, step: u64, done: Step, renamed_since_sync: bool) -> Follow {
        if done == Step::Remove {
            Follow::SyncFolder
        } else if !step.is_multiple_of(self.period(file)) && step != self.life(file) {
            Follow::Nothing
        } else if renamed_since_sync || step <= self.period(file) || self.rng(file, step).one_in(2)
        {
            // An fdatasync need not make a new name durable.
            Follow::Sync
        } else {
            Follow::SyncData
        }
    }

    /// Name of a file: the first one, or with `renamed` the second one.
    pub fn name(self, file: FileId, renamed: bool) -> String {
        let FileId { writer, index } = file;
        format!("w{writer}/f{index}{}", if renamed { ".renamed" } else { "" })
    }

    /// Fills `out` with the content of block `number` of `file` in `version`.
    pub fn content(self, file: FileId, number: u64, version: u64, out: &mut [u8; BLOCK]) {
        let mut rng = Rng::new(self.rng(file, version).next() ^ number.rotate_left(32));
        for word in out.as_chunks_mut::<8>().0 {
            *word = rng.next().to_le_bytes();
        }
    }

    /// The content of `length` bytes from block `first` of `file` on, in `version`.
    pub fn payload(self, file: FileId, version: u64, first: u64, length: u64) -> Vec<u8> {
        let mut data = vec![0; length as usize];
        let mut block = [0; BLOCK];
        for (number, part) in (first..).zip(data.chunks_mut(BLOCK)) {
            self.content(file, number, version, &mut block);
            part.copy_from_slice(&block[..part.len()]);
        }
        data
    }
}

impl State {
    /// The state of a file just created.
    pub fn created() -> State {
        State { steps: 0, size: Some(0), renamed: false, blocks: Vec::new() }
    }

    /// The state after one more step.
    pub fn apply(&mut self, step: Step) {
        self.steps += 1;
        let version = self.steps;
        match step {
            Step::Write { first, length } => {
                let end = first * BLOCK as u64 + length;
                self.blocks
                    .resize(self.blocks.len().max(end.div_ceil(BLOCK as u64) as usize), None);
                for (i, offset) in (0..length).step_by(BLOCK).enumerate() {
                    let length = (length - offset).min(BLOCK as u64) as usize;
                    self.blocks[first as usize + i] = Some(Block { version, length });
                }
                self.size = self.size.map(|size| size.max(end));
            }
            Step::Truncate { size } => {
                self.size = Some(size);
                self.blocks.truncate(size.div_ceil(BLOCK as u64) as usize);
                let kept = (size % BLOCK as u64) as usize;
                if let Some(Some(last)) = self.blocks.last_mut()
                    && kept > 0
                {
                    last.length = last.length.min(kept);
                }
            }
            Step::Rename => self.renamed = !self.renamed,
            Step::Remove => {
                self.size = None;
                self.blocks.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps through 300 files and compares the state with plain bytes at every step.
    #[test]
    fn the_state_is_what_plain_bytes_would_be() {
        let plan = Plan { seed: 7 };
        let (mut removed, mut truncated, mut renamed, mut odd) = (0, 0, 0, 0);
        for index in 0..300 {
            let file = FileId { writer: 1, index };
            let (mut state, mut bytes) = (State::created(), Vec::new());
            while state.steps < plan.life(file) && state.size.is_some() {
                let step = plan.step(file, &state);
                match step {
                    Step::Write { first, length } => {
                        let start = first as usize * BLOCK;
                        let end = start + length as usize;
                        bytes.resize(bytes.len().max(end), 0);
                        let data = plan.payload(file, state.steps + 1, first, length);
                        bytes[start..end].copy_from_slice(&data);
                        odd += usize::from(!length.is_multiple_of(BLOCK as u64));
                    }
                    Step::Truncate { size } => {
                        bytes.truncate(size as usize);
                        truncated += 1;
                    }
                    Step::Rename => renamed += 1,
                    Step::Remove => removed += 1,
                }
                state.apply(step);
                assert!(state.size.is_none_or(|size| size == bytes.len() as u64), "{file:?}");
                compare(plan, file, &state, &bytes);
            }
        }
        assert!(removed > 20 && truncated > 100 && renamed > 100 && odd > 100);
    }

    fn compare(plan: Plan, file: FileId, state: &State, bytes: &[u8]) {
        for (number, (block, found)) in state.blocks.iter().zip(bytes.chunks(BLOCK)).enumerate() {
            let mut expected = [0; BLOCK];
            if let Some(Block { version, length }) = *block {
                plan.content(file, number as u64, version, &mut expected);
                expected[length..].fill(0);
            }
            assert!(found == &expected[..found.len()], "{file:?} step {} block {number}", {
                state.steps
            });
        }
    }

    #[test]
    fn every_life_ends_with_an_fsync() {
        let plan = Plan { seed: 3 };
        for index in 0..200 {
            let file = FileId { writer: 0, index };
            let (mut state, mut last) = (State::created(), Follow::Nothing);
            while state.steps < plan.life(file) && state.size.is_some() {
                let step = plan.step(file, &state);
                state.apply(step);
                last = plan.follow(file, state.steps, step, false);
            }
            assert_ne!(last, Follow::Nothing);
        }
    }
}
