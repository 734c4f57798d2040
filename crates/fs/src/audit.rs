//! Audits: they compare the accounts in the engine's memory with each other.
//!
//! The engine keeps several accounts of the same fact. A valid block is a bit in the SIT, and a
//! pointer or a NAT entry names it; its segment, its superzone and the main area each count it. A
//! defect that changes one account but not the others loses data much later, somewhere else.
//! [`Core::audit`] recomputes and compares all of them. All must agree whenever no operation is
//! being applied, that is at every await. The simulation audits after every operation. In a debug
//! build, [`Core::audit_changed`] runs before each checkpoint's snapshot, and compares the accounts
//! that changed since the last checkpoint.
//!
//! An audit only reads memory, changes nothing, and does not count as work: a run with audits does
//! the same as the run without them. Each structure checks its own accounts in its own file
//! (`Cache::audit`, `NodeIds::audit` and so on); the checks here compare two structures.
//!
//! Not here: the content of the drive, which `fsck` checks, and the writer's own accounts, which
//! `furrow-log` checks.

mod alloc;
mod tables;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests;
mod tree;

use crate::Fs;
use crate::core::{Core, Inner};
use furrow_log::audit::Count;
use furrow_zone::{ErrorKind, Result};

impl Core {
    /// Subtracts from an account: see [`furrow_log::audit::Broken::less`].
    pub(crate) fn less<T: Count>(&self, account: &str, from: T, by: T) -> T {
        self.health.less(account, from, by)
    }

    /// Compares all accounts in memory. Does nothing once the engine has failed.
    ///
    /// # Errors
    /// `Internal`, with the account, its expected value and its value.
    pub(crate) fn audit(&self) -> Result<()> {
        self.audit_failure()?;
        if self.health.failed().is_some() {
            return Ok(());
        }
        self.audit_own()?;
        self.audit_valid()?;
        self.audit_nodes()?;
        self.audit_table_zones()?;
        // Skip these checks in a read-only mount, which opens no head and no log.
        if !self.env.options.read_only {
            self.audit_heads()?;
            self.audit_open_superzones(true)?;
            self.audit_logs()?;
            self.audit_promised_space()?;
            self.alloc.zones().audit()?;
            self.env.writer.audit()?;
        }
        self.audit_tree()
    }

    /// Reports an account that was found to be wrong earlier.
    fn audit_failure(&self) -> Result<()> {
        let failed = self.health.failed().filter(|error| error.kind() == ErrorKind::Internal);
        failed.or(self.health.broken()).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Checks the accounts that each structure keeps of its own content.
    pub(crate) fn audit_own(&self) -> Result<()> {
        self.cache.audit()?;
        self.tables.nat().audit("NAT")?;
        self.alloc.sit().audit("SIT")?;
        self.tables.ids().audit()?;
        self.tables.changed_nodes().audit()?;
        self.tree.directories().audit()?;
        self.tree.files().audit()?;
        self.durability.audit()?;
        self.audit_open_segments()
    }
}

impl Inner {
    /// Runs [`Core::audit_changed`] before the snapshot of a checkpoint, in debug builds only. If
    /// two accounts contradict each other, the engine fails rather than make them durable.
    pub(crate) fn audit_before_snapshot(&self) -> Result<()> {
        let audited = {
            let core = self.core.borrow();
            match cfg!(debug_assertions) && core.health.is_sound() {
                true => core.audit_changed(),
                false => Ok(()),
            }
        };
        audited.inspect_err(|error| self.fail(error))
    }
}

impl Fs {
    /// Checks that the accounts in the file system's memory agree with each other. The cost is in
    /// proportion to what is in memory; the audit reads nothing from the drive and changes nothing.
    ///
    /// # Errors
    /// `Internal` if two accounts contradict each other, with the account, its expected value and
    /// its value: a defect of the engine. After a failure of the drive, nothing is compared.
    pub fn audit(&self) -> Result<()> {
        self.0.core.borrow().audit()
    }

    /// Like [`Fs::audit`], for the accounts that changed since the last checkpoint and the small
    /// accounts: heads, permits, positions in logs, writes in flight. The cost is in proportion to
    /// the number of changed table entries.
    ///
    /// # Errors
    /// The errors of [`Fs::audit`].
    pub fn audit_changed(&self) -> Result<()> {
        self.0.core.borrow().audit_changed()
    }
}
