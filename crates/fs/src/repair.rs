//! Mending a file system that is not mounted, without ever making it worse.
//!
//! A repair is first made on a copy-on-write view of the drive ([`Overlay`]), then the view is
//! checked as any file system is ([`fsck`]). Only a view that is sound, or whose findings were all
//! there before, is ever applied: [`Repair::apply`] sends to the drive what the repair wrote to the
//! view, command by command.
//!
//! The repair goes **through the engine**. A mount that tolerates what an ordinary one refuses
//! ([`mount`]) takes what can be read of the tables, looks for the nodes that tables no longer know
//! ([`tables`]) and replays what can be replayed. Then trees ([`trees`]) and names ([`names`]) are
//! put right by changes of nodes and directories, and a checkpoint makes it durable: nothing is
//! ever
//! changed in place, so that a power cut at any command leaves the state before it, or the one
//! after, or one that the next repair takes further.
//!
//! Invariants
//! - What is sound stays as it is: a file that could be read has the same content after, under its
//!   name or, if no name led to it, in `lost+found`.
//! - What is given up is said, by path where there is one ([`Action::loss`]).
//! - A block of content that is damaged stays, and reads of it stay errors, unless asked otherwise:
//!   no repair invents content.
//! - An older checkpoint than the newest is used only if that is asked for.
//!
//! Deliberately not here: asking anybody (that is the command's), correcting bits, copying what can
//! still be read elsewhere.

mod mount;
mod names;
mod space;
mod tables;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests;
mod trees;

use crate::Fs;
use crate::fsck::{Finding, FsckOptions, FsckReport, fsck, ring};
use crate::types::MountOptions;
use furrow_rt::Rt;
use furrow_zone::{Error, ErrorKind, Overlay, Result, ZonedDevice};
use std::rc::Rc;

/// Actions kept in a repair; more are only counted.
pub const ACTIONS_MAX: usize = 1000;

/// How to repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Go back to an older checkpoint if the newest is damaged: what came after it is lost.
    pub older_checkpoint: bool,
    /// Blocks of content that are damaged become holes: they read as zeros, not as errors.
    pub zero_bad_data: bool,
    /// How to check, before and after.
    pub check: FsckOptions,
}

/// Something a repair did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// What kind of structure was damaged, by its name in the format.
    pub structure: &'static str,
    /// Which one.
    pub place: String,
    /// What was wrong with it.
    pub problem: String,
    /// What was done.
    pub action: String,
    /// The file or directory it is about, if it has a name.
    pub path: Option<String>,
    /// Its inode; 0 if it is about none.
    pub ino: u32,
    /// Something is lost by it that could be read, or was promised, before the damage.
    pub loss: bool,
}

/// What a repair comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// Nothing is wrong afterwards.
    Sound,
    /// Less is wrong afterwards, and nothing that was not before.
    Better,
    /// Nothing is to be changed: why.
    Hopeless(String),
}

/// A repair, made on a view and not yet on the drive.
pub struct Repair {
    /// What was wrong.
    pub before: FsckReport,
    /// What is wrong with the view after the repair; `None` if none was made.
    pub after: Option<FsckReport>,
    /// What was done, in order; at most [`ACTIONS_MAX`].
    pub actions: Vec<Action>,
    /// Actions beyond those.
    pub more_actions: u64,
    /// Whether to apply it.
    pub verdict: Verdict,
    view: Option<Overlay>,
}

/// What becomes of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is mended.
    Mended,
    /// It stays.
    Left,
}

/// Actions so far.
#[derive(Default)]
struct Log {
    actions: Vec<Action>,
    more: u64,
}

impl Log {
    fn push(
        &mut self,
        loss: bool,
        structure: &'static str,
        (ino, place): (u32, String),
        (problem, action): (String, String),
    ) {
        let action = Action { structure, place, problem, action, path: None, ino, loss };
        if self.actions.len() < ACTIONS_MAX {
            self.actions.push(action);
        } else {
            self.more += 1;
        }
    }

    /// Something that is put right, of inode `ino`.
    fn mended(
        &mut self,
        structure: &'static str,
        place: (u32, String),
        problem: impl ToString,
        action: impl ToString,
    ) {
        self.push(false, structure, place, (problem.to_string(), action.to_string()));
    }

    /// Something that is given up, of inode `ino`.
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
    /// Looks what is wrong with the file system on `device`, which must not be mounted, and mends
    /// it on a view. Nothing is written to `device`.
    ///
    /// # Errors
    /// As [`fsck`]: nothing can be said then.
    pub async fn plan(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        options: &RepairOptions,
    ) -> Result<Repair> {
        let before = fsck(device.clone(), &options.check).await?;
        let mut repair = Repair {
            before,
            after: None,
            actions: Vec::new(),
            more_actions: 0,
            verdict: Verdict::Clean,
            view: None,
        };
        if repair.before.is_ok() && (repair.before.clean || mounts(rt, &device).await) {
            return Ok(repair);
        }
        let view = Overlay::new(rt, device.clone())?;
        let mut log = Log::default();
        let lost = ring::lost_checkpoint(device).await?;
        let made = mend(rt, &view, options, (&repair.before, lost), &mut log).await;
        (repair.actions, repair.more_actions) = (log.actions, log.more);
        repair.verdict = match made {
            Err(error) => Verdict::Hopeless(error.to_string()),
            Ok(()) => {
                let after = fsck(Rc::new(view.clone()), &options.check).await?;
                let verdict = judge(&repair.before, &after);
                repair.after = Some(after);
                verdict
            }
        };
        repair.view = Some(view);
        Ok(repair)
    }

    /// True if it may be applied: the verdict is [`Verdict::Sound`] or [`Verdict::Better`].
    pub fn is_useful(&self) -> bool {
        matches!(self.verdict, Verdict::Sound | Verdict::Better)
    }

    /// True if something is given up that could be read, or was promised, before the damage.
    pub fn loses(&self) -> bool {
        self.actions.iter().any(|action| action.loss)
    }

    /// What becomes of a finding of [`Repair::before`].
    pub fn fate(&self, finding: &Finding) -> Fate {
        let Some(after) = self.after.as_ref().filter(|_| self.is_useful()) else {
            return Fate::Left;
        };
        match after.findings.iter().any(|left| same(left, finding)) {
            true => Fate::Left,
            false => Fate::Mended,
        }
    }

    /// What is done about a finding of [`Repair::before`], for people.
    pub fn remedy(&self, finding: &Finding) -> String {
        if self.fate(finding) == Fate::Left {
            return match finding.structure {
                "data" => "left: reading it fails, unless it is made a hole".into(),
                _ => "left as it is".into(),
            };
        }
        let about = |action: &&Action| {
            action.structure == finding.structure && number(&action.place) == number(&finding.place)
        };
        if let Some(action) = self.actions.iter().find(about) {
            return action.action.clone();
        }
        match finding.structure {
            "superblock" | "checkpoint" => "written anew, in the other zone of the ring",
            "table page" | "delta log" | "delta log extent" => "the tables are written anew",
            "SIT entry" => "made again from the trees",
            "NAT entry" => "made again from the nodes",
            "summary" => "what is in use there is moved elsewhere",
            "stream" | "zone" | "superzone descriptor" => "written to no more, then released",
            "sync record" => "replayed as far as it goes",
            _ => "put right",
        }
        .into()
    }

    /// Commands that applying it takes, and bytes it writes.
    pub fn size(&self) -> (usize, u64) {
        self.view.as_ref().map_or((0, 0), |view| (view.changes(), view.bytes()))
    }

    /// Makes the repair on the drive. `progress` is told how many commands are done, of how many.
    ///
    /// # Errors
    /// `Invalid` if it is not useful, else as [`Overlay::apply`].
    pub async fn apply(&self, progress: impl FnMut(usize, usize)) -> Result<()> {
        match &self.view {
            Some(view) if self.is_useful() => view.apply(progress).await,
            _ => Err(Error::new(ErrorKind::Invalid, "there is no repair to be made")),
        }
    }
}

/// Mount options of a repair: nothing happens by itself.
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

/// Whether what a crash left can be recovered.
async fn mounts(rt: &Rt, device: &Rc<dyn ZonedDevice>) -> bool {
    let Ok(view) = Overlay::new(rt, device.clone()) else { return false };
    let view: Rc<dyn ZonedDevice> = Rc::new(view);
    let Ok(fs) = Fs::mount(rt, view.clone(), quietly()).await else { return false };
    let ended = fs.unmount().await;
    let check = FsckOptions { verify_data: false };
    ended.is_ok() && fsck(view, &check).await.is_ok_and(|report| report.is_ok())
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
        // What it has begun is not to be finished.
        inner.fail(&error);
        let _ = fs.unmount().await;
        return Err(error);
    }
    fs.unmount().await?;
    // Summaries cannot be written again: what they describe is moved away.
    let check = FsckOptions { verify_data: false };
    let report = fsck(device.clone(), &check).await?;
    if !report.bad_summaries.is_empty() {
        space::empty(rt, device, &report.bad_summaries, log).await?;
    }
    Ok(())
}

/// The first number in a place: of the inode, node, unit or zone it is.
fn number(place: &str) -> Option<u64> {
    let digits = place.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    digits.parse().ok()
}

fn same(a: &Finding, b: &Finding) -> bool {
    a.structure == b.structure && a.place == b.place
}

/// What a repair that led from one report to the other comes to.
fn judge(before: &FsckReport, after: &FsckReport) -> Verdict {
    if after.is_ok() {
        return Verdict::Sound;
    }
    // A check that ends at damaged tables says nothing of what hangs on them.
    let seen_all = before.statistics.inodes > 0;
    let known = |left: &&Finding| {
        before.findings.iter().any(|was| same(was, left)) || !seen_all && left.structure == "data"
    };
    if let Some(new) = after.findings.iter().find(|left| !known(left)) {
        return Verdict::Hopeless(format!("the repair would leave: {new}"));
    }
    let (left, were) = (after.findings.len() as u64, before.findings.len() as u64);
    if left + after.more_findings < were + before.more_findings || !seen_all {
        return Verdict::Better;
    }
    Verdict::Hopeless("nothing of it can be mended".into())
}
