//! The tests of the commands and of the tree's rules as one program.
//!
//! Three tests are separate programs: `device` and `fsck` lock images in their process, and
//! children that other tests start would hold the locks for a moment; `top` examines all mounts of
//! the machine.
//!
//! Each file here is a module: a single program links its dependencies only once.

#[path = "common/array.rs"]
mod array;
mod common;
mod core_sees_nothing;
mod documents;
mod dump;
mod holds;
mod json_page;
mod kv;
mod kv_in_use;
mod kv_names;
mod mount;
mod mount_block;
mod mount_damage;
mod mount_defaults;
mod mount_direct;
mod mount_full_host;
mod mount_outside;
mod mount_overlay;
mod old;
mod package;
#[path = "common/place.rs"]
mod place;
mod power;
mod product;
mod raid;
mod raid_boot;
mod raid_records;
mod raid_reports;
mod raid_upkeep;
mod raid_words;
mod scrub;
mod soft;
#[path = "common/store.rs"]
mod store;
mod tidy;
mod uses;
