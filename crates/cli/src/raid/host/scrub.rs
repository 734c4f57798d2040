//! Scrubs of an array, and their findings.

use super::ArrayHost;
use super::report::{FINDINGS, percent};
use crate::raid::notice::now;
use crate::raid::status::{Damage, Scrub, describe_scrub};
use furrow_rt::Nanos;
use furrow_zone::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::rc::Rc;

impl ArrayHost {
    /// Waits until no scrub runs.
    pub(super) async fn scrub_ended(&self) {
        while self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            self.scrub_over.wait().await;
        }
    }

    /// Begins a scrub.
    pub(super) fn begin_scrub(self: &Rc<Self>, repair: bool) -> Result<Value> {
        if self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            let message = format!(
                "a scrub is running already: to wait for it, furrow raid scrub {0} --wait; to end \
                 it, furrow raid scrub {0} --stop",
                self.name
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        if let Some(error) = self.volume.failed() {
            return Err(error);
        }
        *self.scrub.borrow_mut() = Some(Scrub { running: true, repair, ..Scrub::default() });
        let text = if repair { "a scrub that mends begins" } else { "a scrub begins" };
        self.note("scrub-started", None, text.to_owned());
        self.rt.spawn_detached(self.clone().scrub(repair));
        Ok(json!({}))
    }

    /// Stops the running scrub; its findings so far stay visible.
    pub(super) fn stop_scrub(&self) -> Result<Value> {
        if !self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            return Err(Error::new(ErrorKind::Invalid, "no scrub is running"));
        }
        self.volume.stop_scrub();
        Ok(json!({}))
    }

    /// Clears errors and records of damage.
    pub(super) fn clear(&self) -> Result<Value> {
        if self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.running) {
            let message = "a scrub is running: stop it first, or wait for it";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.volume.clear();
        self.damaged.borrow_mut().clear();
        self.known_since.set(now());
        *self.scrub.borrow_mut() = None;
        self.note("cleared", None, "errors and known damage are cleared".to_owned());
        Ok(json!({}))
    }

    async fn scrub(self: Rc<Self>, repair: bool) {
        let (began, progress) = (self.rt.now(), self.clone());
        let result = self.volume.scrub(repair, |done, total| progress.scrubbed(began, done, total));
        let result = result.await;
        let mut scrub = self.scrub.borrow().clone().unwrap_or_default();
        scrub.running = false;
        scrub.seconds = self.rt.now().since(began) as f64 / Nanos::SECOND as f64;
        scrub.seconds_left = None;
        match result {
            Ok(found) => {
                scrub.blocks = found.blocks;
                scrub.damaged = found.findings.len() as u64;
                // A scrub that did not read everything may have missed damage that an earlier one
                // has found, but what it mended is damaged no more.
                let mut damaged = self.damaged.borrow_mut();
                if !found.stopped && found.unchecked.is_empty() {
                    damaged.clear();
                }
                for finding in &found.findings {
                    let place = (finding.drive, finding.zone, finding.block);
                    match finding.repaired || finding.lost {
                        true => damaged.remove(&place),
                        false => damaged.insert(place),
                    };
                }
                let left = found.findings.iter().filter(|f| !f.repaired && !f.lost);
                scrub.mendable = left.count() as u64;
                scrub.repaired = found.findings.iter().filter(|f| f.repaired).count() as u64;
                scrub.lost = found.lost;
                let drives = self.drives.borrow();
                let members = self.volume.members();
                let here = |finding: &furrow_raid::Finding| {
                    let member = finding.member as usize;
                    // By now, another drive may have taken the place of the damaged drive.
                    drives[member].as_ref().filter(|_| members[member].0 == finding.drive)
                };
                let damage = |finding: &furrow_raid::Finding| Damage {
                    member: finding.member,
                    device: here(finding).map(|drive| drive.spec.to_string()),
                    zone: finding.zone.0,
                    block: finding.block,
                    what: finding.what.to_owned(),
                    repaired: finding.repaired,
                    lost: finding.lost,
                };
                scrub.stopped = found.stopped;
                scrub.unchecked = found.unchecked;
                scrub.findings = found.findings.iter().take(FINDINGS).map(damage).collect();
            }
            Err(error) => scrub.error = Some(error.to_string()),
        }
        let event = match (scrub.damaged, &scrub.error) {
            (0, None) if scrub.unchecked.is_empty() => "scrub-finished",
            (0, _) => "scrub-incomplete",
            _ => "scrub-damaged",
        };
        let text = format!("scrub: {}", describe_scrub(&self.name, &scrub));
        *self.scrub.borrow_mut() = Some(scrub);
        self.scrub_over.notify_all();
        self.note(event, None, text);
    }

    fn scrubbed(&self, began: Nanos, done: u32, total: u32) {
        if let Some(scrub) = &mut *self.scrub.borrow_mut() {
            scrub.segments = total;
            scrub.segments_done = done;
            scrub.percent = percent(done, total);
            scrub.seconds = self.rt.now().since(began) as f64 / Nanos::SECOND as f64;
            let each = (done > 0).then(|| scrub.seconds / f64::from(done));
            scrub.seconds_left = each.map(|each| each * f64::from(total - done));
        }
    }
}
