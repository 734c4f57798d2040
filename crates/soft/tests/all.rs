//! The tests of soft zones, in one program.

#[path = "../../linux/tests/common/conformance.rs"]
mod conformance;
mod damage;
mod format_doc;
mod lives;
mod rounds;
mod streams;
mod zones;
