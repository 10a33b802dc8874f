//! Parsers of the cache's options.

use farleaf_core::cache::{AdmissionName, CoolingName, OffloadName, VictimName, WriteBackName};
use farleaf_core::index::dex::Boundaries;

pub(super) fn admission(text: &str) -> Result<AdmissionName, String> {
    match text {
        "cold" => Ok(AdmissionName::Cold),
        "hot" => Ok(AdmissionName::Hot),
        "never" => Ok(AdmissionName::Never),
        _ => text
            .strip_prefix("coin:")
            .and_then(|probability| probability.parse().ok())
            .filter(|probability| (0.0..=1.0).contains(probability))
            .map(AdmissionName::Coin)
            .ok_or_else(|| "expected cold, hot, never, or coin:P with P from 0 to 1".to_owned()),
    }
}

pub(super) fn cooling(text: &str) -> Result<CoolingName, String> {
    match text {
        "map" => Ok(CoolingName::Map),
        "queue" => Ok(CoolingName::Queue),
        _ => Err("expected map or queue".to_owned()),
    }
}

pub(super) fn victims(text: &str) -> Result<VictimName, String> {
    match text {
        "unused" => Ok(VictimName::Unused),
        "random" => Ok(VictimName::Random),
        "clock" => Ok(VictimName::Clock),
        _ => Err("expected unused, random or clock".to_owned()),
    }
}

pub(super) fn write_back(text: &str) -> Result<WriteBackName, String> {
    match text {
        "words" => Ok(WriteBackName::Words),
        "pages" => Ok(WriteBackName::Pages),
        _ => Err("expected words or pages".to_owned()),
    }
}

pub(super) fn offload(text: &str) -> Result<OffloadName, String> {
    match text {
        "never" => Ok(OffloadName::Never),
        "always" => Ok(OffloadName::Always),
        "cost-aware" => Ok(OffloadName::CostAware),
        _ => Err("expected never, always or cost-aware".to_owned()),
    }
}

pub(super) fn boundaries(text: &str) -> Result<Boundaries, String> {
    match text {
        "keys" => Ok(Boundaries::Kept),
        "records" => Ok(Boundaries::EqualRecords),
        _ => Err("expected keys or records".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_nonsense_is_not() {
        assert_eq!(admission("coin:0.1"), Ok(AdmissionName::Coin(0.1)));
        assert_eq!(admission("cold"), Ok(AdmissionName::Cold));
        assert_eq!(admission("never"), Ok(AdmissionName::Never));
        for nonsense in ["coin", "coin:", "coin:2", "coin:NaN", "warm", ""] {
            assert!(admission(nonsense).is_err(), "{nonsense}");
        }
        assert_eq!(cooling("queue"), Ok(CoolingName::Queue));
        assert!(cooling("heap").is_err());
        assert_eq!(victims("clock"), Ok(VictimName::Clock));
        assert_eq!(offload("cost-aware"), Ok(OffloadName::CostAware));
        assert!(offload("sometimes").is_err());
        assert_eq!(boundaries("records"), Ok(Boundaries::EqualRecords));
    }
}
