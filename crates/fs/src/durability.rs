//! What makes changes durable: checkpoints, the sync log, write-back, zones that fail, recovery.

pub(crate) mod append;
pub(crate) mod checkpoint;
mod dispatch;
pub(crate) mod namespace_log;
pub(crate) mod recover;
pub(crate) mod relocate;
pub(crate) mod sync;
mod write_back;
