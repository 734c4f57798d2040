//! Repairs of damaged images: the result is never worse than before.
//!
//! A file that is readable in the damaged file system, with the content of the undamaged one, must
//! be readable after the repair too: under its path, or in `lost+found`. After a repair that is
//! called sound, fsck finds nothing. Planning a repair leaves the drive unchanged, byte for byte,
//! and a plan that helps nothing is not carried out. In some cases the power is cut at a command of
//! the repair, and the next repair has to complete it.

use crate::image::{Image, read, restore};
use furrow_emu::{CommandInfo, Emulator, Fates, Medium, Options, Snapshot};
use furrow_fs::{
    Fs, FsckOptions, GcOptions, Ino, Kind, MountOptions, Repair, RepairOptions, Verdict, fsck,
};
use furrow_rt::{Config, Nanos, Rng, Rt};
use furrow_zone::{Error, Overlay, ZonedDevice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// Maximum number of bytes of a file that are compared, from its start.
const CONTENT_MAX: usize = 1 << 20;

/// The contents of the readable files and links, by path.
type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

/// The outcome of the repair of a damaged image.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Whether the check found nothing wrong, so nothing was repaired.
    pub clean: bool,
    /// Whether the image is completely repaired.
    pub sound: bool,
    /// Whether the image is partly repaired.
    pub better: bool,
    /// Whether the image cannot be repaired, and is unchanged.
    pub untouched: bool,
    /// Whether the check was refused: no file system is recognised.
    pub refused: bool,
    /// Whether the power was cut during the repair.
    pub cut: bool,
    /// Number of files that were readable before the repair, and still are.
    pub files: usize,
    /// The reason why the image is not repaired.
    pub why: String,
}

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = [
            (self.clean, "nothing wrong"),
            (self.sound, "mended"),
            (self.better, "mended in part"),
            (self.untouched, "not mended"),
            (self.refused, "refused"),
        ];
        let end = ends.iter().find(|(is, _)| *is).map_or("?", |(_, text)| text);
        let cut = if self.cut { ", the power was cut" } else { "" };
        write!(f, "{end}, {} files as before{cut}", self.files)?;
        if self.why.is_empty() { Ok(()) } else { write!(f, ": {}", self.why) }
    }
}

fn quiet() -> MountOptions {
    MountOptions {
        commit_interval: 100_000 * Nanos::SECOND,
        gc: GcOptions { background: false, ..GcOptions::default() },
        ..MountOptions::default()
    }
}

/// Every readable file and link that is found through readable directories.
async fn files(fs: &Fs) -> Tree {
    let mut tree = Tree::new();
    let mut seen = BTreeSet::from([Ino::ROOT]);
    let mut todo = vec![(Ino::ROOT, Vec::new())];
    while let Some((directory, path)) = todo.pop() {
        let mut cookie = 0;
        for _ in 0..256 {
            let Ok(entries) = fs.readdir(directory, cookie, 64).await else { break };
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in &entries {
                let Ok(attr) = fs.lookup(directory, &entry.name).await else { continue };
                let at = [&path[..], b"/", &entry.name].concat();
                let content = match attr.kind {
                    Kind::File => {
                        let length = (attr.size as usize).min(CONTENT_MAX);
                        fs.read(attr.ino, 0, length).await.map(|data| data.to_vec())
                    }
                    Kind::Symlink => fs.readlink(attr.ino).await,
                    Kind::Directory => {
                        if seen.insert(attr.ino) {
                            todo.push((attr.ino, at));
                        }
                        continue;
                    }
                    _ => Ok(Vec::new()),
                };
                if let Ok(mut content) = content {
                    content.extend(attr.size.to_le_bytes());
                    content.push(attr.kind.code());
                    tree.insert(at, content);
                }
            }
        }
    }
    tree
}

/// The files and links that a mount of `device` shows. The device does not change.
async fn look(rt: &Rt, device: Rc<dyn ZonedDevice>) -> Option<Tree> {
    let view = Overlay::new(rt, device).await.ok()?;
    let fs = Fs::mount(rt, Rc::new(view), quiet()).await.ok()?;
    let tree = files(&fs).await;
    let _ = fs.unmount().await;
    Some(tree)
}

fn told(what: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{what}: {error}")
}

/// Damages `image` as `seed` determines, and repairs it.
///
/// # Errors
/// Describes what is worse than before. The caller catches panics.
pub fn repaired(image: &Image, seed: u64) -> Result<Repaired, String> {
    let mut rng = Rng::new(seed ^ 0x3e9a_12ed);
    let mut damaged = image.clone();
    damaged.damage(&mut rng);
    if rng.one_in(2) {
        damaged.mend();
    }
    let options = RepairOptions {
        older_checkpoint: rng.one_in(2),
        zero_bad_data: rng.one_in(4),
        ..RepairOptions::default()
    };
    let cut = rng.one_in(4).then(|| rng.next());
    let rt = Rt::new(Config::shuffled(seed));
    let drive = |image: &Image| {
        let medium = Medium::memory(&image.geometry);
        let drive = Emulator::new(&rt, image.geometry.clone(), medium, Options::simulated());
        drive.map_err(|error| error.to_string())
    };
    let (whole, drive) = (drive(image)?, drive(&damaged)?);
    let (on, image) = (rt.clone(), image.clone());
    let result = rt.block_on(async move {
        restore(&whole, &image).await?;
        restore(&drive, &damaged).await?;
        let truth = look(&on, Rc::new(whole)).await.ok_or("the undamaged image does not mount")?;
        let mut before = look(&on, Rc::new(drive.clone())).await.unwrap_or_default();
        before.retain(|path, content| truth.get(path) == Some(content));
        repair(&on, drive, options, cut, &before).await
    });
    rt.clear();
    result
}

async fn repair(
    rt: &Rt,
    drive: Emulator,
    options: RepairOptions,
    cut: Option<u64>,
    before: &Tree,
) -> Result<Repaired, String> {
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let mut summary = Repaired::default();
    let untouched = read(&drive).await?;
    let plan = match Repair::plan(rt, device.clone(), &options).await {
        Ok(plan) => plan,
        Err(_) => return Ok(Repaired { refused: true, ..summary }),
    };
    if read(&drive).await? != untouched {
        return Err("a plan has changed the drive".into());
    }
    match plan.verdict.clone() {
        Verdict::Clean => return Ok(Repaired { clean: true, ..summary }),
        Verdict::Hopeless(why) => return Ok(Repaired { untouched: true, why, ..summary }),
        Verdict::Sound => summary.sound = true,
        Verdict::Better => summary.better = true,
    }
    let drive = match cut {
        None => {
            plan.apply(|_, _| {}).await.map_err(told("apply"))?;
            drive
        }
        Some(random) => {
            summary.cut = true;
            cut_and_finish(rt, &drive, &plan, options, random).await?
        }
    };
    let device: Rc<dyn ZonedDevice> = Rc::new(drive);
    if summary.sound {
        let report = fsck(device.clone(), &FsckOptions::default()).await.map_err(told("fsck"))?;
        if let Some(finding) = report.findings.first() {
            return Err(format!("left by a repair that was called sound: {finding}"));
        }
    }
    let after = match look(rt, device).await {
        Some(after) => after,
        None if summary.better && before.is_empty() => return Ok(summary),
        None => return Err("it does not mount after the repair".into()),
    };
    let found: BTreeSet<&Vec<u8>> = after
        .iter()
        .filter(|(path, _)| path.starts_with(b"/lost+found"))
        .map(|(_, content)| content)
        .collect();
    for (path, content) in before {
        if after.get(path) != Some(content) && !found.contains(content) {
            let path = String::from_utf8_lossy(path);
            let why: Vec<String> = plan.actions.iter().map(|a| format!("{a:?}")).collect();
            return Err(format!("{path} could be read before the repair: {why:#?}"));
        }
    }
    summary.files = before.len();
    Ok(summary)
}

/// Cuts the power at a command of the repair, and repairs the drive again as the cut left it.
/// Returns that repaired drive.
async fn cut_and_finish(
    rt: &Rt,
    drive: &Emulator,
    plan: &Repair,
    options: RepairOptions,
    random: u64,
) -> Result<Emulator, String> {
    let at = random as usize % (plan.size().0 + 1);
    let state: Rc<RefCell<(usize, Option<Snapshot>)>> = Rc::default();
    let seen = state.clone();
    drive.set_observer(Rc::new(move |drive: &Emulator, _: &CommandInfo| {
        let mut state = seen.borrow_mut();
        state.0 += 1;
        if state.0 > at && state.1.is_none() {
            state.1 = Some(drive.snapshot());
        }
    }));
    plan.apply(|_, _| {}).await.map_err(told("apply"))?;
    drive.clear_observer();
    let state = state.take().1.unwrap_or_else(|| drive.snapshot());
    let left = state.power_cut(&Fates::seeded(random));
    let drive = Emulator::from_snapshot(rt, &left, Options::simulated());
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let again = Repair::plan(rt, device, &options).await.map_err(told("second plan"))?;
    match again.verdict {
        Verdict::Clean => {}
        Verdict::Sound => again.apply(|_, _| {}).await.map_err(told("second apply"))?,
        Verdict::Better if plan.verdict == Verdict::Better => {
            again.apply(|_, _| {}).await.map_err(told("second apply"))?;
        }
        // If the first plan could repair the image only in part, the second plan may find nothing
        // to improve.
        Verdict::Hopeless(_) if plan.verdict == Verdict::Better => {}
        other => {
            let findings: Vec<String> =
                again.before.findings.iter().take(5).map(|f| f.to_string()).collect();
            return Err(format!("after a power cut at command {at}: {other:?}, {findings:#?}"));
        }
    }
    Ok(drive)
}
