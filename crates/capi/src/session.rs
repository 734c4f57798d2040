//! Sessions of the control socket, which read files of an open store.
//!
//! `{"request":"freeze"}` is answered by a line with the names and files of a view of the store
//! ([`Frozen`](furrow_kv::Frozen)), which lives as long as the connection. Then
//! `{"request":"read","file":N,"offset":N,"bytes":N}` is answered by a line with
//! `"ok":{"bytes":N}`, and N bytes after it: fewer than were asked for only at the file's end.
//!
//! A view keeps the content of files that the program removes, so the number of views is limited. A
//! view ends with its connection: a client that has died keeps nothing.

use crate::control::{Source, hear, parse, said, say};
use furrow_kv::{FileId, FileInfo, Frozen, Node};
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of sessions at once.
const SESSIONS: usize = 4;
/// Maximum number of bytes that one request reads.
const READ_MAX: u64 = 1 << 20;
/// Number of bytes that are read at a time, so that other callers get the engine in between.
const PIECE: u64 = 256 << 10;
/// How long a client may be silent: without limit, since one that reads a database may be busy with
/// the data for long.
const SILENCE: Duration = Duration::MAX;

/// The sessions of a store.
#[derive(Default)]
pub(crate) struct Sessions {
    threads: Vec<JoinHandle<()>>,
}

impl Sessions {
    /// Begins a session with a client.
    ///
    /// # Errors
    /// If there are too many, or the system has no thread left.
    pub(crate) fn begin(
        &mut self,
        client: &UnixStream,
        store: &Arc<Source>,
        over: &Arc<AtomicBool>,
    ) -> Result<(), String> {
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() >= SESSIONS {
            return Err(format!("{SESSIONS} clients read the store already: wait for one of them"));
        }
        let client = client.try_clone().map_err(|why| why.to_string())?;
        let (store, over) = (store.clone(), over.clone());
        let thread = std::thread::Builder::new().name("furrow-session".into());
        // Whatever the result, only this session ends.
        let thread = thread.spawn(move || drop(serve(client, &store, &over)));
        self.threads.push(thread.map_err(|why| why.to_string())?);
        Ok(())
    }

    /// Waits for the end of all sessions, which notice that the store closes.
    pub(crate) fn end(self) {
        for thread in self.threads {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

/// A view that the engine keeps for a client until this value is dropped.
struct View<'a> {
    of: &'a Source,
    number: u64,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let number = self.number;
        // If the store has stopped, the view has ended with it.
        let _ = self.of.port.try_call(move |_, engine| {
            let view = engine.views.borrow_mut().remove(&number);
            drop(view);
            std::future::ready(())
        });
    }
}

fn serve(mut client: UnixStream, of: &Source, over: &AtomicBool) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let frozen = of.port.try_call(move |_, engine| {
        let frozen = engine.store.freeze().map(|frozen| {
            let entries = entries(&frozen);
            engine.views.borrow_mut().insert(number, Rc::new(frozen));
            entries
        });
        std::future::ready(frozen)
    });
    let view = View { of, number };
    let frozen = frozen.map_err(|stopped| stopped.to_string());
    let frozen = frozen.and_then(|frozen| frozen.map_err(|why| why.to_string()));
    let document = frozen.map(|entries| {
        json!({
            "device": of.device,
            "uuid": of.uuid,
            "label": of.label,
            "process": std::process::id(),
            "entries": entries.iter().map(described).collect::<Vec<_>>(),
        })
    });
    let failed = document.is_err();
    say(&mut client, &said(document), over)?;
    if failed {
        return Ok(());
    }
    while let Some(line) = hear(&mut client, SILENCE, over)? {
        let bytes = parse(&line).and_then(|request| read(&view, &request));
        let (line, bytes) = match bytes {
            Ok(bytes) => (said(Ok(json!({ "bytes": bytes.len() }))), bytes),
            Err(why) => (said(Err(why)), Vec::new()),
        };
        say(&mut client, &line, over)?;
        say(&mut client, &bytes, over)?;
    }
    Ok(())
}

/// The names of a view, each with its file unless it is a directory.
fn entries(frozen: &Frozen) -> Vec<(String, Option<FileInfo>)> {
    let file = |node| match node {
        Node::Directory => None,
        Node::File(id) => frozen.file(id).cloned(),
    };
    frozen.names().map(|(path, node)| (path.to_owned(), file(node))).collect()
}

fn described((path, file): &(String, Option<FileInfo>)) -> Value {
    match file {
        None => json!({ "path": path }),
        Some(file) => json!({
            "path": path,
            "file": file.id.0,
            "bytes": file.size,
            "modified": file.modified,
            "lifetime": file.lifetime as u8,
            "extents": file.extents,
            "blocks": file.blocks,
            "names": file.names,
        }),
    }
}

/// Reads the bytes that a request asks for.
fn read(view: &View<'_>, request: &Value) -> Result<Vec<u8>, String> {
    let number = |name: &str| request[name].as_u64();
    let wanted = (number("file"), number("offset"), number("bytes"));
    let (Some("read"), (Some(file), Some(offset), Some(len))) =
        (request["request"].as_str(), wanted)
    else {
        return Err("not a request: expected \"read\" with file, offset and bytes".to_owned());
    };
    let mut bytes = Vec::new();
    let len = len.min(READ_MAX);
    while (bytes.len() as u64) < len {
        let at = offset.saturating_add(bytes.len() as u64);
        let (piece, of) = ((len - bytes.len() as u64).min(PIECE), view.number);
        let data = view.of.port.try_call(move |_, engine| {
            let frozen = engine.views.borrow().get(&of).cloned();
            async move {
                match frozen {
                    Some(frozen) => Some(frozen.read(FileId(file), at, piece as usize).await),
                    None => None,
                }
            }
        });
        let data = data.map_err(|stopped| stopped.to_string())?;
        let data = data.ok_or_else(|| "the view is gone".to_owned())?;
        let data = data.map_err(|why| why.to_string())?;
        data.chunks().for_each(|chunk| bytes.extend_from_slice(chunk));
        if (data.len() as u64) < piece {
            break;
        }
    }
    Ok(bytes)
}
