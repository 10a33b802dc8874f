//! Reads the metrics of servers ([`crate::metrics`]), many servers concurrently.
//!
//! *Invariants*: whatever a server does, the result for it, an answer or an error, is available in
//! time and takes at most [`MAX_BYTES`] of memory. A server that does not answer does not delay the
//! results of others.
//!
//! *Thread safety*: a [`Scraper`] belongs to one thread at a time; its results are plain values.

use crate::clock::MonotonicClock;
use farleaf_fabric::sync::Arc;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Maximum size of an answer, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of samples of one server.
pub const MAX_NUMBERS: usize = 4096;
/// Number of servers asked concurrently; the rest are asked as others finish.
const MAX_CONCURRENT: usize = 256;

/// Why a server's metrics are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScrapeFailure {
    /// The server did not answer in time.
    TimedOut,
    /// The server cannot be reached, or closed the connection.
    Unreachable(String),
    /// The server sent something other than metrics.
    Senseless(String),
}

impl fmt::Display for ScrapeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Unreachable(why) => write!(f, "cannot connect: {why}"),
            Self::Senseless(why) => write!(f, "invalid answer: {why}"),
        }
    }
}

/// The samples of one server at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSamples {
    /// Names and values, in the server's order.
    numbers: Vec<(String, f64)>,
    /// When the answer was complete, in nanoseconds of the clock of its [`Scraper`].
    pub at_ns: u64,
}

impl ServerSamples {
    /// Parses Prometheus' text format; lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// The first invalid line, shortened, or a message that there are too many samples.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut numbers = Vec::new();
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if numbers.len() == MAX_NUMBERS {
                return Err(format!("more than {MAX_NUMBERS} numbers"));
            }
            numbers.push(number(line).ok_or_else(|| line.chars().take(60).collect::<String>())?);
        }
        Ok(Self { numbers, at_ns: 0 })
    }

    /// The sum of all samples with this name, given without `farleaf_`; `None` if there are none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let is_it = |found: &str| found.strip_prefix("farleaf_") == Some(name);
        let mut found = self.numbers.iter().filter(|(found, _)| is_it(found)).peekable();
        found.peek()?;
        Some(found.map(|(_, number)| number).sum())
    }
}

/// Parses one line: `name value` or `name{label="value"} value`, optionally followed by a
/// timestamp. Labels are skipped.
fn number(line: &str) -> Option<(String, f64)> {
    let is_named = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    let end = line.bytes().position(|byte| !is_named(byte))?;
    let (name, rest) = line.split_at(end);
    let rest = match rest.strip_prefix('{') {
        Some(labels) => &labels[end_of_labels(labels)? + 1..],
        None => rest,
    };
    let number: f64 = rest.split_whitespace().next()?.parse().ok()?;
    let is_sound = end > 0 && rest.starts_with(char::is_whitespace) && number.is_finite();
    is_sound.then(|| (name.to_owned(), number))
}

/// The position of the `}` that ends the labels; a `}` inside a label's value does not count.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Reads metrics over HTTP.
#[derive(Debug)]
pub struct Scraper {
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
    clock: MonotonicClock,
}

async fn ask(address: &str) -> Result<String, ScrapeFailure> {
    let unreachable = |error: io::Error| ScrapeFailure::Unreachable(error.to_string());
    let lost = |error: hyper::Error| ScrapeFailure::Unreachable(error.to_string());
    let socket = TcpStream::connect(address).await.map_err(unreachable)?;
    let (mut requests, connection) = http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake(TokioIo::new(socket))
        .await
        .map_err(lost)?;
    let request = Request::get("/metrics").header(HOST, address).body(Empty::<Bytes>::new());
    let request = request.map_err(|bad| ScrapeFailure::Unreachable(bad.to_string()))?;
    // The connection task does the I/O, and ends with this task.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let response = requests.send_request(request).await.map_err(lost)?;
    if !response.status().is_success() {
        return Err(ScrapeFailure::Senseless(format!("status {}", response.status())));
    }
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
    let body = body.map_err(|why| ScrapeFailure::Senseless(why.to_string()))?.to_bytes();
    String::from_utf8(body.into()).map_err(|_| ScrapeFailure::Senseless("not UTF-8".into()))
}

impl Scraper {
    /// Starts the runtime that sends the requests.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime: Some(runtime), clock: MonotonicClock::start() })
    }

    /// Asks all servers, each given as an address and a port, and waits until each has answered or
    /// exceeded `within`. The results are in the order of `addresses`.
    pub fn ask(
        &self,
        addresses: &[String],
        within: Duration,
    ) -> Vec<Result<ServerSamples, ScrapeFailure>> {
        let Some(runtime) = &self.runtime else { return Vec::new() };
        let (places, clock) = (Arc::new(Semaphore::new(MAX_CONCURRENT)), self.clock);
        let one = |address: &String| {
            let (places, address) = (Arc::clone(&places), address.clone());
            runtime.spawn(async move {
                let _place = places.acquire_owned().await;
                let answer = tokio::time::timeout(within, ask(&address)).await;
                let text = answer.unwrap_or(Err(ScrapeFailure::TimedOut))?;
                let numbers = ServerSamples::parse(&text).map_err(ScrapeFailure::Senseless)?;
                Ok(ServerSamples { at_ns: clock.now_ns(), ..numbers })
            })
        };
        let asked: Vec<_> = addresses.iter().map(one).collect();
        runtime.block_on(async {
            let mut answers = Vec::with_capacity(asked.len());
            for answer in asked {
                let ended =
                    |why: tokio::task::JoinError| Err(ScrapeFailure::Senseless(why.to_string()));
                answers.push(answer.await.unwrap_or_else(ended));
            }
            answers
        })
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A name lookup may still be in progress; do not wait for it.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MetricKind, MetricSample, Metrics, MetricsServer};
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Barrier;

    #[test]
    fn lines_are_read_as_they_are_meant() {
        let text = "# HELP farleaf_a A.\n# TYPE farleaf_a counter\nfarleaf_a_total 7\n\
            farleaf_b{kind=\"x}\\\"\",n=\"1\"} 2\nfarleaf_b{} 3 1700000000\n\nother 1e3\n# EOF\n";
        let numbers = ServerSamples::parse(text).unwrap();
        assert_eq!((numbers.sum("a_total"), numbers.sum("b")), (Some(7.0), Some(5.0)));
        assert_eq!((numbers.sum("other"), numbers.sum("c")), (None, None));
        for wrong in ["x", "x y", "1", " {} 1", "x{a=\"b} 1", "x}1", "x 1e999", "x NaN", "é 1"] {
            assert!(ServerSamples::parse(wrong).is_err(), "{wrong}");
        }
        let line = "farleaf_x 1\n";
        assert!(ServerSamples::parse(&line.repeat(MAX_NUMBERS)).is_ok());
        assert!(ServerSamples::parse(&line.repeat(MAX_NUMBERS + 1)).is_err());
    }

    /// Starts a server that answers every connection with `answer`; with `None` it never answers.
    /// It waits until all servers of `together` have been asked.
    fn stranger(answer: Option<Vec<u8>>, together: &Arc<Barrier>) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let together = Arc::clone(together);
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                together.wait();
                if let Some(answer) = &answer {
                    let mut request = [0; 512];
                    let _ = socket.read(&mut request);
                    // The client may have closed the connection after reading enough.
                    let _ = socket.write_all(answer);
                } else {
                    kept.push(socket);
                }
            }
        });
        address
    }

    #[test]
    fn one_that_does_not_answer_holds_nobody_up() {
        let metrics = Metrics::default();
        metrics.add("operations", "Operations", MetricKind::Counter, || {
            let sample =
                |kind: &str, value| MetricSample { labels: vec![("kind", kind.into())], value };
            vec![sample("get", 7), sample("scan", 2)]
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = MetricsServer::start(listener, metrics, || true).unwrap();
        let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gone = nobody.local_addr().unwrap().to_string();
        drop(nobody);
        let long = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &b"#".repeat(MAX_BYTES + 1)].concat();
        // If the client asked one server after the other, none of these servers would ever answer.
        let together = Arc::new(Barrier::new(5));
        let strange = |answer: &[u8]| stranger(Some(answer.to_vec()), &together);
        let addresses = [
            stranger(None, &together),
            strange(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nfarleaf_x 5\n"),
            strange(&long),
            strange(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnonsense\n"),
            strange(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
            server.local_address().to_string(),
            stranger(Some(b"220 mail is welcome here\r\n".to_vec()), &Arc::new(Barrier::new(1))),
            gone,
            "no address".to_owned(),
        ];
        let scraper = Scraper::new().unwrap();
        let answers = scraper.ask(&addresses, Duration::from_secs(5));
        assert_eq!(answers[0], Err(ScrapeFailure::TimedOut));
        let sum = |place: usize, name| answers[place].as_ref().unwrap().sum(name);
        assert_eq!((sum(1, "x"), sum(5, "operations_total")), (Some(5.0), Some(9.0)));
        let is_gone = |answer: &Result<_, _>| matches!(answer, Err(ScrapeFailure::Unreachable(_)));
        let is_senseless =
            |answer: &Result<_, _>| matches!(answer, Err(ScrapeFailure::Senseless(_)));
        assert!(answers[2..5].iter().all(is_senseless), "{answers:?}");
        assert!(answers[6..].iter().all(is_gone), "{answers:?}");
    }
}
