//! File stores: crash sweeps of drawn and of recorded runs, simulation, damaged images, and what a
//! store promised.

pub mod crash;
pub mod damage;
pub mod promises;
pub mod recorded;
pub mod sim;
