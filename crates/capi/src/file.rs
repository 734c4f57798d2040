//! Files: appending, reading, syncing.

use crate::argument::{lifetime_of, put};
use crate::call::Call;
use crate::error::{Failure, Outcome, answer, furrow_error, furrow_kind};
use crate::process::{check_fork, lock};
use crate::record::{Recorder, recorded};
use crate::shared::Shared;
use crate::tally::Counted;
use furrow_kv::trace::Op;
use furrow_kv::{Claim, Data, FileId, PreparedAppend, Store, crc32c};
use furrow_rt::Page;
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

/// An open file. Any thread may read; threads that append take turns.
pub struct furrow_file {
    shared: Arc<Shared>,
    id: FileId,
    /// The file's size and its last page, if this handle wrote the whole file.
    end: Mutex<Option<(u64, Page)>>,
}

/// A read that was started.
pub struct furrow_read {
    result: Receiver<furrow_zone::Result<Data>>,
    /// The store's recording, and the number of this read in it.
    recorder: Option<Arc<Recorder>>,
    number: u64,
}

/// A new handle for C to the open file `id`.
pub(crate) fn opened(shared: Arc<Shared>, id: FileId, is_new: bool) -> *mut furrow_file {
    let end = is_new.then(|| (0, Page::zeroed()));
    Box::into_raw(Box::new(furrow_file { shared, id, end: Mutex::new(end) }))
}

/// The file behind a caller's handle.
///
/// # Safety
/// `file` is null, or was returned by `furrow_create` or `furrow_open` and was not closed.
unsafe fn file<'a>(file: *const furrow_file) -> Outcome<&'a furrow_file> {
    // SAFETY: as the caller promises.
    unsafe { file.as_ref() }.ok_or_else(|| Failure::invalid("file: a null pointer"))
}

/// The caller's bytes as a slice.
///
/// # Safety
/// `bytes` may be read for `len` bytes, and does not change meanwhile.
unsafe fn slice<'a>(bytes: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() {
        return Err(Failure::invalid("bytes: a null pointer"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

impl furrow_file {
    /// Appends `bytes`; returns the size of the file before the append.
    fn append(&self, call: &Call<'_>, bytes: &[u8]) -> Outcome<u64> {
        check_fork()?;
        let id = self.id;
        let mut end = lock(&self.end);
        if let Some((from, tail)) = end.take() {
            let prepared = PreparedAppend::new(from, &tail, bytes, &self.shared.pages);
            let after = (from + bytes.len() as u64, prepared.tail().clone());
            let fits = call.engine(move |store: Store| async move {
                store.append_prepared(id, prepared).await
            })?;
            if fits {
                *end = Some(after);
                return Ok(from);
            }
        }
        // The file existed before, or another handle has written to it.
        let bytes = bytes.to_vec();
        call.engine(move |store| {
            let from = store.size(id);
            async move { store.append(id, &bytes).await.and(from) }
        })
    }

    fn truncate(&self, call: &Call<'_>, size: u64) -> Outcome {
        let id = self.id;
        let mut end = lock(&self.end);
        if end.as_ref().is_some_and(|(now, _)| *now == size) {
            return Ok(());
        }
        *end = None;
        call.engine(move |store: Store| async move { store.truncate(id, size).await })
    }

    fn size(&self) -> Outcome<u64> {
        let id = self.id;
        if let Some(reader) = &self.shared.reader {
            check_fork()?;
            return Ok(reader.size(id));
        }
        self.shared.now(Counted::Other, move |store| store.size(id))
    }
}

/// Appends bytes. They can be read at once, through any handle; they are durable after
/// `furrow_file_sync`. If it fails with `FURROW_NO_SPACE`, no byte was appended.
///
/// # Safety
/// As the crate's description says; `bytes` may be read for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_append(
    to: *const furrow_file,
    bytes: *const c_void,
    len: usize,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let (to, bytes) = (file(to)?, slice(bytes, len)?);
            let op = |offset: Option<&u64>| Op::Append {
                file: to.id.0,
                offset: offset.copied().unwrap_or(0),
                len: bytes.len() as u64,
                sum: crc32c(bytes),
            };
            to.shared.record(Counted::Append, |call| to.append(call, bytes), op).map(drop)
        })
    }
}

/// Writes bytes at `offset`; if the file is longer, it is truncated there first. Fails with
/// `FURROW_INVALID` if the file ends before `offset`.
///
/// # Safety
/// The rules of [`furrow_file_append`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_append_at(
    to: *const furrow_file,
    offset: u64,
    bytes: *const c_void,
    len: usize,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let (to, bytes) = (file(to)?, slice(bytes, len)?);
            let (file, len) = (to.id.0, bytes.len() as u64);
            let op = |_: Option<&u64>| Op::AppendAt { file, offset, len, sum: crc32c(bytes) };
            let write = |call: &Call<'_>| {
                to.truncate(call, offset)?;
                to.append(call, bytes)
            };
            to.shared.record(Counted::Append, write, op).map(drop)
        })
    }
}

/// Truncates a file. Fails with `FURROW_INVALID` if it is shorter.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_truncate(
    of: *const furrow_file,
    size: u64,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            let op = |_: Option<&()>| Op::Truncate { file: of.id.0, size };
            of.shared.record(Counted::Append, |call| of.truncate(call, size), op)
        })
    }
}

/// Makes a file in its present state and all names durable.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_sync(of: *const furrow_file, error: *mut furrow_error) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            let id = of.id;
            let sync = move |store: Store| async move { store.sync(id).await };
            of.shared.record(Counted::Sync, |call| call.engine(sync), |_| Op::Sync { file: id.0 })
        })
    }
}

/// Adds to a recording of the store that a buffer was flushed (RocksDB's `Flush`), and does nothing
/// else: appended bytes can be read already, and are durable only after `furrow_file_sync`.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_flush(
    of: *const furrow_file,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            of.shared.record(Counted::Other, |_| check_fork(), |_| Op::Flush { file: of.id.0 })
        })
    }
}

/// Adds to a recording of the store that writeback of a part of the file was requested (RocksDB's
/// `RangeSync`), and does nothing else: a store begins to write appended bytes without being asked.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_range_sync(
    of: *const furrow_file,
    offset: u64,
    len: u64,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            of.shared.record(
                Counted::Other,
                |_| check_fork(),
                |_| Op::RangeSync { file: of.id.0, offset, len },
            )
        })
    }
}

/// The size of a file in bytes.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_size(
    of: *const furrow_file,
    size: *mut u64,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { answer(error, || put(size, file(of)?.size()?, "size")) }
}

/// A number that no other file of the store ever has.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_id(
    of: *const furrow_file,
    id: *mut u64,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { answer(error, || put(id, file(of)?.id.0, "id")) }
}

/// Sets the expected lifetime of a file, as in `furrow_create`. Placed blocks stay where they are.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_set_lifetime(
    of: *const furrow_file,
    lifetime: i32,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let (of, lifetime) = (file(of)?, lifetime_of(lifetime)?);
            let id = of.id;
            let set = move |store: &Store| store.set_lifetime(id, lifetime);
            let op = |_: Option<&()>| Op::SetLifetime { file: id.0, lifetime };
            of.shared.record(Counted::Other, |call| call.now(set), op)
        })
    }
}

/// States who writes a file: `claim` is 0 for anyone, 1 for a compaction, 2 for a flush of a log.
/// The last two may use reserved space, so that they can complete, and the files they replace can
/// be removed, when others find no space.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_set_claim(
    of: *const furrow_file,
    claim: i32,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            let claim = match claim {
                0 => Claim::Others,
                1 => Claim::Compaction,
                2 => Claim::Flush,
                _ => return Err(Failure::invalid(format!("claim {claim}: expected 0 to 2"))),
            };
            let id = of.id;
            of.shared.now(Counted::Other, move |store| store.set_claim(id, claim))
        })
    }
}

/// Copies `data`, which was read, to the caller's buffer. Returns the number of bytes.
///
/// # Safety
/// `buffer` may be written for `len` bytes, and no other thread uses it meanwhile.
unsafe fn copy(data: &Data, buffer: *mut c_void, len: usize) -> Outcome<usize> {
    if data.len() > len {
        return Err(Failure::invalid("the buffer is shorter than what was asked for"));
    }
    if buffer.is_null() && !data.is_empty() {
        return Err(Failure::invalid("buffer: a null pointer"));
    }
    let mut to = buffer.cast::<u8>();
    for chunk in data.chunks() {
        // SAFETY: the chunks have as many bytes as `data`, and the buffer has space for them.
        unsafe {
            to.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len());
            to = to.add(chunk.len());
        }
    }
    Ok(data.len())
}

/// Reads `len` bytes from `offset` on; `got` gets the number of bytes read, which is less only at
/// the file's end.
///
/// # Safety
/// As the crate's description says; `buffer` may be written for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_read(
    of: *const furrow_file,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    got: *mut usize,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            let id = of.id;
            if let Some(reader) = &of.shared.reader {
                check_fork()?;
                return put(
                    got,
                    copy(&Data::of(&reader.read(id, offset, len)?), buffer, len)?,
                    "got",
                );
            }
            let read = move |store: Store| async move { store.read(id, offset, len).await };
            let op = |got: Option<&usize>| Op::Read {
                file: id.0,
                offset,
                len: len as u64,
                got: got.map_or(0, |got| *got as u64),
            };
            let copied = |call: &Call<'_>| copy(&call.engine(read)?, buffer, len);
            put(got, of.shared.record(Counted::Read, copied, op)?, "got")
        })
    }
}

/// Starts a read. `furrow_read_wait` returns its result; `furrow_read_end` ends the read, whether
/// it was waited for or not. The file and buffers are not used after this returns, so they may be
/// closed or freed.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_read_begin(
    of: *const furrow_file,
    offset: u64,
    len: usize,
    read: *mut *mut furrow_read,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let of = file(of)?;
            check_fork()?;
            let id = of.id;
            let recorder = of.shared.recorder.clone();
            let number = recorder.as_deref().map_or(0, Recorder::read);
            let begin = |_: &Call<'_>| {
                let (sender, result) = sync_channel(1);
                if let Some(reader) = &of.shared.reader {
                    // The channel has space for one message, so the send succeeds.
                    let _ = sender.try_send(Ok(Data::of(&reader.read(id, offset, len)?)));
                    return Ok(result);
                }
                of.shared.port()?.submit(move |rt, engine| {
                    let store = engine.store.clone();
                    rt.run_now(async move {
                        // The receiver is gone if the caller has ended the read.
                        let _ = sender.try_send(store.read(id, offset, len).await);
                    });
                });
                Ok(result)
            };
            let op =
                |_: Option<&_>| Op::ReadBegin { read: number, file: id.0, offset, len: len as u64 };
            let result = of.shared.record(Counted::Read, begin, op)?;
            put(read, Box::into_raw(Box::new(furrow_read { result, recorder, number })), "read")
        })
    }
}

/// Waits for a read and copies its bytes, at most `len`, to `buffer`. May be called once.
///
/// # Safety
/// As the crate's description says; `buffer` may be written for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_read_wait(
    read: *const furrow_read,
    buffer: *mut c_void,
    len: usize,
    got: *mut usize,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            check_fork()?;
            let read = read.as_ref().ok_or_else(|| Failure::invalid("read: a null pointer"))?;
            let gone = || Failure::new(furrow_kind::FURROW_IO, "the store has stopped");
            let wait = || {
                let data = read.result.recv().map_err(|_| gone())??;
                copy(&data, buffer, len)
            };
            let op = |got: Option<&usize>| Op::ReadWait {
                read: read.number,
                got: got.map_or(0, |got| *got as u64),
            };
            put(got, recorded(read.recorder.as_deref(), wait, || None, op)?, "got")
        })
    }
}

/// Ends a read, even one that was not waited for.
///
/// # Safety
/// As the crate's description says; `read` is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_read_end(read: *mut furrow_read) {
    if !read.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(read) });
    }
}

/// Closes a file. Unsynced content is sent to the drive, but is not durable.
///
/// # Safety
/// As the crate's description says; `file` is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_file_close(
    closed: *mut furrow_file,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            if closed.is_null() {
                return Ok(());
            }
            let furrow_file { shared, id, .. } = *Box::from_raw(closed);
            if shared.reader.is_some() {
                return Shared::leave(shared);
            }
            let close = move |store: Store| async move { store.close(id).await };
            let done = shared.record(
                Counted::Open,
                |call| call.engine(close),
                |_| Op::Close { file: id.0 },
            );
            done.and(Shared::leave(shared))
        })
    }
}
