//! Compares a page of a format with the structures of the code, for the tests of every format.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test reads the document")]

use furrow_log::layout::Layout;

/// Checks that `docs/inside/PAGE` shows every structure of `layouts` as the code has it, field by
/// field, and no other structure. On a difference, the tables are printed as they should be.
pub fn compare<'a>(page: &str, layouts: impl Iterator<Item = &'a Layout> + Clone) {
    let path = format!("{}/../../docs/inside/{page}", env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(path).unwrap();
    let tables = layouts.clone().map(Layout::markdown);
    let wrong: Vec<String> = tables.filter(|table| !document.contains(table)).collect();
    assert!(wrong.is_empty(), "{page} should have these tables:\n\n{}", wrong.join("\n"));
    for heading in document.lines().filter(|line| line.starts_with("### `")) {
        assert!(layouts.clone().any(|l| l.heading() == heading), "no such structure: {heading}");
    }
}
