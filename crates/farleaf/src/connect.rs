//! An index in a running cluster.

use crate::cores::{EnginePool, EngineSlot};
use crate::data::KeyKind;
use crate::engine::{AnyEngine, DriverEngine};
use crate::error::{Error, ErrorCause};
use crate::index::Index;
use farleaf_cluster::catalog::CatalogAddress;
use farleaf_cluster::client::{ClusterConnection, ConnectionConfig, LocatedCluster};
use farleaf_cluster::config::read_token;
use farleaf_cluster::error::ProgramError;
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::layouts::{ClusterLayout, LayoutName};
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::Token;
use farleaf_page::{Bytes, Fixed8};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A connection has room for more requests than operations, because an operation on several keys
/// sends several requests.
const REQUESTS_PER_OPERATION: usize = 2;
/// Each operation takes scratch memory of its connection.
const MAX_OPERATIONS: usize = 16_384;

#[derive(Clone, Debug)]
enum Secret {
    File(PathBuf),
    Text(String),
}

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    place: PathBuf,
    token: Option<Secret>,
    cluster: String,
    deadline: Duration,
    depth: usize,
    connections: usize,
}

impl ConnectOptions {
    /// Sets the place of the cluster: the folder of `farleaf cluster --dir FOLDER`, or the address
    /// of a catalog, `HOST:PORT` or `etcd:HOST:PORT,HOST:PORT`, which also needs a token.
    pub fn new(place: impl AsRef<Path>) -> Self {
        Self {
            place: place.as_ref().to_owned(),
            token: None,
            cluster: "default".to_owned(),
            deadline: Duration::from_secs(5),
            depth: 256,
            connections: 2,
        }
    }

    /// Reads the cluster's token from this file, which only its owner can read. Not needed with a
    /// folder, which contains the token.
    #[must_use]
    pub fn token_file(mut self, path: impl AsRef<Path>) -> Self {
        self.token = Some(Secret::File(path.as_ref().to_owned()));
        self
    }

    /// Sets the cluster's token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Secret::Text(token.into()));
        self
    }

    /// Sets the name of the cluster; `default` by default.
    #[must_use]
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// Sets the deadline of one operation, retries included; 5 seconds by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the maximum number of operations in flight per connection; 256 by default. Further ones
    /// wait in order, and their deadlines begin when they are sent.
    #[must_use]
    pub fn depth(mut self, operations: usize) -> Self {
        self.depth = operations;
        self
    }

    /// Sets the maximum number of connections that the handle opens to each compute server; 2 by
    /// default. This many threads can send and receive at the same time.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Finds the catalog and the token.
    fn find(&self) -> Result<(CatalogAddress, Token), ProgramError> {
        let address = self.place.to_str().map(str::parse::<CatalogAddress>);
        let (address, token) = match address {
            Some(Ok(address)) if !self.place.is_dir() => (address, None),
            _ => {
                let folder = LauncherFolder(self.place.clone());
                (folder.catalog()?, Some(Secret::File(folder.token())))
            }
        };
        let token = match self.token.clone().or(token) {
            Some(Secret::File(path)) => read_token(&path)?,
            Some(Secret::Text(text)) => {
                let token = Token::new(text.trim().as_bytes());
                token.map_err(|error| ProgramError::Failed(error.to_string()))?
            }
            None => {
                let why = format!("the catalog at {address} needs the cluster's token");
                return Err(ProgramError::Failed(why));
            }
        };
        Ok((address, token))
    }

    fn locate(&self) -> Result<LocatedCluster, ProgramError> {
        let (catalog, token) = self.find()?;
        let (cluster, deadline) = (self.cluster.clone(), self.deadline);
        let depth = self.depth.saturating_mul(REQUESTS_PER_OPERATION);
        LocatedCluster::find(&ConnectionConfig { cluster, catalog, token, deadline, depth })
    }
}

impl<P: AsRef<Path>> From<P> for ConnectOptions {
    fn from(place: P) -> Self {
        Self::new(place)
    }
}

/// Connects to a running cluster of `u64` keys: `connect("/tmp/farleaf")`, or with
/// [`ConnectOptions`]. [`connect_bytes()`] is for byte strings.
///
/// Reads the catalog, which blocks the thread for a few milliseconds, or longer if the catalog does
/// not answer. The handle connects to a compute server when it first has something to send there,
/// and automatically finds servers that have moved.
///
/// # Errors
/// [`Error::Connect`] if there is no such cluster, it does not answer, it has never served, or its
/// keys are byte strings. [`Error::Invalid`] if an option is out of range.
pub fn connect(options: impl Into<ConnectOptions>) -> Result<Index, Error> {
    let options = options.into();
    index_of::<Fixed8, u64>(located(&options)?, &options)
}

/// Like [`connect()`], but for a cluster of byte strings: `farleaf cluster --keys bytes`, with
/// pages of any size.
///
/// # Errors
/// As for [`connect()`]; [`Error::Connect`] if the cluster has `u64` keys.
pub fn connect_bytes(options: impl Into<ConnectOptions>) -> Result<Index<[u8]>, Error> {
    let options = options.into();
    let located = located(&options)?;
    match located.layout() {
        // The first error already tells that the keys have another kind.
        LayoutName::Numbers | LayoutName::Bytes1K => {
            index_of::<Bytes<128>, [u8]>(located, &options)
        }
        LayoutName::Bytes2K => index_of::<Bytes<256>, [u8]>(located, &options),
        LayoutName::Bytes4K => index_of::<Bytes<512>, [u8]>(located, &options),
    }
}

/// Checks the options, and finds the cluster.
fn located(options: &ConnectOptions) -> Result<LocatedCluster, Error> {
    if options.connections == 0
        || options.depth == 0
        || options.depth > MAX_OPERATIONS
        || options.deadline.is_zero()
    {
        let why = "deadline, depth and connections must not be 0, nor the depth more than 16384";
        return Err(Error::Invalid(ErrorCause::text(why)));
    }
    apart(|| options.locate())
}

fn index_of<L, K>(located: LocatedCluster, options: &ConnectOptions) -> Result<Index<K>, Error>
where
    L: ClusterLayout<Key = K, Value = K>,
    K: ?Sized + KeyKind,
{
    let connection = Arc::new(apart(|| located.connect::<L>())?);
    let core = |number| {
        let connection = Arc::clone(&connection);
        let depth = options.depth;
        EngineSlot::new(move || engine(&connection, number, depth))
    };
    let cores = (0..options.connections).map(core).collect::<Result<_, _>>()?;
    Ok(Index::new(EnginePool::new(cores)))
}

/// Queries the catalog. Inside a tokio runtime, it uses a separate thread: the etcd client blocks
/// on its own runtime, which tokio forbids on a thread that already runs one.
fn apart<T: Send>(ask: impl FnOnce() -> Result<T, ProgramError> + Send) -> Result<T, Error> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Ok(ask()?);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, ask);
        let thread = thread.map_err(|error| Error::system("cannot start a thread", error))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    })
}

fn engine<L, K>(
    connection: &ClusterConnection<L>,
    number: usize,
    depth: usize,
) -> Result<Box<dyn AnyEngine<K>>, Error>
where
    L: ClusterLayout<Key = K, Value = K>,
    K: ?Sized + KeyKind,
{
    let system = |error| Error::system("cannot open an endpoint", error);
    let driver = connection.driver().map_err(system)?;
    let client = connection.client(&driver, number).map_err(system)?;
    Ok(Box::new(DriverEngine::new(Executor::new(), client, driver, depth)?))
}
