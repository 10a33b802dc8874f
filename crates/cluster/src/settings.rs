//! The settings that all programs of a cluster must agree on: the first program with complete
//! settings writes them, and the others compare theirs.
//!
//! *Thread safety*: plain functions.

use crate::catalog::{Catalog, CatalogError};
use crate::config::ConfigError;
use crate::error::ProgramError;
use crate::records::{self, CatalogKeys, IndexName, SettingsRecord};
use farleaf_dex::cache::CacheOptions;
use farleaf_dlsm::DlsmOptions;
use farleaf_index::AcknowledgeName;

/// Returns the cluster's settings. If there are none yet, writes `mine`.
///
/// # Errors
/// [`ConfigError::Settings`] if the cluster has different settings; [`ProgramError`] if the catalog
/// cannot be read.
pub fn agree(
    catalog: &dyn Catalog,
    keys: &CatalogKeys,
    mine: &SettingsRecord,
) -> Result<(), ProgramError> {
    match records::put_if(catalog, &keys.settings(), None, mine, None) {
        Ok(true) => return Ok(()),
        // Settings exist: compare them.
        Ok(false) | Err(CatalogError::Indeterminate { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let found = records::get::<SettingsRecord>(catalog, &keys.settings())?;
    let (theirs, _) = found.ok_or_else(|| {
        ProgramError::Failed("the cluster's settings have disappeared from the catalog".into())
    })?;
    let differs = |what: &str, theirs: &dyn std::fmt::Display, mine: &dyn std::fmt::Display| {
        let text = format!("this cluster was made with {theirs} as {what}, not {mine}");
        Err(ConfigError::Settings(text).into())
    };
    let SettingsRecord { memory_servers, compute_servers, transport, placement_level, .. } = mine;
    // Compare layouts first: if they differ, no other setting matters.
    let (their_layout, my_layout) = (theirs.layout()?, mine.layout()?);
    if their_layout != my_layout {
        return differs("the layout", &their_layout, &my_layout);
    }
    if theirs.index != mine.index {
        return differs("the index", &theirs.index, &mine.index);
    }
    if theirs.memory_servers != *memory_servers {
        return differs("the number of memory servers", &theirs.memory_servers, memory_servers);
    }
    if theirs.compute_servers != *compute_servers {
        return differs("the number of compute servers", &theirs.compute_servers, compute_servers);
    }
    if theirs.transport != *transport {
        return differs("the transport", &theirs.transport, transport);
    }
    if theirs.placement_level != *placement_level {
        return differs("the placement level", &theirs.placement_level, placement_level);
    }
    Ok(())
}

/// Maximum number of compute servers of a cluster, including those that join after its creation.
pub const MAX_COMPUTE_SERVERS: u16 = 64;

/// Refuses a compute server whose number no client can reach. Compute servers beyond the initial
/// number may join; they own no keys until some are moved to them.
///
/// # Errors
/// [`ConfigError::Settings`] if `number` is too large.
pub fn check_compute_number(number: u16, made_with: u16) -> Result<(), ConfigError> {
    let most = made_with.max(MAX_COMPUTE_SERVERS);
    if number < most {
        return Ok(());
    }
    let text = format!(
        "--number {number} is out of range: a cluster has at most {most} compute servers, \
         numbered from 0"
    );
    Err(ConfigError::Settings(text))
}

/// When a compute server with these options answers changes of an index of this design.
pub fn acknowledge_of(
    index: IndexName,
    cache: &CacheOptions,
    tree: &DlsmOptions,
) -> AcknowledgeName {
    match index {
        IndexName::Dex => cache.acknowledge,
        IndexName::Dlsm => tree.acknowledge,
    }
}

/// Whether compute servers take over the keys of dead ones: where that is possible, unless
/// something else was `asked` for.
///
/// # Errors
/// [`ConfigError::Settings`] if it was asked for where it is not possible: with answers that a
/// death can lose, and without another compute server.
pub fn takes_over(
    asked: Option<bool>,
    acknowledge: AcknowledgeName,
    compute_servers: u16,
) -> Result<bool, ConfigError> {
    let needs = match acknowledge {
        AcknowledgeName::Cached => {
            Some("--acknowledge written: a dead server's memory is lost with its changes")
        }
        _ if compute_servers < 2 => Some("at least two compute servers"),
        _ => None,
    };
    match (asked, needs) {
        (Some(true), Some(needs)) => {
            Err(ConfigError::Settings(format!("--takeover on needs {needs}")))
        }
        (asked, needs) => Ok(asked.unwrap_or(needs.is_none())),
    }
}

/// Refuses a server whose number is out of range: it would never get keys, or other servers would
/// wait for it.
///
/// # Errors
/// [`ConfigError::Settings`] if `number` is not below `count`.
pub fn check_number(kind: &str, number: u16, count: u16) -> Result<(), ConfigError> {
    if number < count {
        return Ok(());
    }
    let text = format!(
        "--number {number} is out of range: the cluster has {count} {kind} servers, numbered from 0"
    );
    Err(ConfigError::Settings(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takeovers_are_on_where_they_are_possible_unless_refused() {
        let (cached, written) = (AcknowledgeName::Cached, AcknowledgeName::Written);
        let takes = |asked, level, servers| {
            takes_over(asked, level, servers).map_err(|error| error.to_string())
        };
        assert_eq!(takes(None, written, 2), Ok(true));
        assert_eq!(takes(Some(true), written, 2), Ok(true));
        assert_eq!(takes(Some(false), written, 2), Ok(false));
        assert_eq!(takes(None, cached, 2), Ok(false));
        assert_eq!(takes(None, written, 1), Ok(false));
        for (level, servers, needs) in
            [(cached, 2, "--acknowledge written"), (written, 1, "at least two compute servers")]
        {
            let refusal = takes(Some(true), level, servers).unwrap_err();
            assert!(refusal.contains(&format!("--takeover on needs {needs}")), "{refusal}");
        }
    }
}
