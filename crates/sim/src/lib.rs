//! Whole-stack simulation: crash sweeps, models, canaries.

pub mod array;
pub mod blocks;
pub mod client;
pub mod crash;
pub mod damage;
pub mod fates;
pub mod faulty;
pub mod files;
pub mod generate;
pub mod history;
pub mod ledger;
pub mod lives;
pub mod model;
pub mod observe;
pub mod op;
pub mod oracle;
pub mod part;
pub mod simulate;
pub mod sweep;
pub mod toy;
pub mod volume;
