//! `docs/inside/format.md` shows every structure of the code, field by field, and nothing else.

#[test]
fn the_document_shows_every_structure_as_the_code_has_it() {
    let layouts = furrow_log::format::LAYOUTS.iter().chain(furrow_fs::format::LAYOUTS);
    assert!(layouts.clone().count() > 15);
    crate::layouts::compare("format.md", layouts);
}
