//! The moment at which compute servers die, if it is given explicitly.

use farleaf_fabric::sim::LastWords;
use rand::RngExt;
use std::fmt;
use std::str::FromStr;

/// A fixed moment for the first death, instead of one drawn from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeathAt {
    /// The number of WRITEs by the dying compute servers before their death.
    pub write: u64,
    /// What happens to their messages in flight.
    pub last_words: LastWords,
}

/// What can happen to messages in flight, by name.
const LAST_WORDS: [(&str, LastWords); 3] =
    [("none", LastWords::None), ("some", LastWords::Some), ("all", LastWords::All)];

impl DeathAt {
    /// Every kind of death at this WRITE.
    pub fn each(write: u64) -> impl Iterator<Item = Self> {
        LAST_WORDS.into_iter().map(move |(_, last_words)| Self { write, last_words })
    }

    /// A death at one of the first `max_writes` WRITEs.
    pub(crate) fn drawn(max_writes: u64, rng: &mut impl RngExt) -> Self {
        Self { write: rng.random_range(0..=max_writes), last_words: LastWords::Some }
    }
}

impl fmt::Display for DeathAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = LAST_WORDS.iter().find(|(_, words)| *words == self.last_words);
        write!(f, "{}:{}", self.write, name.map_or("", |(name, _)| name))
    }
}

impl FromStr for DeathAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(write, name)| {
            let (_, last_words) = *LAST_WORDS.iter().find(|(known, _)| *known == name)?;
            Some(Self { write: write.parse().ok()?, last_words })
        });
        parsed.ok_or_else(|| "expected WRITE:none, WRITE:some or WRITE:all, such as 17:some".into())
    }
}
