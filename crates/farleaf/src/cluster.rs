//! A running cluster.

use crate::confined::{Engine, Over};
use crate::error::Error;
use crate::handle::Handle;
use crate::shared::Shared;
use farleaf_cluster::client::{Connection, ConnectionConfig};
use farleaf_cluster::config::read_token;
use farleaf_cluster::error::ProgramError;
use farleaf_cluster::launch::Folder;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which cluster to connect to, and how.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How to find it.
    place: Place,
    /// Its name.
    cluster: String,
    /// The deadline of an operation.
    deadline: Duration,
}

#[derive(Clone, Debug)]
enum Place {
    Folder(PathBuf),
    Catalog { address: String, token_file: PathBuf },
}

impl ClusterOptions {
    /// The cluster of a folder of `farleaf cluster --dir`.
    pub fn folder(folder: impl Into<PathBuf>) -> Self {
        Self::of(Place::Folder(folder.into()))
    }

    /// The cluster of a catalog: the address of an embedded one, or `etcd:HOST:PORT,HOST:PORT`. The
    /// file holds the cluster's token.
    pub fn catalog(address: impl Into<String>, token_file: impl Into<PathBuf>) -> Self {
        let (address, token_file) = (address.into(), token_file.into());
        Self::of(Place::Catalog { address, token_file })
    }

    fn of(place: Place) -> Self {
        Self { place, cluster: "default".to_owned(), deadline: Duration::from_secs(5) }
    }

    /// The cluster of this name instead of `default`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// The deadline of an operation, instead of 5 seconds. Until then an operation that has changed
    /// nothing is retried.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Limit on requests in flight.
const DEPTH: usize = 1024;

impl ClusterOptions {
    fn config(&self) -> Result<ConnectionConfig, ProgramError> {
        let (catalog, token_file) = match &self.place {
            Place::Folder(folder) => {
                let folder = Folder(folder.clone());
                (folder.catalog()?, folder.token())
            }
            Place::Catalog { address, token_file } => {
                let bad = |why: String| ProgramError::Failed(format!("catalog {address}: {why}"));
                (address.parse().map_err(bad)?, token_file.clone())
            }
        };
        let (cluster, deadline) = (self.cluster.clone(), self.deadline);
        let token = read_token(&token_file)?;
        Ok(ConnectionConfig { cluster, catalog, token, deadline, depth: DEPTH })
    }

    /// Reads the catalog. Blocks its thread meanwhile; the connections to compute servers are made
    /// when operations need them.
    ///
    /// # Errors
    /// [`Error::Open`]: there is no such cluster, its catalog does not answer, or it has never
    /// served.
    pub fn connect(&self) -> Result<Handle, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Open(error.to_string());
        let open = || {
            let connection = Connection::open(&self.config()?)?;
            Ok::<_, ProgramError>(connection)
        };
        // A catalog's client may need to block on a runtime of its own, which a thread of another
        // runtime must not.
        let opened = std::thread::scope(|scope| scope.spawn(open).join());
        let connection = opened
            .map_err(|_| failed(&"the connection panicked"))?
            .map_err(|error| failed(&error))?;
        let make = move || {
            let (driver, client) = connection.client().map_err(|error| failed(&error))?;
            let over =
                Over::new(driver, client, |driver| driver.as_fd().try_clone_to_owned().map(Some));
            Ok(Box::new(over) as Box<dyn Engine>)
        };
        Shared::open(make).map(Handle::new)
    }
}

/// Connects to the cluster of a folder of `farleaf cluster --dir`, as [`ClusterOptions::connect`]
/// does.
///
/// # Errors
/// [`Error::Open`]: no cluster runs there, its catalog does not answer, or it has never served.
pub fn connect(folder: impl AsRef<Path>) -> Result<Handle, Error> {
    ClusterOptions::folder(folder.as_ref()).connect()
}
