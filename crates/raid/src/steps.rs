//! From drives to a volume in service, in steps: what runs, and what must hold after it.
//!
//! The tables are the code that runs, and documents name the steps as the tables do.

use crate::assemble::steps::ASSEMBLY;
use crate::recover::steps::{FINISH, RECOVERY};
use furrow_rt::Rt;
use furrow_zone::Result;
use std::future::Future;
use std::pin::Pin;

/// A step under way.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A step; `W` is what the steps of one table work on.
pub(crate) struct Step<W> {
    /// What it does.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut W) -> Running<'_>,
    /// What holds after it. Runs in debug builds.
    pub(crate) audit: fn(&W) -> Result<()>,
}

/// First number of the steps of each table in the trace.
pub(crate) const OF_ASSEMBLY: u64 = 0;
pub(crate) const OF_RECOVERY: u64 = 16;
pub(crate) const OF_FINISH: u64 = 32;

/// What begins the words of a step in the trace.
const TRACE: u64 = 0x7261_6964;

/// Runs the steps of a table in order; they are traced from number `first` on.
///
/// # Errors
/// Those of the first step that fails.
pub(crate) async fn run<W>(rt: &Rt, first: u64, steps: &[Step<W>], on: &mut W) -> Result<()> {
    for (number, step) in (first..).zip(steps) {
        rt.trace(&[TRACE, number]);
        (step.run)(on).await?;
        if cfg!(debug_assertions) {
            (step.audit)(on)?;
        }
    }
    Ok(())
}

/// What an assembly does, step by step.
pub fn assembly_steps() -> Vec<&'static str> {
    let assembly = ASSEMBLY.iter().map(|step| step.name);
    let recovery = RECOVERY.iter().map(|step| step.name);
    assembly.chain(recovery).chain(FINISH.iter().map(|step| step.name)).collect()
}
