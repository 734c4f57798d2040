//! The promises of a store over several lives. `promises` has the model of names and contents; here
//! a file's history is a list of whole contents, since each life begins with the contents found in
//! the drive.

use crate::kv::promises::{Content, NameChange, NameState, Uid, apply};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Names(NameChange),
    /// A file is about to get this content.
    Content(Uid, Content),
    /// Numbers of durable name changes and of durable states of the file's content.
    Synced(usize, Option<(Uid, usize)>),
}

/// What must hold after a crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The names that may be found, oldest first.
    pub(crate) names: Vec<NameState>,
    /// The contents that each file may have, oldest first.
    pub(crate) contents: BTreeMap<Uid, Vec<Content>>,
}

/// The states allowed after a crash that follows `events`. `before` is the state before the first
/// of these events, which was durable.
pub(crate) fn after(before: Expected, events: &[Event]) -> Expected {
    let Expected { names: mut all, mut contents } = before;
    let mut durable = 0;
    let mut synced: BTreeMap<Uid, usize> = BTreeMap::new();
    for event in events {
        match event {
            Event::Content(uid, content) => {
                contents.entry(*uid).or_default().push(content.clone());
            }
            Event::Synced(names, file) => {
                durable = durable.max(*names);
                if let Some((uid, state)) = file {
                    let known = synced.entry(*uid).or_default();
                    *known = state.saturating_sub(1).max(*known);
                }
            }
            Event::Names(change) => {
                let mut next = all.last().cloned().unwrap_or_default();
                apply(&mut next, change);
                all.push(next);
            }
        }
    }
    for (uid, state) in synced {
        // Contents older than the durable one cannot come back.
        contents.entry(uid).or_default().drain(..state);
    }
    Expected { names: all.split_off(durable), contents }
}
