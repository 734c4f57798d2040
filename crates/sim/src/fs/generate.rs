//! Draws the next operation of a client from its model and the run's swarm weights.
//!
//! Most operations are legal. Some are meant to fail (a name that exists, a directory that is not
//! empty), so that refusals are tested too. Everything is a function of the generator's seed and
//! the model.

use crate::fs::attributes::{ACCESS, DEFAULT, LIFETIME};
use crate::fs::flood::Flood;
use crate::fs::model::{BLOCK, Model, Node};
use crate::fs::op::{
    CHOSEN, Choice, How, Make, Name, Object, Op, SECTOR, SECTORS_PER_BLOCK, Swarm, Value,
};
use furrow_rt::{Nanos, Rng};

/// Maximum number of objects of a client: few, since small drives are soon full.
const OBJECTS_MAX: usize = 48;
/// Maximum number of levels of directories below a shared directory.
const DEPTH_MAX: usize = 6;
/// Blocks far out in a sparse file, each in another level of the pointer tree.
const FAR_BLOCKS: [u64; 5] = [700, 1_100, 5_000, 2_000_000, 900_000_000];

/// A client's source of operations.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    swarm: Swarm,
    client: u8,
    objects: u32,
    versions: u32,
    /// The flood of removals with which the client begins, before all other operations.
    flood: Flood,
    /// The rest of a planned sequence, last operation first.
    planned: Vec<Op>,
}

impl Generator {
    /// The operations of `client` in the run of `seed`.
    pub fn new(seed: u64, client: u8) -> Generator {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::draw(&mut rng);
        let rng = Rng::new(seed ^ (u64::from(client) + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        let (flood, planned) = (Flood::of(0), Vec::new());
        Generator { rng, swarm, client, objects: 0, versions: 0, flood, planned }
    }

    /// Like `new`, with larger writes and more fsyncs.
    pub fn busy(seed: u64, client: u8) -> Generator {
        let generator = Generator::new(seed, client);
        Generator { swarm: generator.swarm.busy(), ..generator }
    }

    /// Like `new`, with frequent syncs of everything.
    pub fn syncing(seed: u64, client: u8) -> Generator {
        let generator = Generator::new(seed, client);
        Generator { swarm: generator.swarm.syncing(), ..generator }
    }

    /// Makes the client begin with a flood of removals of this many files.
    #[must_use]
    pub fn flooding(self, files: u16) -> Generator {
        Generator { flood: Flood::of(files), ..self }
    }

    /// The next operation.
    pub fn draw(&mut self, model: &Model) -> Op {
        let (client, objects, versions) = (self.client, &mut self.objects, &mut self.versions);
        let mut object = || {
            *objects += 1;
            Object::made_by(client, *objects - 1)
        };
        let mut version = || {
            *versions += 1;
            *versions
        };
        if let Some(op) = self.flood.next(model, client, (&mut object, &mut version)) {
            return op;
        }
        if let Some(op) = self.planned.pop() {
            // A planned operation may depend on one that a full or failing drive refused.
            if model.clone().apply(&op).is_ok() {
                return op;
            }
            self.planned.clear();
        }
        // A choice without candidates is drawn again, up to 20 times.
        for _ in 0..20 {
            let choice = self.swarm.choose(&mut self.rng);
            if let Some(op) = self.try_draw(choice, model) {
                return op;
            }
        }
        Op::Sleep(Nanos::MICRO)
    }

    fn try_draw(&mut self, choice: Choice, model: &Model) -> Option<Op> {
        let named = |node: &Node| node.names > 0;
        match choice {
            Choice::CreateFile => self.create(model, Make::File),
            Choice::Mkdir => self.create(model, Make::Directory),
            Choice::Mkfifo => self.create(model, Make::Fifo),
            Choice::Symlink => {
                let length = [1, 20, 60, 300, 4000][self.rng.below(5) as usize];
                self.create(model, Make::Symlink(length))
            }
            Choice::Link => {
                let linkable = |n: &Node| named(n) || n.nameless;
                let object = self.pick(model, |_, n| n.make != Make::Directory && linkable(n))?;
                let (dir, name) = self.vacant(model)?;
                Some(Op::Link { object, dir, name })
            }
            Choice::Unlink => {
                let (dir, name, _) = self.name_of(model, |m| m != Make::Directory)?;
                Some(Op::Unlink { dir, name })
            }
            Choice::Rmdir => {
                let (dir, name, _) = self.name_of(model, |m| m == Make::Directory)?;
                Some(Op::Rmdir { dir, name })
            }
            Choice::Rename | Choice::Exchange => self.rename(model, choice == Choice::Exchange),
            Choice::Replace => self.replace(model),
            Choice::Open => {
                self.pick(model, |_, n| n.make == Make::File && n.opens < 3).map(Op::Open)
            }
            Choice::Release => self.pick(model, |_, n| n.opens > 0).map(Op::Release),
            Choice::Write | Choice::Overwrite | Choice::FarWrite => self.write(model, choice),
            Choice::Truncate => self.truncate(model),
            Choice::Punch | Choice::Allocate | Choice::Zero => self.fallocate(model, choice),
            Choice::Copy => self.copy(model),
            Choice::Nameless => self.nameless(model),
            Choice::SetXattr => {
                let object = self.pick(model, |_, _| true)?;
                let slot = self.rng.below(4) as u8;
                let size = [0, 10, 150, 400, 5_000, 12_000][self.rng.below(6) as usize];
                self.versions += 1;
                let value = Value { version: self.versions, size };
                // A removal may find no attribute to remove.
                let value = if self.rng.one_in(5) { None } else { Some(value) };
                Some(Op::SetXattr { object, slot, value })
            }
            Choice::SetSpecial => self.set_special(model),
            Choice::Chown => {
                let object = self.pick(model, |_, _| true)?;
                let mut id = || self.rng.below(4).checked_sub(1).map(|id| id as u32 * 0x7fff_ffff);
                let (uid, gid) = (id(), id());
                Some(Op::Chown { object, uid, gid })
            }
            Choice::Chmod => {
                let object = self.pick(model, |_, n| !matches!(n.make, Make::Symlink(_)))?;
                Some(Op::Chmod { object, mode: self.rng.below(0o10000) as u16 })
            }
            Choice::Utimens => {
                let object = self.pick(model, |_, _| true)?;
                let mut time = || {
                    let seconds = self.rng.below(1 << 34) as i64 - (1 << 32);
                    (!self.rng.one_in(3)).then_some(seconds)
                };
                let (mtime, atime) = (time(), time());
                Some(Op::Utimens { object, mtime, atime })
            }
            Choice::Read => {
                let object = self.content_of(model)?;
                let (sector, sectors) = self.range(model, object, 64);
                let (offset, length) = self.bytes(sector, sectors);
                Some(Op::Read { object, offset, length })
            }
            Choice::List => self.directory(model).map(Op::List),
            Choice::FsyncFile | Choice::BackgroundFsync => {
                let object = self.pick(model, |_, n| n.make == Make::File)?;
                let data_only = self.rng.one_in(3);
                let background = choice == Choice::BackgroundFsync;
                Some(Op::Fsync { object, data_only, background })
            }
            Choice::FsyncDir => {
                let object = self.directory(model)?;
                Some(Op::Fsync { object, data_only: false, background: false })
            }
            Choice::Sync => Some(Op::Sync),
            Choice::Sleep => {
                let most = [Nanos::MICRO, Nanos::MILLI, 3 * Nanos::SECOND];
                let most = most[self.rng.below(3) as usize];
                Some(Op::Sleep(1 + self.rng.below(most)))
            }
            Choice::Wrong => self.wrong(model),
        }
    }

    fn name(&mut self) -> Name {
        let first = if self.swarm.chosen { CHOSEN } else { 0 };
        let index = first + self.rng.below(u64::from(self.swarm.names)) as u16;
        Name { client: self.client, index }
    }

    fn pick(&mut self, model: &Model, wanted: impl Fn(Object, &Node) -> bool) -> Option<Object> {
        let found: Vec<Object> = model
            .names
            .objects()
            .filter(|(object, node)| !object.is_shared() && wanted(*object, node))
            .map(|(object, _)| object)
            .collect();
        self.one_of(&found)
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        Some(from[self.rng.below(from.len() as u64) as usize])
    }

    /// Picks a directory that has a name. Shared directories are included.
    fn directory(&mut self, model: &Model) -> Option<Object> {
        let found: Vec<Object> = model
            .names
            .objects()
            .filter(|(_, node)| node.make == Make::Directory && node.names > 0)
            .map(|(object, _)| object)
            .collect();
        self.one_of(&found)
    }

    fn name_of(
        &mut self,
        model: &Model,
        wanted: impl Fn(Make) -> bool,
    ) -> Option<(Object, Name, Object)> {
        let found: Vec<(Object, Name, Object)> = model
            .names
            .names()
            .filter(|(_, _, object)| model.names.node(*object).is_some_and(|n| wanted(n.make)))
            .collect();
        self.one_of(&found)
    }

    fn vacant(&mut self, model: &Model) -> Option<(Object, Name)> {
        for _ in 0..8 {
            let (dir, name) = (self.directory(model)?, self.name());
            if !model.names.node(dir)?.entries.contains_key(&name) {
                return Some((dir, name));
            }
        }
        None
    }

    fn depth(model: &Model, mut dir: Object) -> usize {
        let mut depth = 0;
        while let (false, Some(node)) = (dir.is_shared(), model.names.node(dir)) {
            dir = node.parent;
            depth += 1;
        }
        depth
    }

    fn create(&mut self, model: &Model, make: Make) -> Option<Op> {
        if model.names.objects().count() > OBJECTS_MAX {
            return None;
        }
        let (dir, name) = self.vacant(model)?;
        if make == Make::Directory && Self::depth(model, dir) >= DEPTH_MAX {
            return None;
        }
        Some(self.create_at(make, dir, name))
    }

    fn create_at(&mut self, make: Make, dir: Object, name: Name) -> Op {
        let object = Object::made_by(self.client, self.objects);
        self.objects += 1;
        let mode = match make {
            Make::Symlink(_) => 0o777,
            _ => self.rng.below(0o1000) as u16,
        };
        Op::Create { make, object, dir, name, mode }
    }

    fn rename(&mut self, model: &Model, exchange: bool) -> Option<Op> {
        let (dir, name, _) = self.name_of(model, |_| true)?;
        // Half of the plain renames replace something.
        let to = if exchange || self.rng.one_in(2) {
            let (dir, name, _) = self.name_of(model, |_| true)?;
            (dir, name)
        } else {
            self.vacant(model)?
        };
        Some(Op::Rename { from: (dir, name), to, exchange })
    }

    /// Picks a regular file whose content the model knows.
    fn content_of(&mut self, model: &Model) -> Option<Object> {
        self.pick(model, |object, node| node.make == Make::File && !model.unknown.contains(&object))
    }

    /// Converts sectors to a range in bytes; in a third of the cases it has odd ends.
    fn bytes(&mut self, sector: u64, sectors: u32) -> (u64, u32) {
        let (offset, length) = (sector * SECTOR as u64, sectors * SECTOR as u32);
        if !self.rng.one_in(3) {
            return (offset, length);
        }
        let less = self.rng.below(SECTOR as u64) as u32;
        (offset + self.rng.below(SECTOR as u64), length - less)
    }

    /// Makes a file without a name, or gives such a file a name.
    fn nameless(&mut self, model: &Model) -> Option<Op> {
        let made = self.pick(model, |_, node| node.nameless).filter(|_| self.rng.one_in(2));
        if let Some(object) = made {
            let (dir, name) = self.vacant(model)?;
            return Some(Op::Link { object, dir, name });
        }
        if model.names.objects().count() > OBJECTS_MAX {
            return None;
        }
        let dir = self.directory(model)?;
        let object = Object::made_by(self.client, self.objects);
        self.objects += 1;
        Some(Op::Nameless { object, dir, mode: self.rng.below(0o1000) as u16 })
    }

    /// Sets an expected lifetime or an access list; new objects in a directory inherit both.
    fn set_special(&mut self, model: &Model) -> Option<Op> {
        let directory = self.rng.one_in(2);
        let object = self.pick(model, |_, n| !directory || n.make == Make::Directory)?;
        let slot = [LIFETIME, ACCESS, DEFAULT][self.rng.below(3) as usize];
        let value = Value { version: self.rng.below(1 << 16) as u32, size: 0 };
        let value = if self.rng.one_in(5) { None } else { Some(value) };
        Some(Op::SetXattr { object, slot, value })
    }

    fn copy(&mut self, model: &Model) -> Option<Op> {
        let (from, to) = (self.content_of(model)?, self.content_of(model)?);
        let limit = self.swarm.file_blocks * BLOCK;
        let size = model.content(from).size;
        // Some copies begin beyond the end of the file, where there is nothing to copy.
        let mut source = self.rng.below(size.min(limit) + 100);
        let mut target = self.rng.below(limit);
        let mut length = 1 + self.rng.below(2 * self.swarm.write_sectors * SECTOR as u64);
        if self.rng.one_in(2) {
            // With equal offsets in their blocks, source and target share pages.
            (source, target) = (source - source % BLOCK, target - target % BLOCK);
        }
        if self.rng.one_in(2) {
            length = length.next_multiple_of(BLOCK);
        }
        Some(Op::Copy { from: (from, source), to: (to, target), length })
    }

    /// Replaces a file as programs do: writes a new one and renames it over the old one. The new
    /// file may be synced before the rename; otherwise another file is synced after the rename,
    /// or none.
    fn replace(&mut self, model: &Model) -> Option<Op> {
        if model.names.objects().count() > OBJECTS_MAX {
            return None;
        }
        let to = self.name_of(model, |make| make == Make::File)?;
        let synced = self.pick(model, |_, node| node.make == Make::File)?;
        let from = self.vacant(model)?;
        let create = self.create_at(Make::File, from.0, from.1);
        let Op::Create { object, .. } = create else { return None };
        self.versions += 1;
        let sectors = 1 + self.rng.below(self.swarm.write_sectors) as u32;
        let (offset, length) = self.bytes(0, sectors);
        let write = Op::Write { object, offset, length, version: self.versions };
        let rename = Op::Rename { from, to: (to.0, to.1), exchange: self.rng.one_in(6) };
        let sync = |object| Op::Fsync { object, data_only: false, background: false };
        self.planned = match self.rng.below(4) {
            0 => vec![rename, write],
            1 => vec![rename, sync(object), write],
            2 => vec![sync(synced), rename, write],
            _ => vec![sync(synced), rename, write, sync(to.2)],
        };
        Some(create)
    }

    fn range(&mut self, model: &Model, object: Object, most: u64) -> (u64, u32) {
        let size = model.content(object).size.div_ceil(SECTOR as u64);
        let sector = self.rng.below(size.min(1 << 20) + 8);
        (sector, 1 + self.rng.below(most) as u32)
    }

    fn write(&mut self, model: &Model, choice: Choice) -> Option<Op> {
        let object = self.content_of(model)?;
        let size = model.content(object).size.div_ceil(SECTOR as u64);
        let limit = self.swarm.file_blocks * SECTORS_PER_BLOCK;
        let mut sectors = 1 + self.rng.below(self.swarm.write_sectors);
        let mut sector = match choice {
            Choice::Write if size < limit => size,
            Choice::FarWrite => {
                sectors = sectors.min(16);
                let far = FAR_BLOCKS[self.rng.below(FAR_BLOCKS.len() as u64) as usize];
                far * SECTORS_PER_BLOCK + self.rng.below(16)
            }
            _ => self.rng.below(size.min(limit) + 1),
        };
        self.versions += 1;
        let version = self.versions;
        if self.rng.one_in(2) {
            // Whole blocks are written without reading the old content.
            sector -= sector % SECTORS_PER_BLOCK;
            let length = sectors.next_multiple_of(SECTORS_PER_BLOCK) as u32 * SECTOR as u32;
            return Some(Op::Write { object, offset: sector * SECTOR as u64, length, version });
        }
        let (offset, length) = self.bytes(sector, sectors as u32);
        Some(Op::Write { object, offset, length, version })
    }

    fn truncate(&mut self, model: &Model) -> Option<Op> {
        let object = self.content_of(model)?;
        let size = model.content(object).size;
        let limit = self.swarm.file_blocks * BLOCK;
        let size = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(size.max(1)),
            2 => self.rng.below(limit) / BLOCK * BLOCK,
            _ => self.rng.below(2 * limit),
        };
        Some(Op::Truncate { object, size })
    }

    /// Draws an fallocate of a part of a block, of whole blocks, or of any byte range.
    fn fallocate(&mut self, model: &Model, choice: Choice) -> Option<Op> {
        let object = self.content_of(model)?;
        let (at, _) = self.range(model, object, 1);
        let block = at / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
        let (sector, sectors) = match self.rng.below(3) {
            0 => {
                let left = SECTORS_PER_BLOCK - (at - block);
                (at, 1 + self.rng.below(left))
            }
            _ => (block, (1 + self.rng.below(20)) * SECTORS_PER_BLOCK),
        };
        let (offset, length) = self.bytes(sector, sectors as u32);
        let keep = self.rng.one_in(2);
        let how = match choice {
            Choice::Punch => How::Punch,
            Choice::Zero if keep => How::ZeroKeepSize,
            Choice::Zero => How::Zero,
            _ if keep => How::KeepSize,
            _ => How::Extend,
        };
        Some(Op::Fallocate { object, how, offset, length: length.into() })
    }

    /// An operation that must be refused, or must change nothing.
    fn wrong(&mut self, model: &Model) -> Option<Op> {
        match self.rng.below(5) {
            0 => {
                let (dir, name, _) = self.name_of(model, |_| true)?;
                Some(self.create_at(Make::File, dir, name))
            }
            1 => {
                let (dir, name) = self.vacant(model)?;
                Some(Op::Unlink { dir, name })
            }
            2 => {
                let (dir, name, _) = self.name_of(model, |m| m == Make::Directory)?;
                Some(Op::Unlink { dir, name })
            }
            3 => {
                let (dir, name, _) = self.name_of(model, |m| m != Make::Directory)?;
                Some(Op::Rmdir { dir, name })
            }
            _ => {
                let (dir, name, object) = self.name_of(model, |m| m == Make::Directory)?;
                let to = (object, self.name());
                Some(Op::Rename { from: (dir, name), to, exchange: false })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// In the runs of 40 seeds every operation occurs, most succeed, and some are refused.
    #[test]
    fn every_operation_is_drawn() {
        let mut verbs: BTreeMap<&str, u32> = BTreeMap::new();
        let mut refused = 0;
        for seed in 0..40 {
            let mut generator = Generator::new(seed, 0);
            let mut model = Model::default();
            for _ in 0..300 {
                let op = generator.draw(&model);
                *verbs.entry(op.verb()).or_default() += 1;
                refused += u32::from(model.apply(&op).is_err());
            }
        }
        assert_eq!(verbs.len(), 30, "{verbs:?}");
        assert!(refused > 20 && refused < 40 * 300 / 5, "{refused} refused");
    }

    #[test]
    fn one_seed_draws_the_same_operations_twice() {
        let run = |seed| {
            let mut generator = Generator::new(seed, 1);
            let mut model = Model::default();
            (0..200)
                .map(|_| {
                    let op = generator.draw(&model);
                    let _ = model.apply(&op);
                    op
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
