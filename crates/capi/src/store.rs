//! Stores: opening, names, space.

use crate::argument::{lifetime_of, put};
use crate::error::{Failure, Outcome, answer, furrow_error};
use crate::file::{furrow_file, opened};
use crate::options::{Chosen, options};
use crate::process::{check_fork, lock};
use crate::reader::Known;
use crate::shared::Shared;
use crate::tally::{Calls, Counted};
use furrow_kv::trace::Op;
use furrow_kv::{Family, FileId, FileKind, Node, Store};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

/// An open store.
pub struct furrow_store(pub(crate) Arc<Shared>);

/// Attributes of a path.
#[repr(C)]
pub struct furrow_stat {
    /// 1 for a directory, 0 for a file.
    pub is_directory: i32,
    /// Size of a file in bytes.
    pub size: u64,
    /// Time of a file's last write, seconds since 1970.
    pub modified: i64,
}

/// Space, in bytes unless stated otherwise.
#[repr(C)]
pub struct furrow_space {
    /// Number of bytes that files can hold.
    pub capacity: u64,
    /// Number of bytes that files hold.
    pub used: u64,
    /// Number of further bytes that files can hold without removals. Excludes the reserves for
    /// compactions and for the database's own state.
    pub available: u64,
    /// Number of zones for content.
    pub zones: u64,
    /// Number of zones for content that hold nothing.
    pub free_zones: u64,
    /// Maximum number of zones for content in use at one time since the store was opened.
    pub peak_zones: u64,
    /// Capacity of a zone.
    pub zone_bytes: u64,
}

/// Calls that used the engine.
#[repr(C)]
pub struct furrow_calls {
    /// Number of calls.
    pub calls: u64,
    /// Number of calls that another thread carried out.
    pub hops: u64,
}

impl From<Calls> for furrow_calls {
    fn from(Calls { calls, hops }: Calls) -> furrow_calls {
        furrow_calls { calls, hops }
    }
}

/// Counts of a store's work since it was opened.
#[repr(C)]
pub struct furrow_counters {
    /// Bytes that were appended.
    pub appended: u64,
    /// Bytes that were read.
    pub read: u64,
    /// Number of syncs.
    pub syncs: u64,
    /// Group commits, with one flush of the drive each.
    pub rounds: u64,
    /// Number of times that the record ring turned.
    pub turns: u64,
    /// Zones that cleaning emptied.
    pub cleaned: u64,
    /// Bytes that cleaning copied.
    pub copied: u64,
    /// Bytes of blob files that cleaning copied.
    pub copied_blobs: u64,
    /// Bytes of sorted tables that cleaning copied.
    pub copied_tables: u64,
    /// Zones that were reset.
    pub resets: u64,
    /// Extents that were written elsewhere because their zone failed.
    pub relocated: u64,
    /// Calls that used the engine.
    pub calls: u64,
    /// Number of calls that another thread carried out.
    pub hops: u64,
    /// Calls that append or truncate.
    pub append: furrow_calls,
    /// Calls that make files or names durable.
    pub sync: furrow_calls,
    /// Calls that read; reads that were started without waiting are not counted.
    pub read_calls: furrow_calls,
    /// Calls that open, create and close files.
    pub open: furrow_calls,
    /// Calls on names and directories.
    pub names: furrow_calls,
    /// Calls that low-priority threads handed to other threads.
    pub handed: u64,
    /// Number of times that a writer waited for cleaning to free space.
    pub waits: u64,
    /// Nanoseconds that writers waited for cleaning to free space.
    pub waited: u64,
    /// Number of requests that were refused because there was no space.
    pub refused: u64,
}

/// Receives one entry of a directory: name, whether it is a directory, and a file's size.
pub type furrow_each = Option<
    unsafe extern "C" fn(argument: *mut c_void, name: *const c_char, stat: *const furrow_stat),
>;

/// The caller's string.
///
/// # Safety
/// `text` is null, or ends with a zero and does not change meanwhile.
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Outcome<String> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what}: a null pointer")));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    let utf8 = text.to_str().map_err(|_| Failure::invalid(format!("{what}: not UTF-8")))?;
    Ok(utf8.to_owned())
}

/// The store behind a caller's handle.
///
/// # Safety
/// `store` is null, or was returned by `furrow_store_open` and was not closed.
pub(crate) unsafe fn shared(store: *const furrow_store) -> Outcome<Arc<Shared>> {
    // SAFETY: as the caller promises.
    let store = unsafe { store.as_ref() };
    store.map(|store| store.0.clone()).ok_or_else(|| Failure::invalid("store: a null pointer"))
}

/// Opens the store on `device`: the image of an emulated drive, or `mem:...`, which begins empty. A
/// store that this process has open already is shared, with the options it was opened with.
///
/// `options` may be null, or options separated by commas: `clean-below=PERCENT` (20), the share of
/// free zones below which cleaning begins; `policy=NAME` (baza; shared, liza-paper, liza-zenfs,
/// generations), which files share zones; `record=FILE`, a file of the host in which all calls are
/// recorded in the format of crates/kv/src/trace.rs (`furrow kv trace`). With `ro` alone the store
/// is only read, in its present state: from its drive, which no program can then open for writing,
/// or through the program that uses it, which keeps working. Functions that would change it fail
/// with `FURROW_READ_ONLY`.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_open(
    device: *const c_char,
    options_text: *const c_char,
    store: *mut *mut furrow_store,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let device = text(device, "device")?;
            let chosen = match options_text.is_null() {
                true => String::new(),
                false => text(options_text, "options")?,
            };
            let shared = match options(&chosen)? {
                Chosen::ReadOnly => Shared::open_to_read(&device)?,
                Chosen::Changed(options, record) => {
                    Shared::open(&device, options, record.as_deref())?
                }
            };
            put(store, Box::into_raw(Box::new(furrow_store(shared))), "store")
        })
    }
}

/// Makes a store on an empty drive, an image of `furrow device create`. Fails with `FURROW_EXISTS`
/// if the drive holds data. `label` may be null; it has at most 63 bytes.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_format(
    device: *const c_char,
    label: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let device = text(device, "device")?;
            let label = if label.is_null() { String::new() } else { text(label, "label")? };
            crate::shared::format(&device, label)
        })
    }
}

/// Closes a store. When the last user closes it (open files count as users), it is made durable
/// and ends.
///
/// # Safety
/// As the crate's description says; `store` is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_close(
    store: *mut furrow_store,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            if store.is_null() {
                return Ok(());
            }
            Shared::leave(Box::from_raw(store).0)
        })
    }
}

/// Makes all names durable: everything created, renamed and removed until now.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_sync(
    store: *const furrow_store,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let sync = |store: Store| async move { store.sync_names().await };
            let shared = shared(store)?;
            if shared.reader.is_some() {
                return check_fork();
            }
            shared.record(Counted::Sync, |call| call.engine(sync), |_| Op::SyncNames)
        })
    }
}

/// Makes all names durable, and all files in their present state.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_sync_all(
    store: *const furrow_store,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let sync = |store: Store| async move { store.sync_all().await };
            // In the child of a fork, the recording belongs to the parent.
            check_fork()?;
            let shared = shared(store)?;
            if shared.reader.is_some() {
                return check_fork();
            }
            let done = shared.record(Counted::Sync, |call| call.engine(sync), |_| Op::SyncAll);
            shared.recorder.iter().for_each(|recorder| recorder.flush());
            done
        })
    }
}

/// Returns the space of a store.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_space(
    store: *const furrow_store,
    space: *mut furrow_space,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let look = |store: &Store| Ok((store.space(), store.zone_blocks()));
            let (found, zone_blocks) = shared(store)?.now(Counted::Other, look)?;
            let found = furrow_space {
                capacity: found.capacity,
                used: found.used,
                available: found.available,
                zones: u64::from(found.zones),
                free_zones: u64::from(found.free_zones),
                peak_zones: u64::from(found.peak_zones),
                zone_bytes: u64::from(zone_blocks) * 4096,
            };
            put(space, found, "space")
        })
    }
}

/// Returns the counts of a store's work since it was opened.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_store_counters(
    store: *const furrow_store,
    counters: *mut furrow_counters,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let shared = shared(store)?;
            let found = shared.now(Counted::Other, |store| Ok(store.counters()))?;
            let all = shared.tally.all();
            let counted = furrow_counters {
                appended: found.appended,
                read: found.read,
                syncs: found.syncs,
                rounds: found.rounds,
                turns: found.turns,
                cleaned: found.cleaned,
                copied: found.copied * 4096,
                copied_blobs: found.copied_of[FileKind::Blob as usize] * 4096,
                copied_tables: found.copied_of[FileKind::Table as usize] * 4096,
                resets: found.resets,
                relocated: found.relocated,
                calls: all.calls,
                hops: all.hops,
                append: shared.tally.of(Counted::Append).into(),
                sync: shared.tally.of(Counted::Sync).into(),
                read_calls: shared.tally.of(Counted::Read).into(),
                open: shared.tally.of(Counted::Open).into(),
                names: shared.tally.of(Counted::Names).into(),
                handed: shared.tally.handed(),
                waits: found.waits,
                waited: found.waited,
                refused: found.refused,
            };
            put(counters, counted, "counters")
        })
    }
}

/// Carries out a change of names that takes two strings and does not wait for the drive.
///
/// # Safety
/// As the crate's description says.
unsafe fn rename_like(
    store: *const furrow_store,
    paths: [*const c_char; 2],
    error: *mut furrow_error,
    change: fn(&Store, &str, &str) -> furrow_zone::Result<()>,
    op: fn(String, String) -> Op,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let (from, to) = (text(paths[0], "from")?, text(paths[1], "to")?);
            let (asked, other) = (from.clone(), to.clone());
            let change = move |store: &Store| change(store, &from, &to);
            shared(store)?.record(Counted::Names, |call| call.now(change), |_| op(asked, other))
        })
    }
}

/// Like [`rename_like`], for a change of one path.
///
/// # Safety
/// As the crate's description says.
unsafe fn change(
    store: *const furrow_store,
    path: *const c_char,
    error: *mut furrow_error,
    change: fn(&Store, &str) -> furrow_zone::Result<()>,
    op: fn(String) -> Op,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            let asked = path.clone();
            let change = move |store: &Store| change(store, &path);
            shared(store)?.record(Counted::Names, |call| call.now(change), |_| op(asked))
        })
    }
}

/// Renames a file or a directory; a file that has the new name is removed.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_rename(
    store: *const furrow_store,
    from: *const c_char,
    to: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        let op = |from, to| Op::Rename { from, to };
        rename_like(store, [from, to], error, |store, from, to| store.rename(from, to), op)
    }
}

/// Gives a file another name.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_link(
    store: *const furrow_store,
    from: *const c_char,
    to: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        let op = |from, to| Op::Link { from, to };
        rename_like(store, [from, to], error, |store, from, to| store.link(from, to), op)
    }
}

/// Removes a file's name; the file itself is dropped once no handle has it open.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_remove(
    store: *const furrow_store,
    path: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        change(store, path, error, |store, path| store.remove(path), |path| Op::Remove { path })
    }
}

/// Makes a directory.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_make_directory(
    store: *const furrow_store,
    path: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        change(
            store,
            path,
            error,
            |store, path| store.make_directory(path),
            |path| Op::MakeDirectory { path },
        )
    }
}

/// Removes an empty directory.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_remove_directory(
    store: *const furrow_store,
    path: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        change(
            store,
            path,
            error,
            |store, path| store.remove_directory(path),
            |path| Op::RemoveDirectory { path },
        )
    }
}

fn stat_of(store: &Store, path: &str) -> furrow_zone::Result<furrow_stat> {
    let stat = store.stat(path)?;
    let is_directory = i32::from(stat.node == Node::Directory);
    Ok(furrow_stat { is_directory, size: stat.size, modified: stat.modified })
}

fn stat_of_known(file: Option<Known>) -> furrow_stat {
    let (size, modified) = file.map_or((0, 0), |file| (file.size, file.modified));
    furrow_stat { is_directory: i32::from(file.is_none()), size, modified }
}

/// Information about a path.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_stat_path(
    store: *const furrow_store,
    path: *const c_char,
    stat: *mut furrow_stat,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            let (shared, asked) = (shared(store)?, path.clone());
            if let Some(reader) = &shared.reader {
                check_fork()?;
                return put(stat, stat_of_known(reader.get(&path)?), "stat");
            }
            let find = move |store: &Store| stat_of(store, &path);
            let op = |_: Option<&furrow_stat>| Op::Stat { path: asked };
            let found = shared.record(Counted::Names, |call| call.now(find), op)?;
            put(stat, found, "stat")
        })
    }
}

/// Calls `each` for every entry of a directory, in order of names. `each` may use the store.
///
/// # Safety
/// As the crate's description says; `each` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_list(
    store: *const furrow_store,
    path: *const c_char,
    each: furrow_each,
    argument: *mut c_void,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            let each = each.ok_or_else(|| Failure::invalid("each: a null pointer"))?;
            let (shared, asked) = (shared(store)?, path.clone());
            if let Some(reader) = &shared.reader {
                check_fork()?;
                for (name, file) in reader.list(&path)? {
                    let (Ok(name), stat) = (CString::new(name), stat_of_known(file)) else {
                        continue;
                    };
                    each(argument, name.as_ptr(), &raw const stat);
                }
                return Ok(());
            }
            let find = move |store: &Store| {
                let stat = |name: &str| stat_of(store, &format!("{path}/{name}"));
                let with = |(name, _): (String, Node)| Some((stat(&name).ok()?, name));
                Ok(store.list(&path)?.into_iter().filter_map(with).collect::<Vec<_>>())
            };
            let op = |_: Option<&Vec<_>>| Op::List { path: asked };
            let found = shared.record(Counted::Names, |call| call.now(find), op)?;
            for (stat, name) in found {
                // Names contain no zeros: they came from C, or from a checked record.
                let Ok(name) = CString::new(name) else { continue };
                each(argument, name.as_ptr(), &raw const stat);
            }
            Ok(())
        })
    }
}

/// States the column family of the blob file with this name, or of the next file created with this
/// name: blob files of one family are collected apart from those of others.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_set_family(
    store: *const furrow_store,
    path: *const c_char,
    family: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        let op = |path, family| Op::SetFamily { path, family };
        rename_like(
            store,
            [path, family],
            error,
            |store, path, name| store.set_family(path, name),
            op,
        )
    }
}

/// For the family of the database in `directory`: the smallest of the numbers of the youngest blob
/// files, one for each full zone with blob files of the family (YBIZ). The file with that number
/// may be gone while other files of the zone exist. `zones` is the number of such zones; if it is
/// 0, so is `youngest`.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_smallest_youngest(
    store: *const furrow_store,
    directory: *const c_char,
    family: *const c_char,
    youngest: *mut u64,
    zones: *mut u64,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let directory = text(directory, "directory")?;
            let family = Family { directory, name: text(family, "family")? };
            let found = shared(store)?
                .now(Counted::Other, move |store| store.youngest_in_full_zones(&family))?;
            let smallest = found.iter().map(|(_, number)| *number).min();
            put(youngest, smallest.unwrap_or(0), "youngest")?;
            put(zones, found.len() as u64, "zones")
        })
    }
}

/// States that these bytes of a file will not be read again. Until their zones are cleaned they
/// read as they were written, then as zeros, and take no space. Offsets do not change. For a file
/// with several names this does nothing. Fails with `FURROW_INVALID` if the range goes beyond the
/// file's end.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_forget(
    store: *const furrow_store,
    path: *const c_char,
    offset: u64,
    len: u64,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            shared(store)?.now(Counted::Other, move |store| match store.stat(&path)?.node {
                Node::File(id) => store.forget(id, offset, len),
                Node::Directory => {
                    let message = format!("{path}: a directory");
                    Err(furrow_zone::Error::new(furrow_zone::ErrorKind::IsDirectory, message))
                }
            })
        })
    }
}

/// Locks a name against other callers in this process. Other processes cannot open the drive as
/// long as the store is open. Fails with `FURROW_BUSY` if the name is locked.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_lock(
    store: *const furrow_store,
    path: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            check_fork()?;
            let shared = shared(store)?;
            if lock(&shared.locks).insert(path.clone()) {
                return Ok(());
            }
            let message = format!("{path}: locked already, by this process");
            Err(Failure::new(crate::error::furrow_kind::FURROW_BUSY, message))
        })
    }
}

/// Releases a lock.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_unlock(
    store: *const furrow_store,
    path: *const c_char,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            check_fork()?;
            let shared = shared(store)?;
            if lock(&shared.locks).remove(&path) {
                return Ok(());
            }
            Err(Failure::invalid(format!("{path}: not locked")))
        })
    }
}

/// Creates an empty file and opens it; a file with that name is removed. `lifetime` is the expected
/// lifetime in RocksDB's numbers: 0 not set, 1 no hint, 2 short to 5 extreme.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_create(
    store: *const furrow_store,
    path: *const c_char,
    lifetime: i32,
    file: *mut *mut furrow_file,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            let lifetime = lifetime_of(lifetime)?;
            let (shared, asked) = (shared(store)?, path.clone());
            let create = move |store: &Store| store.create(&path, lifetime);
            let op = |id: Option<&FileId>| Op::Create {
                file: id.map_or(0, |id| id.0),
                lifetime,
                path: asked,
            };
            let id = shared.record(Counted::Open, |call| call.now(create), op)?;
            put(file, opened(shared, id, true), "file")
        })
    }
}

/// Opens a file. Its content stays as long as it is open, even if its names are removed.
///
/// # Safety
/// As the crate's description says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_open(
    store: *const furrow_store,
    path: *const c_char,
    file: *mut *mut furrow_file,
    error: *mut furrow_error,
) -> i32 {
    // SAFETY: as the caller promises.
    unsafe {
        answer(error, || {
            let path = text(path, "path")?;
            let (shared, asked) = (shared(store)?, path.clone());
            if let Some(reader) = &shared.reader {
                check_fork()?;
                let id = reader.file(&path)?;
                return put(file, opened(shared, id, false), "file");
            }
            let open = move |store: &Store| store.open_file(&path);
            let op = |id: Option<&FileId>| Op::Open { file: id.map_or(0, |id| id.0), path: asked };
            let id = shared.record(Counted::Open, |call| call.now(open), op)?;
            put(file, opened(shared, id, false), "file")
        })
    }
}
