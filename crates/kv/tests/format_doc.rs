//! `docs/inside/store-format.md` shows every structure of the code, field by field, and nothing
//! else. On a difference this test prints the tables as they should be.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test reads the document")]

use furrow_kv::format::LAYOUTS;

#[test]
fn the_document_shows_every_structure_as_the_code_has_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/inside/store-format.md");
    let document = std::fs::read_to_string(path).unwrap();
    let wrong: Vec<String> =
        LAYOUTS.iter().map(|l| l.markdown()).filter(|table| !document.contains(table)).collect();
    assert!(
        wrong.is_empty(),
        "docs/inside/store-format.md should have these tables:\n\n{}",
        wrong.join("\n")
    );
    for heading in document.lines().filter(|line| line.starts_with("### `")) {
        assert!(LAYOUTS.iter().any(|l| l.heading() == heading), "no such structure: {heading}");
    }
}
