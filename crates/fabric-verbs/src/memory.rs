//! Registers the memory of the compute server that the device may access: scratch buffers, and
//! other memory that operations lend, such as frame arenas. A region is registered when it is first
//! lent, once for all endpoints of a cluster.
//!
//! *Invariants*: verbs.R1. Registered memory stays mapped until the device has released it.
//! verbs.R2. A registration that can no longer be used, because all other references to the region
//! are gone, is dropped when the next region is registered.
//!
//! *Thread safety*: [`ClusterRegistrations`] is for any number of threads; [`KnownRegistrations`]
//! belongs to one endpoint.

use crate::device::{RdmaAdapter, RdmaUnavailable};
use crate::objects::{LocalMemory, Registration, address_of};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Buffer, Region};

/// The registrations of all endpoints of a cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterRegistrations(Mutex<Vec<Arc<Registration>>>);

/// Whether the region has references other than its registration.
fn is_of_use(registration: &Arc<Registration>) -> bool {
    Arc::strong_count(registration.region()) > 1
}

impl ClusterRegistrations {
    fn find(
        &self,
        adapter: &RdmaAdapter,
        region: &Arc<Region>,
    ) -> Result<Arc<Registration>, RdmaUnavailable> {
        let mut all = lock(&self.0);
        if let Some(known) = all.iter().find(|known| Arc::ptr_eq(known.region(), region)) {
            return Ok(Arc::clone(known));
        }
        all.retain(is_of_use);
        let registration = Arc::new(adapter.register(Arc::clone(region), false)?);
        all.push(Arc::clone(&registration));
        Ok(registration)
    }
}

/// The registrations that one endpoint has used so far.
#[derive(Debug, Default)]
pub(crate) struct KnownRegistrations {
    list: Vec<Arc<Registration>>,
}

impl KnownRegistrations {
    /// The address, length and key of `buffer` for the device.
    #[inline]
    pub(crate) fn local(
        &mut self,
        memory: &ClusterRegistrations,
        adapter: &RdmaAdapter,
        buffer: &Buffer,
    ) -> Result<LocalMemory, RdmaUnavailable> {
        let region = buffer.memory();
        let found = self.list.iter().find(|known| Arc::ptr_eq(known.region(), region));
        let lkey = match found {
            Some(known) => known.lkey,
            None => {
                self.list.retain(is_of_use);
                self.list.push(memory.find(adapter, region)?);
                self.list[self.list.len() - 1].lkey
            }
        };
        let bytes = u32::try_from(buffer.bytes()).unwrap_or(u32::MAX);
        Ok(LocalMemory { address: address_of(buffer.words()), bytes, lkey })
    }
}
