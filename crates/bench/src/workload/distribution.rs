//! Distributions of the keys of operations.

use super::Permutation;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The popularity of keys. Serializes as the text that [`str::parse`] accepts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Distribution {
    /// All keys are equally popular.
    Uniform,
    /// The key of rank r has a probability exactly proportional to `r^-theta`.
    Zipfian {
        /// The exponent: 0 is uniform, 0.99 is YCSB's.
        theta: f64,
    },
    /// Zipfian over the records ordered by age, the newest being the most popular (YCSB's workload
    /// D).
    Latest {
        /// The exponent.
        theta: f64,
    },
}

/// The error for a text that names no distribution.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown distribution `{0}`: expected `uniform`, `zipfian:THETA` or `latest:THETA`, THETA a number \
     from 0 to 10 as in `zipfian:0.99`"
)]
pub struct DistributionError(String);

impl FromStr for Distribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        let wrong = || DistributionError(text.to_owned());
        let (kind, theta) = match text.split_once(':') {
            Some((kind, theta)) => (kind, Some(theta)),
            None => (text, None),
        };
        let theta = || {
            let theta: f64 = theta.ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
            (0.0..=10.0).contains(&theta).then_some(theta).ok_or_else(wrong)
        };
        match kind {
            "uniform" if text == kind => Ok(Self::Uniform),
            "zipfian" => Ok(Self::Zipfian { theta: theta()? }),
            "latest" => Ok(Self::Latest { theta: theta()? }),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Distribution {
    type Error = DistributionError;

    fn try_from(text: String) -> Result<Self, DistributionError> {
        text.parse()
    }
}

impl From<Distribution> for String {
    fn from(distribution: Distribution) -> Self {
        distribution.to_string()
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipfian { theta } => write!(f, "zipfian:{theta}"),
            Self::Latest { theta } => write!(f, "latest:{theta}"),
        }
    }
}

/// Draws ranks from `0..n`. Rank 0 is the most popular.
#[derive(Clone, Copy, Debug)]
pub(super) enum RankSampler {
    Uniform { n: u64 },
    Zipfian { n: u64, zipf: Zipf<f64> },
}

impl RankSampler {
    /// # Panics
    /// If `n` is 0, or if the exponent is negative or not finite.
    pub(super) fn new(distribution: Distribution, n: u64) -> Self {
        assert!(n > 0, "there are no keys to choose from");
        match distribution {
            Distribution::Uniform => Self::Uniform { n },
            Distribution::Zipfian { theta } | Distribution::Latest { theta } => {
                let zipf = Zipf::new(n as f64, theta).expect("a non-negative exponent");
                Self::Zipfian { n, zipf }
            }
        }
    }

    #[inline]
    pub(super) fn draw(&self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        match self {
            Self::Uniform { n } => rng.random_range(0..*n),
            // The sampler counts ranks from 1.
            Self::Zipfian { n, zipf } => ((zipf.sample(rng) as u64).saturating_sub(1)).min(n - 1),
        }
    }
}

/// Maps ranks to positions in the key space.
#[derive(Clone, Copy, Debug)]
pub(super) enum RankMapping {
    Scattered(Permutation),
    Clustered,
}

impl RankMapping {
    #[inline]
    pub(super) fn of(&self, rank: u64) -> u64 {
        match self {
            Self::Scattered(permutation) => permutation.apply(rank),
            Self::Clustered => rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn frequencies(distribution: Distribution, n: u64, draws: u64) -> Vec<f64> {
        let ranks = RankSampler::new(distribution, n);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut counts = vec![0u64; n as usize];
        for _ in 0..draws {
            counts[ranks.draw(&mut rng) as usize] += 1;
        }
        counts.into_iter().map(|count| count as f64 / draws as f64).collect()
    }

    #[test]
    fn zipfian_is_exact() {
        for theta in [0.5, 0.99, 1.0, 1.3] {
            let n = 1000;
            let draws = 400_000;
            let seen = frequencies(Distribution::Zipfian { theta }, n, draws);
            let total: f64 = (1..=n).map(|rank| (rank as f64).powf(-theta)).sum();
            for rank in [1, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-theta) / total;
                let error = (seen[rank as usize - 1] - expected).abs();
                let deviation = (expected / draws as f64).sqrt();
                assert!(error < 5.0 * deviation, "theta {theta}, rank {rank}: off by {error}");
            }
            let tail: f64 = seen[500..].iter().sum();
            let expected = (501..=n).map(|rank| (rank as f64).powf(-theta)).sum::<f64>() / total;
            assert!((tail - expected).abs() < 0.005, "theta {theta}: {tail} against {expected}");
        }
    }

    #[test]
    fn uniform_is_uniform() {
        let seen = frequencies(Distribution::Uniform, 50, 200_000);
        assert!(seen.iter().all(|share| (share - 0.02).abs() < 0.002), "{seen:?}");
        let flat = frequencies(Distribution::Zipfian { theta: 0.0 }, 50, 200_000);
        assert!(flat.iter().all(|share| (share - 0.02).abs() < 0.002), "{flat:?}");
    }

    #[test]
    fn text_goes_both_ways() {
        for text in ["uniform", "zipfian:0.99", "latest:0.5", "zipfian:1"] {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        let wrong = ["", "zipf", "zipfian", "zipfian:", "zipfian:x", "zipfian:-1", "zipfian:NaN"];
        for text in wrong.into_iter().chain(["zipfian:inf", "uniform:1", "uniform:", "latest"]) {
            let message = text.parse::<Distribution>().unwrap_err().to_string();
            assert!(message.contains("zipfian:0.99") && !message.contains('\n'), "{message}");
        }
    }
}
