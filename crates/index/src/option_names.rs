//! The names of options' values, as on the command line.

use thiserror::Error;

/// A text that names no value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected {0}")]
pub struct UnknownName(&'static str);

impl UnknownName {
    /// Reports that a text is none of the names that `expected` lists.
    pub const fn among(expected: &'static str) -> Self {
        Self(expected)
    }
}

/// Implements `FromStr` and `Display` for an option whose values have plain names. The literal
/// lists the names for the error message.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($option:ident, $expected:literal, { $($value:ident: $name:literal,)+ }) => {
        impl std::str::FromStr for $option {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($name => Ok(Self::$value),)+
                    _ => Err($crate::UnknownName::among($expected)),
                }
            }
        }

        impl std::fmt::Display for $option {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(Self::$value => $name,)+ })
            }
        }

        $crate::named_option!($option, $expected);
    };
}
