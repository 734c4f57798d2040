//! The clients' operations on names: the model knows how each must end.

use super::client::{Client, Halt, Open, Worked};
use super::states::Event;
use crate::kv::promises::{Content, NameChange, NameState};
use furrow_kv::Lifetime;
use furrow_zone::{ErrorKind, Result as Answer};

/// Number of directories of each client, in addition to its home directory.
const DIRECTORIES: u64 = 3;

fn has_parent(names: &NameState, path: &str) -> bool {
    path.rsplit_once('/').is_none_or(|(parent, _)| names.get(parent) == Some(&None))
}

impl Client {
    /// A path of this client, perhaps in one of its directories, which may not exist.
    pub(super) fn path(&mut self) -> String {
        let number = self.rng.below(self.life.names);
        let kinds = [".blob", ".sst", ".log", "", "", ""];
        let kind = kinds[number as usize % kinds.len()];
        match self.life.more && self.rng.one_in(3) {
            true => format!("{}/{number}{kind}", self.directory_path()),
            false => format!("c{}/{number}{kind}", self.number),
        }
    }

    fn directory_path(&mut self) -> String {
        format!("c{}/d{}", self.number, self.rng.below(DIRECTORIES))
    }

    /// Records a name change in the model if it ended as required, or judges the answer.
    fn told<T>(
        &mut self,
        what: &str,
        must: Result<(), ErrorKind>,
        done: Answer<T>,
        change: Option<NameChange>,
    ) -> Result<Option<T>, Halt> {
        match (done, must) {
            (Ok(made), Ok(())) => {
                change.into_iter().for_each(|change| self.tell(Event::Names(change)));
                Ok(Some(made))
            }
            (Err(error), Err(kind)) if error.kind() == kind => Ok(None),
            (Ok(_), Err(kind)) => Err(Halt::Wrong(format!("{what} must end with {kind:?}"))),
            (Err(error), _) => self.life.judge(&self.store, what, &error).map(|()| None),
        }
    }

    fn is_open(&self, path: &str) -> bool {
        let uid = self.life.history.borrow().now.get(path).copied().flatten();
        self.open.iter().any(|open| Some(open.uid) == uid)
    }

    fn names(&self) -> NameState {
        self.life.history.borrow().now.clone()
    }

    /// Creates a file. A file that had the name before remains while it is open.
    pub(super) fn create(&mut self) -> Worked {
        let path = self.path();
        if !self.life.more && self.is_open(&path) {
            return Ok(());
        }
        let lifetime = Lifetime::from_byte(self.rng.below(6) as u8).unwrap_or_default();
        let must = match has_parent(&self.names(), &path) {
            true => Ok(()),
            false => Err(ErrorKind::NotFound),
        };
        let uid = self.life.history.borrow().next + 1;
        let done = self.store.create(&path, lifetime);
        let change = NameChange::Name(path.clone(), Some(uid));
        if let Some(id) = self.told(&format!("create {path}"), must, done, Some(change))? {
            {
                let mut history = self.life.history.borrow_mut();
                history.open.insert(uid);
                history.next = uid;
            }
            self.tell(Event::Content(uid, Content::default()));
            self.open.push(Open { uid, id, content: Content::default(), appends: 0 });
        }
        Ok(())
    }

    /// Renames or removes a file, also one that is open.
    pub(super) fn rename_or_remove(&mut self) -> Worked {
        let (from, to) = (self.path(), self.path());
        if !self.life.more && (self.is_open(&from) || self.is_open(&to)) {
            return Ok(());
        }
        let names = self.names();
        let must = match names.contains_key(&from) && has_parent(&names, &to) {
            true => Ok(()),
            false => Err(ErrorKind::NotFound),
        };
        let loser = names.get(&to).copied().flatten();
        if must.is_ok() && self.open.iter().any(|open| Some(open.uid) == loser) {
            self.life.met("an open file that lost a name");
        }
        if from == to {
            let done = self.store.remove(&from);
            let what = format!("remove {from}");
            return self.told(&what, must, done, Some(NameChange::Remove(from))).map(drop);
        }
        let done = self.store.rename(&from, &to);
        let what = format!("rename {from} to {to}");
        self.told(&what, must, done, Some(NameChange::Rename(from, to))).map(drop)
    }

    pub(super) fn link(&mut self) -> Worked {
        let (from, to) = (self.path(), self.path());
        let names = self.names();
        let must = match (names.get(&from), has_parent(&names, &to), names.get(&to)) {
            (None, ..) | (_, false, _) => Err(ErrorKind::NotFound),
            (_, _, Some(_)) => Err(ErrorKind::Exists),
            _ => Ok(()),
        };
        let done = self.store.link(&from, &to);
        let (what, uid) = (format!("link {from} to {to}"), names.get(&from).copied().flatten());
        if self.told(&what, must, done, Some(NameChange::Name(to, uid)))?.is_some() {
            self.life.met("a file with two names");
        }
        Ok(())
    }

    /// Makes or removes a directory, or renames one with its content.
    pub(super) fn directory(&mut self) -> Worked {
        let (from, to) = (self.directory_path(), self.directory_path());
        let names = self.names();
        let is_there = names.contains_key(&from);
        let inside = format!("{from}/");
        let is_empty = !names.keys().any(|path| path.starts_with(&inside));
        let missing = if is_there { Ok(()) } else { Err(ErrorKind::NotFound) };
        match self.rng.below(4) {
            0 | 1 if !is_there => {
                let done = self.store.make_directory(&from);
                let what = format!("mkdir {from}");
                self.told(&what, Ok(()), done, Some(NameChange::Name(from, None))).map(drop)
            }
            0 => {
                let must = if is_empty { missing } else { Err(ErrorKind::NotEmpty) };
                let done = self.store.remove_directory(&from);
                let what = format!("rmdir {from}");
                self.told(&what, must, done, Some(NameChange::Remove(from))).map(drop)
            }
            _ if from == to => {
                let to = format!("{from}/d");
                let must = missing.and(Err(ErrorKind::Invalid));
                let done = self.store.rename(&from, &to);
                self.told(&format!("rename {from} into itself"), must, done, None).map(drop)
            }
            _ => {
                let over = if names.contains_key(&to) { Err(ErrorKind::Exists) } else { Ok(()) };
                let done = self.store.rename(&from, &to);
                let what = format!("rename of the directory {from} to {to}");
                let change = NameChange::Rename(from, to);
                if self.told(&what, missing.and(over), done, Some(change))?.is_some() && !is_empty {
                    self.life.met("a directory renamed with its files");
                }
                Ok(())
            }
        }
    }
}
