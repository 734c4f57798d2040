//! Assembly and recovery as steps: what each does, and what must hold after it.
//!
//! The code runs the steps in these tables, and the documents list them by the names in the tables.

use furrow_rt::Rt;
use furrow_zone::Result;
use std::future::Future;
use std::pin::Pin;

/// The future of a step that runs.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A step; `W` is the state that the steps of one table share.
pub(crate) struct Step<W> {
    /// Name of the step, as a sentence for documents.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut W) -> Running<'_>,
    /// Checks what must hold after the step; called in debug builds only.
    pub(crate) audit: fn(&W) -> Result<()>,
}

/// Numbers, in the trace, of the first step of each table.
pub(crate) const OF_ASSEMBLY: u64 = 0;
pub(crate) const OF_RECOVERY: u64 = 16;
pub(crate) const OF_FINISH: u64 = 32;

/// First word of each entry that a step makes in the trace.
const TRACE: u64 = 0x7261_6964;

/// Runs the steps of a table in order. In the trace, their numbers begin with `first`.
///
/// # Errors
/// The error of the first step that fails.
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
