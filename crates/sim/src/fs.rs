//! File systems: crash sweeps, simulation, damaged images, and the model and oracle that judge
//! them.

pub mod attributes;
pub mod client;
pub mod content;
pub mod crash;
pub mod damage;
pub mod faults;
pub mod flip;
mod flood;
mod fsync_batch;
pub mod generate;
pub mod history;
mod isolation;
pub mod model;
pub mod observe;
mod offline;
pub mod op;
pub mod oracle;
pub mod read_only;
pub mod repair;
mod shared_file;
pub mod sim;
