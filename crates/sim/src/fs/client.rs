//! Clients: tasks that draw operations, run them on a mounted file system, compare every answer
//! with the model and record the history.

use crate::fs::attributes::owners;
use crate::fs::generate::Generator;
use crate::fs::history::History;
use crate::fs::isolation::{Damaged, is_damage};
use crate::fs::model::Model;
use crate::fs::observe::{Trouble, list, xattrs};
use crate::fs::op::{
    How, Ino, Make, Name, Object, Op, difference, fill, symlink_target, value_bytes, xattr_name,
};
use furrow_fs::{Allocate, Fs, NewNode, RenameMode, SetAttr, Time, WriteData, XattrMode};
use furrow_rt::{JoinHandle, Rt};
use furrow_zone::{Error, ErrorKind};
use std::cell::RefCell;
use std::rc::Rc;

/// Number of device errors after which a tolerant client gives up.
const ERRORS_MAX: u32 = 8;
/// After this many operations of a client, all accounts of the engine are audited, not only the
/// changed ones. An audit of all accounts after each operation would double the time of a run.
const AUDIT_ALL_EVERY: u32 = 16;

/// The history that clients of a run write.
pub type SharedHistory = Rc<RefCell<History>>;

/// One client of a file system.
pub struct Client {
    rt: Rt,
    fs: Fs,
    number: u8,
    generator: Generator,
    /// The expected state of this client's objects.
    pub model: Model,
    history: SharedHistory,
    /// Whether the client accepts errors of the device, because faults are injected.
    tolerant: bool,
    /// Damaged files: errors are expected for them, and for no other file.
    damaged: Rc<Damaged>,
    /// Number of device errors so far.
    errors: u32,
    steps: u32,
    background: Vec<JoinHandle<Result<(), String>>>,
}

impl Client {
    /// A client that continues with `generator` from `model`.
    pub fn new(
        rt: &Rt,
        fs: &Fs,
        number: u8,
        generator: Generator,
        model: Model,
        history: SharedHistory,
    ) -> Client {
        Client {
            rt: rt.clone(),
            fs: fs.clone(),
            number,
            generator,
            model,
            history,
            tolerant: false,
            damaged: Rc::default(),
            errors: 0,
            steps: 0,
            background: Vec::new(),
        }
    }

    /// Lets the client tolerate I/O errors and a file system that became read-only, and give up
    /// after a few errors.
    #[must_use]
    pub fn tolerant(self) -> Client {
        Client { tolerant: true, ..self }
    }

    /// Lets the client work alongside damaged files.
    #[must_use]
    pub(crate) fn around(self, damaged: Rc<Damaged>) -> Client {
        Client { damaged, ..self }
    }

    /// Runs `count` operations; returns generator and model.
    ///
    /// # Errors
    /// Names the operation, its answer, and the model's answer.
    pub async fn run(mut self, count: u32) -> Result<(Generator, Model), String> {
        for _ in 0..count {
            let op = self.generator.draw(&self.model);
            if !self.step(op).await? {
                break;
            }
        }
        for task in std::mem::take(&mut self.background) {
            task.await?;
        }
        Ok((self.generator, self.model))
    }

    /// Audits the engine's accounts: the changed accounts after most operations, all accounts after
    /// every [`AUDIT_ALL_EVERY`]th.
    fn audit(&mut self) -> Result<(), Error> {
        self.steps += 1;
        match self.steps % AUDIT_ALL_EVERY {
            0 => self.fs.audit(),
            _ => self.fs.audit_changed(),
        }
    }

    /// Runs one operation. False if the client gives up because of device errors.
    async fn step(&mut self, op: Op) -> Result<bool, String> {
        let (expected, after, effect) = self.model.foresee(&op);
        let id = self.history.borrow_mut().begin(self.rt.now(), self.number, op);
        self.history.borrow_mut().does(id, effect);
        if let Op::Fsync { object, data_only, background: true } = op {
            self.spawn_fsync(id, object, data_only);
            return Ok(true);
        }
        let answer = self.perform(&op, &after).await;
        self.audit().map_err(|error| format!("after {op}: {error}"))?;
        let result = match &answer {
            Ok(()) => Ok(()),
            Err(Refusal::Engine(error)) => Err(error.kind()),
            Err(Refusal::Looked(Trouble::Refused(_, kind))) => Err(*kind),
            Err(Refusal::Looked(trouble)) => return Err(format!("{op}: {trouble}")),
            Err(Refusal::Wrong(why)) => return Err(format!("{op}: {why}")),
        };
        if let (true, Err(_), Some(object)) =
            (op.goes_in_steps() && expected.is_ok(), result, op.changes_object())
        {
            // A part of the operation may be done, so the history gets no answer for it.
            self.model.unknown.insert(object);
        } else {
            self.history.borrow_mut().end(self.rt.now(), id, result);
        }
        match (result, expected) {
            (Ok(()), Ok(())) => {
                self.damaged.note(&op, &self.model);
                self.model = after;
                Ok(true)
            }
            // The model has no limits, so a full drive may refuse what the model allows, but only
            // operations that need an additional block. That rule does not hold if the drive loses
            // zones, or if damage keeps a superzone from being emptied: such a drive has less space
            // than promised.
            (Err(ErrorKind::NoSpace), Ok(()))
                if !self.tolerant && self.damaged.is_nothing() && self.model.replaces(&op) =>
            {
                let why = answer.err().map(Refusal::into_text).unwrap_or_default();
                Err(format!("{op}: it adds no block, but the engine has no space: {why}"))
            }
            (Err(ErrorKind::NoSpace), _) => Ok(true),
            (Err(kind), _) if is_damage(kind) && self.damaged.excuses(&op, &self.model) => Ok(true),
            (Err(ErrorKind::Io | ErrorKind::ReadOnly), _) if self.tolerant => {
                self.errors += 1;
                Ok(self.errors < ERRORS_MAX)
            }
            (Err(kind), Err(_)) if refusals().contains(&kind) => Ok(true),
            (Err(_), _) => {
                let why = answer.err().map(Refusal::into_text).unwrap_or_default();
                Err(format!("{op}: the model says {expected:?}, the engine: {why}"))
            }
            (Ok(()), Err(kind)) => Err(format!("{op}: done, the model says {kind:?}")),
        }
    }

    fn spawn_fsync(&mut self, id: crate::fs::history::OpId, object: Object, data_only: bool) {
        let (fs, rt, history) = (self.fs.clone(), self.rt.clone(), self.history.clone());
        let (ino, tolerant) = (self.ino(object), self.tolerant);
        let (damaged, op, model) = (
            self.damaged.clone(),
            Op::Fsync { object, data_only, background: true },
            Model::default(),
        );
        let task = self.rt.spawn(async move {
            let ino = ino?;
            let result = fs.fsync(ino, data_only).await;
            fs.audit()
                .map_err(|error| format!("after fsync of {object} in background: {error}"))?;
            let kind = result.as_ref().map(|_| ()).map_err(Error::kind);
            history.borrow_mut().end(rt.now(), id, kind);
            match result {
                Ok(()) => Ok(()),
                // The file may be removed before the fsync runs.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(_) if tolerant => Ok(()),
                Err(error) if is_damage(error.kind()) && damaged.excuses(&op, &model) => Ok(()),
                Err(error) => Err(format!("fsync of {object} in background: {error}")),
            }
        });
        self.background.push(task);
    }

    fn ino(&self, object: Object) -> Result<furrow_fs::Ino, String> {
        match self.history.borrow().ino(object) {
            Some(ino) => Ok(furrow_fs::Ino(ino.0)),
            None => Err(format!("{object} was never made")),
        }
    }

    /// Runs the operation on the engine; `after` is the model's state afterwards.
    async fn perform(&mut self, op: &Op, after: &Model) -> Result<(), Refusal> {
        match *op {
            Op::Create { make, object, dir, name, mode } => {
                let dir = self.ino(dir)?;
                let attr = self.fs.create(dir, &name.bytes(), &node(make, object, mode)).await?;
                self.history.borrow_mut().know(object, Ino(attr.ino.0));
                self.compare(object, &attr, after).await?;
            }
            Op::Nameless { object, dir, mode } => {
                let made = node(Make::File, object, mode);
                let attr = self.fs.create_unnamed(self.ino(dir)?, &made).await?;
                self.history.borrow_mut().know(object, Ino(attr.ino.0));
                if attr.links != 0 {
                    return Err(format!("made with {} links", attr.links).into());
                }
                self.compare(object, &attr, after).await?;
            }
            Op::Link { object, dir, name } => {
                let (ino, dir) = (self.ino(object)?, self.ino(dir)?);
                self.fs.link(ino, dir, &name.bytes()).await?;
            }
            Op::Unlink { dir, name } => self.remove(self.ino(dir)?, &name.bytes(), false).await?,
            Op::Rmdir { dir, name } => self.remove(self.ino(dir)?, &name.bytes(), true).await?,
            Op::Rename { from, to, exchange } => {
                let mode = if exchange { RenameMode::Exchange } else { RenameMode::Replace };
                let (old, new) = (from.1.bytes(), to.1.bytes());
                let (from, to) = (self.ino(from.0)?, self.ino(to.0)?);
                let (from, to) = ((from, &old[..]), (to, &new[..]));
                match opens(&new) {
                    true => self.release(self.fs.rename_open(from, to, mode).await?).await?,
                    false => self.fs.rename(from, to, mode).await?,
                }
            }
            Op::Open(object) => drop(self.fs.open(self.ino(object)?).await?),
            Op::Release(object) => self.fs.release(self.ino(object)?).await?,
            Op::Write { object, offset, length, version } => {
                let mut bytes = vec![0; length as usize];
                fill(&mut bytes, object, offset, version);
                let data = WriteData::copy(self.fs.pool(), offset, &bytes);
                self.fs.write(self.ino(object)?, data).await?;
            }
            Op::Truncate { object, size } => {
                let changes = SetAttr { size: Some(size), ..SetAttr::default() };
                self.fs.setattr(self.ino(object)?, changes).await?;
            }
            Op::Fallocate { object, how, offset, length } => {
                let what = match how {
                    How::Punch => Allocate::Punch,
                    How::Extend => Allocate::Extend,
                    How::KeepSize => Allocate::KeepSize,
                    How::Zero => Allocate::Zero,
                    How::ZeroKeepSize => Allocate::ZeroKeepSize,
                };
                self.fs.fallocate(self.ino(object)?, what, offset, length).await?;
            }
            Op::Copy { from, to, length } => {
                let (source, target) = ((self.ino(from.0)?, from.1), (self.ino(to.0)?, to.1));
                let count = self.fs.copy_range(source, target, length).await?;
                let size = self.model.content(from.0).size;
                if count != length.min(size.saturating_sub(from.1)) {
                    return Err(format!("copied {count} bytes of a file of {size}").into());
                }
            }
            Op::SetXattr { object, slot, value } => {
                let (ino, name) = (self.ino(object)?, xattr_name(slot));
                match value {
                    Some(value) => {
                        let bytes = value_bytes(object, slot, value);
                        self.fs.setxattr(ino, &name, &bytes, XattrMode::Set).await?;
                    }
                    None => self.fs.removexattr(ino, &name).await?,
                }
                let attr = self.fs.getattr(ino).await?;
                self.compare(object, &attr, after).await?;
            }
            Op::Chmod { object, mode } => {
                let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
                let attr = self.fs.setattr(self.ino(object)?, changes).await?;
                self.compare(object, &attr, after).await?;
            }
            Op::Chown { object, uid, gid } => {
                let changes = SetAttr { uid, gid, ..SetAttr::default() };
                let attr = self.fs.setattr(self.ino(object)?, changes).await?;
                self.compare(object, &attr, after).await?;
            }
            Op::Utimens { object, mtime, atime } => {
                let time = |seconds| Time { seconds, nanoseconds: 999_999_999 };
                let (mtime, atime) = (mtime.map(time), atime.map(time));
                let changes = SetAttr { mtime, atime, ..SetAttr::default() };
                let attr = self.fs.setattr(self.ino(object)?, changes).await?;
                if mtime.is_some_and(|t| t != attr.mtime) || atime.is_some_and(|t| t != attr.atime)
                {
                    return Err(format!("times are {:?}, {:?}", attr.mtime, attr.atime).into());
                }
            }
            Op::Read { object, offset, length } => self.read(object, offset, length).await?,
            Op::List(object) => self.list(object).await?,
            Op::Fsync { object, data_only, .. } => {
                self.fs.fsync(self.ino(object)?, data_only).await?;
            }
            Op::Sync => self.fs.sync().await?,
            Op::Sleep(nanoseconds) => self.rt.sleep(nanoseconds).await,
        }
        Ok(())
    }

    async fn remove(
        &self,
        dir: furrow_fs::Ino,
        name: &[u8],
        directory: bool,
    ) -> Result<(), Refusal> {
        match (opens(name), directory) {
            (true, _) => self.release(self.fs.remove_open(dir, name, directory).await?).await,
            (false, true) => Ok(self.fs.rmdir(dir, name).await?),
            (false, false) => Ok(self.fs.unlink(dir, name).await?),
        }
    }

    /// Releases an inode that lost its last name.
    async fn release(&self, lost: Option<furrow_fs::Ino>) -> Result<(), Refusal> {
        match lost {
            Some(ino) => Ok(self.fs.release(ino).await?),
            None => Ok(()),
        }
    }

    /// Compares the attributes of an object after an operation with the model's.
    async fn compare(
        &self,
        object: Object,
        attr: &furrow_fs::Attr,
        after: &Model,
    ) -> Result<(), Refusal> {
        let Some(want) = after.attributes.get(&object) else { return Ok(()) };
        if (attr.mode, attr.uid, attr.gid) != (want.mode, want.uid, want.gid) {
            let found = format!("mode {:o}, owners {} {}", attr.mode, attr.uid, attr.gid);
            return Err(
                format!("has {found}, not {:o} {} {}", want.mode, want.uid, want.gid).into()
            );
        }
        let found = xattrs(&self.fs, Ino(attr.ino.0)).await?;
        let want = want.xattrs.iter().map(|(&s, &v)| (xattr_name(s), value_bytes(object, s, v)));
        if found != want.collect() {
            let names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name)).collect();
            return Err(format!("has attributes {names:?}, or their values differ").into());
        }
        Ok(())
    }

    async fn read(&self, object: Object, offset: u64, length: u32) -> Result<(), Refusal> {
        let content = self.model.content(object);
        let data = self.fs.read(self.ino(object)?, offset, length as usize).await?.to_vec();
        let left = content.size.saturating_sub(offset);
        let mut want = vec![0; u64::from(length).min(left) as usize];
        content.read(offset, &mut want);
        if data == want { Ok(()) } else { Err(difference(&data, &want, offset).into()) }
    }

    async fn list(&self, object: Object) -> Result<(), Refusal> {
        let ino = self.ino(object)?;
        let listed = list(&self.fs, Ino(ino.0)).await?;
        let mine: Vec<Name> = listed
            .keys()
            .filter_map(|bytes| Name::parse(bytes))
            .filter(|name| name.client == self.number)
            .collect();
        let node = self.model.names.node(object).ok_or("the model has no such directory")?;
        let mut want: Vec<Name> = node.entries.keys().copied().collect();
        let mut found = mine;
        want.sort();
        found.sort();
        if found != want {
            return Err(format!("lists {found:?}, not {want:?}").into());
        }
        Ok(())
    }
}

/// True for half of all names. Like a mount, the client removes or replaces these names by calls
/// that open an inode that loses its last name.
fn opens(name: &[u8]) -> bool {
    name.iter().fold(0, |sum, byte| sum ^ byte).is_multiple_of(2)
}

fn node(make: Make, object: Object, mode: u16) -> NewNode {
    let node = match make {
        Make::File => NewNode::file(),
        Make::Directory => NewNode::directory(),
        Make::Fifo => NewNode { kind: furrow_fs::Kind::Fifo, ..NewNode::file() },
        Make::Symlink(length) => NewNode::symlink(&symlink_target(object, length)),
    };
    let (uid, gid) = owners(object);
    NewNode { mode, uid, gid, ..node }
}

/// Kinds of errors with which the engine may refuse an operation that the model refuses too. Engine
/// and model need not give the same kind, since two reasons may apply at once; other tests check
/// the kinds.
fn refusals() -> [ErrorKind; 10] {
    [
        ErrorKind::NotFound,
        ErrorKind::Exists,
        ErrorKind::NotDirectory,
        ErrorKind::IsDirectory,
        ErrorKind::NotEmpty,
        ErrorKind::Invalid,
        ErrorKind::Denied,
        ErrorKind::NoAttribute,
        ErrorKind::Unsupported,
        ErrorKind::Busy,
    ]
}

/// The reason why an operation was not done.
enum Refusal {
    /// The engine refused the operation.
    Engine(Error),
    /// A check of the result found something wrong.
    Looked(Trouble),
    /// The operation had a wrong result.
    Wrong(String),
}

impl Refusal {
    fn into_text(self) -> String {
        match self {
            Refusal::Engine(error) => error.to_string(),
            Refusal::Looked(trouble) => trouble.to_string(),
            Refusal::Wrong(why) => why,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Engine(error)
    }
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Refusal {
        Refusal::Looked(trouble)
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::Wrong(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Refusal {
        Refusal::Wrong(why.to_owned())
    }
}
