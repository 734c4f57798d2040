//! How structures on media are declared: one declaration gives the type, its size check and the
//! table of its fields that the format document is tested against.
//!
//! Every field type is unaligned (`U32` and its like from zerocopy's little-endian set, bytes,
//! or another such structure), so a structure has no padding and any bytes are a valid value.

/// One field of a structure on media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Offset of the field in bytes.
    pub offset: usize,
    /// Size of the field in bytes.
    pub size: usize,
    /// Meaning of the field: the doc comment in the source, with the blank after `///`.
    pub doc: &'static str,
}

/// One structure on media: what the format document lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the structure.
    pub name: &'static str,
    /// Size of the structure in bytes.
    pub size: usize,
    /// Fields of the structure, in order, without gaps.
    pub fields: &'static [Field],
}

impl Layout {
    /// Returns the structure's heading in the format documents.
    pub fn heading(&self) -> String {
        format!("### `{}`, {} bytes", self.name, self.size)
    }

    /// Returns the structure as the format documents show it: heading and table of fields.
    pub fn markdown(&self) -> String {
        let head = "| offset | bytes | field | meaning |\n|---|---|---|---|\n";
        let rows = self.fields.iter().map(|field| {
            let doc = field.doc.trim().replace("[`", "`").replace("`]", "`").replace('|', "\\|");
            format!("| {} | {} | `{}` | {doc} |\n", field.offset, field.size, field.name)
        });
        format!("{}\n\n{head}{}", self.heading(), rows.collect::<String>())
    }
}

/// Declares structures on media: `layout! { /// doc` `pub struct Name: SIZE { /// doc` `pub field:
/// Type, … } }`. Each gets zerocopy's traits, `SIZE`, `FIELDS` and `LAYOUT`, and a compile-time
/// check that it is `SIZE` bytes. The calling crate depends on `zerocopy` itself.
#[macro_export]
macro_rules! layout {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $( $(#[doc = $doc:literal])+ pub $field:ident: $type:ty, )+
        }
    )+) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable,
            ::zerocopy::KnownLayout, ::zerocopy::Unaligned,
        )]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        const _: () = assert!(::core::mem::size_of::<$name>() == $size);

        impl $name {
            /// Size of the structure in bytes.
            pub const SIZE: usize = $size;
            /// Fields of the structure, in order.
            pub const FIELDS: &'static [$crate::layout::Field] = &[$(
                $crate::layout::Field {
                    name: stringify!($field),
                    offset: ::core::mem::offset_of!($name, $field),
                    size: ::core::mem::size_of::<$type>(),
                    doc: concat!($($doc),+),
                },
            )+];
            /// Name, size and fields of the structure.
            pub const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: stringify!($name),
                size: $size,
                fields: Self::FIELDS,
            };
        }
    )+};
}
