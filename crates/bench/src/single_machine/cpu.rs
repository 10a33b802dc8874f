//! A client's own thread as the processor that a tree's code runs on.
//!
//! *Thread safety*: that of the endpoint.

use farleaf_fabric::{Cpu, Fabric, Work};

/// Waits for one latch that only spin; whoever waits longer lets others have the processor.
const SPINS: u32 = 16;

/// Charges the tree's work to an endpoint: in the simulator it takes its time, elsewhere it is free.
#[derive(Clone, Debug)]
pub struct FabricCpu<F> {
    fabric: F,
    stripe: usize,
}

impl<F: Fabric> FabricCpu<F> {
    /// The thread of this endpoint, with a number that tells it from others that run at the same time.
    pub fn new(fabric: F, stripe: usize) -> Self {
        Self { fabric, stripe }
    }

    /// The endpoint.
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
        // The holder may wait for this core, or for this very thread: after a few spins, give it away.
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
