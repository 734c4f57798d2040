//! `docs/inside/format.md` shows every structure of the code, field by field; this test compares
//! the two. If they differ, the test prints the tables as they should be.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test reads the document")]

#[test]
fn the_document_shows_every_structure_as_the_code_has_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/inside/format.md");
    let document = std::fs::read_to_string(path).unwrap();
    let layouts = furrow_log::format::LAYOUTS.iter().chain(furrow_fs::format::LAYOUTS);
    let mut wrong = String::new();
    for layout in layouts {
        let expected = layout.markdown();
        if !document.contains(&expected) {
            wrong.push_str(&expected);
            wrong.push('\n');
        }
    }
    assert!(wrong.is_empty(), "docs/inside/format.md should have these tables:\n\n{wrong}");
}

/// A structure in the document that the code does not have would be misleading.
#[test]
fn the_document_shows_nothing_else() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/inside/format.md");
    let document = std::fs::read_to_string(path).unwrap();
    let known: Vec<String> = furrow_log::format::LAYOUTS
        .iter()
        .chain(furrow_fs::format::LAYOUTS)
        .map(|layout| layout.heading())
        .collect();
    for heading in document.lines().filter(|line| line.starts_with("### `")) {
        assert!(known.iter().any(|k| k == heading), "no such structure: {heading}");
    }
    assert!(known.len() > 15);
}
