//! Under construction.

pub mod cache;
pub mod dirent;
pub mod stripe;
pub mod tree;
