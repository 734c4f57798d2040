//! Counters of a volume.

/// A counter: its name, its meaning in words, its value.
pub type Counted = (&'static str, &'static str, u64);

macro_rules! counters {
    ($($name:ident: $what:literal,)+) => {
        /// Counts of the volume's work since it was assembled.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = $what] pub $name: u64,)+
        }

        impl Counters {
            /// All counters, in the order of their definition.
            pub fn each(&self) -> Vec<Counted> {
                vec![$((stringify!($name), $what, self.$name),)+]
            }
        }
    };
}

counters! {
    written: "Blocks users wrote",
    read: "Blocks users read",
    padded: "Blocks of zeros that filled stripes",
    stripes: "Stripes dispatched",
    windows: "Blocks that metadata stripes took where data could be, on drives without an \
        out-of-band area",
    waited: "Nanoseconds that blocks of dispatched stripes had waited, all together: for the rest \
             of their stripe, for its turn, for the end of the group before",
    moved: "Blocks cleaning moved",
    rebuilt: "Zones rebuilt on new drives",
    cleaned: "Segments cleaning emptied",
    reconstructed: "Blocks reconstructed from parity for a read",
    repaired: "Damaged blocks that were rewritten",
    checkpoints: "Checkpoints written",
    rewritten: "Stripes written elsewhere because a zone failed",
    map_hits: "Lookups of a mapping block that was in memory",
    map_misses: "Lookups for which a mapping block was read",
    map_evictions: "Mapping blocks that left memory to make space for others",
    map_writes: "Mapping blocks written",
    map_peak: "Most mapping blocks that were in memory at once",
}
