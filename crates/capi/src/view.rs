//! Views of an open store that clients of the control socket read.
//!
//! A view keeps the content of files that the program removes, so the number of views is limited. A
//! view ends with its connection: a client that has died keeps nothing.

use crate::engine::{Source, ask};
use furrow_control::store::{Entry, File};
use furrow_kv::{FileId, Frozen, Node};
use serde_json::Value;
use std::cell::Cell;
use std::rc::Rc;

/// Maximum number of views at one time.
const VIEWS: usize = 4;
/// Maximum number of bytes that one request reads.
const READ_MAX: u64 = 1 << 20;
/// Number of bytes that are read at a time, so that other callers get the engine in between.
const PIECE: u64 = 256 << 10;

/// The views of a store.
#[derive(Default)]
pub(crate) struct Views {
    next: Cell<u64>,
    /// Counts the views by its references: one for this field, and one for each view.
    all: Rc<()>,
}

/// A view that the engine keeps for a client until this value is dropped.
pub(crate) struct View {
    of: Rc<Source>,
    number: u64,
    _one: Rc<()>,
}

impl Drop for View {
    fn drop(&mut self) {
        let number = self.number;
        // If the store has stopped, the view has ended with it.
        self.of.port.submit(move |_, engine| {
            let view = engine.views.borrow_mut().remove(&number);
            drop(view);
        });
    }
}

impl Views {
    /// Freezes a view. Also returns the document that describes it.
    pub(crate) async fn freeze(&self, of: &Rc<Source>) -> Result<(View, Value), String> {
        if Rc::strong_count(&self.all) > VIEWS {
            return Err(format!("{VIEWS} clients read the store already: wait for one of them"));
        }
        let number = self.next.replace(self.next.get() + 1);
        let view = View { of: of.clone(), number, _one: self.all.clone() };
        let frozen = ask(&of.port, move |engine| {
            let frozen = engine.store.freeze().map(|frozen| {
                let entries = entries(&frozen);
                engine.views.borrow_mut().insert(number, Rc::new(frozen));
                entries
            });
            std::future::ready(frozen)
        });
        let frozen = frozen.await.map_err(|stopped| stopped.to_string())?;
        let document = furrow_control::store::Frozen {
            device: of.device.clone(),
            uuid: of.uuid.clone(),
            label: of.label.clone(),
            process: std::process::id(),
            entries: frozen.map_err(|why| why.to_string())?,
        };
        Ok((view, serde_json::to_value(document).map_err(|why| why.to_string())?))
    }
}

/// The names of a view, each with its file unless it is a directory.
fn entries(frozen: &Frozen) -> Vec<Entry> {
    let file = |node| match node {
        Node::Directory => None,
        Node::File(id) => frozen.file(id).map(|file| File {
            file: file.id.0,
            bytes: file.size,
            modified: file.modified,
            lifetime: file.lifetime as u8,
            extents: file.extents,
            blocks: file.blocks,
            names: file.names,
        }),
    };
    let entry = |(path, node): (&str, Node)| Entry { path: path.to_owned(), file: file(node) };
    frozen.names().map(entry).collect()
}

impl View {
    /// Reads `len` bytes of a file, at most [`READ_MAX`]; fewer at the end of the file.
    pub(crate) async fn read(&self, file: u64, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let len = len.min(READ_MAX);
        while (bytes.len() as u64) < len {
            let at = offset.saturating_add(bytes.len() as u64);
            let (piece, of) = ((len - bytes.len() as u64).min(PIECE), self.number);
            let data = ask(&self.of.port, move |engine| {
                let frozen = engine.views.borrow().get(&of).cloned();
                async move {
                    match frozen {
                        Some(frozen) => Some(frozen.read(FileId(file), at, piece as usize).await),
                        None => None,
                    }
                }
            });
            let data = data.await.map_err(|stopped| stopped.to_string())?;
            let data = data.ok_or_else(|| "the view is gone".to_owned())?;
            let data = data.map_err(|why| why.to_string())?;
            data.chunks().for_each(|chunk| bytes.extend_from_slice(chunk));
            if (data.len() as u64) < piece {
                break;
            }
        }
        Ok(bytes)
    }
}
