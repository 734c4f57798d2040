//! The tests of soft zones, in one program.

mod format_doc;
mod streams;
mod zones;
