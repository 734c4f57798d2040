//! RAID volumes: crash sweeps and simulation on failing drives, and the oracle of their blocks.

pub mod array;
pub mod coverage;
pub mod crash;
pub mod oracle;
pub mod part;
pub mod sim;
