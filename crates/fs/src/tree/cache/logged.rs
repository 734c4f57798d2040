//! Logged contents of dirty nodes: an fsync records changes relative to them.

use super::{Cache, Entry, Key};
use crate::format::class;
use crate::tree::node::header;
use furrow_rt::Page;
use std::ops::Range;

impl Cache {
    /// From now on, keeps the logged content of each node while the node is dirty.
    pub(crate) fn keep_logged_contents(&mut self) {
        self.keeps_logged = true;
    }

    /// True if [`Cache::keep_logged_contents`] was called.
    pub(crate) fn keeps_logged(&self) -> bool {
        self.keeps_logged
    }

    /// Notes that a sync record holds the current content of the dirty node `nid`. Recovery from a
    /// crash would dirty the node again, so cleaning no longer counts as the only reason it is
    /// dirty.
    pub(crate) fn note_logged(&mut self, nid: u32) {
        self.moved_below.remove(&nid);
        if let Some(&at) = self.index.get(&Key::Node(nid)) {
            let logged = self.slot(at).entry.dirty.then(|| self.slot(at).entry.page.clone());
            self.set_logged(at, logged);
        }
    }

    /// Like [`Cache::note_logged`], for a node that differs from its logged content (if there is
    /// one) exactly in the bytes `changed`.
    pub(crate) fn note_logged_change(&mut self, nid: u32, changed: &[Range<usize>]) {
        let at = self.index.get(&Key::Node(nid)).copied();
        let entry = at.map(|at| &mut self.slot_mut(at).entry);
        let Some(Entry { page, logged: Some(logged), .. }) = entry else {
            return self.note_logged(nid);
        };
        // Copy the bytes instead of sharing the page: if the page were shared, the node's next
        // change would copy all of it.
        let content = logged.make_mut();
        for bytes in changed {
            content[bytes.clone()].copy_from_slice(&page.bytes()[bytes.clone()]);
        }
        debug_assert!(*content == *page.bytes(), "node {nid} differs elsewhere, too");
        self.moved_below.remove(&nid);
    }

    /// Keeps the content of a clean page that is about to change, if it is a node whose changes
    /// sync records may hold. Nodes of directories are left out: the content of directories is
    /// logged as names.
    pub(super) fn keep_logged(&mut self, at: u32) {
        let slot = self.slot(at);
        let node = matches!(slot.key, Key::Node(_));
        if !self.keeps_logged || !node || slot.entry.dirty {
            return;
        }
        if header(&slot.entry.page).class != class::DIRECTORY {
            self.set_logged(at, Some(slot.entry.page.clone()));
        }
    }

    pub(super) fn set_logged(&mut self, at: u32, page: Option<Page>) {
        let now = usize::from(page.is_some());
        let before = std::mem::replace(&mut self.slot_mut(at).entry.logged, page);
        let before = usize::from(before.is_some());
        self.logged = self.broken.less("Cache::logged", self.logged + now, before);
    }
}
