//! Operations on a file system: what clients of a simulated run do.
//!
//! One [`Op`] enum serves property tests, the crash sweep, fuzzing and simulation. Operations
//! name objects by [`Object`], the order of their creation in the run, never by inode number: so
//! an operation means the same in the model and in any engine. Payload says what it is: every
//! 512-byte sector encodes (object, sector, version), so a block in the wrong place, of the wrong
//! file or of the wrong time shows.

use furrow_rt::Rng;

/// Bytes per sector, the unit of writes and payload tags.
pub const SECTOR: usize = 512;
/// Sectors per file system block.
pub const SECTORS_PER_BLOCK: u64 = 8;

/// A file, directory or other object of a run. The client that made it is in the high byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object(pub u32);

impl Object {
    /// The root directory, used by every client.
    pub const ROOT: Object = Object(0);
    /// Directories every client puts names into, made before the run: the root and two below it.
    pub const SHARED: [Object; 3] = [Object::ROOT, Object(1), Object(2)];

    /// The `index`th object `client` makes.
    pub fn made_by(client: u8, index: u32) -> Object {
        Object((u32::from(client) + 1) << 24 | index)
    }

    /// True if all clients put names into it.
    pub fn is_shared(self) -> bool {
        Object::SHARED.contains(&self)
    }

    /// The client that made it; `None` of shared directories.
    pub fn client(self) -> Option<u8> {
        (self.0 >> 24).checked_sub(1).map(|client| client as u8)
    }

    /// Name of a shared directory below the root.
    pub fn shared_name(self) -> Option<&'static [u8]> {
        match self.0 {
            1 => Some(b"shared-1"),
            2 => Some(b"shared-2"),
            _ => None,
        }
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 >> 24 {
            0 => write!(f, "shared{}", self.0),
            client => write!(f, "{}{}", char::from(b'a' + (client - 1) as u8), self.0 & 0xff_ffff),
        }
    }
}

/// An inode number, as an engine calls an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u32);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A name in a directory. No two clients use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Whose name it is.
    pub client: u8,
    /// Which of the client's names.
    pub index: u16,
}

impl Name {
    /// The name's bytes: a letter, a number, and in every fifth name a tail that makes it long.
    pub fn bytes(self) -> Vec<u8> {
        let mut name = format!("{}{}", char::from(b'a' + self.client), self.index).into_bytes();
        if self.index % 5 == 4 {
            name.resize(40 + usize::from(self.index) * 37 % 216, b'~');
        }
        name
    }

    /// The name with these bytes.
    pub fn parse(bytes: &[u8]) -> Option<Name> {
        let client = bytes.first()?.checked_sub(b'a')?;
        let digits: &[u8] = &bytes[1..];
        let end = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
        let index = std::str::from_utf8(&digits[..end]).ok()?.parse().ok()?;
        let name = Name { client, index };
        (name.bytes() == bytes).then_some(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", char::from(b'a' + self.client), self.index)
    }
}

/// What an object found is. Kinds no operation makes are `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Anything else.
    Other,
}

/// What a new object is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// FIFO.
    Fifo,
    /// Symbolic link whose target has this many bytes.
    Symlink(u16),
}

/// The value of an extended attribute, as [`value_bytes`] makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Unique among the client's.
    pub version: u32,
    /// Bytes.
    pub size: u16,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make `object`.
    Create {
        /// What it is.
        make: Make,
        /// Its identity.
        object: Object,
        /// Directory.
        dir: Object,
        /// Name in it.
        name: Name,
        /// Permission bits.
        mode: u16,
    },
    /// Another name.
    Link {
        /// Of what.
        object: Object,
        /// Directory.
        dir: Object,
        /// Name in it.
        name: Name,
    },
    /// Remove a name of something that is no directory.
    Unlink {
        /// Directory.
        dir: Object,
        /// Name in it.
        name: Name,
    },
    /// Remove an empty directory.
    Rmdir {
        /// Directory it is in.
        dir: Object,
        /// Its name there.
        name: Name,
    },
    /// Move a name.
    Rename {
        /// Old directory and name.
        from: (Object, Name),
        /// New directory and name.
        to: (Object, Name),
        /// Swap the two names instead of replacing the second.
        exchange: bool,
    },
    /// Keep an object alive without names.
    Open(Object),
    /// Undo one `Open`.
    Release(Object),
    /// Write whole sectors.
    Write {
        /// File.
        object: Object,
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Version of the payload: unique in the file.
        version: u32,
    },
    /// Shorten or extend to `size` bytes.
    Truncate {
        /// File.
        object: Object,
        /// New size.
        size: u64,
    },
    /// Make holes of whole sectors.
    Punch {
        /// File.
        object: Object,
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// Fill holes, and make the file at least so long.
    Allocate {
        /// File.
        object: Object,
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// Set or remove an extended attribute.
    SetXattr {
        /// Of what.
        object: Object,
        /// Which one.
        slot: u8,
        /// Version and size of its value; `None` removes it.
        value: Option<Value>,
    },
    /// Change permission bits.
    Chmod {
        /// Of what.
        object: Object,
        /// To what.
        mode: u16,
    },
    /// Set the modification time.
    Utimens {
        /// Of what.
        object: Object,
        /// To how many seconds since 1970.
        seconds: i64,
    },
    /// Read and compare with the model.
    Read {
        /// File.
        object: Object,
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// List a directory and compare with the model.
    List(Object),
    /// Make one object durable.
    Fsync {
        /// Which: a file or a directory.
        object: Object,
        /// As fdatasync.
        data_only: bool,
        /// The client goes on without waiting for the answer.
        background: bool,
    },
    /// Make everything durable.
    Sync,
    /// Do nothing for some simulated nanoseconds.
    Sleep(u64),
}

impl Op {
    /// True if it changes names: these are recovered as a prefix of the run.
    pub fn changes_names(&self) -> bool {
        matches!(
            self,
            Op::Create { .. }
                | Op::Link { .. }
                | Op::Unlink { .. }
                | Op::Rmdir { .. }
                | Op::Rename { .. }
        )
    }

    /// The object whose content or attributes it changes.
    pub fn changes_object(&self) -> Option<Object> {
        match self {
            Op::Write { object, .. }
            | Op::Truncate { object, .. }
            | Op::Punch { object, .. }
            | Op::Allocate { object, .. }
            | Op::SetXattr { object, .. }
            | Op::Chmod { object, .. } => Some(*object),
            _ => None,
        }
    }

    /// Short name, for tables.
    pub fn verb(&self) -> &'static str {
        match self {
            Op::Create { make: Make::File, .. } => "create",
            Op::Create { make: Make::Directory, .. } => "mkdir",
            Op::Create { make: Make::Fifo, .. } => "mkfifo",
            Op::Create { make: Make::Symlink(_), .. } => "symlink",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { exchange: false, .. } => "rename",
            Op::Rename { exchange: true, .. } => "exchange",
            Op::Open(_) => "open",
            Op::Release(_) => "release",
            Op::Write { .. } => "write",
            Op::Truncate { .. } => "truncate",
            Op::Punch { .. } => "punch",
            Op::Allocate { .. } => "allocate",
            Op::SetXattr { value: Some(_), .. } => "setxattr",
            Op::SetXattr { value: None, .. } => "removexattr",
            Op::Chmod { .. } => "chmod",
            Op::Utimens { .. } => "utimens",
            Op::Read { .. } => "read",
            Op::List(_) => "list",
            Op::Fsync { .. } => "fsync",
            Op::Sync => "sync",
            Op::Sleep(_) => "sleep",
        }
    }

    /// Arguments, for tables.
    pub fn arguments(&self) -> String {
        match self {
            Op::Create { object, dir, name, mode, .. } => {
                format!("{object} at {dir}/{name} mode {mode:o}")
            }
            Op::Link { object, dir, name } => format!("{object} at {dir}/{name}"),
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => format!("{dir}/{name}"),
            Op::Rename { from, to, .. } => format!("{}/{} {}/{}", from.0, from.1, to.0, to.1),
            Op::Open(object) | Op::Release(object) | Op::List(object) => object.to_string(),
            Op::Write { object, sector, sectors, version } => {
                format!("{object} sectors {sector}+{sectors} version {version}")
            }
            Op::Truncate { object, size } => format!("{object} to {size} bytes"),
            Op::Punch { object, sector, sectors } | Op::Allocate { object, sector, sectors } => {
                format!("{object} sectors {sector}+{sectors}")
            }
            Op::SetXattr { object, slot, value: Some(value) } => {
                format!("{object} {slot} to {} bytes version {}", value.size, value.version)
            }
            Op::SetXattr { object, slot, value: None } => format!("{object} {slot}"),
            Op::Chmod { object, mode } => format!("{object} to {mode:o}"),
            Op::Utimens { object, seconds } => format!("{object} to {seconds}"),
            Op::Read { object, sector, sectors } => format!("{object} sectors {sector}+{sectors}"),
            Op::Fsync { object, data_only, background } => format!(
                "{object}{}{}",
                if *data_only { " data only" } else { "" },
                if *background { " in background" } else { "" }
            ),
            Op::Sync => String::new(),
            Op::Sleep(nanoseconds) => format!("{nanoseconds} ns"),
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb(), self.arguments())
    }
}

/// Fills `out` (one sector or less) with the payload of (object, sector, version).
pub fn fill(out: &mut [u8], object: Object, sector: u64, version: u32) {
    let tag = u64::from(object.0) << 32 | u64::from(version);
    let seed = (tag ^ sector.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (index, word) in out.chunks_mut(8).enumerate() {
        let value = match index {
            0 => tag,
            1 => sector,
            n => seed.wrapping_mul(2 * n as u64 + 1),
        };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// What a sector seems to hold, for messages.
pub fn describe(bytes: &[u8]) -> String {
    if bytes.iter().all(|&b| b == 0) {
        return "zeros".into();
    }
    let word = |at: usize| {
        let mut le = [0; 8];
        let from = bytes.get(at..).unwrap_or_default();
        let n = from.len().min(8);
        le[..n].copy_from_slice(&from[..n]);
        u64::from_le_bytes(le)
    };
    let (object, version) = (Object((word(0) >> 32) as u32), word(0) as u32);
    let mut want = vec![0; bytes.len()];
    fill(&mut want, object, word(8), version);
    match want.iter().zip(bytes).position(|(a, b)| a != b) {
        None => format!("{object} sector {} version {version}", word(8)),
        Some(at) if bytes[at..].iter().all(|&b| b == 0) => {
            format!("{object} sector {} version {version}, zeros from byte {at}", word(8))
        }
        Some(at) => format!("{:02x?}…, not a payload from byte {at}", &bytes[..bytes.len().min(8)]),
    }
}

/// Whose payload a sector is, if it is one's at that place; `None` for anything else.
pub fn owner(bytes: &[u8], sector: u64) -> Option<Object> {
    let tag = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let (object, version) = (Object((tag >> 32) as u32), tag as u32);
    let mut want = vec![0; bytes.len()];
    fill(&mut want, object, sector, version);
    (want == bytes && tag != 0).then_some(object)
}

/// The name of attribute `slot`: of two prefixes, and of lengths that differ.
pub fn xattr_name(slot: u8) -> Vec<u8> {
    let prefix = if slot.is_multiple_of(2) { "user" } else { "trusted" };
    format!("{prefix}.{slot}{}", "~".repeat(usize::from(slot) * 7)).into_bytes()
}

/// The bytes of attribute `slot` of `object`.
pub fn value_bytes(object: Object, slot: u8, value: Value) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(value.size)];
    for (sector, out) in (u64::from(slot) << 32..).zip(bytes.chunks_mut(SECTOR)) {
        fill(out, object, sector, value.version);
    }
    bytes
}

/// The target of a symbolic link: `length` bytes that name the object.
pub fn symlink_target(object: Object, length: u16) -> Vec<u8> {
    let mut target = format!("to-{object}-").into_bytes();
    target.resize(usize::from(length).max(1), b'x');
    target
}

/// Kinds of operations the generator chooses from; indices of [`Swarm`]'s weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    CreateFile,
    Mkdir,
    Mkfifo,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Exchange,
    Open,
    Release,
    Write,
    Overwrite,
    FarWrite,
    Truncate,
    Punch,
    Allocate,
    SetXattr,
    Chmod,
    Utimens,
    Read,
    List,
    FsyncFile,
    FsyncDir,
    BackgroundFsync,
    Sync,
    Sleep,
    Wrong,
}

pub(crate) const CHOICES: [(Choice, u32); 28] = [
    (Choice::CreateFile, 12),
    (Choice::Mkdir, 5),
    (Choice::Mkfifo, 1),
    (Choice::Symlink, 2),
    (Choice::Link, 3),
    (Choice::Unlink, 6),
    (Choice::Rmdir, 3),
    (Choice::Rename, 8),
    (Choice::Exchange, 2),
    (Choice::Open, 2),
    (Choice::Release, 2),
    (Choice::Write, 18),
    (Choice::Overwrite, 10),
    (Choice::FarWrite, 1),
    (Choice::Truncate, 4),
    (Choice::Punch, 3),
    (Choice::Allocate, 1),
    (Choice::SetXattr, 4),
    (Choice::Chmod, 2),
    (Choice::Utimens, 1),
    (Choice::Read, 5),
    (Choice::List, 2),
    (Choice::FsyncFile, 10),
    (Choice::FsyncDir, 2),
    (Choice::BackgroundFsync, 4),
    (Choice::Sync, 1),
    (Choice::Sleep, 2),
    (Choice::Wrong, 2),
];

/// Swarm weights of one run: some operations are off, others wild, as its seed says. Runs that
/// all have the same mix miss what only a lopsided mix reaches.
#[derive(Clone, Debug)]
pub struct Swarm {
    weights: Vec<(Choice, u32)>,
    total: u64,
    /// Most names a client uses: few names collide often.
    pub names: u16,
    /// Blocks a file grows to.
    pub file_blocks: u64,
    /// Most sectors of one write.
    pub write_sectors: u64,
}

impl Swarm {
    /// The weights of a run.
    pub fn draw(rng: &mut Rng) -> Swarm {
        let weights: Vec<(Choice, u32)> = CHOICES
            .iter()
            .map(|&(choice, weight)| {
                let needed = matches!(choice, Choice::CreateFile | Choice::Write);
                let factor = match rng.below(6) {
                    0 if !needed => 0,
                    1 => 1,
                    2 | 3 => 4,
                    4 => 8,
                    _ => 16,
                };
                (choice, weight * factor)
            })
            .collect();
        Swarm {
            total: weights.iter().map(|w| u64::from(w.1)).sum(),
            weights,
            names: [4, 12, 40][rng.below(3) as usize],
            file_blocks: [3, 12, 40][rng.below(3) as usize],
            write_sectors: [1, 8, 24, 120][rng.below(4) as usize],
        }
    }

    /// The same mix with more writing and many fsyncs, and nobody who waits for everything.
    #[must_use]
    pub(crate) fn busy(mut self) -> Swarm {
        for (choice, weight) in &mut self.weights {
            match choice {
                Choice::FsyncFile | Choice::BackgroundFsync => *weight = *weight * 2 + 40,
                Choice::Write | Choice::Overwrite => *weight += 60,
                Choice::Sync | Choice::Sleep | Choice::Read | Choice::List => *weight /= 8,
                _ => {}
            }
        }
        self.total = self.weights.iter().map(|w| u64::from(w.1)).sum();
        self.file_blocks = self.file_blocks.max(24);
        self.write_sectors = self.write_sectors.max(64);
        self
    }

    /// The same mix, in which everybody waits for everything again and again.
    #[must_use]
    pub(crate) fn syncing(mut self) -> Swarm {
        for (_, weight) in self.weights.iter_mut().filter(|(choice, _)| *choice == Choice::Sync) {
            *weight = (self.total / 2) as u32;
        }
        self.total = self.weights.iter().map(|w| u64::from(w.1)).sum();
        self
    }

    pub(crate) fn choose(&self, rng: &mut Rng) -> Choice {
        let mut at = rng.below(self.total);
        for &(choice, weight) in &self.weights {
            match at.checked_sub(u64::from(weight)) {
                Some(rest) => at = rest,
                None => return choice,
            }
        }
        Choice::Write
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_are_legal() {
        for client in 0..4 {
            for index in 0..60 {
                let name = Name { client, index };
                let bytes = name.bytes();
                assert!(!bytes.is_empty() && bytes.len() <= 255);
                assert_eq!(Name::parse(&bytes), Some(name));
            }
        }
        assert_eq!(Name::parse(b"shared-1"), None);
        assert_eq!(Name::parse(b""), None);
        assert_eq!(Name::parse(b"a01"), None);
    }

    #[test]
    fn payload_tells_what_it_is() {
        let mut sector = [0; SECTOR];
        fill(&mut sector, Object::made_by(1, 3), 7, 9);
        assert_eq!(describe(&sector), "b3 sector 7 version 9");
        sector[100..].fill(0);
        assert_eq!(describe(&sector), "b3 sector 7 version 9, zeros from byte 100");
        sector[50] ^= 1;
        assert!(describe(&sector).contains("not a payload"));
        assert_eq!(describe(&[0; SECTOR]), "zeros");
        let mut other = [0; SECTOR];
        fill(&mut other, Object::made_by(1, 3), 8, 9);
        assert_ne!(sector, other);
    }
}
