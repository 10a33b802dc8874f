//! A server's metrics in OpenMetrics' format or, for those who ask for it, in Prometheus' older
//! text format: `/metrics` and `/healthz` over HTTP.
//!
//! Programs register each metric once with a function that reads it ([`Metrics::add`]); each
//! request reads the current values. The data path does not depend on this module.
//!
//! *Invariants*: connections are bounded in number and in time, and requests in size. The answer
//! depends on the path of a request, on what it accepts, and on nothing else in it.
//!
//! *Thread safety*: any number of threads.

use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, VARY};
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
pub enum MetricKind {
    /// It only grows while the program runs; its exported name ends in `_total`.
    Counter,
    /// It can grow and shrink.
    Gauge,
    /// A gauge of a time in nanoseconds, exported in seconds; its name ends in `_seconds`.
    Duration,
}

/// One value, with the labels that distinguish it within its family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSample {
    /// Names and values of its labels, unique within the family. A sample without labels is the
    /// only one of its family.
    pub labels: Vec<(&'static str, String)>,
    pub value: u64,
}

impl From<u64> for MetricSample {
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
    pub kind: MetricKind,
    /// Reads its samples from a state.
    pub samples: fn(&S) -> Vec<MetricSample>,
}

/// Families that are read together: their names, what they are, and their kinds; and the samples of
/// all of them.
struct FamilyGroup {
    families: Vec<(&'static str, &'static str, MetricKind)>,
    look: Box<dyn Fn() -> Vec<Vec<MetricSample>> + Send + Sync>,
}

#[derive(Clone, Default)]
struct Families(Arc<Mutex<Vec<FamilyGroup>>>);

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = lock(&self.0);
        let families = groups.iter().flat_map(|group| &group.families);
        let names: Vec<_> = families.map(|(name, ..)| *name).collect();
        f.debug_tuple("Families").field(&names).finish()
    }
}

fn put(kind: MetricKind, value: u64, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        MetricKind::Counter => ConstCounter::new(value).encode(encoder),
        MetricKind::Gauge => ConstGauge::new(value).encode(encoder),
        MetricKind::Duration => ConstGauge::new(value as f64 / 1e9).encode(encoder),
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for FamilyGroup { families, look } in lock(&self.0).iter() {
            for ((name, help, kind), samples) in families.iter().zip(look()) {
                let counter = ConstCounter::new(0_u64);
                let gauge = ConstGauge::new(0_u64);
                let metric_type = match kind {
                    MetricKind::Counter => counter.metric_type(),
                    MetricKind::Gauge | MetricKind::Duration => gauge.metric_type(),
                };
                let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
                for MetricSample { labels, value } in samples {
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
        lock(&self.families.0).push(FamilyGroup { families: names, look: Box::new(look) });
    }

    /// Adds a family of metrics, exported as `farleaf_` followed by `name`, which ends with its
    /// unit if it has one (`pool_bytes`). Every request calls `look` on the thread that answers it,
    /// so `look` must not block for long.
    pub fn add(
        &self,
        name: &'static str,
        help: &'static str,
        kind: MetricKind,
        look: impl Fn() -> Vec<MetricSample> + Send + Sync + 'static,
    ) {
        let look = move || vec![look()];
        let group = FamilyGroup { families: vec![(name, help, kind)], look: Box::new(look) };
        lock(&self.families.0).push(group);
    }

    /// Like [`Metrics::add`], for a single metric.
    pub fn add_one(
        &self,
        name: &'static str,
        help: &'static str,
        kind: MetricKind,
        look: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.add(name, help, kind, move || vec![look().into()]);
    }

    /// Renders all metrics in OpenMetrics' format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("a string takes everything");
        out
    }

    /// Renders all metrics in Prometheus' text format, version 0.0.4.
    ///
    /// In OpenMetrics a counter's family has the name without `_total`. In the older format the
    /// family has the name of its samples, and its help is lost under another.
    pub fn plain_text(&self) -> String {
        let mut out = String::new();
        let mut help = None;
        for line in self.text().lines() {
            match line.strip_prefix("# ").map(|rest| rest.splitn(3, ' ').collect::<Vec<_>>()) {
                Some(words) if words[..] == ["EOF"] => {}
                Some(words) if words[0] == "HELP" && words.len() == 3 => {
                    help = Some(words[2].to_owned());
                }
                Some(words) if words[0] == "TYPE" && words.len() == 3 => {
                    let total = if words[2] == "counter" { "_total" } else { "" };
                    let name = format!("{}{total}", words[1]);
                    if let Some(help) = help.take() {
                        out += &format!("# HELP {name} {help}\n");
                    }
                    out += &format!("# TYPE {name} {}\n", words[2]);
                }
                _ => {
                    out += line;
                    out.push('\n');
                }
            }
        }
        out
    }
}

/// Whether a request prefers `text/plain` to OpenMetrics: it names it with a greater weight, or
/// with the same as the wildcard that admits OpenMetrics.
fn prefers_plain_text(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut plain, mut open, mut wildcard) = (0.0, None, 0.0);
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
        let weight = weight.unwrap_or(1.0);
        match &*kind {
            "text/plain" | "text/*" => plain = f64::max(plain, weight),
            "application/openmetrics-text" => open = Some(open.unwrap_or(0.0_f64).max(weight)),
            "application/*" | "*/*" => wildcard = f64::max(wildcard, weight),
            _ => {}
        }
    }
    match open {
        Some(open) => plain > open,
        None => plain > 0.0 && plain >= wildcard,
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
    const PLAIN_METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") if prefers_plain_text(request.headers()) => {
            (StatusCode::OK, PLAIN_METRICS, metrics.plain_text())
        }
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
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
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
        let thread = start_thread("metrics".into(), move || {
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
        metrics.add_one("pool_bytes", "Bytes of the pool", MetricKind::Gauge, || 4096);
        metrics.add("operations", "Operations by kind", MetricKind::Counter, || {
            let sample =
                |kind: &str, value| MetricSample { labels: vec![("kind", kind.into())], value };
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

    /// A scraper that asked for `text/plain` was answered in OpenMetrics, where the help of
    /// counters is under a name that Prometheus' text format does not have: promtool found no help.
    #[test]
    fn plain_text_is_served_to_those_who_ask_for_it() {
        let metrics = Metrics::default();
        metrics.add_one("pool_bytes", "Bytes of the pool", MetricKind::Gauge, || 4096);
        metrics.add_one("oldest_seconds", "The oldest", MetricKind::Duration, || 1_250_000_000);
        metrics.add("operations", "Operations # by kind", MetricKind::Counter, || {
            vec![MetricSample { labels: vec![("kind", "get".into())], value: 7 }]
        });
        assert_eq!(
            metrics.plain_text(),
            "# HELP farleaf_pool_bytes Bytes of the pool\n# TYPE farleaf_pool_bytes gauge\n\
             farleaf_pool_bytes 4096\n\
             # HELP farleaf_oldest_seconds The oldest\n# TYPE farleaf_oldest_seconds gauge\n\
             farleaf_oldest_seconds 1.25\n\
             # HELP farleaf_operations_total Operations # by kind\n\
             # TYPE farleaf_operations_total counter\nfarleaf_operations_total{kind=\"get\"} 7\n"
        );
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = MetricsServer::start(listener, metrics, || true).unwrap();
        let ask = |accept: &str| {
            let accept =
                if accept.is_empty() { String::new() } else { format!("Accept: {accept}\r\n") };
            get(
                server.local_address(),
                &format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}Connection: close\r\n\r\n"),
            )
        };
        for accept in [
            "text/plain",
            "text/plain; version=0.0.4",
            "TEXT/PLAIN;q=0.5, */*;q=0.1",
            "text/plain, */*",
            "application/openmetrics-text;q=0.3,text/plain;q=0.4",
            "application/openmetrics-text;q=0.3\r\nAccept: text/*",
        ] {
            let answer = ask(accept);
            assert!(
                answer.contains("content-type: text/plain; version=0.0.4"),
                "{accept}: {answer}"
            );
            assert!(
                answer.contains("# TYPE farleaf_operations_total counter"),
                "{accept}: {answer}"
            );
            assert!(!answer.contains("# EOF"), "{accept}: {answer}");
        }
        for accept in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/openmetrics-text; version=1.0.0",
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "text/plain;q=0",
        ] {
            let answer = ask(accept);
            assert!(
                answer.contains("content-type: application/openmetrics-text"),
                "{accept}: {answer}"
            );
            assert!(answer.contains("# TYPE farleaf_operations counter"), "{accept}: {answer}");
            assert!(answer.ends_with("# EOF\n"), "{accept}: {answer}");
        }
    }
}
