//! Damaged images of file stores. Inspecting and checking may refuse what they find, but must
//! neither panic nor hang, nor take memory without limit.

use crate::crash::{Case, Subject};
use crate::image::{Image, Summary, restore};
use crate::kv::crash::KvSubject;
use furrow_emu::{Emulator, Medium, Options as Drive};
use furrow_kv::{CheckOptions, Lifetime, Node, Options, Snapshot, Store};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::ZonedDevice;
use std::rc::Rc;

/// Most bytes per read, and most bytes read of a file.
const READ: (usize, u64) = (64 << 10, 4 << 20);
/// Most files that are read.
const FILES: usize = 200;

impl Image {
    /// The image of a store by `seed`, undamaged.
    ///
    /// # Errors
    /// As [`Image::make`].
    pub fn make_store(seed: u64) -> Result<Image, String> {
        let subject = KvSubject::default();
        // Images have the block size of drives.
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

/// Damages an image of a store as `seed` says and runs the tools on it.
///
/// # Errors
/// If an image cannot be put on a drive. Panics are the caller's to catch.
pub fn damaged_store(image: &Image, seed: u64) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0xda3a_57e0);
    let mut image = image.clone();
    image.damage(&mut rng);
    if !rng.one_in(4) {
        image.seal_records(|_| true);
    }
    let rt = Rt::new(Config::shuffled(seed));
    let medium = Medium::memory(&image.geometry);
    let drive = Emulator::new(&rt, image.geometry.clone(), medium, Drive::simulated());
    let drive = drive.map_err(|error| error.to_string())?;
    let on = rt.clone();
    let summary = rt.block_on(async move {
        restore(&drive, &image).await?;
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
    });
    rt.clear();
    summary
}
