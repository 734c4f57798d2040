//! Records the calls to a store. The recording is a file of the host, in the format of
//! `furrow_kv::trace`.
//!
//! A call gets its number while it holds the engine, so the numbers give the order in which names
//! changed and appends were placed. A call that does not use the engine gets its number when it is
//! recorded, and so does the start of a read. Recording adds a lock and about a microsecond to each
//! call, which counts as the caller's own time. A forked child records nothing.

use crate::error::{Failure, Outcome, furrow_kind};
use crate::process::{check_fork, lock};
use furrow_kv::trace::{Encoder, Op, Record};
use furrow_kv::{Node, Store};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Instant;

/// Number of bytes that are collected before they are written.
const GATHERED: usize = 64 << 10;

/// The recording of a store.
pub(crate) struct Recorder {
    start: Instant,
    order: AtomicU64,
    reads: AtomicU64,
    out: Mutex<Out>,
}

struct Out {
    name: String,
    file: File,
    /// Offset in the file at which the next bytes are written.
    at: u64,
    gathered: Vec<u8>,
    encoder: Encoder,
    threads: HashMap<ThreadId, u32>,
    /// True if the recording has ended, or cannot be written any more.
    ended: bool,
}

impl Out {
    /// Writes the collected bytes, followed by an end mark for the present state, which later
    /// bytes overwrite.
    fn flush(&mut self) {
        if self.ended {
            return;
        }
        let whole = self.gathered.len();
        self.encoder.clone().end(&mut self.gathered);
        match self.file.write_all_at(&self.gathered, self.at) {
            Ok(()) => self.at += whole as u64,
            Err(why) => {
                eprintln!("furrow: record={}: cannot be written, it ends here: {why}", self.name);
                self.ended = true;
            }
        }
        self.gathered.clear();
    }
}

impl Recorder {
    pub(crate) fn create(path: &str) -> Outcome<Arc<Recorder>> {
        let file = File::create(path).map_err(|why| {
            let message = format!("record={path}: cannot be made: {why}");
            Failure::new(furrow_kind::FURROW_IO, message)
        })?;
        let mut gathered = Vec::new();
        let encoder = Encoder::new(&mut gathered);
        let (name, threads) = (path.to_owned(), HashMap::new());
        let out = Out { name, file, at: 0, gathered, encoder, threads, ended: false };
        Ok(Arc::new(Recorder {
            start: Instant::now(),
            order: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            out: Mutex::new(out),
        }))
    }

    /// Takes the number of the call that holds the engine now.
    pub(crate) fn take(&self) -> u64 {
        self.order.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes a number for a read that is started.
    pub(crate) fn read(&self) -> u64 {
        self.reads.fetch_add(1, Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn put(&self, order: u64, begin: u64, took: u64, answer: u8, op: Op) {
        let mut out = lock(&self.out);
        if out.ended {
            return;
        }
        let next = out.threads.len() as u32;
        let thread = *out.threads.entry(std::thread::current().id()).or_insert(next);
        let record = Record { order, thread, begin, took, gap: 0, answer, op };
        let Out { encoder, gathered, .. } = &mut *out;
        encoder.push(gathered, &record);
        if gathered.len() >= GATHERED {
            out.flush();
        }
    }

    /// Records the content of the store at the beginning of the recording.
    pub(crate) fn found(&self, store: &Store) -> furrow_zone::Result<()> {
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            for (name, node) in store.list(&directory)? {
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                let op = match node {
                    Node::File(id) => {
                        Op::Found { file: id.0, size: store.size(id)?, path: path.clone() }
                    }
                    Node::Directory => {
                        directories.push(path.clone());
                        Op::FoundDirectory { path }
                    }
                };
                self.put(self.take(), 0, 0, 0, op);
            }
        }
        Ok(())
    }

    /// Writes everything recorded so far to the file.
    pub(crate) fn flush(&self) {
        lock(&self.out).flush();
    }

    /// Ends the recording.
    pub(crate) fn end(&self) {
        let mut out = lock(&self.out);
        out.flush();
        out.ended = true;
    }
}

/// Executes a call and records it. `order` returns the number that the call took while it held the
/// engine, if any. `op` makes the record from the call's result, or from `None` if the call failed.
pub(crate) fn recorded<T>(
    recorder: Option<&Recorder>,
    body: impl FnOnce() -> Outcome<T>,
    order: impl FnOnce() -> Option<u64>,
    op: impl FnOnce(Option<&T>) -> Op,
) -> Outcome<T> {
    let Some(recorder) = recorder else { return body() };
    check_fork()?;
    let begin = recorder.now();
    let done = body();
    let took = recorder.now().saturating_sub(begin);
    let answer = done.as_ref().err().map_or(0, |failure| failure.kind as u8);
    let order = order().unwrap_or_else(|| recorder.take());
    recorder.put(order, begin, took, answer, op(done.as_ref().ok()));
    done
}
