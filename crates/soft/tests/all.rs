//! The tests of soft zones, in one program.

mod format_doc;
mod rounds;
mod streams;
mod zones;
