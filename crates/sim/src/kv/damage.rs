//! Damaged images of file stores, which were stopped cleanly.
//!
//! In some cases a single block of the record ring or of content is damaged. Then everything that
//! was acknowledged must be there, or an error must name what is lost: the store is refused, or the
//! read of the file fails. `furrow kv fsck` finds the loss. A store whose loss the user accepts
//! opens and works.
//!
//! In the other cases one to three places are damaged, and record checksums are mostly made to fit
//! again. Then inspecting and checking may fail, but must neither panic nor hang, nor take memory
//! without limit.

use crate::crash::{Case, Subject};
use crate::image::{Image, Summary, restore};
use crate::kv::crash::KvSubject;
use crate::kv::promises::failed;
use furrow_emu::{Emulator, Medium, Options as Drive};
use furrow_kv::{CheckOptions, Lifetime, Node, Options, Snapshot, Store};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, ZonedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Maximum number of bytes per read, and of bytes read per file.
const READ: (usize, u64) = (64 << 10, 4 << 20);
/// Maximum number of files that are read.
const FILES: usize = 200;

impl Image {
    /// The image of the store that `seed` makes, undamaged.
    ///
    /// # Errors
    /// The errors of [`Image::make`].
    pub fn make_store(seed: u64) -> Result<Image, String> {
        let subject = KvSubject::default();
        // Tries seeds until the drive has blocks of 4 KiB, as an image must.
        let cases = (0..).map(|turn| Case { seed: seed ^ turn << 32, volatile: false });
        let fits = |case: &Case| subject.drive(*case).block_size.0 == 4096;
        let case = cases.into_iter().find(fits).unwrap_or(Case { seed, volatile: false });
        Image::of(&subject, case)
    }
}

/// Inspects a store as the commands do, without writing.
async fn look(device: &Rc<dyn ZonedDevice>) {
    let Ok(looked) = Snapshot::open(device.clone()).await else { return };
    let _ = (looked.space(), looked.ring(), looked.turn(), looked.label().len());
    let _ = looked.zones();
    let files: Vec<_> = looked.names().filter_map(|(_, node)| file_of(node)).collect();
    for id in files.into_iter().take(FILES) {
        let Some(info) = looked.file(id) else { continue };
        for at in (0..info.size.min(READ.1)).step_by(READ.0) {
            let _ = looked.read(id, at, READ.0).await;
        }
        let _ = looked.read(id, info.size.saturating_sub(10), 100).await;
    }
}

fn file_of(node: Node) -> Option<furrow_kv::FileId> {
    match node {
        Node::File(id) => Some(id),
        Node::Directory => None,
    }
}

/// Reads everything, then changes something; any call may fail.
async fn use_it(store: &Store) {
    let mut directories = vec![String::new()];
    let mut seen = 0;
    while let Some(directory) = directories.pop() {
        for (name, node) in store.list(&directory).unwrap_or_default() {
            let path = format!("{directory}/{name}");
            seen += 1;
            if seen > FILES {
                break;
            }
            let Some(id) = file_of(node) else {
                directories.push(path);
                continue;
            };
            let size = store.size(id).unwrap_or(0);
            for at in (0..size.min(READ.1)).step_by(READ.0) {
                let _ = store.read(id, at, READ.0).await;
            }
            let _ = match seen % 4 {
                0 => store.remove(&path),
                1 => store.rename(&path, &format!("{path}.moved")),
                2 => store.truncate(id, size / 2).await,
                _ => store.append(id, &[9; 5000]).await,
            };
        }
    }
    let _ = store.space();
    if let Ok(id) = store.create("after", Lifetime::Short) {
        let room = store.space().available.min(4 << 20);
        for _ in 0..room / 30_000 {
            if store.append(id, &[7; 30_000]).await.is_err() {
                break;
            }
        }
        let _ = store.sync(id).await;
        let _ = store.close(id).await;
    }
    let _ = store.sync_all().await;
}

/// The content of files by their paths; `None` is a directory.
type Files = BTreeMap<String, Option<Vec<u8>>>;

/// Puts an image on a drive and runs `work` there.
fn on_drive<T, F>(
    image: &Image,
    seed: u64,
    work: impl FnOnce(Rt, Emulator) -> F,
) -> Result<T, String>
where
    T: 'static,
    F: Future<Output = Result<T, String>> + 'static,
{
    let rt = Rt::new(Config::shuffled(seed));
    let medium = Medium::memory(&image.geometry);
    let drive = Emulator::new(&rt, image.geometry.clone(), medium, Drive::simulated());
    let drive = drive.map_err(|error| error.to_string())?;
    let (on, image) = (rt.clone(), image.clone());
    let work = work(on, drive.clone());
    let done = rt.block_on(async move {
        restore(&drive, &image).await?;
        work.await
    });
    rt.clear();
    done
}

/// Reads all files of a store. A file that cannot be read is left out, and its error must name it.
/// Returns the files, and the paths of the unreadable ones.
async fn files_of(store: &Store) -> Result<(Files, BTreeSet<String>), String> {
    let (mut files, mut unread) = (Files::new(), BTreeSet::new());
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for (name, node) in store.list(&directory).map_err(|e| failed("list", &e))? {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            let Node::File(id) = node else {
                files.insert(path.clone(), None);
                directories.push(path);
                continue;
            };
            let size = store.size(id).map_err(|e| failed("size", &e))?;
            match store.read(id, 0, size as usize).await {
                Ok(data) => drop(files.insert(path, Some(data.to_vec()))),
                Err(error) if error.to_string().contains(&path) => drop(unread.insert(path)),
                Err(error) => {
                    return Err(failed(&format!("read of {path} does not name it"), &error));
                }
            }
        }
    }
    Ok((files, unread))
}

/// Damages one block of an image of a store, and compares the files found with the files before.
///
/// # Errors
/// If something is lost and no error names it.
fn one_block(image: &Image, seed: u64, rng: &mut Rng) -> Result<Summary, String> {
    let whole = on_drive(image, seed, |rt, drive| async move {
        let opened = Store::open(&rt, Rc::new(drive), Options::default()).await;
        let store = opened.map_err(|error| failed("open of what is not damaged", &error))?;
        files_of(&store).await
    })?;
    let (known, _) = whole;
    let mut image = image.clone();
    let Some(place) = image.damage_one(rng) else { return Ok(Summary::default()) };
    on_drive(&image, seed, move |rt, drive| async move {
        let device: Rc<dyn ZonedDevice> = Rc::new(drive);
        let found = judge(&rt, &device, &known).await;
        found.map_err(|why| format!("zone {} block {} damaged: {why}", place.0, place.1))
    })
}

async fn judge(rt: &Rt, device: &Rc<dyn ZonedDevice>, known: &Files) -> Result<Summary, String> {
    let report = furrow_kv::check(&**device, &CheckOptions::default()).await;
    let findings = report.as_ref().ok().map(|report| report.problems.len());
    let (opened, mounted) = match Store::open(rt, device.clone(), Options::default()).await {
        Ok(store) => (Ok(store), true),
        Err(error) => {
            if error.kind() != ErrorKind::Corrupt || !error.to_string().contains("damaged") {
                return Err(failed("the refusal says nothing of damage", &error));
            }
            if findings == Some(0) {
                return Err(failed("fsck finds nothing, but", &error));
            }
            let accepted = Options { accept_loss: true, ..Options::default() };
            (Store::open(rt, device.clone(), accepted).await, false)
        }
    };
    // Without a superblock, no loss can be accepted.
    let Ok(store) = opened else { return Ok(Summary { mounted, findings }) };
    let (found, unread) = files_of(&store).await?;
    if mounted {
        for (path, content) in known {
            match found.get(path) {
                Some(found) if found == content => {}
                None if unread.contains(path) && findings > Some(0) => {}
                None if unread.contains(path) => return Err(format!("fsck misses {path}")),
                None => return Err(format!("{path} is gone, and nothing said so")),
                Some(_) => return Err(format!("{path} holds something else")),
            }
        }
        if let Some(path) = found.keys().find(|path| !known.contains_key(*path)) {
            return Err(format!("{path} was not there before"));
        }
    }
    use_it(&store).await;
    match store.stop().await {
        // The stop may lack space to make the last writes durable.
        Err(error) if error.kind() != ErrorKind::NoSpace => return Err(failed("stop", &error)),
        _ => {}
    }
    Store::open(rt, device.clone(), Options::default())
        .await
        .map_err(|error| failed("the next open", &error))?;
    Ok(Summary { mounted, findings })
}

/// Damages an image of a store as `seed` says and runs the tools on it.
///
/// # Errors
/// If an image cannot be put on a drive, or something is lost without a report. The caller
/// catches panics.
pub fn damaged_store(image: &Image, seed: u64) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0xda3a_57e0);
    if rng.one_in(2) {
        return one_block(image, seed, &mut rng);
    }
    let mut image = image.clone();
    image.damage(&mut rng);
    if !rng.one_in(4) {
        image.seal_records(|_| true);
    }
    on_drive(&image, seed, |on, drive| async move {
        let device: Rc<dyn ZonedDevice> = Rc::new(drive);
        let mut summary = Summary::default();
        let _ = furrow_kv::identify(&*device).await;
        let _ = furrow_kv::is_store(&*device).await;
        look(&device).await;
        let report = furrow_kv::check(&*device, &CheckOptions::default()).await;
        summary.findings = report.ok().map(|report| report.problems.len());
        if let Ok(store) = Store::open(&on, device, Options::default()).await {
            summary.mounted = true;
            use_it(&store).await;
            let _ = store.stop().await;
        }
        Ok(summary)
    })
}
