//! The schema of a design's options: their names, what they mean, their defaults and their bounds.
//!
//! [`design_options!`](crate::design_options) declares the options of a design once. Scenario files
//! and settings files read them by `serde`, command lines by [`OptionChange`], and lists of all
//! options come from [`OptionSchema::fields`].
//!
//! *Thread safety*: plain values.

use super::{IndexError, UnknownName};
use farleaf_fabric::numbers::{BYTES, scaled};
use farleaf_page::table::IndexKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use thiserror::Error;

#[doc(hidden)]
pub use serde;

/// The value of an option, as files and command lines write it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OptionValue {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number; as a text also with a suffix, such as `64Ki` or `20M`.
    Whole(u64),
    /// Another number.
    Fraction(f64),
    /// A name.
    Name(String),
    /// A name with a number: `coin:0.1`, as a table `{ coin = 0.1 }`.
    Table(BTreeMap<String, f64>),
}

impl From<&str> for OptionValue {
    fn from(text: &str) -> Self {
        match (text, scaled(text, &BYTES), text.parse()) {
            ("true", ..) => Self::Flag(true),
            ("false", ..) => Self::Flag(false),
            (_, Some(number), _) => Self::Whole(number),
            (_, _, Ok(number)) => Self::Fraction(number),
            _ => Self::Name(text.to_owned()),
        }
    }
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Whole(number) => number.fmt(f),
            Self::Fraction(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::Table(table) => table.iter().try_for_each(|(name, n)| write!(f, "{name}:{n}")),
        }
    }
}

/// What values an option can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionBounds {
    /// Numbers from the first to the second.
    Numbers(f64, f64),
    /// Names, which the text lists.
    Names(&'static str),
}

impl OptionBounds {
    fn admits(&self, value: &OptionValue) -> bool {
        match (self, value) {
            (Self::Numbers(lowest, highest), OptionValue::Whole(number)) => {
                (*lowest..=*highest).contains(&(*number as f64))
            }
            (Self::Numbers(lowest, highest), OptionValue::Fraction(number)) => {
                (*lowest..=*highest).contains(number)
            }
            _ => true,
        }
    }
}

impl fmt::Display for OptionBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(lowest, highest) if *highest >= u64::MAX as f64 => {
                write!(f, "a number from {lowest}")
            }
            Self::Numbers(lowest, highest) => write!(f, "a number from {lowest} to {highest}"),
            Self::Names(names) => f.write_str(names),
        }
    }
}

/// One option of a design.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionField {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// The values that it can have.
    pub bounds: OptionBounds,
    /// The value that it has.
    pub value: OptionValue,
}

/// Why an option cannot be set. The message has one line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown option `{name}`: expected one of {known}")]
    Unknown {
        /// Its name.
        name: String,
        /// The names of all options.
        known: String,
    },
    /// The option cannot have this value.
    #[error("`{name}` must be {bounds}, not `{value}`")]
    OutOfBounds {
        /// Its name.
        name: &'static str,
        /// The values that it can have, in words.
        bounds: String,
        /// The value that it was given.
        value: String,
    },
}

/// The options of a design.
pub trait OptionSchema {
    /// All options with their values.
    fn fields(&self) -> Vec<OptionField>;

    /// Sets the option `name`.
    ///
    /// # Errors
    /// [`OptionError`] if there is no such option, or the value is out of bounds.
    fn set(&mut self, name: &str, value: &OptionValue) -> Result<(), OptionError>;

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`], which names the option and its bounds.
    fn check_bounds(&self) -> Result<(), IndexError>;
}

/// The type of an option.
pub trait OptionType: Sized {
    /// Reads a value; `None` if it is of another type.
    fn of_value(value: &OptionValue) -> Option<Self>;

    /// The value, as files write it.
    fn to_value(&self) -> OptionValue;

    /// The bounds in `range`, or those of the type.
    fn bounds(range: Option<RangeInclusive<Self>>) -> OptionBounds;
}

macro_rules! whole_numbers {
    ($($number:ty)+) => { $(
        impl OptionType for $number {
            fn of_value(value: &OptionValue) -> Option<Self> {
                match value {
                    OptionValue::Whole(number) => Self::try_from(*number).ok(),
                    _ => None,
                }
            }

            fn to_value(&self) -> OptionValue {
                OptionValue::Whole(*self as u64)
            }

            fn bounds(range: Option<RangeInclusive<Self>>) -> OptionBounds {
                let (lowest, highest) = range.unwrap_or(0..=Self::MAX).into_inner();
                OptionBounds::Numbers(lowest as f64, highest as f64)
            }
        }
    )+ };
}

whole_numbers!(u8 u16 u32 u64 usize);

impl OptionType for f64 {
    fn of_value(value: &OptionValue) -> Option<Self> {
        match value {
            OptionValue::Whole(number) => Some(*number as Self),
            OptionValue::Fraction(number) => Some(*number),
            _ => None,
        }
    }

    fn to_value(&self) -> OptionValue {
        OptionValue::Fraction(*self)
    }

    fn bounds(range: Option<RangeInclusive<Self>>) -> OptionBounds {
        let (lowest, highest) = range.unwrap_or(0.0..=Self::MAX).into_inner();
        OptionBounds::Numbers(lowest, highest)
    }
}

impl OptionType for bool {
    fn of_value(value: &OptionValue) -> Option<Self> {
        match value {
            OptionValue::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    fn to_value(&self) -> OptionValue {
        OptionValue::Flag(*self)
    }

    fn bounds(_range: Option<RangeInclusive<Self>>) -> OptionBounds {
        OptionBounds::Names("true or false")
    }
}

/// Bits per key of Bloom filters, those of dLSM's paper.
const BLOOM_BITS: u8 = 10;
/// Blocks that hold a record or two, as most scenarios have them.
const SMALL_BLOCK_BYTES: u32 = 256;

/// `compact`, `full`, or `blocks:BYTES`.
impl OptionType for IndexKind {
    fn of_value(value: &OptionValue) -> Option<Self> {
        let OptionValue::Name(name) = value else { return None };
        let blocks = |block_bytes| Self::Blocks { block_bytes, bloom_bits: BLOOM_BITS };
        match name.as_str() {
            "compact" => Some(Self::Compact),
            "full" => Some(Self::Full { bloom_bits: BLOOM_BITS }),
            "blocks" => Some(blocks(SMALL_BLOCK_BYTES)),
            _ => {
                let bytes = scaled(name.strip_prefix("blocks:")?, &BYTES)?;
                (1..=1 << 20).contains(&bytes).then(|| blocks(bytes as u32))
            }
        }
    }

    fn to_value(&self) -> OptionValue {
        OptionValue::Name(match self {
            Self::Compact => "compact".to_owned(),
            Self::Full { .. } => "full".to_owned(),
            Self::Blocks { block_bytes, .. } => format!("blocks:{block_bytes}"),
        })
    }

    fn bounds(_range: Option<RangeInclusive<Self>>) -> OptionBounds {
        OptionBounds::Names("compact, full, or blocks:BYTES with 1 to 1Mi bytes (blocks: 256)")
    }
}

/// Reads the value of the option `name`.
#[doc(hidden)]
pub fn read_option<T: OptionType>(
    name: &'static str,
    value: &OptionValue,
    range: Option<RangeInclusive<T>>,
) -> Result<T, OptionError> {
    let bounds = T::bounds(range);
    let read = T::of_value(value).filter(|_| bounds.admits(value));
    read.ok_or_else(|| OptionError::OutOfBounds {
        name,
        bounds: bounds.to_string(),
        value: value.to_string(),
    })
}

/// Reads a name as `FromStr` does. Files may join its words by `_`, as those of TOML do.
#[doc(hidden)]
pub fn read_name<T: FromStr<Err = UnknownName>>(value: &OptionValue) -> Option<T> {
    match value {
        OptionValue::Name(name) => name.replace('_', "-").parse().ok(),
        _ => None,
    }
}

/// Makes a type with `FromStr` and `Display` the type of an option.
#[doc(hidden)]
#[macro_export]
macro_rules! named_option {
    ($option:ident, $expected:literal) => {
        impl $crate::OptionType for $option {
            fn of_value(value: &$crate::OptionValue) -> Option<Self> {
                $crate::option_schema::read_name(value)
            }

            fn to_value(&self) -> $crate::OptionValue {
                $crate::OptionValue::Name(self.to_string())
            }

            fn bounds(_range: Option<std::ops::RangeInclusive<Self>>) -> $crate::OptionBounds {
                $crate::OptionBounds::Names($expected)
            }
        }
    };
}

/// Reads options that a map sets; the others are those of `base`.
///
/// # Errors
/// An [`OptionError`] as an error of the deserializer.
pub fn deserialize_onto<'de, O: OptionSchema, D: Deserializer<'de>>(
    base: O,
    deserializer: D,
) -> Result<O, D::Error> {
    let written = BTreeMap::<String, OptionValue>::deserialize(deserializer)?;
    let set = |mut options: O, (name, value): (&String, &OptionValue)| {
        // Texts may be numbers with suffixes.
        options
            .set(name, &value.to_string().as_str().into())
            .map_err(D::Error::custom)
            .map(|()| options)
    };
    written.iter().try_fold(base, set)
}

/// Writes a map of the options that are not as in `base`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_onto<O: OptionSchema, S: Serializer>(
    base: &O,
    options: &O,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let changed = options.fields().into_iter().zip(base.fields());
    let changed = changed.filter(|(field, base)| field.value != base.value);
    serializer.collect_map(changed.map(|(field, _)| (field.name, field.value)))
}

/// One option of a design and its new value: `DESIGN.OPTION=VALUE` on command lines.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionChange {
    /// The design's name.
    pub design: String,
    /// The option's name.
    pub option: String,
    /// Its new value.
    pub value: OptionValue,
}

impl FromStr for OptionChange {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let parts = text.split_once('=').and_then(|(name, value)| {
            let (design, option) = name.split_once('.')?;
            Some(Self { design: design.into(), option: option.into(), value: value.into() })
        });
        parts.ok_or(UnknownName::among("DESIGN.OPTION=VALUE, such as dex.scan_ahead=8"))
    }
}

impl fmt::Display for OptionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}={}", self.design, self.option, self.value)
    }
}

/// Declares the options of a design, each with its meaning, its default and its bounds:
///
/// ```
/// farleaf_index::design_options! {
///     /// Options of a design.
///     #[derive(Clone, Debug)]
///     pub struct ExampleOptions<K> {
///         /// How many leaves are read together.
///         pub leaves: u32 = 16, in 1..=1024;
///         /// Its name in files and on command lines is another one.
///         pub bytes as "cache_bytes": u64 = 64 << 20;
///     }
///     given {
///         /// No file sets this.
///         pub boundaries: Vec<K> = Vec::new();
///     }
/// }
/// use farleaf_index::OptionSchema;
/// let mut options = ExampleOptions::<u64>::default();
/// options.set("leaves", &"8".into()).unwrap();
/// assert_eq!(options.leaves, 8);
/// assert!(options.set("leaves", &"0".into()).is_err());
/// ```
///
/// `with` lists fields that have options of their own, which become options of the design.
#[macro_export]
macro_rules! design_options {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Options:ident $(<$K:ident>)? {
            $(
                $(#[doc = $help:literal])+
                pub $field:ident $(as $name:literal)?: $Type:ty = $default:expr $(, in $range:expr)?;
            )*
        }
        $(with { $( $(#[$inner_meta:meta])+ pub $inner:ident: $Inner:ty; )+ })?
        $(given { $( $(#[$given_meta:meta])+ pub $given:ident: $Given:ty = $given_default:expr; )+ })?
    ) => {
        $(#[$meta])*
        $vis struct $Options $(<$K>)? {
            $( $(#[doc = $help])+ pub $field: $Type, )*
            $( $( $(#[$inner_meta])+ pub $inner: $Inner, )+ )?
            $( $( $(#[$given_meta])+ pub $given: $Given, )+ )?
        }

        impl$(<$K>)? Default for $Options$(<$K>)? {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $( $( $inner: <$Inner>::default(), )+ )?
                    $( $( $given: $given_default, )+ )?
                }
            }
        }

        impl$(<$K>)? $crate::OptionSchema for $Options$(<$K>)? {
            fn fields(&self) -> Vec<$crate::OptionField> {
                #[allow(unused_mut, reason = "only options in other structs are added")]
                let mut fields = vec![ $( $crate::OptionField {
                    name: $crate::design_options!(@name $field $($name)?),
                    help: concat!($($help),+).trim(),
                    bounds: <$Type as $crate::OptionType>::bounds($crate::design_options!(@range $($range)?)),
                    value: $crate::OptionType::to_value(&self.$field),
                }, )* ];
                $( $( fields.extend($crate::OptionSchema::fields(&self.$inner)); )+ )?
                fields
            }

            fn set(
                &mut self,
                name: &str,
                value: &$crate::OptionValue,
            ) -> Result<(), $crate::OptionError> {
                $( if name == $crate::design_options!(@name $field $($name)?) {
                    self.$field = $crate::option_schema::read_option(
                        $crate::design_options!(@name $field $($name)?),
                        value,
                        $crate::design_options!(@range $($range)?),
                    )?;
                    return Ok(());
                } )*
                $( $( match $crate::OptionSchema::set(&mut self.$inner, name, value) {
                    Err($crate::OptionError::Unknown { .. }) => {}
                    done => return done,
                } )+ )?
                let known: Vec<_> = self.fields().iter().map(|field| field.name).collect();
                Err($crate::OptionError::Unknown { name: name.to_owned(), known: known.join(", ") })
            }

            fn check_bounds(&self) -> Result<(), $crate::IndexError> {
                $( $crate::design_options!(@check self.$field, ($field $($name)?) $($range)?); )*
                $( $( $crate::OptionSchema::check_bounds(&self.$inner)?; )+ )?
                Ok(())
            }
        }

        impl$(<$K>)? $crate::option_schema::serde::Serialize for $Options$(<$K>)? {
            fn serialize<S: $crate::option_schema::serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                $crate::option_schema::serialize_onto(&Self::default(), self, serializer)
            }
        }

        impl<'de $(, $K)?> $crate::option_schema::serde::Deserialize<'de> for $Options$(<$K>)? {
            fn deserialize<D: $crate::option_schema::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                $crate::option_schema::deserialize_onto(Self::default(), deserializer)
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@check $value:expr, ($($named:tt)+)) => {};
    (@check $value:expr, ($($named:tt)+) $range:expr) => {
        if !($range).contains(&$value) {
            return Err($crate::IndexError::InvalidArgument(concat!(
                "`", $crate::design_options!(@name $($named)+), "` must be in ", stringify!($range),
            )));
        }
    };
    (@range) => { None };
    (@range $range:expr) => { Some($range) };
}
