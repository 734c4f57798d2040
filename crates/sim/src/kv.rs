//! File stores: crash sweeps of random and of recorded runs, simulation, damaged images, and the
//! model of a store's promises.

pub mod crash;
pub mod damage;
pub mod promises;
pub mod recorded;
pub mod sim;
