//! `furrow kv rm`, `mv`, `ln`, `mkdir` and `rmdir`: names of files in a store.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::store::Place;

/// A store with four files in three directories.
fn place(name: &str) -> Place {
    let place = Place::with_store(name);
    place.file("a", 9000);
    for path in ["db/1.sst", "db/2.sst", "db/old/3.sst", "top"] {
        place.ok(&["kv", "put", &place.drive(), &place.at("a"), path]);
    }
    place.ok(&["kv", "mkdir", &place.drive(), "empty"]);
    place
}

fn names(place: &Place) -> String {
    place.ok(&["kv", "ls", "-R", &place.drive()]).replace('\n', " ")
}

#[test]
fn files_and_trees_are_removed_or_nothing_is() {
    let place = place("rm");
    let d = place.drive();
    let all = "db/ db/1.sst db/2.sst db/old/ db/old/3.sst empty/ top ";
    assert_eq!(names(&place), all);
    for (arguments, words) in [
        (&["rm", &d, "top", "db/nosuch"][..], &["db/nosuch: no such file"][..]),
        (&["rm", &d, "top", "db"], &["db: a directory: -r removes it"]),
        (&["rm", "-rf", &d, "top", "/"], &["the root cannot be removed"]),
        (&["rm", &d, "../x"], &["leads out of the store"]),
        (&["rmdir", &d, "empty", "db"], &["db: not empty", "kv rm -r"]),
        (&["rmdir", &d, "empty", "top"], &["top: a file, not a directory"]),
        (&["rmdir", &d, "empty", "empty"], &["empty: given twice"]),
        (&["rmdir", &d, "nosuch"], &["nosuch: no such directory"]),
        (&["rmdir", &d, ""], &["the root cannot be removed"]),
        (&["mkdir", &d, "new", "empty"], &["empty: is there already"]),
        (&["mkdir", &d, "no/new"], &["no: no such file"]),
        (&["mkdir", "-p", &d, "new/x", "top/x"], &["top: a file, not a directory"]),
    ] {
        place.refused(&[&["kv"], arguments].concat(), 1, words);
        assert_eq!(names(&place), all, "{arguments:?}");
    }
    place.refused(&["kv", "rm", &d], 2, &["--help"]);
    assert_eq!(place.ok(&["kv", "rm", "-f", &d, "nosuch"]), "");
    let said = place.ok(&["kv", "rm", "-rv", &d, "db/old", "db/old/3.sst", "/top/"]);
    assert_eq!(said, "removed db/old/\nremoved db/old/3.sst\nremoved top\n");
    assert_eq!(names(&place), "db/ db/1.sst db/2.sst empty/ ");
    place.ok(&["kv", "mkdir", "-p", &d, "empty/a/b", "empty"]);
    place.ok(&["kv", "rmdir", &d, "empty/a/b", "empty/a", "empty"]);
    assert_eq!(names(&place), "db/ db/1.sst db/2.sst ");
    place.ok(&["kv", "rm", "-r", &d, "db"]);
    assert_eq!(
        (names(&place), place.json(&["kv", "df", &d])["used_bytes"].clone()),
        (String::new(), 0.into())
    );
    place.ok(&["kv", "fsck", &d]);
}

#[test]
fn files_get_other_names_and_further_ones_or_none_does() {
    let place = place("mv");
    let d = place.drive();
    let all = names(&place);
    for (arguments, words) in [
        (&["mv", &d, "top", "nosuch", "db"][..], &["nosuch: no such file"][..]),
        (&["mv", &d, "top", "db/1.sst"], &["db/1.sst: is there already: --force"]),
        (&["mv", "-f", &d, "db", "top"], &["top: is there already, and a directory replaces"]),
        (&["mv", &d, "db", "db/old"], &["db: cannot become db/old/db, which is inside"]),
        (&["mv", &d, "/", "x"], &["the root: cannot become x"]),
        (&["mv", &d, "db/1.sst", "db/2.sst", "nosuch"], &["nosuch: no such directory"]),
        (&["mv", &d, "db/1.sst", "new/"], &["new: no such directory"]),
        (&["mv", &d, "db/1.sst", "new/x"], &["new: no such directory", "mkdir"]),
        (&["mv", &d, "db/1.sst", "top/x"], &["top: a file, not a directory"]),
        (&["mv", &d, "top", "./top"], &["top: has this name already"]),
        (&["mv", &d, "top", "/top", "db"], &["db/top: would be both top and top"]),
        (&["mv", &d, "db/1.sst", "db", "empty"], &["db/1.sst: moves with db already"]),
        (&["mv", &d, "top/", "x"], &["top: a file, not a directory"]),
        (&["ln", &d, "db", "x"], &["db: a directory: it has one name only"]),
        (&["ln", &d, "top", "db/1.sst"], &["db/1.sst: is there already: --force"]),
        (&["ln", &d, "db/1.sst", "nosuch", "empty"], &["nosuch: no such file"]),
    ] {
        place.refused(&[&["kv"], arguments].concat(), 1, words);
        assert_eq!(names(&place), all, "{arguments:?}");
    }
    place.refused(&["kv", "mv", &d, "top"], 2, &["--help"]);
    let long = "x".repeat(900);
    let deep = format!("{long}/{long}");
    place.ok(&["kv", "mkdir", &d, &long]);
    place.refused(&["kv", "mv", &d, "db/1.sst", &deep], 1, &["at most 1024"]);
    place.ok(&["kv", "rmdir", &d, &long]);
    assert_eq!(names(&place), all);
    // The second name cannot be made, because no longer name fits beside it.
    let longest = "y".repeat(1024 - "empty/".len());
    place.ok(&["kv", "ln", &d, "db/1.sst", &longest]);
    place.ok(&["kv", "ln", &d, "db/1.sst", &format!("empty/{longest}")]);
    let more = names(&place);
    place.refused(&["kv", "ln", "-f", &d, "top", &longest, "empty"], 1, &["at most 1024"]);
    assert_eq!(names(&place), more, "neither name was made");
    // A file that was replaced before the failure is there again.
    place.ok(&["kv", "ln", &d, "db/1.sst", "empty/top"]);
    let before = (names(&place), place.json(&["kv", "ls", &d, "empty"])["entries"].clone());
    place.refused(&["kv", "mv", "-f", &d, "top", &longest, "empty"], 1, &["at most 1024"]);
    let after = (names(&place), place.json(&["kv", "ls", &d, "empty"])["entries"].clone());
    assert_eq!(before, after);
    place.ok(&["kv", "rm", &d, "empty/top"]);
    place.ok(&["kv", "rm", &d, &longest, &format!("empty/{longest}")]);

    let said = place.ok(&["kv", "ln", "-v", &d, "top", "db/1.sst", "empty"]);
    assert_eq!(said, "top => empty/top\ndb/1.sst => empty/1.sst\n");
    let entries = place.json(&["kv", "ls", &d, "empty"]);
    assert_eq!(
        (&entries["entries"][0]["names"], &entries["entries"][1]["names"]),
        (&2.into(), &2.into())
    );
    place.ok(&["kv", "ln", "-f", &d, "top", "db/1.sst"]);
    let said = place.ok(&["kv", "mv", "-v", &d, "db/old", "later"]);
    assert_eq!(said, "db/old -> later\n");
    place.ok(&["kv", "mv", "-f", &d, "later/3.sst", "db/2.sst"]);
    place.ok(&["kv", "mv", &d, "db", "top", "later"]);
    let expected =
        "empty/ empty/1.sst empty/top later/ later/db/ later/db/1.sst later/db/2.sst later/top ";
    assert_eq!(names(&place), expected);
    let entries = place.json(&["kv", "ls", "-R", &d]);
    let of = |name: &str| {
        let entries = entries["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        (entry["file"].as_u64().unwrap(), entry["names"].as_u64().unwrap())
    };
    assert_eq!((of("empty/top"), of("later/db/1.sst")), (of("later/top"), of("later/top")));
    assert_eq!((of("later/top").1, of("empty/1.sst").1), (3, 1));
    place.ok(&["kv", "rm", &d, "later/top", "empty/top"]);
    assert_eq!(
        place.ok(&["kv", "get", &d, "later/db/1.sst", &place.at("back")]),
        format!("{}: 8.79 KiB\n", place.at("back"))
    );
    place.ok(&["kv", "fsck", &d]);
}

#[test]
fn a_store_is_made_with_the_uuid_that_is_given() {
    let place = Place::new("uuid");
    let d = place.drive();
    let uuid = "6a1f3f0e-52d7-4c0e-9a4e-0d6b0f6f2b11";
    assert_eq!(place.json(&["kv", "mkfs", &d, "-U", uuid])["uuid"], uuid);
    assert_eq!(place.json(&["kv", "stat", &d])["uuid"], uuid);
    place.refused(&["kv", "mkfs", "-f", &d, "--uuid", "6a1f"], 2, &["6a1f"]);
}
