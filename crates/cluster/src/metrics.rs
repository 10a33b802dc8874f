//! A server's metrics in Prometheus' format: `/metrics` and `/healthz` over HTTP.
//!
//! Programs register each metric once with a function that reads it ([`Metrics::add`]); each
//! request reads the current values. The data path does not depend on this module.
//!
//! *Invariants*: connections are bounded in number and in time, and requests in size. The answer
//! depends on the path of a request and on nothing else in it.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::sync::{Arc, Mutex, lock};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Maximum number of open connections. One more closes the oldest, so that idle connections do not
/// block others.
const CONNECTIONS: usize = 64;
/// Maximum duration of a connection; below, the timeout for receiving a request's head.
const CONNECTION: Duration = Duration::from_secs(10);
const HEAD: Duration = Duration::from_secs(2);

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the program runs; its exported name ends in `_total`.
    Counter,
    /// It can grow and shrink.
    Gauge,
}

/// One value, with the labels that distinguish it within its family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Names and values of its labels, unique within the family. A sample without labels is the
    /// only one of its family.
    pub labels: Vec<(&'static str, String)>,
    pub value: u64,
}

impl From<u64> for Sample {
    fn from(value: u64) -> Self {
        Self { labels: Vec::new(), value }
    }
}

/// A family of metrics that is read from a state of type `S`.
#[derive(Debug)]
pub struct Family<S> {
    /// Its name, without the prefix.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Whether it can shrink.
    pub kind: Kind,
    /// Its samples in a state.
    pub samples: fn(&S) -> Vec<Sample>,
}

/// Families that are read together: their names, what they are, and their kinds; and the samples of
/// all of them.
struct Group {
    families: Vec<(&'static str, &'static str, Kind)>,
    look: Box<dyn Fn() -> Vec<Vec<Sample>> + Send + Sync>,
}

#[derive(Clone, Default)]
struct Families(Arc<Mutex<Vec<Group>>>);

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = lock(&self.0);
        let families = groups.iter().flat_map(|group| &group.families);
        let names: Vec<_> = families.map(|(name, ..)| *name).collect();
        f.debug_tuple("Families").field(&names).finish()
    }
}

fn put(kind: Kind, value: u64, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Gauge => ConstGauge::new(value).encode(encoder),
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Group { families, look } in lock(&self.0).iter() {
            for ((name, help, kind), samples) in families.iter().zip(look()) {
                let counter = ConstCounter::new(0_u64);
                let gauge = ConstGauge::new(0_u64);
                let metric_type = match kind {
                    Kind::Counter => counter.metric_type(),
                    Kind::Gauge => gauge.metric_type(),
                };
                let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
                for Sample { labels, value } in samples {
                    // Some readers do not accept empty braces.
                    if labels.is_empty() {
                        put(*kind, value, encoder)?;
                        break;
                    }
                    put(*kind, value, encoder.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

/// The metrics of one program.
#[derive(Clone, Debug)]
pub struct Metrics {
    families: Families,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        let families = Families::default();
        let mut registry = Registry::with_prefix("farleaf");
        registry.register_collector(Box::new(families.clone()));
        Self { families, registry: Arc::new(registry) }
    }
}

impl Metrics {
    /// Adds families of metrics like [`Metrics::add`]. Every request calls `look` once, and reads
    /// all of them from the state that it returns.
    pub fn add_together<S: 'static>(
        &self,
        families: Vec<Family<S>>,
        look: impl Fn() -> S + Send + Sync + 'static,
    ) {
        let (names, reads): (Vec<_>, Vec<_>) = families
            .into_iter()
            .map(|Family { name, help, kind, samples }| ((name, help, kind), samples))
            .unzip();
        let look = move || {
            let state = look();
            reads.iter().map(|samples| samples(&state)).collect()
        };
        lock(&self.families.0).push(Group { families: names, look: Box::new(look) });
    }

    /// Adds a family of metrics, exported as `farleaf_` followed by `name`, which ends with its
    /// unit if it has one (`pool_bytes`). Every request calls `look` on the thread that answers it,
    /// so `look` must not block for long.
    pub fn add(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        look: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) {
        let look = move || vec![look()];
        let group = Group { families: vec![(name, help, kind)], look: Box::new(look) };
        lock(&self.families.0).push(group);
    }

    /// Like [`Metrics::add`], for a single metric.
    pub fn add_one(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        look: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.add(name, help, kind, move || vec![look().into()]);
    }

    /// Renders all metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("a string takes everything");
        out
    }
}

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn answer(
    metrics: &Metrics,
    is_healthy: &dyn Fn() -> bool,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            (StatusCode::OK, OPEN_METRICS, metrics.text())
        }
        (&Method::GET | &Method::HEAD, "/healthz") => match is_healthy() {
            true => (StatusCode::OK, TEXT, "serving\n".to_owned()),
            false => (StatusCode::SERVICE_UNAVAILABLE, TEXT, "not serving\n".to_owned()),
        },
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, TEXT, "there are /metrics and /healthz\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

async fn serve(
    listener: tokio::net::TcpListener,
    metrics: Metrics,
    is_healthy: Arc<dyn Fn() -> bool + Send + Sync>,
) {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(_) => {
                // The system has run out of some resource, such as file descriptors; other programs
                // may release it.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let (metrics, is_healthy) = (metrics.clone(), Arc::clone(&is_healthy));
        let connection = tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let response = answer(&metrics, &*is_healthy, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(16 * 1024);
            let connection = http.serve_connection(TokioIo::new(socket), service);
            // An error or timeout of this connection does not affect others.
            let _ = tokio::time::timeout(CONNECTION, connection).await;
        });
        open.push_back(connection.abort_handle());
    }
}

impl MetricsServer {
    /// Serves connections to `listener`.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn start(
        listener: TcpListener,
        metrics: Metrics,
        is_healthy: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel::<()>();
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let is_healthy: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(is_healthy);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || {
            runtime.block_on(async {
                tokio::spawn(serve(listener, metrics, is_healthy));
                // Dropping the sender ends this wait; the runtime then drops open connections.
                let _ = ended.await;
            });
        })?;
        Ok(Self { address, end: Some(end), thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    fn get(address: SocketAddr, request: &str) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn numbers_are_served_as_prometheus_reads_them() {
        let metrics = Metrics::default();
        metrics.add_one("pool_bytes", "Bytes of the pool", Kind::Gauge, || 4096);
        metrics.add("operations", "Operations by kind", Kind::Counter, || {
            let sample = |kind: &str, value| Sample { labels: vec![("kind", kind.into())], value };
            vec![sample("get", 7), sample("scan", 2)]
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let healthy = Arc::new(Mutex::new(true));
        let look = Arc::clone(&healthy);
        let server = MetricsServer::start(listener, metrics, move || *lock(&look)).unwrap();
        let ask = |path: &str| {
            get(
                server.local_address(),
                &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            )
        };
        let answer = ask("/metrics");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        for line in [
            "# TYPE farleaf_pool_bytes gauge",
            "farleaf_pool_bytes 4096",
            "# TYPE farleaf_operations counter",
            "farleaf_operations_total{kind=\"get\"} 7",
            "farleaf_operations_total{kind=\"scan\"} 2",
            "# EOF",
        ] {
            assert!(answer.lines().any(|found| found == line), "{line}: {answer}");
        }
        assert!(ask("/healthz").starts_with("HTTP/1.1 200 OK"));
        *lock(&healthy) = false;
        assert!(ask("/healthz").starts_with("HTTP/1.1 503"));
        assert!(ask("/").starts_with("HTTP/1.1 404"));
        let garbage = get(server.local_address(), "this is not HTTP\r\n\r\n");
        assert!(!garbage.contains("200 OK"), "{garbage}");
        // The server still works after that.
        assert!(ask("/metrics").starts_with("HTTP/1.1 200 OK"));
    }
}
