//! Floods of removals: a client fills the drive with files that need more blocks than their inode,
//! waits until they are durable, and removes all of them. After a crash, recovery finds more
//! removals in the sync log than it has space to write nodes for.

use crate::fs::model::{BLOCK, Model};
use crate::fs::op::{Make, Name, Object, Op};

/// The first name that a flood uses.
const FIRST: u16 = 1_000;
/// Number of a block beyond those to which an inode points directly.
const FAR: u64 = 700;

/// The progress of a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Making,
    /// The client waits until all files are durable.
    Syncing,
    Removing,
    /// The client waits until the removals are durable.
    Ending,
    Over,
}

/// The flood of one client, from which it draws its first operations.
#[derive(Clone, Debug)]
pub(crate) struct Flood {
    stage: Stage,
    /// Number of files to make, if there is space.
    files: u16,
    made: u16,
    /// The file made last, which is to be written next.
    write: Option<Object>,
}

impl Flood {
    /// A flood of this many files; 0 means no flood.
    pub(crate) fn of(files: u16) -> Flood {
        let stage = if files == 0 { Stage::Over } else { Stage::Making };
        Flood { stage, files, made: 0, write: None }
    }

    /// The next operation of `client`; `None` at the end. `object` and `version` are called for a
    /// new object and for a new version.
    pub(crate) fn next(
        &mut self,
        model: &Model,
        client: u8,
        (object, version): (&mut dyn FnMut() -> Object, &mut dyn FnMut() -> u32),
    ) -> Option<Op> {
        if let Some(object) = self.write.take() {
            if model.names.node(object).is_some() {
                let (offset, length) = (FAR * BLOCK, 512);
                return Some(Op::Write { object, offset, length, version: version() });
            }
            // The last file was refused for lack of space, so no more files are made.
            self.made = self.files;
        }
        if self.stage == Stage::Making && self.made == self.files {
            self.stage = Stage::Syncing;
        }
        match self.stage {
            Stage::Making => {
                let name = Name { client, index: FIRST + self.made };
                let object = object();
                self.made += 1;
                self.write = Some(object);
                Some(Op::Create { make: Make::File, object, dir: Object::ROOT, name, mode: 0o600 })
            }
            Stage::Syncing => {
                self.stage = Stage::Removing;
                Some(Op::Sync)
            }
            Stage::Removing => {
                let mut names = model.names.names();
                let next = names.find(|(_, name, object)| {
                    let file = model.names.node(*object).is_some_and(|n| n.make == Make::File);
                    name.client == client && name.index >= FIRST && file
                });
                if let Some((dir, name, _)) = next {
                    return Some(Op::Unlink { dir, name });
                }
                self.stage = Stage::Ending;
                let data_only = false;
                Some(Op::Fsync { object: Object::ROOT, data_only, background: false })
            }
            Stage::Ending | Stage::Over => {
                self.stage = Stage::Over;
                None
            }
        }
    }
}
