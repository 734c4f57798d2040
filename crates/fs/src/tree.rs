//! What users see of a file system: files, directories, names and attributes, in the cache.

mod acl;
mod atime;
pub mod cache;
pub(crate) mod directory_index;
pub mod dirent;
pub(crate) mod file;
mod file_pages;
pub(crate) mod holes;
pub(crate) mod lifetime;
pub(crate) mod namespace;
pub(crate) mod node;
mod open_files;
mod ranges;
pub(crate) mod readdir;
pub(crate) mod rename_cycle;
pub mod shape;
pub(crate) mod xattr;
