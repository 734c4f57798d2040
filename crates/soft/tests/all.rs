//! The tests of soft zones, in one program.

#[path = "../../linux/tests/common/conformance.rs"]
mod conformance;
mod damage;
mod format_doc;
#[path = "../../log/tests/common/layouts.rs"]
mod layouts;
mod lives;
mod rounds;
mod streams;
mod zones;
