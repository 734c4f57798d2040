//! `docs/inside/store-format.md` shows every structure of the code, field by field, and nothing
//! else.

#[test]
fn the_document_shows_every_structure_as_the_code_has_it() {
    crate::layouts::compare("store-format.md", furrow_kv::format::LAYOUTS.iter());
}
