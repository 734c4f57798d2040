//! From drives to a volume in service, in steps: what runs, and what must hold after it.
//!
//! The tables are the code that runs, and documents name the steps as the tables do.

use furrow_rt::Rt;
use furrow_zone::Result;
use std::future::Future;
use std::pin::Pin;

/// A step under way.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A step; `W` is what the steps of one table work on.
pub(crate) struct Step<W> {
    /// What the step does.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut W) -> Running<'_>,
    /// Checks what must hold after the step. Runs in debug builds.
    pub(crate) audit: fn(&W) -> Result<()>,
}

/// Number of each table's first step in the trace.
pub(crate) const OF_ASSEMBLY: u64 = 0;
pub(crate) const OF_RECOVERY: u64 = 16;
pub(crate) const OF_FINISH: u64 = 32;

/// First word of a step's entry in the trace.
const TRACE: u64 = 0x7261_6964;

/// Runs the steps of a table in order. Their numbers in the trace begin with `first`.
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
