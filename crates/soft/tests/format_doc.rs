//! `docs/inside/soft-zones-format.md` shows every structure of the code, field by field, and
//! nothing else.

#[test]
fn the_document_shows_every_structure_as_the_code_has_it() {
    crate::layouts::compare("soft-zones-format.md", furrow_soft::format::LAYOUTS.iter());
}
