//! `docs/inside/volume-format.md` shows every structure of the code, field by field, and nothing
//! else; `docs/inside/design/volume.md` lists the steps of an assembly as they run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test reads the document")]

#[test]
fn the_document_shows_every_structure_as_the_code_has_it() {
    crate::layouts::compare("volume-format.md", furrow_raid::format::LAYOUTS.iter());
}

#[test]
fn the_document_lists_the_steps_of_an_assembly_as_they_run() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/inside/design/volume.md");
    let document = std::fs::read_to_string(path).unwrap();
    let line = |(number, step): (usize, &str)| {
        format!("{number}. {}{}.\n", step[..1].to_uppercase(), &step[1..])
    };
    let steps: String = (1..).zip(furrow_raid::assembly_steps()).map(line).collect();
    assert!(
        document.contains(&steps),
        "docs/inside/design/volume.md should have this list:\n\n{steps}"
    );
}
