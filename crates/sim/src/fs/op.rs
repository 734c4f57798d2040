//! Operations on a file system, as the clients of a simulated run call them.
//!
//! One [`Op`] enum serves property tests, the crash sweep, fuzzing and simulation. Operations name
//! objects by [`Object`], the order of their creation in the run, never by inode number. So an
//! operation means the same in the model and in any engine. Payload identifies itself: each byte is
//! a function of (object, offset, version), and each whole sector of 512 bytes names the three. So
//! a block at the wrong place, of the wrong file or of the wrong time is recognised.

use crate::fs::attributes::{special_name, special_value};
use furrow_rt::Rng;
use furrow_rt::buf::is_zero;

/// Bytes per sector, the unit of payload tags.
pub const SECTOR: usize = 512;
/// Number of sectors per file system block.
pub const SECTORS_PER_BLOCK: u64 = 8;

/// Key of the hash of names on simulated drives. The key is known, so that colliding names can be
/// chosen.
pub const HASH_SEED: u64 = 0x5eed_0f4a_5eed_0001;

/// Names of a client from this index on are chosen to collide.
pub const CHOSEN: u16 = 1_000;

/// A file, directory or other object of a run. The high byte is the number of the client that made
/// it, plus one; 0 marks the shared directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object(pub u32);

impl Object {
    /// The root directory, used by every client.
    pub const ROOT: Object = Object(0);
    /// Directories in which every client makes names, made before the run: the root and two below
    /// it.
    pub const SHARED: [Object; 3] = [Object::ROOT, Object(1), Object(2)];

    /// Object number `index` of `client`.
    pub fn made_by(client: u8, index: u32) -> Object {
        Object((u32::from(client) + 1) << 24 | index)
    }

    /// True if all clients make names in the directory.
    pub fn is_shared(self) -> bool {
        Object::SHARED.contains(&self)
    }

    /// The client that made the object; `None` for shared directories.
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

/// An inode number: the engine's name for an [`Object`].
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
    /// The client that uses the name.
    pub client: u8,
    /// The name's number among the client's names.
    pub index: u16,
}

impl Name {
    /// The name's bytes: a letter and a number. Every fifth name has a long tail, and every seventh
    /// name a tail that is not text. Chosen names are long, and all belong to one bucket in each of
    /// the first four levels of a directory; a bucket holds thirty of them.
    pub fn bytes(self) -> Vec<u8> {
        let mut name = format!("{}{}", char::from(b'a' + self.client), self.index).into_bytes();
        if self.index >= CHOSEN {
            name.resize(248, b'-');
            for tail in 0u16.. {
                name[244..]
                    .copy_from_slice(&[0, 4, 8, 12].map(|at| b'A' + (tail >> at & 15) as u8));
                if furrow_fs::tree::dirent::hash(HASH_SEED, &name) % 64 == 7 {
                    break;
                }
            }
            return name;
        }
        if self.index % 5 == 4 {
            name.resize(40 + usize::from(self.index) * 37 % 216, b'~');
        }
        if self.index % 7 == 3 {
            // Bytes that are not UTF-8, a line feed, and special characters of shells and
            // terminals; half of these names have the maximal length.
            name.extend(b"\xff\xc3(\n\x1b[\\ \"$%\xed\xa0\x80");
            name.resize(if self.index % 2 == 1 { 255 } else { name.len() }, 0x80);
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

/// The kind of a found object. Kinds that no operation creates are `Other`.
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

/// The kind of a new object.
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
    /// Unique among the client's values.
    pub version: u32,
    /// Size of the value in bytes.
    pub size: u16,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Make `object`.
    Create {
        /// Kind of the new node.
        make: Make,
        /// Number of the new object.
        object: Object,
        /// Directory of the new name.
        dir: Object,
        /// Name in the directory.
        name: Name,
        /// Permission bits.
        mode: u16,
    },
    /// Make a regular file without a name (O_TMPFILE). The file is open, and a link may give it a
    /// name.
    Nameless {
        /// Number of the new object.
        object: Object,
        /// Directory whose attributes the file inherits.
        dir: Object,
        /// Permission bits.
        mode: u16,
    },
    /// Make another name.
    Link {
        /// Object that gets the name.
        object: Object,
        /// Directory of the new name.
        dir: Object,
        /// Name in the directory.
        name: Name,
    },
    /// Remove a name of an object other than a directory.
    Unlink {
        /// Directory of the name.
        dir: Object,
        /// Name in the directory.
        name: Name,
    },
    /// Remove an empty directory.
    Rmdir {
        /// Parent of the directory to remove.
        dir: Object,
        /// Name of the directory in its parent.
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
    /// Open an object: until it is released, it lives on even without names.
    Open(Object),
    /// Undo one `Open`.
    Release(Object),
    /// Write to a file.
    Write {
        /// File to write to.
        object: Object,
        /// First byte to write.
        offset: u64,
        /// Number of bytes, at least one.
        length: u32,
        /// Version of the payload: unique in the file.
        version: u32,
    },
    /// Shorten or extend to `size` bytes.
    Truncate {
        /// File whose size changes.
        object: Object,
        /// New size in bytes.
        size: u64,
    },
    /// Allocate or remove the blocks of a range.
    Fallocate {
        /// File whose blocks change.
        object: Object,
        /// Mode of the call.
        how: How,
        /// First byte of the range.
        offset: u64,
        /// Number of bytes, at least one.
        length: u64,
    },
    /// Copy a range of a file into another, or to another place (copy_file_range).
    Copy {
        /// Source file and first byte.
        from: (Object, u64),
        /// Target file and first byte.
        to: (Object, u64),
        /// Number of bytes.
        length: u64,
    },
    /// Set or remove an extended attribute.
    SetXattr {
        /// Object of the attribute.
        object: Object,
        /// Slot of the attribute.
        slot: u8,
        /// Version and size of the value; `None` removes the attribute.
        value: Option<Value>,
    },
    /// Change permission bits.
    Chmod {
        /// Object to change.
        object: Object,
        /// New permission bits.
        mode: u16,
    },
    /// Change owners.
    Chown {
        /// Object to change.
        object: Object,
        /// New owner; `None` keeps the present one.
        uid: Option<u32>,
        /// New group; `None` keeps the present one.
        gid: Option<u32>,
    },
    /// Set times, in seconds since 1970.
    Utimens {
        /// Object to change.
        object: Object,
        /// New time of the last change of the content; `None` keeps the present one.
        mtime: Option<i64>,
        /// New time of the last access; `None` keeps the present one.
        atime: Option<i64>,
    },
    /// Read, and compare with the model.
    Read {
        /// File to read from.
        object: Object,
        /// First byte to read.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// List a directory and compare with the model.
    List(Object),
    /// Make one object durable.
    Fsync {
        /// File or directory to make durable.
        object: Object,
        /// Sync as fdatasync does.
        data_only: bool,
        /// Whether the client continues without waiting for the answer.
        background: bool,
    },
    /// Make everything durable.
    Sync,
    /// Do nothing for some simulated nanoseconds.
    Sleep(u64),
}

impl Op {
    /// True if the operation changes names: recovery restores a prefix of each client's
    /// name changes.
    pub fn changes_names(&self) -> bool {
        matches!(
            self,
            Op::Create { .. }
                | Op::Nameless { .. }
                | Op::Link { .. }
                | Op::Unlink { .. }
                | Op::Rmdir { .. }
                | Op::Rename { .. }
        )
    }

    /// The object whose content or attributes the operation changes.
    pub fn changes_object(&self) -> Option<Object> {
        match self {
            Op::Write { object, .. }
            | Op::Truncate { object, .. }
            | Op::Fallocate { object, .. }
            | Op::Copy { to: (object, _), .. }
            | Op::SetXattr { object, .. }
            | Op::Chmod { object, .. }
            | Op::Chown { object, .. } => Some(*object),
            _ => None,
        }
    }

    /// True if the operation changes attributes of an existing object, and nothing else.
    pub fn is_attribute(&self) -> bool {
        matches!(self, Op::SetXattr { .. } | Op::Chmod { .. } | Op::Chown { .. })
    }

    /// True if the engine executes the operation in steps, so that a failed one may have done
    /// a part.
    pub fn goes_in_steps(&self) -> bool {
        match *self {
            Op::Copy { .. } => true,
            // A punch with odd ends changes parts of two blocks and the blocks between them,
            // in steps.
            Op::Fallocate { how: How::Punch, offset, length, .. } => {
                let unit = SECTOR as u64 * SECTORS_PER_BLOCK;
                let aligned = offset.is_multiple_of(unit) && length.is_multiple_of(unit);
                !aligned && offset / unit != (offset + length - 1) / unit
            }
            Op::Fallocate { how, .. } => matches!(how, How::Zero | How::ZeroKeepSize),
            _ => false,
        }
    }

    /// Short name, for tables.
    pub fn verb(&self) -> &'static str {
        match self {
            Op::Create { make: Make::File, .. } => "create",
            Op::Create { make: Make::Directory, .. } => "mkdir",
            Op::Create { make: Make::Fifo, .. } => "mkfifo",
            Op::Create { make: Make::Symlink(_), .. } => "symlink",
            Op::Nameless { .. } => "tmpfile",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { exchange: false, .. } => "rename",
            Op::Rename { exchange: true, .. } => "exchange",
            Op::Open(_) => "open",
            Op::Release(_) => "release",
            Op::Write { .. } => "write",
            Op::Truncate { .. } => "truncate",
            Op::Fallocate { how: How::Punch, .. } => "punch",
            Op::Fallocate { how: How::Extend, .. } => "allocate",
            Op::Fallocate { how: How::KeepSize, .. } => "fill",
            Op::Fallocate { how: How::Zero, .. } => "zero",
            Op::Fallocate { how: How::ZeroKeepSize, .. } => "zero-keep",
            Op::Copy { .. } => "copy",
            Op::SetXattr { value: Some(_), .. } => "setxattr",
            Op::SetXattr { value: None, .. } => "removexattr",
            Op::Chmod { .. } => "chmod",
            Op::Chown { .. } => "chown",
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
            Op::Nameless { object, dir, mode } => format!("{object} for {dir} mode {mode:o}"),
            Op::Link { object, dir, name } => format!("{object} at {dir}/{name}"),
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => format!("{dir}/{name}"),
            Op::Rename { from, to, .. } => format!("{}/{} {}/{}", from.0, from.1, to.0, to.1),
            Op::Open(object) | Op::Release(object) | Op::List(object) => object.to_string(),
            Op::Write { object, offset, length, version } => {
                format!("{object} bytes {offset}+{length} version {version}")
            }
            Op::Truncate { object, size } => format!("{object} to {size} bytes"),
            Op::Fallocate { object, offset, length, .. } => {
                format!("{object} bytes {offset}+{length}")
            }
            Op::Copy { from, to, length } => {
                format!("{} bytes {}+{length} to {} from {}", from.0, from.1, to.0, to.1)
            }
            Op::SetXattr { object, slot, value: Some(value) } => {
                format!("{object} {slot} to {} bytes version {}", value.size, value.version)
            }
            Op::SetXattr { object, slot, value: None } => format!("{object} {slot}"),
            Op::Chmod { object, mode } => format!("{object} to {mode:o}"),
            Op::Chown { object, uid, gid } => format!("{object} to {uid:?} {gid:?}"),
            Op::Utimens { object, mtime, atime } => format!("{object} to {mtime:?} {atime:?}"),
            Op::Read { object, offset, length } => format!("{object} bytes {offset}+{length}"),
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

/// The mode of a fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Make a hole.
    Punch,
    /// Fill holes, and extend the file to the end of the range if it is shorter.
    Extend,
    /// Fill holes up to the end of the file.
    KeepSize,
    /// Write zeros, and extend the file to the end of the range if it is shorter.
    Zero,
    /// Write zeros up to the end of the file.
    ZeroKeepSize,
}

/// Fills `out` with the payload of version `version` of `object` from its byte `at` on.
pub fn fill(out: &mut [u8], object: Object, at: u64, version: u32) {
    let (mut rest, mut at) = (out, at);
    while !rest.is_empty() {
        let (sector, skip) = (at / SECTOR as u64, (at % SECTOR as u64) as usize);
        let (now, later) = rest.split_at_mut(rest.len().min(SECTOR - skip));
        if skip == 0 {
            fill_sector(now, object, sector, version);
        } else {
            let mut whole = [0; SECTOR];
            fill_sector(&mut whole[..skip + now.len()], object, sector, version);
            now.copy_from_slice(&whole[skip..skip + now.len()]);
        }
        at += now.len() as u64;
        rest = later;
    }
}

/// Fills `out` with the payload of a sector, or with its beginning.
fn fill_sector(out: &mut [u8], object: Object, sector: u64, version: u32) {
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

/// Describes the first difference between `found` and `want`, which both begin at `offset`, and
/// what each of them holds in the sector of the difference.
pub fn difference(found: &[u8], want: &[u8], offset: u64) -> String {
    let differs = found.iter().zip(want).position(|(a, b)| a != b);
    let at = differs.unwrap_or(found.len().min(want.len()));
    let within = ((offset + at as u64) % SECTOR as u64) as usize;
    let sector = |bytes: &[u8]| {
        let end = (at + SECTOR - within).min(bytes.len());
        describe(&bytes[at.saturating_sub(within).min(end)..end])
    };
    let (at, was, wanted) = (offset + at as u64, sector(found), sector(want));
    format!("{} bytes of {}, at byte {at}: {was}, not {wanted}", found.len(), want.len())
}

/// The probable content of a sector, for messages.
pub fn describe(bytes: &[u8]) -> String {
    if is_zero(bytes) {
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
    fill_sector(&mut want, object, word(8), version);
    match want.iter().zip(bytes).position(|(a, b)| a != b) {
        None => format!("{object} sector {} version {version}", word(8)),
        Some(at) if is_zero(&bytes[at..]) => {
            format!("{object} sector {} version {version}, zeros from byte {at}", word(8))
        }
        Some(at) => format!("{:02x?}…, not a payload from byte {at}", &bytes[..bytes.len().min(8)]),
    }
}

/// The object to which `bytes` belong as payload of sector `sector`; `None` for other bytes.
pub fn owner(bytes: &[u8], sector: u64) -> Option<Object> {
    let tag = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let (object, version) = (Object((tag >> 32) as u32), tag as u32);
    let mut want = vec![0; bytes.len()];
    fill_sector(&mut want, object, sector, version);
    (want == bytes && tag != 0).then_some(object)
}

/// The name of attribute `slot`. Names have one of two prefixes, and different lengths.
pub fn xattr_name(slot: u8) -> Vec<u8> {
    if let Some(name) = special_name(slot) {
        return name.into();
    }
    let prefix = if slot.is_multiple_of(2) { "user" } else { "trusted" };
    format!("{prefix}.{slot}{}", "~".repeat(usize::from(slot) * 7)).into_bytes()
}

/// The bytes of attribute `slot` of `object`.
pub fn value_bytes(object: Object, slot: u8, value: Value) -> Vec<u8> {
    if let Some(bytes) = special_value(slot, value) {
        return bytes;
    }
    let mut bytes = vec![0; usize::from(value.size)];
    fill(&mut bytes, object, u64::from(slot) << 32, value.version);
    bytes
}

/// The target of a symbolic link: `length` bytes that begin with the object's name.
pub fn symlink_target(object: Object, length: u16) -> Vec<u8> {
    let mut target = format!("to-{object}-").into_bytes();
    target.resize(usize::from(length).max(1), b'x');
    target
}

/// Kinds of operations the generator chooses from, each with a weight in [`Swarm`].
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
    Replace,
    Open,
    Release,
    Write,
    Overwrite,
    FarWrite,
    Truncate,
    Punch,
    Allocate,
    Zero,
    Copy,
    Nameless,
    SetXattr,
    SetSpecial,
    Chmod,
    Chown,
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

pub(crate) const CHOICES: [(Choice, u32); 34] = [
    (Choice::CreateFile, 12),
    (Choice::Mkdir, 5),
    (Choice::Mkfifo, 1),
    (Choice::Symlink, 2),
    (Choice::Link, 3),
    (Choice::Unlink, 6),
    (Choice::Rmdir, 3),
    (Choice::Rename, 8),
    (Choice::Exchange, 2),
    (Choice::Replace, 3),
    (Choice::Open, 2),
    (Choice::Release, 2),
    (Choice::Write, 18),
    (Choice::Overwrite, 10),
    (Choice::FarWrite, 1),
    (Choice::Truncate, 4),
    (Choice::Punch, 3),
    (Choice::Allocate, 2),
    (Choice::Zero, 2),
    (Choice::Copy, 3),
    (Choice::Nameless, 3),
    (Choice::SetXattr, 4),
    (Choice::SetSpecial, 3),
    (Choice::Chmod, 2),
    (Choice::Chown, 1),
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

/// Swarm weights of one run: its seed turns some operations off and makes others frequent. With the
/// same mix in all runs, states that need a one-sided mix would not be reached.
#[derive(Clone, Debug)]
pub struct Swarm {
    weights: Vec<(Choice, u32)>,
    total: u64,
    /// Maximum number of names that a client uses: the fewer names, the more often operations
    /// share one.
    pub names: u16,
    /// Whether names are chosen so that their hashes collide.
    pub chosen: bool,
    /// Number of blocks up to which files usually grow. Writes far out go beyond it.
    pub file_blocks: u64,
    /// Maximum number of sectors of one write.
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
            chosen: rng.one_in(6),
        }
    }

    /// Returns the same mix with more writes, many fsyncs, and few syncs, sleeps, reads and lists.
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

    /// Returns the same mix with frequent syncs of everything.
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
        let chosen = |index| Name { client: 2, index: CHOSEN + index };
        for name in (0..200).map(chosen) {
            let bytes = name.bytes();
            assert_eq!((bytes.len(), Name::parse(&bytes)), (248, Some(name)));
            assert_eq!(furrow_fs::tree::dirent::hash(HASH_SEED, &bytes) % 64, 7);
        }
        assert_eq!(Name::parse(b"shared-1"), None);
        assert_eq!(Name::parse(b""), None);
        assert_eq!(Name::parse(b"a01"), None);
    }

    #[test]
    fn payload_tells_what_it_is() {
        let mut sector = [0; SECTOR];
        fill(&mut sector, Object::made_by(1, 3), 7 * 512, 9);
        assert_eq!(describe(&sector), "b3 sector 7 version 9");
        sector[100..].fill(0);
        assert_eq!(describe(&sector), "b3 sector 7 version 9, zeros from byte 100");
        sector[50] ^= 1;
        assert!(describe(&sector).contains("not a payload"));
        assert_eq!(describe(&[0; SECTOR]), "zeros");
        let mut other = [0; SECTOR];
        fill(&mut other, Object::made_by(1, 3), 8 * 512, 9);
        assert_ne!(sector, other);
        // Each byte depends on its own offset only.
        let (mut long, mut part) = ([0; 2000], [0; 700]);
        fill(&mut long, Object::made_by(1, 3), 333, 9);
        fill(&mut part, Object::made_by(1, 3), 1000, 9);
        assert_eq!(long[667..1367], part);
    }
}
