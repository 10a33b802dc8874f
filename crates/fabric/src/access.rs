//! The check of an address, where the memory is: the same for every provider that has the region at
//! hand (contract F5).

use crate::region::Region;
use crate::sync::AtomicU64;
use crate::{FabricError, GlobalAddr};

/// Says whether `bytes` bytes at `at` can be a verb's business at all, whatever server it names.
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

/// The words that a verb is about, of a server that may lend no memory.
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

/// The words of `region` that a verb is about.
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
