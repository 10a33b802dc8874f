//! Messages as tables: a tag, a name and the fields of each, which define the type and its bytes.
//!
//! Each message of a table has one tag, and each tag stands for one message. The compiler rejects a
//! table with a repeated tag, and there is nothing else to keep in sync.

/// Defines an enum of messages by a table of lines `tag => Name { field: Type, … }`, `tag =>
/// Name(field: Type)` or `tag => Name`. A message is its tag byte and its fields in the order of
/// the table, each encoded by its type's [`WireField`](farleaf_page::WireField), or by the module
/// after `as` (of [`fields`](farleaf_page::fields)).
macro_rules! messages {
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(<$param:ident: $bound:ident>)? {
            $(
                $(#[$doc:meta])*
                $tag:literal => $variant:ident
                $({
                    $($(#[$field_doc:meta])* $field:ident: $type:ty $(as $codec:ident)?),+ $(,)?
                })?
                $(($inner:ident: $inner_type:ty $(as $inner_codec:ident)?))?
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        pub enum $name $(<$param: $bound>)? {
            $(
                $(#[$doc])*
                $variant
                $({ $($(#[$field_doc])* $field: $type),+ })?
                $(($inner_type))?
            ),+
        }

        impl $(<$param: $bound>)? $crate::wire::table::MessageTable for $name $(<$param>)? {
            const TAGS: &'static [u8] = &[$($tag),+];
        }

        const _: () =
            assert!($crate::wire::table::are_distinct(&[&[$($tag),+]]), "a tag is used twice");

        impl $(<$param: $bound>)? farleaf_page::PutField for $name $(<$param>)? {
            #[inline]
            fn put(&self, to: &mut farleaf_fabric::Message) {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($inner))? => {
                        to.push($tag);
                        $($($crate::wire::table::put!($field, to $(, $codec)?);)+)?
                        $($crate::wire::table::put!($inner, to $(, $inner_codec)?);)?
                    })+
                }
            }
        }

        impl $(<$param: $bound>)? farleaf_page::WireField for $name $(<$param>)? {
            #[inline]
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(match <u8 as farleaf_page::WireField>::take(from)? {
                    $($tag => Self::$variant
                        $({ $($field: $crate::wire::table::take!($type, from $(, $codec)?)),+ })?
                        $(($crate::wire::table::take!($inner_type, from $(, $inner_codec)?)))?,
                    )+
                    _ => return None,
                })
            }
        }
    };
}

/// Implements `Wire` for a struct: its fields in this order.
macro_rules! fields {
    ($name:ident $(<$param:ident>)? { $($field:ident),+ $(,)? }) => {
        impl $(<$param: farleaf_page::PutField>)? farleaf_page::PutField for $name $(<$param>)? {
            #[inline]
            fn put(&self, to: &mut farleaf_fabric::Message) {
                $(farleaf_page::PutField::put(&self.$field, to);)+
            }
        }

        impl $(<$param: farleaf_page::WireField>)? farleaf_page::WireField for $name $(<$param>)? {
            #[inline]
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: farleaf_page::WireField::take(from)?),+ })
            }
        }
    };
}

macro_rules! put {
    ($field:ident, $to:ident) => {
        farleaf_page::PutField::put($field, $to)
    };
    ($field:ident, $to:ident, $codec:ident) => {
        farleaf_page::fields::$codec::put($field, $to)
    };
}

macro_rules! take {
    ($type:ty, $from:ident) => {
        <$type as farleaf_page::WireField>::take($from)?
    };
    ($type:ty, $from:ident, $codec:ident) => {
        farleaf_page::fields::$codec::take($from)?
    };
}

pub(super) use {fields, messages, put, take};

/// A message type that a table defines.
pub(super) trait MessageTable {
    /// The tags of its messages.
    const TAGS: &'static [u8];
}

/// Whether no tag occurs twice in these tables.
pub(super) const fn are_distinct(tables: &[&[u8]]) -> bool {
    let mut seen = [false; 256];
    let mut table = 0;
    while table < tables.len() {
        let mut at = 0;
        while at < tables[table].len() {
            let tag = tables[table][at] as usize;
            if seen[tag] {
                return false;
            }
            seen[tag] = true;
            at += 1;
        }
        table += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::are_distinct;

    #[test]
    fn a_tag_twice_is_found_within_a_table_and_across_tables() {
        assert!(are_distinct(&[&[0, 1], &[2, 255]]));
        assert!(!are_distinct(&[&[0, 1, 0]]));
        assert!(!are_distinct(&[&[0, 1], &[2, 1]]));
    }
}
