//! What the engine does once something is damaged or broken: it refuses changes, and stops writing.

use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::types::OnDamage;
use furrow_zone::{Error, ErrorKind, Result};
use std::rc::Rc;

impl Core {
    /// Refuses a user's change if the engine accepts none.
    pub(crate) fn writable(&self) -> Result<(), NotApplied> {
        match self.health.stopping() {
            Some(error) if self.health.failed().is_none() => {
                let message = format!("read-only after an error: {error}");
                Err(NotApplied::Failed(Error::new(ErrorKind::ReadOnly, message)))
            }
            _ => self.may_write(),
        }
    }

    /// Refuses to write changes that were accepted earlier, if the engine may no longer write.
    pub(crate) fn may_write(&self) -> Result<(), NotApplied> {
        if let Some(error) = self.health.failed().or(self.health.broken()) {
            let message = format!("read-only after an error: {error}");
            return Err(NotApplied::Failed(Error::new(ErrorKind::ReadOnly, message)));
        }
        if self.env.options.read_only && !self.health.replaying() {
            return Err(NotApplied::Failed(Error::new(ErrorKind::ReadOnly, "mounted read-only")));
        }
        Ok(())
    }
}

impl Inner {
    /// Records that a block could not be read, or differs from the block that was written. With
    /// [`OnDamage::ReadOnly`], the engine then stops writing.
    pub(crate) fn note_damage(self: &Rc<Self>, error: &Error) {
        // A drive that does not answer has no damage.
        if !matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) || error.is_gone() {
            return;
        }
        let stops = {
            let core = &mut *self.core.borrow_mut();
            core.stats.counters.damaged_reads += 1;
            core.note_damaged_block(error.to_string());
            core.env.options.on_damage == OnDamage::ReadOnly
        };
        if stops {
            self.stop_writing(error);
        }
    }

    /// Stops accepting changes, and stops writing after a last checkpoint has made everything
    /// accepted durable. No damaged content is in memory, so this checkpoint is as safe as with
    /// `errors=continue`. During recovery, everything accepted is durable already, so the engine
    /// stops at once.
    fn stop_writing(self: &Rc<Self>, error: &Error) {
        {
            let core = &mut *self.core.borrow_mut();
            if core.health.stopping().is_some() {
                return;
            }
            if core.health.is_in_use() && core.writable().is_ok() {
                core.health.stop(error.clone());
            }
        }
        if self.core.borrow().health.stopping().is_none() {
            return self.fail(error);
        }
        let (inner, error) = (self.clone(), error.clone());
        self.rt.spawn_detached(async move { inner.stop_after_checkpoint(error).await });
    }

    /// Stops writing if one of the engine's accounts went below zero.
    pub(crate) fn fail_if_broken(&self) {
        let broken = self.core.borrow().health.broken().cloned();
        if let Some(error) = broken {
            self.fail(&error);
        }
    }

    /// Stops writing, with `error` as the reason.
    pub(crate) fn fail(&self, error: &Error) {
        let mut core = self.core.borrow_mut();
        core.health.fail(error.clone());
        core.env.writer.give_up();
        drop(core);
        self.progress.notify_all();
    }
}
