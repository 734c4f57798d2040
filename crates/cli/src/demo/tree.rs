//! Copies a tree of files into a file system, and compares every file afterwards.

use super::files::{Attributes, Files, Kind};
use super::progress::Progress;
use anyhow::{Context, bail};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size in bytes of the buffer with which a thread copies or compares files.
const CHUNK: usize = 256 * 1024;

/// Amounts to copy or compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub folders: u64,
    pub files: u64,
    pub symlinks: u64,
    pub bytes: u64,
}

/// One name of a tree.
struct Entry {
    path: String,
    attributes: Attributes,
}

/// A tree to copy, listed once: folders before their content.
pub struct Tree<'a> {
    source: &'a dyn Files,
    entries: Vec<Entry>,
}

impl<'a> Tree<'a> {
    /// Lists everything below the root of `source`.
    pub fn list(source: &'a dyn Files) -> anyhow::Result<Tree<'a>> {
        let mut entries = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let names = source.list(&folder).with_context(|| format!("listing '{folder}'"))?;
            for name in names {
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let attributes = source.attributes(&path).with_context(|| path.clone())?;
                if attributes.kind == Kind::Folder {
                    folders.push(path.clone());
                }
                entries.push(Entry { path, attributes });
            }
        }
        Ok(Tree { source, entries })
    }

    /// The amounts to copy.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for entry in &self.entries {
            match entry.attributes.kind {
                Kind::Folder => counts.folders += 1,
                Kind::Symlink => counts.symlinks += 1,
                Kind::Regular => {
                    counts.files += 1;
                    counts.bytes += entry.attributes.size;
                }
            }
        }
        counts
    }

    /// Copies everything into the folder `under` of `target`, which must exist and be empty.
    pub fn copy(
        &self,
        target: &dyn Files,
        under: &str,
        threads: usize,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let at = |entry: &Entry| format!("{under}/{}", entry.path);
        let folders = || self.entries.iter().filter(|e| e.attributes.kind == Kind::Folder);
        for entry in folders() {
            target.make_folder(&at(entry), 0o755).with_context(|| at(entry))?;
        }
        self.in_parallel(threads, |entry, buffer| {
            let path = at(entry);
            let result = match entry.attributes.kind {
                Kind::Folder => Ok(()),
                Kind::Symlink => {
                    let aim = self.source.read_link(&entry.path)?;
                    target.make_link(&path, &aim)
                }
                Kind::Regular => self.copy_file(entry, target, &path, buffer),
            };
            progress.add(u64::from(entry.attributes.kind != Kind::Folder), entry.attributes.size);
            result.with_context(|| format!("copying {path}"))
        })?;
        // The attributes of folders are set last, because every name made in a folder changes the
        // folder's time.
        for entry in folders() {
            target.set_attributes(&at(entry), &entry.attributes).with_context(|| at(entry))?;
        }
        Ok(())
    }

    fn copy_file(
        &self,
        entry: &Entry,
        target: &dyn Files,
        path: &str,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let from = self.source.open(&entry.path, false)?;
        let to = target.open(path, true)?;
        let mut offset = 0;
        loop {
            let count = from.read_at(offset, buffer)?;
            if count == 0 {
                break;
            }
            to.write_at(offset, &buffer[..count])?;
            offset += count as u64;
        }
        target.set_attributes(path, &entry.attributes)
    }

    /// Compares everything with the folder `under` of `target`: names, kinds, permissions, sizes,
    /// times, targets of links and every byte.
    ///
    /// # Errors
    /// The first difference, or the first error of a read.
    pub fn compare(
        &self,
        target: &dyn Files,
        under: &str,
        threads: usize,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        self.compare_names(target, under)?;
        self.in_parallel(threads, |entry, buffer| {
            let path = format!("{under}/{}", entry.path);
            let found = target.attributes(&path).with_context(|| path.clone())?;
            if found != entry.attributes {
                bail!("{path}: found {found:?}, copied {:?}", entry.attributes);
            }
            match entry.attributes.kind {
                Kind::Folder => {}
                Kind::Symlink => {
                    let (found, expected) =
                        (target.read_link(&path)?, self.source.read_link(&entry.path)?);
                    if found != expected {
                        bail!("{path}: leads to {found}, copied {expected}");
                    }
                }
                Kind::Regular => self.compare_file(entry, target, &path, buffer)?,
            }
            progress.add(u64::from(entry.attributes.kind != Kind::Folder), entry.attributes.size);
            Ok(())
        })
    }

    /// Checks that listings show as many names as were copied. [`Tree::compare`] also looks up
    /// every name, so there are no other names.
    fn compare_names(&self, target: &dyn Files, under: &str) -> anyhow::Result<()> {
        let mut found = 0;
        let folders = self.entries.iter().filter(|e| e.attributes.kind == Kind::Folder);
        for folder in folders.map(|e| format!("{under}/{}", e.path)).chain([under.to_owned()]) {
            found += target.list(&folder).with_context(|| format!("listing {folder}"))?.len();
        }
        if found != self.entries.len() {
            bail!("{under}: {found} names, copied {}", self.entries.len());
        }
        Ok(())
    }

    fn compare_file(
        &self,
        entry: &Entry,
        target: &dyn Files,
        path: &str,
        buffer: &mut [u8],
    ) -> anyhow::Result<()> {
        let (expected, found) = buffer.split_at_mut(CHUNK / 2);
        let from = self.source.open(&entry.path, false)?;
        let to = target.open(path, false).with_context(|| path.to_owned())?;
        let mut offset = 0;
        loop {
            let count = from.read_at(offset, expected)?;
            let read = to.read_at(offset, found).with_context(|| path.to_owned())?;
            if expected[..count] != found[..read] {
                bail!("{path}: differs within {} bytes from {offset}", CHUNK / 2);
            }
            if count == 0 {
                return Ok(());
            }
            offset += count as u64;
        }
    }

    /// Calls `work` for every entry, each once, from several threads; stops at the first error.
    fn in_parallel(
        &self,
        threads: usize,
        work: impl Fn(&Entry, &mut [u8]) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<()> {
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut buffer = vec![0; CHUNK];
                    while let Some(entry) = self.entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = work(entry, &mut buffer) {
                            next.store(self.entries.len(), Ordering::Relaxed);
                            if let Ok(mut failure) = failure.lock() {
                                failure.get_or_insert(error);
                            }
                        }
                    }
                });
            }
        });
        match failure.into_inner() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            Err(_) => bail!("a thread died"),
        }
    }
}
