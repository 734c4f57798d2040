//! Carries out the requests that concern members and spares: to fail, replace, add or rebuild them,
//! and to inject faults.

use super::{ArrayHost, Drive};
use crate::device::fault;
use crate::holds::{self, Holds};
use crate::raid::devices::{self, same};
use furrow_raid::MemberState;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, Result, ZonedDevice};
use serde_json::{Value, json};
use std::rc::Rc;

impl ArrayHost {
    /// The number of the member that `name` stands for; `name` is a number or a drive.
    fn member(&self, name: &str) -> Result<u32> {
        let drives = self.drives.borrow();
        if let Ok(number) = name.parse::<u32>()
            && (number as usize) < drives.len()
        {
            return Ok(number);
        }
        if let Ok(spec) = name.parse::<DeviceSpec>() {
            let is = |drive: &Option<Drive>| drive.as_ref().is_some_and(|d| same(&d.spec, &spec));
            if let Some(index) = drives.iter().position(is) {
                return Ok(index as u32);
            }
        }
        let message = format!(
            "{} has no member {name}: members are 0 to {}, or named by their drives",
            self.name,
            drives.len() - 1
        );
        Err(Error::new(ErrorKind::NotFound, message))
    }

    /// Opens a drive for the array. The former drive of a failed member is still open in this
    /// daemon, so it is returned without opening it again.
    fn open(&self, device: &str) -> Result<Drive> {
        let spec: DeviceSpec = device.parse().map_err(Error::from)?;
        devices::check_lasting(&spec)?;
        let refuse = |kind, what: &str| Err(Error::new(kind, format!("{device}: {what}")));
        if self.spares.borrow().iter().any(|spare| same(&spare.spec, &spec)) {
            let what = "is a spare of this array already, for the next member that fails";
            return refuse(ErrorKind::Busy, what);
        }
        let drives = self.drives.borrow();
        let members = self.volume.members();
        for (drive, (_, state, _)) in drives.iter().zip(&members) {
            let Some(drive) = drive.as_ref().filter(|drive| same(&drive.spec, &spec)) else {
                continue;
            };
            if *state != MemberState::Failed {
                let what = "is a member of this array, in service: choose an empty drive";
                return refuse(ErrorKind::Busy, what);
            }
            // Commands that were sent to the drive before its member failed must not reach it after
            // it has become a member again.
            if Rc::strong_count(&drive.device) > 1 {
                return refuse(ErrorKind::Busy, "commands to it are still under way: try again");
            }
            return Ok(drive.clone());
        }
        let opened = holds::open(&self.rt, &spec, Access::ReadWrite);
        let device = opened.map_err(|error| match error.kind() {
            // This drops the advice to create the missing drive: its name may be mistyped.
            ErrorKind::NotFound => {
                let what = format!("{device}: there is no such drive: check the name");
                Error::new(ErrorKind::NotFound, what)
            }
            _ => error,
        })?;
        Ok(Drive { spec, device })
    }

    /// Adds to `error`, which says that the drive is not empty, what the drive holds. For a
    /// former member of this array the advice is `--force`: no command can use the old content of
    /// such a drive.
    async fn explain_used(&self, device: &dyn ZonedDevice, error: Error) -> Error {
        if error.kind() == ErrorKind::Exists
            && let Ok(Holds::Member(examined)) = Holds::of(device).await
            && examined.array == self.volume.uuid()
            && let Some(member) = examined.member
        {
            let what = format!(
                "{}: not empty: it was member {member} of this array, which has continued without \
                 it: --force takes it as a new drive, and erases it",
                device.name()
            );
            return Error::new(ErrorKind::Exists, what);
        }
        holds::explain_used(device, error).await
    }

    pub(super) async fn replace(&self, member: &str, device: &str, force: bool) -> Result<Value> {
        let index = self.member(member)?;
        device.parse::<DeviceSpec>().map_err(Error::from)?;
        self.check_replaced(index)?;
        let drive = self.open(device)?;
        if let Err(error) = self.volume.replace(index, drive.device.clone(), force).await {
            return Err(self.explain_used(&*drive.device, error).await);
        }
        self.drives.borrow_mut()[index as usize] = Some(drive);
        // A client that waits for the rebuild needs the UUID to tell this drive from a later one.
        Ok(json!({ "member": index, "uuid": self.volume.members()[index as usize].0.to_string() }))
    }

    /// Refuses to replace a member that is in service, and says what can be done instead.
    fn check_replaced(&self, index: u32) -> Result<()> {
        let in_service = self.volume.members()[index as usize].1 != MemberState::Failed;
        if !in_service || self.volume.failed().is_some() {
            return Ok(());
        }
        let name = &self.name;
        let what = self.why_needed(index).unwrap_or_else(|| {
            format!(
                "take it out first: furrow raid fail {name} {index} (until the rebuild ends, the \
                 array tolerates one failure fewer)"
            )
        });
        let what = format!("member {index} of {name} is in service: {what}");
        Err(Error::new(ErrorKind::Invalid, what))
    }

    /// The reason why the array cannot do without a member, and advice; `None` if it can.
    fn why_needed(&self, index: u32) -> Option<String> {
        if self.volume.can_do_without(index) {
            return None;
        }
        let members = self.volume.members();
        let other = |state| (0..).zip(&members).find(|(at, m)| *at != index && m.1 == state);
        let name = &self.name;
        let (failed, rebuilding) = (other(MemberState::Failed), other(MemberState::Rebuilding));
        let why = match (failed, rebuilding) {
            (Some((other, _)), _) => {
                format!("replace member {other} first: furrow raid replace {name} {other} DEV")
            }
            (_, Some(_)) => format!("wait for the rebuild: furrow raid rebuild {name} --wait"),
            _ => "its level has no redundancy: copy the data to another array".to_owned(),
        };
        Some(format!("the array cannot do without member {index}: {why}"))
    }

    pub(super) async fn fail(&self, member: &str) -> Result<Value> {
        let index = self.member(member)?;
        let needed = || {
            let why = self.why_needed(index).filter(|_| self.volume.failed().is_none());
            why.map(|why| Error::new(ErrorKind::Invalid, why))
        };
        if let Some(why) = needed() {
            return Err(why);
        }
        // During this call another drive may turn out to be gone, so that the member is needed
        // after all.
        let failed = self.volume.fail(index).await;
        failed.map_err(|error| needed().unwrap_or(error)).map(|()| json!({}))
    }

    pub(super) async fn add_spare(&self, device: &str, force: bool) -> Result<Value> {
        let drive = self.open(device)?;
        if let Err(error) = self.volume.add_spare(drive.device.clone(), force).await {
            return Err(self.explain_used(&*drive.device, error).await);
        }
        self.note("spare-added", None, format!("{} is a spare", drive.spec));
        self.spares.borrow_mut().push_back(drive);
        self.use_spares().await;
        Ok(json!({}))
    }

    pub(super) fn rebuild(&self, pause_us: Option<u64>) -> Result<Value> {
        if let Some(pause) = pause_us {
            self.volume.set_rebuild_pause(pause.saturating_mul(1000));
        }
        let waits = |(_, state, _): &(_, MemberState, _)| *state == MemberState::Rebuilding;
        if !self.volume.members().iter().any(waits) && pause_us.is_none() {
            let message = "there is nothing to rebuild: furrow raid replace puts a drive in the \
                           place of a failed one";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.volume.start_rebuild();
        Ok(json!({}))
    }

    pub(super) fn fault(&self, member: Option<&str>, words: &[String]) -> anyhow::Result<Value> {
        let chosen = member.map(|member| self.member(member)).transpose()?;
        let mut text = Vec::new();
        for (index, drive) in self.drives.borrow().iter().enumerate() {
            let Some(drive) = drive.as_ref() else { continue };
            if chosen.is_none_or(|chosen| chosen as usize == index) {
                let (name, seed) = (drive.spec.to_string(), self.rt.random());
                fault::apply_words(&*drive.device, &name, words, seed, &mut text)?;
            }
        }
        Ok(json!(String::from_utf8_lossy(&text)))
    }
}
