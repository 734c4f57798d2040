//! Settings of engines that only experiments and tests of tests may use: rules other than the
//! product's, to measure what a rule is worth, and built-in defects, which the tests must catch.
//!
//! Each engine takes a *variant* in its options; the default is the product. Simulation and
//! laboratory depend on this crate, installed programs and libraries do not. Engines do not
//! re-export names of it.
//!
//! Invariants
//! - Every field of a variant is an enum of this crate whose default is the product's rule. So code
//!   that cannot name this crate can neither write nor compute another value.
//! - Nothing here reads a value from text, and no method makes one variant of another.
//! - A program that does not name defects contains none of their names: a variant prints itself
//!   without them.
//! - A check for a defect compares one byte.

mod defect;
mod fs;
mod raid;
mod soft;
mod store;

pub use defect::{FsDefect, LogDefect, RaidDefect, SoftDefect, StoreDefect};
pub use fs::{Commands, FsVariant, Metadata, Pieces, Rule, StreamHeads, SuperzoneTurn, SyncRecord};
pub use raid::{AppendPieces, Appends, Join, Lifetimes, RaidVariant, StripeTables, ZoneWrites};
pub use soft::SoftVariant;
pub use store::StoreVariant;

/// How a variant prints itself, without the names of its values.
fn print(f: &mut std::fmt::Formatter<'_>, is_product: bool) -> std::fmt::Result {
    f.write_str(if is_product { "the product" } else { "an experiment" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_product_and_anything_else_is_not() {
        assert_eq!(format!("{:?}", FsVariant::default()), "the product");
        assert_eq!(format!("{:?}", RaidVariant::default()), "the product");
        assert_eq!(format!("{:?}", StoreVariant::default()), "the product");
        assert_eq!(format!("{:?}", SoftVariant::default()), "the product");
        let early = FsVariant { early_quota: Rule::LeftOut, ..FsVariant::default() };
        assert_eq!(format!("{early:?}"), "an experiment");
        let defective = StoreVariant { defect: Some(StoreDefect::EarlyAck) };
        assert_eq!(format!("{defective:?}"), "an experiment");
        assert!(defective.has(StoreDefect::EarlyAck) && !defective.has(StoreDefect::StaleRingHalf));
    }

    #[test]
    fn asking_for_a_defect_compares_one_byte() {
        assert_eq!(size_of::<Option<FsDefect>>(), 1);
        assert_eq!(size_of::<Option<RaidDefect>>(), 1);
        assert_eq!(size_of::<Option<StoreDefect>>(), 1);
        assert_eq!(size_of::<Option<LogDefect>>(), 1);
        assert_eq!(size_of::<Option<SoftDefect>>(), 1);
    }
}
