//! Whole-stack simulation: crash sweeps, models, canaries.

pub mod generate;
pub mod history;
pub mod model;
pub mod op;
pub mod oracle;
