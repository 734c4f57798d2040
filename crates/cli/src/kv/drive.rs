//! The drive of a store, opened for inspection or for changes.

use crate::daemon::config;
use crate::holds::{self, Needs};
use crate::progress::Progress;
use crate::visit;
use anyhow::{Result, bail};
use furrow_kv::{
    CheckOptions, CheckReport, FileId, Lifetime, Node, Options, ScrubOrder, ScrubReport, Snapshot,
    Store,
};
use furrow_rt::{Nanos, Rt};
use furrow_zone::{Access, Error, ErrorKind};
use std::io::Read;
use std::rc::Rc;

/// Number of bytes of a file that are copied at a time.
pub const PIECE: usize = 1 << 20;
/// Suffix of the name of an unfinished file. When the file is complete, it is renamed to its path.
pub const UNFINISHED: &str = ".furrow-put";

/// Checks the store on `device` without writing to it; with `content`, also reads the content of
/// files. Unless `quiet`, a line on the terminal shows the progress; `what` is the verb in that
/// line, such as "checked".
///
/// # Errors
/// An error if there is no store; the error says what the drive holds.
pub fn check(device: &str, content: bool, what: &'static str, quiet: bool) -> Result<CheckReport> {
    let progress = Rc::new(Progress::new(what, quiet));
    let line = progress.clone();
    let options = CheckOptions { content, progress: Rc::new(move |done, of| line.at(done, of)) };
    let report = visit::visit(device, Access::ReadOnly, Needs::Store, async move |_, drive| {
        furrow_kv::check(&*drive, &options).await
    });
    progress.end();
    report
}

/// A store that is inspected. Nothing is written to its drive.
pub struct Looked {
    rt: Rt,
    store: Rc<Snapshot>,
}

impl Looked {
    /// Opens the store on `device`.
    ///
    /// # Errors
    /// An error if there is no store; the error says what the drive holds.
    pub fn open(device: &str) -> Result<Looked> {
        Looked::open_with(device, false)
    }

    /// Like [`Looked::open`]; with `accept_loss` also a store whose record ring is damaged. Reports
    /// losses on standard error.
    ///
    /// # Errors
    /// The errors of [`Looked::open`].
    pub fn open_with(device: &str, accept_loss: bool) -> Result<Looked> {
        let rt = Rt::new(config()?);
        let drive = visit::open(&rt, device, Access::ReadOnly, Needs::Store)?;
        let store = rt.block_on(async move {
            match Snapshot::open_with(drive.clone(), accept_loss).await {
                Err(error) => Err(holds::explain(&*drive, Needs::Store, error).await),
                store => store,
            }
        });
        // `clear` ends the tasks of a failed inspection, which still hold the drive.
        let store = store.inspect_err(|_| rt.clear())?;
        for loss in store.losses() {
            crate::complain(&format!("{device}: lost: {loss}"));
        }
        Ok(Looked { rt, store: Rc::new(store) })
    }

    /// The content of the store.
    pub fn store(&self) -> &Snapshot {
        &self.store
    }

    /// Reads `bytes` bytes from a file; fewer only at its end.
    ///
    /// # Errors
    /// An error if a block is not as it was written.
    pub fn read(&self, file: FileId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let store = self.store.clone();
        Ok(self.rt.block_on(async move { store.read(file, offset, bytes).await })?)
    }
}

impl Drop for Looked {
    fn drop(&mut self) {
        self.rt.clear();
    }
}

/// The path in the form in which the store has it: without empty parts.
pub fn plain(path: &str) -> String {
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    parts.join("/")
}

/// A store that is opened for changes.
pub struct Changed {
    rt: Rt,
    store: Store,
}

impl Changed {
    /// Opens the store on `device`.
    ///
    /// # Errors
    /// An error if there is no store; the error says what the drive holds.
    pub fn open(device: &str) -> Result<Changed> {
        Changed::open_with(device, Options::default())
    }

    /// Like [`Changed::open`], with `options`.
    ///
    /// # Errors
    /// The errors of [`Changed::open`].
    pub fn open_with(device: &str, options: Options) -> Result<Changed> {
        let rt = Rt::new(config()?);
        let drive = visit::open(&rt, device, Access::ReadWrite, Needs::Store)?;
        let engine = rt.clone();
        let store = rt.block_on(async move {
            match Store::open(&engine, drive.clone(), options).await {
                Err(error) => Err(holds::explain(&*drive, Needs::Store, error).await),
                store => store,
            }
        });
        let store = store.inspect_err(|_| rt.clear())?;
        Ok(Changed { rt, store })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The file or directory that a path names, if it exists.
    ///
    /// # Errors
    /// An error if the path leads out of the store.
    pub fn node(&self, path: &str) -> Result<Option<Node>> {
        match self.store.stat(path) {
            Ok(stat) => Ok(Some(stat.node)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// All paths below a directory, ascending.
    ///
    /// # Errors
    /// An error if the path is not a directory.
    pub fn below(&self, directory: &str) -> Result<Vec<(String, Node)>> {
        let mut all = Vec::new();
        let mut left = vec![plain(directory)];
        while let Some(directory) = left.pop() {
            for (name, node) in self.store.list(&directory)? {
                let path = format!("{directory}/{name}");
                if node == Node::Directory {
                    left.push(path.clone());
                }
                all.push((path, node));
            }
        }
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(all)
    }

    /// Makes a directory and its missing parents. Returns the directories that it made.
    ///
    /// # Errors
    /// An error if a file is in the way; then none was made.
    pub fn make_directories(&self, path: &str) -> Result<Vec<String>> {
        let path = plain(path);
        let ends = path.match_indices('/').map(|(at, _)| at);
        let mut made = Vec::new();
        for end in ends.chain(Some(path.len()).filter(|end| *end > 0)) {
            let part = &path[..end];
            match self.node(part)? {
                Some(Node::Directory) => {}
                // Nothing below a file exists, so nothing was made yet.
                Some(Node::File(_)) => bail!("{part}: a file, not a directory"),
                None => {
                    self.store.make_directory(part)?;
                    made.push(part.to_owned());
                }
            }
        }
        Ok(made)
    }

    /// Writes the bytes that `from` yields to a file of another name, syncs it, and renames it
    /// to `path`. Calls `done` with the number of bytes after each piece. Returns the number of
    /// all bytes.
    ///
    /// # Errors
    /// An error if a read or write fails; then `path` is unchanged.
    pub fn write(
        &self,
        path: &str,
        lifetime: Lifetime,
        from: &mut dyn Read,
        done: &mut dyn FnMut(u64),
    ) -> Result<u64> {
        let unfinished = format!("{}{UNFINISHED}", plain(path));
        let id = self.store.create(&unfinished, lifetime)?;
        let written = self.fill(id, from, done);
        let closed = self.run(move |store| async move { store.close(id).await });
        let written = written.and_then(|bytes| {
            closed?;
            self.run(move |store| async move { store.sync(id).await })?;
            self.store.rename(&unfinished, path)?;
            Ok(bytes)
        });
        if written.is_err() && self.store.failed().is_none() {
            // If the removal fails, the next attempt to write this path removes the
            // unfinished file.
            let _ = self.store.remove(&unfinished);
            let _ = self.sync_names();
        }
        written
    }

    fn fill(&self, id: FileId, from: &mut dyn Read, done: &mut dyn FnMut(u64)) -> Result<u64> {
        let mut bytes = 0;
        loop {
            let mut piece = Vec::new();
            Read::take(&mut *from, PIECE as u64).read_to_end(&mut piece)?;
            if piece.is_empty() {
                break;
            }
            let length = piece.len() as u64;
            self.run(move |store| async move { store.append(id, &piece).await })?;
            bytes += length;
            done(length);
        }
        Ok(bytes)
    }

    /// Scrubs the whole store and repairs damage.
    ///
    /// # Errors
    /// An error if the store fails.
    pub fn scrub(&self) -> Result<ScrubReport> {
        let rt = self.rt.clone();
        let report: Result<ScrubReport, Error> = self.run(move |store| async move {
            store.scrub(ScrubOrder::Start { repair: true })?;
            loop {
                rt.sleep(Nanos::MILLI).await;
                match store.scrub_report() {
                    Some(report) if !report.state.is_under_way() => return Ok(report),
                    _ => {}
                }
            }
        });
        Ok(report?)
    }

    /// Makes all names durable.
    ///
    /// # Errors
    /// An error if the drive fails to write the names.
    pub fn sync_names(&self) -> Result<()> {
        Ok(self.run(|store| async move { store.sync_names().await })?)
    }

    fn run<T: 'static, F>(&self, action: impl FnOnce(Store) -> F) -> T
    where
        F: Future<Output = T> + 'static,
    {
        self.rt.block_on(action(self.store.clone()))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        // Everything acknowledged is durable already. The stop proves that the records before it
        // are whole, so that later damage to them is not mistaken for a crash.
        if self.store.failed().is_none() {
            let _ = self.run(|store| async move { store.stop().await });
        }
        self.rt.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_the_store_has_them() {
        for (given, path) in [("/db//a/", "db/a"), ("./db", "db"), ("/", ""), ("", "")] {
            assert_eq!(plain(given), path);
        }
    }
}
