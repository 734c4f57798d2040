//! Repairs a file system that is not mounted, without ever making it worse.
//!
//! A repair is first made on a copy-on-write view of the drive ([`Overlay`]), and the view is
//! checked like any file system ([`fsck`]). The repair is applied only if this check finds nothing,
//! or only faults that were there before. To apply it, [`Repair::apply`] sends the writes of the
//! repair to the drive, command by command.
//!
//! The repair goes **through the engine**. First, a mount that tolerates more faults than an
//! ordinary mount ([`mount`]) takes the readable part of the tables, searches for nodes that the
//! tables no longer know ([`tables`]) and replays the records that can be replayed. Then changes
//! of nodes and directories correct the trees ([`trees`]) and names ([`names`]), and a
//! checkpoint makes the changes durable. Nothing is ever changed in place. So a power cut at any
//! command leaves the state before the repair, the state after it, or a state from which the
//! next repair continues.
//!
//! Invariants
//! - Intact files stay as they are: a file that could be read has the same content after the
//!   repair, under its name or, if no name led to it, in `lost+found`.
//! - Losses are reported, by path where there is one ([`Action::loss`]).
//! - A damaged block of content stays, and reading it still fails, unless the options say
//!   otherwise: no repair invents content.
//! - An older checkpoint than the newest is used only if the options permit that.
//!
//! Deliberately not here: questions to the user (the command asks them), correcting bits, copying
//! readable content elsewhere.

mod mount;
mod names;
mod offline;
mod space;
mod tables;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests;
mod trees;

use crate::Fs;
use crate::fsck::{Finding, FsckOptions, FsckReport, fsck, ring};
use crate::types::MountOptions;
use furrow_log::Kept;
use furrow_log::survey::check_answers;
use furrow_rt::{Boxed, Rt};
use furrow_zone::{Error, ErrorKind, Overlay, Result, ZonedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Options of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Go back to an older checkpoint if the newest one is damaged. Changes after the older one
    /// are lost.
    pub older_checkpoint: bool,
    /// Turn damaged blocks of content into holes: they read as zeros instead of failing.
    pub zero_bad_data: bool,
    /// Options of the checks before and after the repair.
    pub check: FsckOptions,
}

/// One step of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The kind of the damaged structure, by its name in the format.
    pub structure: &'static str,
    /// The place of the damaged structure.
    pub place: String,
    /// The fault of the structure.
    pub problem: String,
    /// The step taken, in words.
    pub action: String,
    /// The path of the file or directory concerned, if it has a name.
    pub path: Option<String>,
    /// The number of the inode concerned; 0 if there is none.
    pub ino: u32,
    /// True if the step gives up content that could be read, or was promised, before the damage.
    pub loss: bool,
}

/// The outcome of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The file system had no fault.
    Clean,
    /// No fault is left after the repair.
    Sound,
    /// Fewer faults are left after the repair, and there are no new ones.
    Better,
    /// No repair is possible, for this reason.
    Hopeless(String),
}

/// A repair, made on a view and not yet on the drive.
pub struct Repair {
    /// The state before the repair.
    pub before: FsckReport,
    /// The state of the view after the repair; `None` if no repair was made.
    pub after: Option<FsckReport>,
    /// The steps taken, in order; at least one for each file and structure concerned.
    pub actions: Vec<Action>,
    /// Number of steps that are not listed in `actions`.
    pub more_actions: u64,
    /// Counts of the steps for each structure, by inode and kind; losses are counted separately.
    pub kept: Kept<Concerned>,
    /// Number of steps that are losses, including steps that are not listed.
    pub losses: u64,
    /// Whether the repair should be applied.
    pub verdict: Verdict,
    view: Option<Overlay>,
    index: Index,
}

/// The subject of an action: the inode (0 if none), the kind of structure, and whether it is
/// a loss.
pub type Concerned = (u32, &'static str, bool);

/// An index for looking up what became of findings.
#[derive(Default)]
struct Index {
    /// Structure and place of each finding that is left after the repair.
    left: BTreeSet<(&'static str, String)>,
    /// The first action about a structure, by its kind and by the number in its place.
    about: BTreeMap<(&'static str, Option<u64>), usize>,
    /// The first loss of each inode.
    lost: BTreeMap<u32, usize>,
}

impl Index {
    fn new(actions: &[Action], after: Option<&FsckReport>) -> Index {
        let mut index = Index::default();
        for (at, action) in actions.iter().enumerate() {
            index.about.entry((action.structure, number(&action.place))).or_insert(at);
            if action.loss {
                index.lost.entry(action.ino).or_insert(at);
            }
        }
        index.left = after.map_or_else(BTreeSet::new, places);
        index
    }
}

/// The outcome of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The fault is repaired.
    Mended,
    /// The fault stays.
    Left,
}

/// The actions so far.
#[derive(Default)]
struct Log {
    actions: Vec<Action>,
    more: u64,
    kept: Kept<Concerned>,
    losses: u64,
}

impl Action {
    /// The subject of the action.
    pub fn concerned(&self) -> Concerned {
        (self.ino, self.structure, self.loss)
    }
}

impl Log {
    fn push(
        &mut self,
        loss: bool,
        structure: &'static str,
        (ino, place): (u32, String),
        (problem, action): (String, String),
    ) {
        self.losses += u64::from(loss);
        let action = Action { structure, place, problem, action, path: None, ino, loss };
        if self.kept.takes(action.concerned()) {
            self.actions.push(action);
        } else {
            self.more += 1;
        }
    }

    /// Logs that a fault of inode `ino` was repaired.
    fn mended(
        &mut self,
        structure: &'static str,
        place: (u32, String),
        problem: impl ToString,
        action: impl ToString,
    ) {
        self.push(false, structure, place, (problem.to_string(), action.to_string()));
    }

    /// Whether a loss of inode `ino` itself, not only of a part of it, has been noted.
    fn has_lost(&self, ino: u32) -> bool {
        self.kept.all(&(ino, "inode", true)) > 0
    }

    /// Logs a loss of inode `ino`.
    fn lost(
        &mut self,
        structure: &'static str,
        place: (u32, String),
        problem: impl ToString,
        action: impl ToString,
    ) {
        self.push(true, structure, place, (problem.to_string(), action.to_string()));
    }
}

impl Repair {
    /// Checks the file system on `device`, and repairs its faults on a view. The file system must
    /// not be mounted, and nothing is written to `device`.
    ///
    /// # Errors
    /// The errors of [`fsck`]: no repair can be planned then.
    #[inline(never)]
    pub fn plan<'a>(
        rt: &'a Rt,
        device: Rc<dyn ZonedDevice>,
        options: &'a RepairOptions,
    ) -> Boxed<'a, Result<Repair>> {
        Box::pin(async move {
            let misses = device.misses();
            let before = fsck(device.clone(), &options.check).await?;
            let mut repair = Repair {
                before,
                after: None,
                actions: Vec::new(),
                more_actions: 0,
                kept: Kept::default(),
                losses: 0,
                verdict: Verdict::Clean,
                view: None,
                index: Index::default(),
            };
            if repair.before.is_ok() && (repair.before.clean || mounts(rt, &device).await) {
                return Ok(repair);
            }
            let offline = !offline::zones(&*device).await?.is_empty();
            let view = Overlay::new(rt, device.clone()).await?;
            let mut log = Log::default();
            let lost = ring::lost_checkpoint(device.clone()).await?;
            let made = mend(rt, &view, options, (&repair.before, lost), &mut log).await;
            // What a drive did not return for a moment is not given up.
            check_answers(&*device, misses)?;
            (repair.actions, repair.kept) = (log.actions, log.kept);
            (repair.more_actions, repair.losses) = (log.more, log.losses);
            repair.verdict = match made {
                Err(error) if offline => {
                    // An offline metadata zone cannot be replaced, because its structures have
                    // fixed places.
                    let error = error.to_string();
                    let why = error.trim_end_matches(": replace the drive");
                    let choice = "copy the files out of a mount with ro, and replace the drive";
                    Verdict::Hopeless(format!("{why}: {choice}"))
                }
                Err(error) => Verdict::Hopeless(error.to_string()),
                Ok(()) => {
                    let after = fsck(Rc::new(view.clone()), &options.check).await?;
                    let verdict = judge(&repair.before, &after);
                    repair.after = Some(after);
                    verdict
                }
            };
            repair.view = Some(view);
            repair.index = Index::new(&repair.actions, repair.after.as_ref());
            Ok(repair)
        })
    }

    /// True if the repair may be applied: the verdict is [`Verdict::Sound`] or [`Verdict::Better`].
    pub fn is_useful(&self) -> bool {
        matches!(self.verdict, Verdict::Sound | Verdict::Better)
    }

    /// True if the repair gives up content that could be read, or was promised, before the damage.
    pub fn loses(&self) -> bool {
        self.losses > 0
    }

    /// The outcome of a finding in [`Repair::before`].
    pub fn fate(&self, finding: &Finding) -> Fate {
        let place = (finding.structure, finding.place.clone());
        match self.is_useful() && !self.index.left.contains(&place) {
            true => Fate::Mended,
            false => Fate::Left,
        }
    }

    /// The step taken about a finding in [`Repair::before`], in words.
    pub fn remedy(&self, finding: &Finding) -> String {
        if self.fate(finding) == Fate::Left {
            return match finding.structure {
                "data" => "left: reading it fails, unless --zero-bad-data makes it a hole".into(),
                _ => "left unchanged".into(),
            };
        }
        if let Some(at) = self.index.about.get(&(finding.structure, number(&finding.place))) {
            return self.actions[*at].action.clone();
        }
        // The fault disappeared together with the structure that contained it.
        if let Some(at) = finding.inode.and_then(|inode| self.index.lost.get(&inode)) {
            let action = &self.actions[*at];
            return format!("{} {}: {}", action.structure, action.place, action.action);
        }
        match finding.structure {
            "data" => "a hole, which reads as zeros",
            "superblock" | "checkpoint" => "written again, in the other zone of the ring",
            "table page" | "delta log" | "delta log extent" => "the tables are written again",
            "SIT entry" => "rebuilt from the trees",
            "NAT entry" => "rebuilt from the nodes",
            "summary" => "blocks in use there are moved elsewhere",
            "stream" | "zone" | "superzone descriptor" => "not written again, then released",
            "sync record" => "replayed as far as it goes",
            _ => "put right",
        }
        .into()
    }

    /// Number of commands that apply the repair, and number of bytes that these commands write.
    pub fn size(&self) -> (usize, u64) {
        self.view.as_ref().map_or((0, 0), |view| (view.changes(), view.bytes()))
    }

    /// Applies the repair to the drive. `progress` receives the number of commands done, and the
    /// number of all commands.
    ///
    /// # Errors
    /// `Invalid` if the repair is not useful, otherwise as [`Overlay::apply`].
    pub async fn apply(&self, progress: impl FnMut(usize, usize)) -> Result<()> {
        match &self.view {
            Some(view) if self.is_useful() => view.apply(progress).await,
            _ => Err(Error::new(ErrorKind::Invalid, "there is no repair to make")),
        }
    }
}

/// The mount options of a repair: no background work.
fn quietly() -> MountOptions {
    let gc = crate::clean::GcOptions { background: false, ..Default::default() };
    MountOptions {
        commit_interval: u64::MAX / 4,
        cache_pages: 16_384,
        access_time: crate::types::AccessTime::Never,
        gc,
        ..MountOptions::default()
    }
}

/// True if the file system can be mounted, and a check after the unmount finds no fault.
async fn mounts(rt: &Rt, device: &Rc<dyn ZonedDevice>) -> bool {
    let Ok(view) = Overlay::new(rt, device.clone()).await else { return false };
    let view: Rc<dyn ZonedDevice> = Rc::new(view);
    let Ok(fs) = Fs::mount(rt, view.clone(), quietly()).await else { return false };
    let ended = fs.unmount().await;
    let check = FsckOptions { verify_data: false };
    ended.is_ok() && fsck(view, &check).await.is_ok_and(|report| report.is_ok())
}

/// Makes a view for reading a damaged file system: its readable part, after a repair that is never
/// applied to the drive. Also returns a line for each loss.
///
/// # Errors
/// If nothing that can be mounted is left.
pub(crate) async fn readable(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
) -> Result<(Rc<dyn ZonedDevice>, Vec<String>)> {
    let check = FsckOptions { verify_data: false };
    let options = RepairOptions { older_checkpoint: true, check, ..RepairOptions::default() };
    let zones = offline::zones(&*device).await?;
    let device = offline::without(device, &zones);
    let before = fsck(device.clone(), &check).await?;
    let lost = ring::lost_checkpoint(device.clone()).await?;
    let view = Overlay::new(rt, device).await?;
    let mut log = Log::default();
    mend(rt, &view, &options, (&before, lost), &mut log).await?;
    let line = |action: Action| {
        let Action { structure, place, problem, action, path, .. } = action;
        let path = path.map_or(String::new(), |path| format!("{path}: "));
        format!("{path}{structure} {place}: {problem}: {action}")
    };
    let mut lost = offline::losses(&zones, before.checkpoint);
    lost.extend(log.actions.into_iter().filter(|action| action.loss).map(line));
    Ok((Rc::new(view), lost))
}

/// The commands that can help with a file system on `device` that cannot be mounted for writing;
/// `None` if its superblock is not found.
pub(crate) async fn choices(device: &dyn ZonedDevice) -> Option<&'static str> {
    const MEND: &str = "mount it with ro to read what is left, see what is lost with furrow fsck, \
                        accept that with furrow fsck --repair";
    const COPY: &str = "mount it with ro to copy out what is left, and replace the drive";
    let reports = crate::durability::recover::report(device).await.ok()?;
    offline::layout(device, &reports, &furrow_rt::Pool::new(64)).await?;
    let offline = offline::zones(device).await.ok()?;
    Some(if offline.is_empty() { MEND } else { COPY })
}

/// Makes the repair on `view`.
async fn mend(
    rt: &Rt,
    view: &Overlay,
    options: &RepairOptions,
    (before, lost): (&FsckReport, Option<ring::LostCheckpoint>),
    log: &mut Log,
) -> Result<()> {
    let device: Rc<dyn ZonedDevice> = Rc::new(view.clone());
    let inner = mount::mount(rt, device.clone(), options, (before, lost), log).await?;
    let fs = Fs(inner.clone());
    let mended = async {
        let mut walk = trees::walk(&inner, options, log).await?;
        names::mend(&inner, &mut walk, log).await?;
        inner.checkpoint(false).await?;
        space::settle(&inner, log).await
    };
    if let Err(error) = mended.await {
        // Fail the engine, so that the unmount does not complete the changes already begun.
        inner.fail(&error);
        let _ = fs.unmount().await;
        return Err(error);
    }
    fs.unmount().await?;
    // Summaries cannot be rewritten in place, so the blocks that they describe are moved away.
    let check = FsckOptions { verify_data: false };
    let report = fsck(device.clone(), &check).await?;
    if !report.bad_summaries.is_empty() {
        space::empty(rt, device, &report.bad_summaries, log).await?;
    }
    Ok(())
}

/// The first number in a place: the number of the inode, node, table page or zone.
fn number(place: &str) -> Option<u64> {
    let digits = place.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    digits.parse().ok()
}

/// Structure and place of each finding.
fn places(report: &FsckReport) -> BTreeSet<(&'static str, String)> {
    report.findings.iter().map(|finding| (finding.structure, finding.place.clone())).collect()
}

/// Judges a repair by the reports before and after it.
fn judge(before: &FsckReport, after: &FsckReport) -> Verdict {
    if after.is_ok() {
        return Verdict::Sound;
    }
    // A check that ends at damaged tables does not reach the structures that depend on the tables.
    let seen_all = before.statistics.inodes > 0;
    let were = places(before);
    // If not all findings are listed, repaired ones make way in the list for others that were
    // only counted.
    let known = |left: &&Finding| {
        let about = left.about();
        let counted = before.kept.more(&about) > 0 || after.kept.more(&about) > 0;
        !seen_all && left.structure == "data"
            || counted && after.kept.all(&about) <= before.kept.all(&about)
            || !counted && were.contains(&(left.structure, left.place.clone()))
    };
    if let Some(new) = after.findings.iter().find(|left| !known(left)) {
        return Verdict::Hopeless(format!("the repair would leave: {new}"));
    }
    let (left, were) = (after.findings.len() as u64, before.findings.len() as u64);
    if left + after.more_findings < were + before.more_findings || !seen_all {
        return Verdict::Better;
    }
    Verdict::Hopeless("none of it can be mended".into())
}
