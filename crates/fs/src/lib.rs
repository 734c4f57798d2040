//! Under construction.

pub mod dirent;
pub mod stripe;
pub mod tree;
