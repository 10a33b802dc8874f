//! Adapts a client's thread to [`Cpu`], the processor that a tree's code runs on.
//!
//! *Thread safety*: the same as for the endpoint.

use farleaf_fabric::{Cpu, Fabric, Work};

/// Attempts at one latch that only spin. Later attempts yield the processor.
const SPINS: u32 = 16;

/// Charges the tree's work to an endpoint. The work takes virtual time in the simulator and is free
/// elsewhere.
#[derive(Clone, Debug)]
pub struct FabricCpu<F> {
    fabric: F,
    stripe: usize,
}

impl<F: Fabric> FabricCpu<F> {
    /// Wraps an endpoint. `stripe` must differ from that of any other handle in use at the same
    /// time.
    pub fn new(fabric: F, stripe: usize) -> Self {
        Self { fabric, stripe }
    }

    /// The endpoint to which work is charged.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }
}

impl<F: Fabric> Cpu for FabricCpu<F> {
    #[inline(always)]
    async fn charge(&self, work: Work) {
        self.fabric.charge(work).await;
    }

    #[inline]
    async fn pause(&self, attempt: u32) {
        // The holder may be waiting for this core, or even for this thread, so yield after a few
        // spins.
        if attempt < SPINS {
            std::hint::spin_loop();
            self.fabric.charge(Work::Spin).await;
        } else {
            self.fabric.sleep(0).await;
        }
    }

    #[inline]
    fn stripe(&self) -> usize {
        self.stripe
    }
}
