//! How the pager's thread reaches memory servers.
//!
//! *Thread safety*: a reach goes to the pager's thread, which opens its endpoint there.

use crate::FarError;
use farleaf_fabric::executor::Driver;
use farleaf_fabric::local::{LocalCluster, LocalDriver, LocalFabric};
use farleaf_fabric::shm::{ShmCluster, ShmDriver, ShmFabric};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpDriver, TcpFabric};
use farleaf_fabric::{Calls, Fabric};
use std::os::fd::BorrowedFd;

/// Opens an endpoint on the thread that will use it.
pub trait EndpointSource: Send + 'static {
    /// The endpoint.
    type Fabric: Fabric;
    /// What drives it.
    type Driver: Driver + 'static;

    /// Opens the endpoint on the calling thread.
    ///
    /// # Errors
    /// [`FarError::System`] if that is not possible.
    fn open(&self) -> Result<(Self::Driver, Self::Fabric), FarError>;

    /// A descriptor that becomes readable when the driver has something to do besides its timers.
    fn descriptor(driver: &Self::Driver) -> Option<BorrowedFd<'_>>;
}

/// A cluster, reached by an endpoint of one compute server.
#[derive(Debug)]
pub struct ClusterEndpoints<C> {
    cluster: Arc<C>,
    compute_server: u16,
    number: usize,
}

impl<C> ClusterEndpoints<C> {
    /// Reaches `cluster` as compute server `compute_server`; `number` tells its endpoints apart.
    pub fn new(cluster: Arc<C>, compute_server: u16, number: usize) -> Self {
        Self { cluster, compute_server, number }
    }
}

fn failed(error: &dyn std::fmt::Display) -> FarError {
    FarError::System { action: "open an endpoint for far memory", cause: error.to_string() }
}

impl<S: Calls> EndpointSource for ClusterEndpoints<LocalCluster<S>> {
    type Fabric = LocalFabric;
    type Driver = LocalDriver;

    fn open(&self) -> Result<(Self::Driver, Self::Fabric), FarError> {
        let driver = self.cluster.driver();
        let fabric = driver.open(self.compute_server, self.number);
        Ok((driver, fabric.map_err(|error| failed(&error))?))
    }

    fn descriptor(_: &Self::Driver) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl EndpointSource for ClusterEndpoints<TcpCluster> {
    type Fabric = TcpFabric;
    type Driver = TcpDriver;

    fn open(&self) -> Result<(Self::Driver, Self::Fabric), FarError> {
        let driver = self.cluster.driver().map_err(|error| failed(&error))?;
        let fabric = driver.open(self.compute_server, self.number);
        Ok((driver, fabric.map_err(|error| failed(&error))?))
    }

    fn descriptor(driver: &Self::Driver) -> Option<BorrowedFd<'_>> {
        Some(driver.descriptor())
    }
}

impl EndpointSource for ClusterEndpoints<ShmCluster> {
    type Fabric = ShmFabric;
    type Driver = ShmDriver;

    fn open(&self) -> Result<(Self::Driver, Self::Fabric), FarError> {
        let driver = self.cluster.driver().map_err(|error| failed(&error))?;
        let fabric = driver.open(self.compute_server, self.number);
        Ok((driver, fabric.map_err(|error| failed(&error))?))
    }

    fn descriptor(driver: &Self::Driver) -> Option<BorrowedFd<'_>> {
        Some(driver.descriptor())
    }
}
