//! Under construction.

pub mod stripe;
pub mod tree;
