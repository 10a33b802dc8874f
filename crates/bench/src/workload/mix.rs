//! Mixes of operations, as data.

use super::Distribution;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use thiserror::Error;

/// Number of records that a scan requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScanLength {
    /// Always this many.
    Fixed(u32),
    /// Uniformly distributed between 1 and this many.
    UpTo(u32),
}

/// A kind of operation. Unless noted, its key is a loaded key drawn from the distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OperationKind {
    /// Looks a key up.
    Get,
    /// Inserts a new key, one that no operation has used, after a loaded key drawn from the
    /// distribution.
    Insert,
    /// Inserts a loaded key, which succeeds only after a removal.
    Reinsert,
    /// Changes the value of an existing key.
    Update,
    /// Sets a key's value, whether or not the key exists.
    Upsert,
    /// Removes a key.
    Remove,
    /// Changes a value if it equals the loaded one.
    CompareExchange,
    /// Reads a value, then updates it, as one operation (YCSB's workload F).
    ReadModifyWrite,
    /// Reads consecutive records starting at a key.
    Scan {
        /// Number of records to read.
        length: ScanLength,
        /// Whether to read in descending order.
        #[serde(default)]
        reverse: bool,
    },
    /// Sets a loaded key's value to the loaded one, whether or not the key exists. The clients of a
    /// run together take each key once, in a scattered order, and then begin again.
    Fill,
    /// Reads all records in ascending order.
    ScanAll,
    /// Looks up several keys in one call.
    MultiGet {
        /// Number of keys.
        keys: u32,
    },
}

impl OperationKind {
    /// An ascending scan of `records` records.
    pub const fn scan(records: u32) -> Self {
        Self::Scan { length: ScanLength::Fixed(records), reverse: false }
    }
}

/// Kinds of operations with their weights, and a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationMix {
    /// The name in reports.
    pub name: Cow<'static, str>,
    /// Kinds of operations with their relative weights.
    pub operations: Cow<'static, [(OperationKind, u32)]>,
    /// The distribution to use if the run does not set one.
    #[serde(default = "ycsb_distribution")]
    pub distribution: Distribution,
}

/// The error for an unknown workload name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown workload `{name}`: expected one of {expected}, scan:RECORDS, full-scan, insert:PERCENT \
     or random-read-random-write:PERCENT"
)]
pub struct UnknownMix {
    name: String,
    expected: String,
}

const ZIPFIAN: Distribution = Distribution::Zipfian { theta: 0.99 };

fn ycsb_distribution() -> Distribution {
    ZIPFIAN
}

const fn named(name: &'static str, operations: &'static [(OperationKind, u32)]) -> OperationMix {
    OperationMix {
        name: Cow::Borrowed(name),
        operations: Cow::Borrowed(operations),
        distribution: ZIPFIAN,
    }
}

const fn uniform(name: &'static str, operations: &'static [(OperationKind, u32)]) -> OperationMix {
    let (name, operations) = (Cow::Borrowed(name), Cow::Borrowed(operations));
    OperationMix { name, operations, distribution: Distribution::Uniform }
}

use OperationKind::{Fill, Get, Insert, ReadModifyWrite, ScanAll, Update, Upsert};

const SCAN_100: OperationKind = OperationKind::scan(100);
const SCAN_UP_TO_100: OperationKind =
    OperationKind::Scan { length: ScanLength::UpTo(100), reverse: false };

/// The named mixes: those of DEX (§8.1), of YCSB, and of dLSM (§XI).
pub const NAMED_MIXES: &[OperationMix] = &[
    named("read-only", &[(Get, 100)]),
    named("read-intensive", &[(Get, 95), (Update, 5)]),
    named("write-intensive", &[(Get, 50), (Update, 50)]),
    named("update-only", &[(Update, 100)]),
    named("insert-intensive", &[(Get, 50), (Insert, 50)]),
    named("scan-intensive", &[(SCAN_100, 95), (Insert, 5)]),
    named("scan-only", &[(SCAN_100, 100)]),
    named("ycsb-a", &[(Get, 50), (Update, 50)]),
    named("ycsb-b", &[(Get, 95), (Update, 5)]),
    named("ycsb-c", &[(Get, 100)]),
    OperationMix {
        name: Cow::Borrowed("ycsb-d"),
        operations: Cow::Borrowed(&[(Get, 95), (Insert, 5)]),
        distribution: Distribution::Latest { theta: 0.99 },
    },
    named("ycsb-e", &[(SCAN_UP_TO_100, 95), (Insert, 5)]),
    named("ycsb-f", &[(Get, 50), (ReadModifyWrite, 50)]),
    uniform("fill-random", &[(Fill, 100)]),
];

impl OperationMix {
    /// Whether no operation can change anything.
    pub fn only_reads(&self) -> bool {
        use OperationKind::{Get, MultiGet, Scan, ScanAll};
        let reads = |kind| matches!(kind, Get | Scan { .. } | ScanAll | MultiGet { .. });
        self.operations.iter().all(|(kind, _)| reads(*kind))
    }

    /// Whether the mix begins with an empty index, and fills it.
    pub fn starts_empty(&self) -> bool {
        self.operations.iter().all(|(kind, _)| *kind == Fill)
    }

    /// The mix that fills an empty index.
    pub fn fill() -> Self {
        uniform("fill-random", &[(Fill, 100)])
    }

    /// An empty mix. Add operations with [`OperationMix::with`].
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), operations: Cow::Borrowed(&[]), distribution: ZIPFIAN }
    }

    /// Adds a kind of operation with its weight.
    #[must_use]
    pub fn with(mut self, kind: OperationKind, weight: u32) -> Self {
        self.operations.to_mut().push((kind, weight));
        self
    }

    /// Returns the mix with this name. In addition to [`NAMED_MIXES`], there are `scan:N`, scans of
    /// N records, `full-scan`, scans of all, `insert:P`, P percent insertions with lookups
    /// otherwise, and `random-read-random-write:P`, P percent lookups with upserts otherwise.
    ///
    /// # Errors
    /// [`UnknownMix`] if there is no such mix.
    pub fn named(name: &str) -> Result<Self, UnknownMix> {
        let number = |prefix: &str, most: u32| {
            let number: u32 = name.strip_prefix(prefix)?.parse().ok()?;
            Some(number).filter(|number| (1..=most).contains(number))
        };
        if let Some(records) = number("scan:", u32::MAX) {
            return Ok(Self::new(name.to_owned()).with(OperationKind::scan(records), 100));
        }
        if let Some(percent) = number("insert:", 100) {
            let lookups = Self::new(name.to_owned()).with(Get, 100 - percent);
            return Ok(lookups.with(Insert, percent));
        }
        if name == "full-scan" {
            return Ok(uniform("full-scan", &[(ScanAll, 100)]));
        }
        if let Some(percent) = name.strip_prefix("random-read-random-write:")
            && let Some(percent) = percent.parse::<u32>().ok().filter(|percent| *percent <= 100)
        {
            let mix = Self::new(name.to_owned()).with(Get, percent).with(Upsert, 100 - percent);
            return Ok(Self { distribution: Distribution::Uniform, ..mix });
        }
        NAMED_MIXES.iter().find(|mix| mix.name == name).cloned().ok_or_else(|| {
            let names: Vec<&str> = NAMED_MIXES.iter().map(|mix| &*mix.name).collect();
            UnknownMix { name: name.to_owned(), expected: names.join(", ") }
        })
    }

    /// The sum of the weights.
    pub fn total_weight(&self) -> u64 {
        self.operations.iter().map(|(_, weight)| u64::from(*weight)).sum()
    }

    /// The fraction of operations that insert a new key, from 0 to 1.
    pub fn insert_share(&self) -> f64 {
        let inserts = self.operations.iter().filter(|(kind, _)| *kind == Insert);
        let weight: u64 = inserts.map(|(_, weight)| u64::from(*weight)).sum();
        weight as f64 / self.total_weight().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_mixes_are_those_of_the_papers() {
        assert_eq!(NAMED_MIXES.len(), 14, "theirs, and scans and updates alone");
        assert!(NAMED_MIXES.iter().all(|mix| mix.total_weight() == 100));
        let mix = OperationMix::named("insert-intensive").unwrap();
        assert!((mix.insert_share() - 0.5).abs() < 1e-12);
        let latest = OperationMix::named("ycsb-d").unwrap().distribution;
        assert_eq!(latest, Distribution::Latest { theta: 0.99 });
        let message = OperationMix::named("ycsb-z").unwrap_err().to_string();
        assert!(message.contains("`ycsb-z`") && message.contains("scan-intensive"), "{message}");
        let scans = OperationMix::named("scan:2000").unwrap();
        assert_eq!(&*scans.operations, &[(OperationKind::scan(2000), 100)]);
        let inserts = OperationMix::named("insert:5").unwrap();
        assert_eq!((inserts.insert_share(), inserts.total_weight()), (0.05, 100));
        let mixed = OperationMix::named("random-read-random-write:95").unwrap();
        assert_eq!(&*mixed.operations, &[(Get, 95), (Upsert, 5)]);
        assert_eq!(mixed.distribution, Distribution::Uniform);
        assert!(OperationMix::named("random-read-random-write:0").is_ok() && !mixed.starts_empty());
        assert!(
            OperationMix::named("fill-random").unwrap() == OperationMix::fill()
                && OperationMix::fill().starts_empty()
        );
        assert!(
            OperationMix::named("full-scan").unwrap().only_reads()
                && !OperationMix::fill().only_reads()
        );
        let wrong = "random-read-random-write:101";
        for wrong in [wrong, "scan:0", "scan:", "scan:-1", "insert:101", "insert:x"] {
            assert!(OperationMix::named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mixes_are_data() {
        let text = r#"{ "name": "mine", "operations": [
            ["get", 3], [{ "multi-get": { "keys": 8 } }, 1],
            [{ "scan": { "length": { "up-to": 10 } } }, 1]
        ] }"#;
        let mix: OperationMix = serde_json::from_str(text).unwrap();
        let scan = OperationKind::Scan { length: ScanLength::UpTo(10), reverse: false };
        let built = OperationMix::new("mine")
            .with(Get, 3)
            .with(OperationKind::MultiGet { keys: 8 }, 1)
            .with(scan, 1);
        assert_eq!(mix, built);
        let written = serde_json::to_string(&mix).unwrap();
        assert_eq!(serde_json::from_str::<OperationMix>(&written).unwrap(), mix);
        let wrong = text.replace("\"operations\"", "\"distribution\": \"zipf\", \"operations\"");
        let message = serde_json::from_str::<OperationMix>(&wrong).unwrap_err().to_string();
        assert!(message.contains("unknown distribution `zipf`"), "{message}");
    }

    #[test]
    fn mixes_are_built_from_parts() {
        let mix =
            OperationMix::new("mine").with(Get, 3).with(OperationKind::MultiGet { keys: 8 }, 1);
        assert_eq!((mix.total_weight(), mix.operations.len()), (4, 2));
    }
}
