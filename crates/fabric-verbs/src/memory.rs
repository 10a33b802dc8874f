//! Which memory of the compute server the device may reach: scratch buffers, and whatever else operations lend, such as
//! arenas of frames. A region is registered when it is lent first, once for all endpoints of a cluster.
//!
//! *Invariants*: R1. what is registered stays mapped until the device has let go of it. R2. a registration that nobody can
//! lend any more, because all others have dropped the region, goes when the next region is registered.
//!
//! *Thread safety*: [`Memory`] is for any number of threads; [`Known`] belongs to one endpoint.

use crate::device::{Adapter, Missing};
use crate::objects::{Local, Registration, address_of};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Buffer, Region};

/// The registrations of all endpoints of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Vec<Arc<Registration>>>);

/// Whether anybody but its registration has the region.
fn is_of_use(registration: &Arc<Registration>) -> bool {
    Arc::strong_count(registration.region()) > 1
}

impl Memory {
    fn find(&self, adapter: &Adapter, region: &Arc<Region>) -> Result<Arc<Registration>, Missing> {
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

/// What one endpoint has lent so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    list: Vec<Arc<Registration>>,
}

impl Known {
    /// What the device must be told of `buffer`.
    #[inline]
    pub(crate) fn local(
        &mut self,
        memory: &Memory,
        adapter: &Adapter,
        buffer: &Buffer,
    ) -> Result<Local, Missing> {
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
        Ok(Local { address: address_of(buffer.words()), bytes, lkey })
    }
}
