//! The index behind compute servers as an index design, for suites and benchmarks. The servers of
//! its endpoints are compute servers, which have already created the index.

use super::{ClientIndex, ClientOptions};
use crate::{Design, IndexError};
use farleaf_fabric::Fabric;
use farleaf_page::Layout;

/// An index that is served by compute servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemoteDesign;

impl<L: Layout> Design<L> for RemoteDesign {
    const NAME: &'static str = "remote";
    type Options = ();
    type Compute = ();
    type Index<F: Fabric> = ClientIndex<F, L>;

    /// Does nothing: the compute servers create the index.
    async fn create<F: Fabric>(_fabric: &F, _options: &()) -> Result<(), IndexError> {
        Ok(())
    }

    fn compute(_options: &()) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_handle<F: Fabric>(fabric: F, _: &()) -> Result<ClientIndex<F, L>, IndexError> {
        ClientIndex::open(fabric, ClientOptions::default()).await
    }

    /// The compute servers have checked it.
    async fn check_values<F: Fabric>(_fabric: &F) -> Result<(), IndexError> {
        Ok(())
    }
}
