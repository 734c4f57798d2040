//! RAID volumes: crash sweeps and simulation on drives that fail, and the oracle of their blocks.

pub mod array;
pub mod coverage;
pub mod crash;
pub mod oracle;
pub mod part;
pub mod sim;
