//! Clients: tasks that draw operations, run them on a mounted file system, compare every answer
//! with the model and write the history.

use crate::generate::Generator;
use crate::history::History;
use crate::model::Model;
use crate::observe::{Trouble, list, xattrs};
use crate::op::{
    Ino, Make, Name, Object, Op, SECTOR, Value, fill, symlink_target, value_bytes, xattr_name,
};
use furrow_fs::{Allocate, Fs, NewNode, RenameMode, SetAttr, Time, WriteData, XattrMode};
use furrow_rt::{JoinHandle, Rt};
use furrow_zone::{Error, ErrorKind};
use std::cell::RefCell;
use std::rc::Rc;

/// Device errors after which a tolerant client gives up.
const ERRORS_MAX: u32 = 8;

/// Where clients of a run write what they did.
pub type SharedHistory = Rc<RefCell<History>>;

/// One client of a file system.
pub struct Client {
    rt: Rt,
    fs: Fs,
    number: u8,
    generator: Generator,
    /// What the file system must hold of this client's.
    pub model: Model,
    history: SharedHistory,
    /// Errors of the device are expected: faults are injected.
    tolerant: bool,
    /// Device errors met so far.
    errors: u32,
    background: Vec<JoinHandle<Result<(), String>>>,
}

impl Client {
    /// A client that goes on with `generator` from `model`.
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
            errors: 0,
            background: Vec::new(),
        }
    }

    /// Takes I/O errors and a file system gone read-only for bad luck, and gives up after a few.
    #[must_use]
    pub fn tolerant(self) -> Client {
        Client { tolerant: true, ..self }
    }

    /// Runs `count` operations; gives back generator and model.
    ///
    /// # Errors
    /// Says which operation answered what, and what the model says.
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

    /// One operation. False if the device is gone.
    async fn step(&mut self, op: Op) -> Result<bool, String> {
        let mut after = self.model.clone();
        let expected = after.apply(&op);
        let id = self.history.borrow_mut().begin(self.rt.now(), self.number, op);
        if let Op::Fsync { object, data_only, background: true } = op {
            self.spawn_fsync(id, object, data_only);
            return Ok(true);
        }
        let answer = self.perform(&op).await;
        let result = match &answer {
            Ok(()) => Ok(()),
            Err(Refusal::Engine(error)) => Err(error.kind()),
            Err(Refusal::Looked(Trouble::Refused(_, kind))) => Err(*kind),
            Err(Refusal::Looked(trouble)) => return Err(format!("{op}: {trouble}")),
            Err(Refusal::Wrong(why)) => return Err(format!("{op}: {why}")),
        };
        self.history.borrow_mut().end(self.rt.now(), id, result);
        match (result, expected) {
            (Ok(()), Ok(())) => {
                self.model = after;
                Ok(true)
            }
            // A full drive refuses what the model, which has no end, allows.
            (Err(ErrorKind::NoSpace), _) => Ok(true),
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

    fn spawn_fsync(&mut self, id: crate::history::OpId, object: Object, data_only: bool) {
        let (fs, rt, history) = (self.fs.clone(), self.rt.clone(), self.history.clone());
        let (ino, tolerant) = (self.ino(object), self.tolerant);
        let task = self.rt.spawn(async move {
            let ino = ino?;
            let result = fs.fsync(ino, data_only).await;
            let kind = result.as_ref().map(|_| ()).map_err(Error::kind);
            history.borrow_mut().end(rt.now(), id, kind);
            match result {
                Ok(()) => Ok(()),
                // The file may be gone by the time it is its turn.
                Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::NotFound) => {
                    Ok(())
                }
                Err(_) if tolerant => Ok(()),
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

    async fn perform(&mut self, op: &Op) -> Result<(), Refusal> {
        match *op {
            Op::Create { make, object, dir, name, mode } => {
                let dir = self.ino(dir)?;
                let attr = self.fs.create(dir, &name.bytes(), &node(make, object, mode)).await?;
                self.history.borrow_mut().know(object, Ino(attr.ino.0));
                if attr.mode != mode {
                    return Err(format!("made with mode {:o}", attr.mode).into());
                }
            }
            Op::Link { object, dir, name } => {
                let (ino, dir) = (self.ino(object)?, self.ino(dir)?);
                self.fs.link(ino, dir, &name.bytes()).await?;
            }
            Op::Unlink { dir, name } => self.fs.unlink(self.ino(dir)?, &name.bytes()).await?,
            Op::Rmdir { dir, name } => self.fs.rmdir(self.ino(dir)?, &name.bytes()).await?,
            Op::Rename { from, to, exchange } => {
                let mode = if exchange { RenameMode::Exchange } else { RenameMode::Replace };
                let (old, new) = (from.1.bytes(), to.1.bytes());
                let (from, to) = (self.ino(from.0)?, self.ino(to.0)?);
                self.fs.rename((from, &old), (to, &new), mode).await?;
            }
            Op::Open(object) => drop(self.fs.open(self.ino(object)?).await?),
            Op::Release(object) => self.fs.release(self.ino(object)?).await?,
            Op::Write { object, sector, sectors, version } => {
                let mut bytes = vec![0; sectors as usize * SECTOR];
                for (sector, out) in (sector..).zip(bytes.chunks_mut(SECTOR)) {
                    fill(out, object, sector, version);
                }
                let offset = sector * SECTOR as u64;
                let data = WriteData::copy(self.fs.pool(), offset, &bytes);
                self.fs.write(self.ino(object)?, data).await?;
            }
            Op::Truncate { object, size } => {
                let changes = SetAttr { size: Some(size), ..SetAttr::default() };
                self.fs.setattr(self.ino(object)?, changes).await?;
            }
            Op::Punch { object, sector, sectors } => {
                self.fallocate(object, Allocate::Punch, sector, sectors).await?;
            }
            Op::Allocate { object, sector, sectors } => {
                self.fallocate(object, Allocate::Extend, sector, sectors).await?;
            }
            Op::SetXattr { object, slot, value } => self.set_xattr(object, slot, value).await?,
            Op::Chmod { object, mode } => {
                let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.fs.setattr(self.ino(object)?, changes).await?;
            }
            Op::Utimens { object, seconds } => {
                let time = Time { seconds, nanoseconds: 999_999_999 };
                let changes = SetAttr { mtime: Some(time), ..SetAttr::default() };
                let attr = self.fs.setattr(self.ino(object)?, changes).await?;
                if attr.mtime != time {
                    return Err(format!("mtime is {:?}", attr.mtime).into());
                }
            }
            Op::Read { object, sector, sectors } => self.read(object, sector, sectors).await?,
            Op::List(object) => self.list(object).await?,
            Op::Fsync { object, data_only, .. } => {
                self.fs.fsync(self.ino(object)?, data_only).await?;
            }
            Op::Sync => self.fs.sync().await?,
            Op::Sleep(nanoseconds) => self.rt.sleep(nanoseconds).await,
        }
        Ok(())
    }

    async fn fallocate(
        &self,
        object: Object,
        what: Allocate,
        sector: u64,
        sectors: u32,
    ) -> Result<(), Refusal> {
        let (offset, len) = (sector * SECTOR as u64, u64::from(sectors) * SECTOR as u64);
        Ok(self.fs.fallocate(self.ino(object)?, what, offset, len).await?)
    }

    async fn set_xattr(
        &self,
        object: Object,
        slot: u8,
        value: Option<Value>,
    ) -> Result<(), Refusal> {
        let (ino, name) = (self.ino(object)?, xattr_name(slot));
        match value {
            Some(value) => {
                let bytes = value_bytes(object, slot, value);
                self.fs.setxattr(ino, &name, &bytes, XattrMode::Set).await?;
            }
            None => self.fs.removexattr(ino, &name).await?,
        }
        let mut want = self.model.xattrs.get(&object).cloned().unwrap_or_default();
        match value {
            Some(value) => want.insert(slot, value),
            None => want.remove(&slot),
        };
        let found = xattrs(&self.fs, Ino(ino.0)).await?;
        let want = want.iter().map(|(&s, &v)| (xattr_name(s), value_bytes(object, s, v)));
        if found != want.collect() {
            let names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name)).collect();
            return Err(format!("has attributes {names:?}, or their values differ").into());
        }
        Ok(())
    }

    async fn read(&self, object: Object, sector: u64, sectors: u32) -> Result<(), Refusal> {
        let content = self.model.content(object);
        let offset = sector * SECTOR as u64;
        let length = sectors as usize * SECTOR;
        let data = self.fs.read(self.ino(object)?, offset, length).await?.to_vec();
        let mut want = vec![0; length.min(content.size.saturating_sub(offset) as usize)];
        content.read(object, offset, &mut want);
        if data == want {
            return Ok(());
        }
        let at = data.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(0) / SECTOR * SECTOR;
        let end = |bytes: &[u8]| (at + SECTOR).min(bytes.len());
        Err(format!(
            "{} bytes of {}, at byte {at}: {}, not {}",
            data.len(),
            want.len(),
            crate::op::describe(&data[at..end(&data)]),
            crate::op::describe(&want[at..end(&want)])
        )
        .into())
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

fn node(make: Make, object: Object, mode: u16) -> NewNode {
    let node = match make {
        Make::File => NewNode::file(),
        Make::Directory => NewNode::directory(),
        Make::Fifo => NewNode { kind: furrow_fs::Kind::Fifo, ..NewNode::file() },
        Make::Symlink(length) => NewNode::symlink(&symlink_target(object, length)),
    };
    NewNode { mode, ..node }
}

/// Kinds that refuse an operation; which of them is for other judges to say (two reasons may
/// apply at once).
fn refusals() -> [ErrorKind; 9] {
    [
        ErrorKind::NotFound,
        ErrorKind::Exists,
        ErrorKind::NotDirectory,
        ErrorKind::IsDirectory,
        ErrorKind::NotEmpty,
        ErrorKind::Invalid,
        ErrorKind::Denied,
        ErrorKind::NoAttribute,
        ErrorKind::Busy,
    ]
}

/// Why an operation was not done.
enum Refusal {
    /// The engine says so.
    Engine(Error),
    /// Something looked at was not as it should be.
    Looked(Trouble),
    /// It was done, but wrongly.
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
