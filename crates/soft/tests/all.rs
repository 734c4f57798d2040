//! The tests of soft zones, in one program.

mod damage;
mod format_doc;
mod lives;
mod rounds;
mod streams;
mod zones;
