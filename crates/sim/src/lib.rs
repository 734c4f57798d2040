//! Whole-stack simulation: crash sweeps, models, canaries.

pub mod array;
pub mod attributes;
pub mod blocks;
mod bystanders;
pub mod client;
pub mod content;
pub mod crash;
pub mod damage;
pub mod fates;
pub mod faulty;
pub mod files;
mod flood;
pub mod generate;
pub mod history;
pub mod ledger;
pub mod lives;
pub mod model;
pub mod observe;
pub mod op;
pub mod oracle;
pub mod part;
pub mod silent;
pub mod simulate;
pub mod store;
pub mod sweep;
pub mod toy;
pub mod volume;
