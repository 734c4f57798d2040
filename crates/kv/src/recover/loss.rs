//! Losses where the record ring is damaged, and the state that can still be used.

use super::{Opened, Replay};
use crate::extent::{Extent, FileId};
use crate::namespace::paths::Node;
use furrow_log::BlockAddr;
use furrow_zone::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};

/// Directory for files whose names are lost.
const FOUND: &str = "lost+found";
/// Maximum number of losses that an error lists.
const NAMED: usize = 4;

impl Replay {
    /// Returns the files that paths name.
    pub(super) fn named(&self) -> BTreeSet<FileId> {
        let files = self.nodes.values().filter_map(|node| match node {
            Node::File(id) => Some(*id),
            Node::Directory => None,
        });
        files.collect()
    }

    /// Makes the state consistent with the records after the damage. Files that these records
    /// describe and that have no name get one, and paths get the directories that they lack. Where
    /// two files claim the same blocks, the file recorded after the damage keeps them.
    pub(super) fn mend(&mut self) {
        let named = self.named();
        let nameless = self.fresh.iter().filter(|id| self.files.contains_key(id));
        for id in nameless.filter(|id| !named.contains(id)).copied().collect::<Vec<_>>() {
            self.hurt.insert(id);
            self.nodes.insert(format!("{FOUND}/{}", id.0), Node::File(id));
        }
        let paths: Vec<String> = self.nodes.keys().cloned().collect();
        for (end, path) in
            paths.iter().flat_map(|path| path.match_indices('/').map(move |(end, _)| (end, path)))
        {
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Directory);
        }
        let mut taken: BTreeMap<BlockAddr, BlockAddr> = BTreeMap::new();
        let (mut lost, fresh) = (Vec::new(), &self.fresh);
        let of = |is_fresh| self.files.iter().filter(move |(id, _)| fresh.contains(id) == is_fresh);
        for (id, state) in of(true).chain(of(false)) {
            let places: Vec<_> = state.extents.iter().flat_map(Extent::places).collect();
            let last = |at: BlockAddr, blocks: u32| BlockAddr(at.0.saturating_add(blocks - 1));
            let overlaps = |(at, blocks): &(BlockAddr, u32)| {
                let before = taken.range(..=last(*at, *blocks)).next_back();
                before.is_some_and(|(_, end)| end >= at)
            };
            if places.iter().any(overlaps) {
                lost.push(*id);
                continue;
            }
            taken.extend(places.into_iter().map(|(at, blocks)| (at, last(at, blocks))));
        }
        for id in lost {
            self.hurt.insert(id);
            self.files.remove(&id);
        }
    }
}

impl Opened {
    /// Describes the losses: one line for each damaged place and for each file known to be
    /// affected.
    pub(crate) fn losses(&self) -> Vec<String> {
        let place = |(zone, at)| format!("zone {zone} offset {at}");
        let places = self.damage.iter().map(|d| format!("{}: {}", place(d.place), d.what));
        let mut lines: Vec<String> = places.collect();
        if lines.is_empty() {
            return lines;
        }
        for id in self.replay.named() {
            let name = self.replay.name_of(id);
            let what = match (self.replay.files.get(&id), self.replay.hurt.contains(&id)) {
                (None, true) => "its content is lost: its blocks hold another file's",
                (None, false) => "nothing is known of its content: it is empty, or it is lost",
                (Some(_), true) if name.starts_with(FOUND) => "its name is lost",
                (Some(_), true) => "what was changed of it last is lost",
                (Some(_), false) => continue,
            };
            lines.push(format!("{name}: {what}"));
        }
        lines
    }

    /// Builds the error that refuses the store unless its user accepts the loss.
    pub(crate) fn refusal(&self, device: &str) -> Error {
        let losses = self.losses();
        let mut named = losses.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
        if losses.len() > NAMED {
            named = format!("{named}; and {} more", losses.len() - NAMED);
        }
        let message = format!(
            "{device}: the record ring is damaged: {named}; files made, renamed, removed or synced \
             there may be lost, and nothing was changed: \'furrow kv fsck\' lists what is known, \
             \'furrow kv fsck --repair\' accepts the loss, or restore a backup"
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}
