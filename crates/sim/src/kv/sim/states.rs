//! What a store promised over several lives: as `promises` for one, but with whole states of
//! contents, from each of which a life may begin.

use std::collections::BTreeMap;

/// A file of the model, by the order in which files were made.
pub(crate) type Uid = u32;

/// What a file holds: up to each end, bytes of an append's number.
pub(crate) type Content = Vec<(u64, u32)>;

pub(crate) fn size(content: &Content) -> u64 {
    content.last().map_or(0, |(end, _)| *end)
}

/// A byte of an append.
fn byte(uid: Uid, append: u32, at: u64) -> u8 {
    let word = (u64::from(uid) << 40 ^ u64::from(append) << 20 ^ (at / 8))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (8 * (at % 8))) as u8
}

pub(crate) fn bytes(uid: Uid, content: &Content, upto: u64) -> Vec<u8> {
    let (mut all, mut at) = (Vec::new(), 0);
    for (end, append) in content {
        while at < (*end).min(upto) {
            all.push(byte(uid, *append, at));
            at += 1;
        }
    }
    all
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A path names a file, or a directory.
    Name(String, Option<Uid>),
    Remove(String),
    Rename(String, String),
    /// What a file is going to hold.
    Content(Uid, Content),
    /// As many name changes are durable, and of a file as many states of its content.
    Synced(usize, Option<(Uid, usize)>),
}

pub(crate) type NameState = BTreeMap<String, Option<Uid>>;

/// What must hold after a crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Names as they may be, the oldest first.
    pub(crate) names: Vec<NameState>,
    /// Of each file what it may hold, the oldest first.
    pub(crate) contents: BTreeMap<Uid, Vec<Content>>,
}

pub(crate) fn apply(names: &mut NameState, event: &Event) {
    match event {
        Event::Name(path, uid) => drop(names.insert(path.clone(), *uid)),
        Event::Remove(path) => drop(names.remove(path)),
        Event::Rename(from, to) => {
            if let Some(uid) = names.remove(from) {
                names.insert(to.clone(), uid);
            }
        }
        Event::Content(..) | Event::Synced(..) => {}
    }
}

/// Whether a file may hold `data`: as it was at some moment, or in the middle of an append.
pub(crate) fn may_hold(uid: Uid, states: &[Content], data: &[u8]) -> bool {
    let length = data.len() as u64;
    let matches = |content: &Content| bytes(uid, content, length) == data;
    states.iter().enumerate().any(|(index, content)| {
        let least = match index.checked_sub(1).map(|before| size(&states[before])) {
            Some(before) if before <= size(content) => before,
            _ => size(content),
        };
        (least..=size(content)).contains(&length) && matches(content)
    })
}

/// What must hold after a crash behind some events, where what was expected before them was durable
/// when they began: one state of each.
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
            change => {
                let mut next = all.last().cloned().unwrap_or_default();
                apply(&mut next, change);
                all.push(next);
            }
        }
    }
    for (uid, state) in synced {
        // What it was before counts no more.
        contents.entry(uid).or_default().drain(..state);
    }
    Expected { names: all.split_off(durable), contents }
}
