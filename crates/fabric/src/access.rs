//! Checks addresses where the memory is; shared by all providers with access to the region
//! (contract F5).

use crate::region::Region;
use crate::sync::AtomicU64;
use crate::{FabricError, GlobalAddr};

/// Checks whether a verb may access `bytes` bytes at `at` on any server.
///
/// # Errors
/// [`FabricError::Unaligned`] if not.
#[inline]
pub fn check_alignment(at: GlobalAddr, bytes: usize) -> Result<(), FabricError> {
    if at.offset().is_multiple_of(8) && bytes.is_multiple_of(8) && !at.is_swizzled() {
        return Ok(());
    }
    Err(FabricError::Unaligned { at, bytes })
}

/// The words that a verb accesses, on a server that may not expose memory.
#[inline]
pub(crate) fn check_lent(
    memory: Option<&Region>,
    at: GlobalAddr,
    bytes: usize,
) -> Result<&[AtomicU64], FabricError> {
    match memory {
        Some(region) => check_access(region, at, bytes),
        None => {
            check_alignment(at, bytes)?;
            Err(FabricError::OutOfBounds { at, bytes, region_bytes: 0 })
        }
    }
}

/// The words of `region` that a verb accesses.
#[inline]
pub(crate) fn check_access(
    region: &Region,
    at: GlobalAddr,
    bytes: usize,
) -> Result<&[AtomicU64], FabricError> {
    check_alignment(at, bytes)?;
    let region_bytes = region.bytes();
    region.slice(at.offset(), bytes / 8).ok_or(FabricError::OutOfBounds { at, bytes, region_bytes })
}
