//! `include/furrow.h` agrees with the code.

#![allow(clippy::disallowed_methods, reason = "it reads and writes a file of this repository")]

use std::path::Path;

const INTRODUCTION: &str = "\
/* Furrow's file store for programs in C and C++.
 *
 * Made from crates/capi by its test `header`. Rules for all functions:
 * They return 0 or another furrow_kind, and describe the error in the furrow_error if one is given.
 * Strings end with a zero and are UTF-8. Buffers belong to the caller: none is kept or used after
 * the function has returned. A handle is closed once, and not used after that. Any thread may call
 * any function at any time. In the child of a fork every function fails with FURROW_FORKED and does
 * nothing. Appended and unsynced bytes are lost when the process ends, in whatever way.
 */";

#[test]
fn the_header_is_what_the_code_says() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        pragma_once: true,
        header: Some(INTRODUCTION.to_owned()),
        ..cbindgen::Config::default()
    };
    config.documentation_style = cbindgen::DocumentationStyle::C99;
    config.export.include = vec!["furrow_kind".to_owned()];
    let mut made = cbindgen::Builder::new().with_config(config);
    for source in ["error.rs", "store.rs", "file.rs"] {
        made = made.with_src(here.join("src").join(source));
    }
    let mut text = Vec::new();
    made.generate().expect("the interface is C").write(&mut text);
    let made = String::from_utf8(text).unwrap();
    // The `# Safety` section is written for callers in Rust, so the C header leaves it out.
    let mut kept = String::new();
    let mut skipping = false;
    for line in made.lines() {
        let comment = line.trim_start().strip_prefix("//");
        match comment {
            Some(text) if text.trim() == "# Safety" => skipping = true,
            None => skipping = false,
            Some(_) => {}
        }
        if !skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let kept = kept.replace("//\nint32_t", "int32_t").replace("//\nvoid", "void");
    let path = here.join("../../include/furrow.h");
    if std::env::var_os("FURROW_WRITE_HEADER").is_some() {
        std::fs::write(&path, &kept).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == kept,
        "include/furrow.h is not what the code says: make it with \
         FURROW_WRITE_HEADER=1 cargo test -p furrow-capi header"
    );
}
