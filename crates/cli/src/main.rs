//! The `furrow` command.
fn main() {}
