//! `farleaf gateway` as clients of Redis use it: raw bytes of the protocol, hostile ones among
//! them, while gateways and compute servers are killed.

use crate::launched::{Launched, eventually, farleaf, is_running, signal, text};
use crate::serving::compute;
use farleaf_cluster::clock::MonotonicClock;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SERVERS: [&str; 8] =
    ["--keys", "bytes", "--transport", "tcp", "--memory-servers", "1", "--compute-servers", "2"];

fn serving(more: &[&str]) -> Launched {
    Launched::start(
        &[&SERVERS[..], &["--boundaries", "key:5", "--cache-bytes", "4Mi"], more].concat(),
    )
}

/// A gateway; it ends with the test.
struct Gateway {
    process: Child,
    port: u16,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Gateway {
    fn start(cluster: &Launched, more: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(["gateway", "--dir", cluster.dir(), "--resp", "127.0.0.1:0"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("ready: RESP at ").expect("it is ready");
        Self { port: at.rsplit(':').next().unwrap().parse().unwrap(), process }
    }

    fn connect(&self) -> Client {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Client { replies: BufReader::new(socket.try_clone().unwrap()), socket }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Answer {
    /// With its mark.
    Line(String),
    Bytes(Vec<u8>),
    Nothing,
    Many(Vec<Answer>),
}

impl Answer {
    fn line(text: &str) -> Self {
        Self::Line(text.to_owned())
    }

    fn bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bytes(bytes.as_ref().to_vec())
    }

    fn many(self) -> Vec<Answer> {
        match self {
            Self::Many(items) => items,
            other => panic!("{other:?}"),
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    fn begins(&self, beginning: &str) -> bool {
        matches!(self, Self::Line(line) if line.starts_with(beginning))
    }
}

struct Client {
    socket: TcpStream,
    replies: BufReader<TcpStream>,
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend([word, &b"\r\n"[..]].concat());
    }
    bytes
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn try_answer(&mut self) -> std::io::Result<Answer> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let length = line[1..].parse::<usize>();
        Ok(match (line.as_bytes()[0], length) {
            (b'$', Ok(length)) => {
                let mut bytes = vec![0; length + 2];
                self.replies.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Answer::Bytes(bytes)
            }
            (b'*', Ok(length)) => {
                Answer::Many((0..length).map(|_| self.try_answer()).collect::<Result<_, _>>()?)
            }
            (b'$' | b'*', Err(_)) => Answer::Nothing,
            _ => Answer::line(line),
        })
    }

    fn answer(&mut self) -> Answer {
        self.try_answer().unwrap()
    }

    fn ask(&mut self, words: &[&[u8]]) -> Answer {
        self.send(&command(words));
        self.answer()
    }

    /// Sends words that are separated by spaces.
    fn say(&mut self, line: &str) -> Answer {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    /// Whether the gateway has closed the connection.
    fn is_closed(&mut self) -> bool {
        self.try_answer().is_err()
    }

    /// The keys of whole scans with a prefix.
    fn scan(&mut self, prefix: &str) -> Vec<Vec<u8>> {
        let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
        loop {
            let mut page = self.say(&format!("SCAN {cursor} MATCH {prefix}* COUNT 700")).many();
            keys.extend(page.pop().unwrap().many().into_iter().map(Answer::into_bytes));
            cursor = text(&page.pop().unwrap().into_bytes());
            if cursor == "0" {
                return keys;
            }
        }
    }
}

/// Every way to read gives the records of the model.
fn assert_same(client: &mut Client, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    assert_eq!(client.scan(""), keys);
    assert_eq!(client.say("DBSIZE SCAN"), Answer::line(&format!(":{}", model.len())));
    let records = client.ask(&[b"RI.RANGE", b"default", b"", b""]).many().into_iter();
    let records = records.map(|record| record.many().into_iter().map(Answer::into_bytes));
    let records: Vec<Vec<Vec<u8>>> = records.map(Iterator::collect).collect();
    let expected: Vec<_> =
        model.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    assert!(records == expected, "{} records, not {}", records.len(), expected.len());
    let mut down = client.say("RI.SCAN default \u{7f} COUNT 100000 FIELDS KEY REV").many();
    down.reverse();
    let below = keys.iter().filter(|key| key.as_slice() <= &b"\x7f"[..]).cloned();
    assert!(down.into_iter().map(Answer::into_bytes).eq(below));
    for (key, value) in model {
        assert_eq!(client.ask(&[b"GET", key]), Answer::bytes(value));
    }
}

#[test]
fn clients_use_a_cluster_and_a_gateway_may_be_killed() {
    let mut cluster = serving(&[]);
    let mut gateway = Gateway::start(&cluster, &[]);
    let mut client = gateway.connect();
    assert_eq!(client.say("PING"), Answer::line("+PONG"));

    // Random commands on binary keys, in one pipeline, whose answers a model predicts.
    let (mut rng, mut model) = (SmallRng::seed_from_u64(1), BTreeMap::<Vec<u8>, Vec<u8>>::new());
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    for number in 0..10_000_u32 {
        let prefix: &[u8] = [&b"key:4"[..], b"key:5", b"\0\xff\r\n"][rng.random_range(0..3)];
        let key = [prefix, &[rng.random(), rng.random_range(0..4)]].concat();
        let value = number.to_le_bytes();
        match rng.random_range(0..6) {
            0 => {
                sent.extend(command(&[b"GET", &key]));
                expected.push(model.get(&key).map_or(Answer::Nothing, Answer::bytes));
            }
            1 => {
                sent.extend(command(&[b"SET", &key, &value, b"NX"]));
                let is_absent = !model.contains_key(&key);
                expected.push(if is_absent { Answer::line("+OK") } else { Answer::Nothing });
                model.entry(key).or_insert(value.to_vec());
            }
            2 => {
                sent.extend(command(&[b"DEL", &key]));
                expected.push(Answer::line(if model.remove(&key).is_some() { ":1" } else { ":0" }));
            }
            3 => {
                sent.extend(command(&[b"GETSET", &key, &value]));
                let former = model.insert(key, value.to_vec());
                expected.push(former.map_or(Answer::Nothing, Answer::Bytes));
            }
            4 => {
                sent.extend(command(&[b"APPEND", &key, b"!"]));
                let held = model.entry(key).or_default();
                held.push(b'!');
                expected.push(Answer::line(&format!(":{}", held.len())));
            }
            _ => {
                sent.extend(command(&[b"SET", &key, &value]));
                expected.push(Answer::line("+OK"));
                model.insert(key, value.to_vec());
            }
        }
    }
    let mut writer = client.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    for expected in expected {
        assert_eq!(client.answer(), expected);
    }
    sender.join().unwrap();
    assert_same(&mut client, &model);

    // The next gateway has the same records, and knows no cursors of this one.
    let page = client.say("SCAN 0 COUNT 5").many();
    let cursor = text(&page[0].clone().into_bytes());
    signal(gateway.process.id(), Signal::KILL);
    assert!(client.is_closed());
    gateway = Gateway::start(&cluster, &["--threads", "2"]);
    client = gateway.connect();
    assert_same(&mut client, &model);
    assert!(client.say(&format!("SCAN {cursor}")).begins("-ERR invalid cursor"));

    // A new index is made meanwhile; the gateway finds it.
    client.say("MSET a 1 b 2");
    let many: Vec<u8> =
        (0..2_000).flat_map(|it| command(&[b"SET", format!("m{it}").as_bytes(), b"1"])).collect();
    client.send(&many);
    (0..2_000).for_each(|_| assert_eq!(client.answer(), Answer::line("+OK")));
    assert_eq!(client.say("FLUSHALL"), Answer::line("+OK"));
    assert_same(&mut client, &BTreeMap::new());
    assert_eq!(client.say("SET a 1"), Answer::line("+OK"));
    assert_eq!(client.say("FLUSHDB"), Answer::line("+OK"));
    assert_eq!(client.say("DBSIZE"), Answer::line(":0"));

    signal(gateway.process.id(), Signal::TERM);
    assert_eq!(gateway.process.wait().unwrap().code(), Some(0));
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

#[test]
fn hostile_clients_end_their_own_connections_at_most() {
    let mut cluster = serving(&[]);
    let gateway = Gateway::start(&cluster, &["--max-connections", "300"]);
    let mut good = gateway.connect();
    good.say("SET a 1");

    for (bytes, why) in [
        (&b"*1\r\n$x\r\n"[..], "-ERR Protocol error: invalid bulk length"),
        (b"*2000000\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$600000000\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"GET \"a\r\n", "-ERR Protocol error: unbalanced quotes"),
        (&[b'x'; 70_000], "-ERR Protocol error: too big inline request"),
    ] {
        let mut client = gateway.connect();
        client.send(b"GET a\r\n");
        assert_eq!(client.answer(), Answer::bytes("1"));
        client.send(bytes);
        let answer = client.answer();
        assert!(answer.begins(why), "{answer:?}");
        assert!(client.is_closed());
    }
    // A page in a browser can send this to a port of its own host.
    let mut browser = gateway.connect();
    browser.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 2\r\n");
    assert!(browser.is_closed());

    // What is too long is skipped, and the next command is served.
    let mut client = gateway.connect();
    assert!(client.ask(&[b"SET", b"long", &vec![b'v'; 60 << 10]]).begins("+OK"));
    for length in [(60 << 10) + 1, 3 << 20] {
        let answer = client.ask(&[b"SET", b"long", &vec![b'v'; length]]);
        assert!(answer.begins(&format!("-ERR an argument has {length} bytes")), "{answer:?}");
    }
    assert!(client.ask(&[b"SET", &[b'k'; 129], b"v"]).begins("-ERR "));
    assert_eq!(client.say("STRLEN long"), Answer::line(":61440"));
    assert_eq!(client.say("EXISTS a long none"), Answer::line(":2"));

    // Commands come byte by byte, or never to their end.
    for byte in command(&[b"GET", b"a"]) {
        client.send(&[byte]);
    }
    assert_eq!(client.answer(), Answer::bytes("1"));
    let mut half = gateway.connect();
    half.send(b"PING\r\n*2\r\n$3\r\nGET\r\n$1000\r\nabc");
    assert_eq!(half.answer(), Answer::line("+PONG"));

    // Random bytes.
    let mut rng = SmallRng::seed_from_u64(7);
    for _ in 0..50 {
        let mut noise = gateway.connect();
        let bytes: Vec<u8> =
            (0..2_000).map(|_| b"*$\r\n19-+aG \"\0"[rng.random_range(0..13)]).collect();
        // It may be closed before all is written.
        let _ = noise.socket.write_all(&bytes);
    }

    // A client that sends and does not read: its replies would be 600 MB.
    let mut deaf = gateway.connect();
    deaf.socket.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let gets = b"GET long\r\n".repeat(1_000);
    (0..10).map_while(|_| deaf.socket.write_all(&gets).ok()).count();
    assert_eq!(good.say("GET a"), Answer::bytes("1"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak_kb < 150_000, "{peak}");

    // More connections than allowed are told so; the others stay.
    let idle: Vec<Client> = (0..400).map(|_| gateway.connect()).collect();
    for mut refused in idle.into_iter().rev().take(50) {
        assert_eq!(refused.answer(), Answer::line("-ERR max number of clients reached"));
    }
    assert_eq!(good.say("GET a"), Answer::bytes("1"));
    half.send(&[b'x'; 997]);
    half.send(b"\r\n");
    assert!(half.answer().begins("-ERR"), "the key has 1000 bytes");
    assert!(is_running(gateway.process.id()));
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

#[test]
fn a_password_is_needed_beyond_this_host() {
    let mut cluster = serving(&[]);
    let write = |name: &str, content: &str, mode: u32| {
        let path = cluster.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let secret = "a password of some length";
    let password = write("password", &format!("{secret}\n"), 0o600);
    let exposed = write("exposed", secret, 0o644);
    let short = write("short", "secret", 0o600);
    let dir = cluster.dir().to_owned();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (words, code, expected) in [
        (vec!["--dir", &dir, "--resp", "0.0.0.0:0"], 2, "without --password-file"),
        (vec!["--dir", &dir, "--password-file", &exposed], 2, "run chmod 600 on it"),
        (vec!["--dir", &dir, "--password-file", &short], 2, "6 bytes is too short"),
        (vec!["--dir", &dir, "--password-file", "/no/file"], 2, "/no/file: No such file"),
        (vec!["--dir", &dir, "--resp", "nowhere"], 2, "expected a host and a port"),
        (vec!["--dir", "/no/folder"], 2, "/no/folder"),
        (vec!["--dir", &dir, "--cluster", "other"], 1, "no cluster other in the catalog"),
        (vec!["--dir", &dir, "--resp", &taken], 1, "cannot listen at"),
        (vec![], 2, "--dir"),
    ] {
        let output = farleaf(&[&["gateway"], &words[..]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(expected), "{words:?}: {said}");
    }

    // It cannot say that it is ready, so it ends.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["gateway", "--dir", &dir, "--resp", "127.0.0.1:0"])
        .stdout(full)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut silent = Gateway { process, port: 0 };
    let ended = eventually("the end of a gateway", || silent.process.try_wait().unwrap());
    assert_eq!(ended.code(), Some(1));

    let gateway = Gateway::start(&cluster, &["--resp", "0.0.0.0:0", "--password-file", &password]);
    let (mut waiting, mut client) = (gateway.connect(), gateway.connect());
    let clock = MonotonicClock::start();
    assert!(client.say("SET a 1").begins("-NOAUTH"));
    assert!(client.say("AUTH wrong").begins("-WRONGPASS"));
    assert_eq!(client.ask(&[b"AUTH", secret.as_bytes()]), Answer::line("+OK"));
    assert_eq!(client.say("SET a 1"), Answer::line("+OK"));
    let mut guessing = gateway.connect();
    for _ in 0..8 {
        assert!(guessing.say("AUTH wrong").begins("-WRONGPASS"));
    }
    assert!(guessing.is_closed());
    let mut huge = gateway.connect();
    huge.send(b"*2\r\n$4\r\nAUTH\r\n$500000000\r\n");
    assert!(huge.answer().begins("-ERR Protocol error: unauthenticated bulk length"));
    // Who does not prove the password is closed after a while.
    assert!(waiting.is_closed());
    assert!((9..20).contains(&clock.elapsed().as_secs()));
    assert_eq!(client.say("GET a"), Answer::bytes("1"));
    assert_eq!(cluster.end(Signal::TERM), Some(0));

    let mut numbers =
        Launched::start(&["--transport", "tcp", "--memory-servers", "1", "--compute-servers", "1"]);
    let output = farleaf(&["gateway", "--dir", numbers.dir(), "--resp", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("u64"), "{output:?}");
    assert_eq!(numbers.end(Signal::TERM), Some(0));
}

/// Every OK of a pipeline is kept, and every way to read agrees, although compute servers are
/// killed.
#[test]
fn what_was_answered_with_ok_survives_a_compute_server() {
    let mut cluster = serving(&["--acknowledge", "written", "--restart", "--takeover", "off"]);
    let gateway = Gateway::start(&cluster, &[]);
    let mut client = gateway.connect();
    let (mut model, mut unknown) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), 0);
    let keys = |round: usize| {
        (0..4_000)
            .map(move |number| format!("key:{}{number:04}", (number + round) % 10).into_bytes())
    };
    for round in 0..3 {
        let value = format!("value {round}").into_bytes();
        let sent: Vec<u8> = keys(round).flat_map(|key| command(&[b"SET", &key, &value])).collect();
        let mut writer = client.socket.try_clone().unwrap();
        let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        for (at, key) in keys(round).enumerate() {
            if at == 1_000 && round < 2 {
                signal(compute(&cluster, round as u16).unwrap().pid, Signal::KILL);
            }
            match client.answer() {
                answer if answer == Answer::line("+OK") => {
                    model.insert(key, value.clone());
                }
                answer if answer.begins("-UNAVAILABLE") || answer.begins("-CONTENDED") => {}
                answer => {
                    assert!(answer.begins("-INDETERMINATE"), "{answer:?}");
                    unknown += 1;
                    // It may still happen: what the key has is found out, and must stay.
                    model.remove(&key);
                }
            }
        }
        sender.join().unwrap();
        if round < 2 {
            cluster.await_line(&format!("compute server {round} has been restarted"));
        }
        let ready = || client_ready(&gateway).then_some(());
        eventually("both compute servers", ready);
    }
    println!("{} records, {unknown} unknown outcomes", model.len());
    for (key, value) in &model {
        assert_eq!(client.ask(&[b"GET", key]), Answer::bytes(value));
    }
    // From here on all is known, once what was unknown has been read.
    let found = client.scan("");
    assert!(model.keys().all(|key| found.binary_search(key).is_ok()));
    for key in found {
        let value = client.ask(&[b"GET", &key]).into_bytes();
        model.insert(key, value);
    }
    assert_same(&mut client, &model);
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

/// Whether keys of both compute servers can be set.
fn client_ready(gateway: &Gateway) -> bool {
    let mut client = gateway.connect();
    ["key:0", "key:9"].iter().all(|key| {
        client.say(&format!("SET {key} x")) == Answer::line("+OK")
            && client.say(&format!("DEL {key}")) == Answer::line(":1")
    })
}
