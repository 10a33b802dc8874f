//! Clusters of byte strings, as an operator and a program use them. Every answer is compared with a
//! map in this process.

use crate::ending::metrics;
use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{DEADLINE, compute, connect_to, honest, serving, try_both_of};
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::text::Textual;
use farleaf_index::{Exchange, IndexError, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ops::Bound;

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const OPERATIONS: usize = 1_500;

/// A key on either side of the boundary `m`: of any length up to the limit, of any bytes, and often
/// with a prefix that other keys share.
fn key(rng: &mut SmallRng) -> Vec<u8> {
    let prefixes: [&[u8]; 6] = [b"", b"apple/", b"m", b"zebra/very/long/prefix/", b"\xff", b"a,\""];
    let mut key = prefixes[rng.random_range(0..prefixes.len())].to_vec();
    let longest = 128 - key.len();
    let more = if rng.random_ratio(1, 20) { longest } else { rng.random_range(0..4) };
    key.extend((0..more).map(|_| [0, b' ', b'\\', b'b', b'm', 0xff][rng.random_range(0..6)]));
    key
}

fn value(rng: &mut SmallRng) -> Vec<u8> {
    let length = if rng.random() { 8 } else { rng.random_range(0..100) };
    (0..length).map(|_| rng.random()).collect()
}

/// Runs random operations, and compares each answer.
fn work(cluster: &Launched, model: &mut Model, seed: u64) {
    work_with(cluster, model, seed, OPERATIONS, &value);
}

/// Runs this many random operations with values that `value` draws, and compares each answer.
pub(crate) fn work_with(
    cluster: &Launched,
    model: &mut Model,
    seed: u64,
    operations: usize,
    value: &(dyn Fn(&mut SmallRng) -> Vec<u8> + Sync),
) {
    let connection = connect_to::<Bytes>(cluster, DEADLINE);
    let start = model.clone();
    let worked = connection.run(async |client| {
        let (mut model, mut rng) = (start.clone(), SmallRng::seed_from_u64(seed));
        let rng = &mut rng;
        for _ in 0..operations {
            let (key, new) = (key(rng), value(rng));
            let before = model.get(&key).cloned();
            match rng.random_range(0..6) {
                0 => assert_eq!(client.get(&key).await?, before),
                1 => {
                    assert_eq!(client.insert(&key, &new).await?, before.is_none());
                    model.entry(key).or_insert(new);
                }
                2 => {
                    assert_eq!(client.update(&key, &new).await?, before.is_some());
                    model.entry(key).and_modify(|value| *value = new);
                }
                3 => {
                    assert_eq!(client.remove(&key).await?, before.is_some());
                    model.remove(&key);
                }
                4 => {
                    let expected = before.clone().unwrap_or_default();
                    let told = client.compare_exchange(&key, &expected, &new).await?;
                    match before {
                        Some(_) => {
                            assert_eq!(told, Exchange::Exchanged);
                            model.insert(key, new);
                        }
                        None => assert_eq!(told, Exchange::Differs(None)),
                    }
                }
                _ => {
                    client.upsert(&key, &new).await?;
                    model.insert(key, new);
                }
            }
        }
        Ok::<_, IndexError>(model)
    });
    *model = worked.unwrap();
}

/// A file has all records, and both a bulk load and one of many upserts take them from it.
pub(crate) fn assert_comes_back_from_a_file(cluster: &Launched, model: &Model) {
    let file = path(cluster, "all.csv");
    assert_eq!(client(cluster, &["export", &file]).0, Some(0));
    for bulk in [&["--bulk"][..], &[]] {
        assert_eq!(client(cluster, &["clear"]).0, Some(0));
        assert_same(cluster, &Model::new());
        let (code, out, said) = client(cluster, &[&["load", &file][..], bulk].concat());
        assert_eq!((code, &*out), (Some(0), &*format!("{} records\n", model.len())), "{said}");
        assert_same(cluster, model);
    }
}

/// Reads everything by gets, and by scans of everything, of ranges and of prefixes, both ways.
pub(crate) fn assert_same(cluster: &Launched, model: &Model) {
    let connection = connect_to::<Bytes>(cluster, DEADLINE * 5);
    let records = |model: &mut dyn Iterator<Item = (&Vec<u8>, &Vec<u8>)>| -> Vec<_> {
        model.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let read = connection.run(async |client| {
        let keys: Vec<_> = model.keys().cloned().collect();
        let values = client.multi_get(&keys).await?;
        assert!(values.into_iter().eq(model.values().cloned().map(Some)));
        let prefixes: [&[u8]; 5] = [b"", b"apple/", b"m", b"\xff", b"none"];
        for prefix in prefixes {
            let range = <[u8]>::with_prefix(prefix.to_vec()).unwrap();
            let up = client.scan(&ScanRequest::range(range.clone())).await?;
            let mut down = client.scan(&ScanRequest::range(range).reverse()).await?;
            down.reverse();
            let mut expected = model.iter().filter(|(key, _)| key.starts_with(prefix));
            let expected = records(&mut expected);
            assert!(up == expected, "{prefix:?}: {} of {}", up.len(), expected.len());
            assert!(down == expected, "{prefix:?}: {} of {}", down.len(), expected.len());
        }
        let range = (Bound::Excluded(b"b".to_vec()), Bound::Included(b"zebra/very/".to_vec()));
        let found = client.scan(&ScanRequest::range(range.clone())).await?;
        assert_eq!(found, records(&mut model.range(range)));
        Ok::<_, IndexError>(())
    });
    assert_eq!(read, Ok(()));
}

pub(crate) fn client(cluster: &Launched, words: &[&str]) -> (Option<i32>, String, String) {
    let output = farleaf(&[&["client", "--dir", cluster.dir()], words].concat());
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

pub(crate) fn path(cluster: &Launched, name: &str) -> String {
    cluster.folder.path().join(name).to_str().unwrap().to_owned()
}

/// Waits for the next incarnation of a compute server after `end` has ended this one.
pub(crate) fn next_incarnation(cluster: &mut Launched, number: u16, by: Signal) {
    let before = compute(cluster, number).unwrap();
    signal(before.pid, by);
    cluster.await_line(&format!("compute server {number} has been restarted"));
    eventually("its next life", || {
        let now = compute(cluster, number).filter(|now| now.pid != before.pid)?;
        (now.generation > 0).then_some(())
    });
}

fn byte_strings_are_served(transport: &str) {
    let flags = ["--keys", "bytes", "--boundaries", "m", "--restart", "--write-back-ms", "0"];
    let mut cluster = serving(transport, &flags);
    let mut model = Model::new();
    work(&cluster, &mut model, 1);
    assert_same(&cluster, &model);
    // Flushed changes survive a kill; acknowledged ones survive a clean end.
    assert_eq!(client(&cluster, &["flush"]).0, Some(0));
    for number in [0, 1] {
        next_incarnation(&mut cluster, number, Signal::KILL);
    }
    assert_same(&cluster, &model);
    work(&cluster, &mut model, 2);
    for number in [0, 1] {
        next_incarnation(&mut cluster, number, Signal::TERM);
    }
    assert_same(&cluster, &model);
    // Files preserve every byte of keys and values, in both notations, with and without a header.
    for (name, flags) in [("a.csv", &[][..]), ("b.csv", &["--no-header"]), ("c.csv", &["--hex"])] {
        let file = path(&cluster, name);
        let (code, _, said) = client(&cluster, &[&["export", &file][..], flags].concat());
        assert_eq!((code, &*said), (Some(0), &*format!("{} records\n", model.len())));
        let content = std::fs::read_to_string(&file).unwrap();
        let has_header = !flags.contains(&"--no-header");
        assert_eq!(content.starts_with("key,value\n"), has_header);
        assert_eq!(content.lines().count(), model.len() + usize::from(has_header));
        assert_eq!(client(&cluster, &["clear"]).0, Some(0));
        assert_same(&cluster, &Model::new());
        let bulk: &[&str] = if name == "b.csv" { &[] } else { &["--bulk"] };
        let (code, out, said) = client(&cluster, &[&["load", &file][..], flags, bulk].concat());
        assert_eq!((code, &*out), (Some(0), &*format!("{} records\n", model.len())), "{said}");
        assert_same(&cluster, &model);
    }
    // The launcher's exit code reports the two servers that were killed.
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn byte_strings_are_served_over_tcp() {
    byte_strings_are_served("tcp");
}

#[test]
fn byte_strings_are_served_over_shm() {
    byte_strings_are_served("shm");
}

/// The death of a memory server loses the index. The cluster then serves a new one, which contains
/// only what was written since.
fn a_memory_server_dies(transport: &str) {
    let mut cluster = serving(transport, &["--keys", "bytes", "--boundaries", "m", "--restart"]);
    let mut model = Model::new();
    work(&cluster, &mut model, 3);
    assert!(model.len() > 100, "{}", model.len());
    let connection = connect_to::<Bytes>(&cluster, DEADLINE);
    let keys: [&[u8]; 2] = [b"apple", b"zebra"];
    let value = &[7; 50][..];
    signal(cluster.memory(1).unwrap().pid, Signal::KILL);
    keys.iter().for_each(|key| honest(try_both_of(&connection, key, value)));
    cluster.await_line("memory server 1 has been restarted");
    for key in keys {
        eventually("service", || {
            try_both_of(&connection, key, value).iter().all(Result::is_ok).then_some(())
        });
    }
    let all = connection.run(async |client| client.scan(&ScanRequest::range(..)).await);
    let all: Result<Model, IndexError> = all.map(|records| records.into_iter().collect());
    assert_eq!(all, Ok(keys.iter().map(|key| (key.to_vec(), value.to_vec())).collect()));
    let mut model = all.unwrap();
    work(&cluster, &mut model, 4);
    assert_same(&cluster, &model);
    assert_eq!(cluster.end(Signal::TERM), Some(1), "a server has died");
}

#[test]
fn a_memory_server_of_byte_strings_dies_over_tcp() {
    a_memory_server_dies("tcp");
}

#[test]
fn a_memory_server_of_byte_strings_dies_over_shm() {
    a_memory_server_dies("shm");
}

#[test]
fn the_commands_of_a_client_take_byte_strings() {
    let mut cluster = serving("tcp", &["--keys", "bytes", "--boundaries", "m\\x2c", "--metrics"]);
    let client = |words: &[&str]| client(&cluster, words);
    let done = |out: &str| (Some(0), out.to_owned(), String::new());
    let no = |why: &str| (Some(1), String::new(), why.to_owned());
    assert_eq!(client(&["get", "a"]), no("key a is absent\n"));
    assert_eq!(client(&["put", "a\\x00", "\\xff ß"]), done(""));
    assert_eq!(client(&["get", "a\\x00"]), done("\\xff ß\n"));
    assert_eq!(client(&["get", "--hex", "6100"]), done("ff20c39f\n"));
    assert_eq!(client(&["insert", "--hex", "6100", "00"]), no("key 6100 is there already\n"));
    assert_eq!(client(&["update", "a\\x01", ""]), no("key a\\x01 is absent\n"));
    assert_eq!(client(&["put", "", ""]), done(""), "both may be empty");
    assert_eq!(client(&["get", ""]), done("\n"));
    assert_eq!(client(&["put", "x, \"y\"", "1"]), done(""));
    assert_eq!(client(&["put", "--", "-x", "2"]), done(""));
    let all = [",", "-x,2", "a\\x00,\\xff ß", "\"x, \"\"y\"\"\",1"];
    let lines =
        |lines: &[&str]| done(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    assert_eq!(client(&["scan"]), lines(&all));
    let down: Vec<&str> = all.iter().rev().copied().collect();
    assert_eq!(client(&["scan", "--reverse"]), lines(&down));
    assert_eq!(client(&["scan", "-n", "1"]).0, Some(2));
    assert_eq!(client(&["scan", "--limit", "1", "b"]), lines(&all[3..]));
    assert_eq!(client(&["scan", "b", "--reverse"]), lines(&down[1..]));
    assert_eq!(client(&["scan", "--prefix", "a\\x00"]), lines(&all[2..3]));
    assert_eq!(client(&["scan", "--prefix", "61", "--hex"]), done("6100,ff20c39f\n"));
    assert_eq!(client(&["remove", "a\\x00"]), done(""));
    assert_eq!(client(&["remove", "a\\x00"]), no("key a\\x00 is absent\n"));

    // Keys and values that are too long change nothing, and the error names the limit.
    let key = "k".repeat(129);
    let too_long = "error: the key has 129 bytes, and keys can have at most 128\n";
    assert_eq!(client(&["put", &key, "1"]), no(too_long));
    assert_eq!(client(&["get", &key]), no(too_long));
    assert_eq!(client(&["scan", &key]), no(too_long));
    let (code, out, said) = client(&["put", "k", &"v".repeat(70_000)]);
    assert_eq!((code, &*out), (Some(1), ""));
    let limit = "error: the value has 70000 bytes, and a value of this key can have at most ";
    assert!(said.starts_with(limit) && said.lines().count() == 1, "{said}");
    let most: usize = said.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(client(&["get", "k"]).0, Some(1));
    assert_eq!(client(&["put", "k", &"v".repeat(most)]), done(""));
    assert_eq!(client(&["put", "k", &"v".repeat(most + 1)]).0, Some(1));
    assert_eq!(client(&["get", "k"]).1.len(), most + 1);
    assert_eq!(client(&["remove", "k"]), done(""));
    for (words, why) in [
        (&["get", "a\\n"][..], "a backslash begins"),
        (&["get", "--hex", "6"], "pairs of hexadecimal digits"),
        (&["bench", "--key-form", "u64"], "--key-form u64 is for numbers"),
        (&["bench", "--keys-from", "x.csv"], "--keys-from is for numbers"),
        (&["bench", "--value-bytes", "70000"], "a message has values of at most 61440 bytes"),
    ] {
        let (code, _, said) = client(words);
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(why), "{said}");
    }

    // Files.
    let file = |name: &str, content: &str| {
        std::fs::write(path(&cluster, name), content).unwrap();
        path(&cluster, name)
    };
    let words = file("words.csv", "word,meaning\nox,animal\n\"p, q\",\\x00\n");
    let (code, _, said) = client(&["load", &words]);
    assert_eq!(code, Some(2));
    assert!(said.contains("no column `key`; its columns are: word, meaning"), "{said}");
    let columns = ["--key-column", "word", "--value-column", "meaning"];
    assert_eq!(client(&[&["load", &words], &columns[..]].concat()), done("2 records\n"));
    assert_eq!(client(&["scan", "ox", "--limit", "2"]), lines(&["ox,animal", "\"p, q\",\\x00"]));
    let plain = file("plain.csv", "7\nkey\n");
    assert_eq!(client(&["load", "--no-header", &plain]), done("2 records\n"));
    assert_eq!((client(&["get", "7"]), client(&["get", "key"])), (done("0\n"), done("1\n")));
    let bad = file("bad.csv", "key,value\na,1\nb,\\q\n");
    let (code, _, said) = client(&["load", &bad]);
    assert_eq!(code, Some(2));
    assert!(said.contains("before this: 1: ") && said.contains("line 3: `\\q`: a back"), "{said}");
    let long = file("long.csv", &format!("key,value\nc,1\n{key},2\n"));
    let (code, _, said) = client(&["load", &long]);
    assert_eq!(code, Some(2));
    // A compute server refused it, and could not name the line. Rows before it may have been in the
    // same request.
    assert!(
        said.contains("before this: 1: ")
            && said.contains("long.csv, line 3: the key has 129 bytes"),
        "{said}"
    );
    let value = "v".repeat(61_441);
    let long = file("long-value.csv", &format!("key,value\nc,1\nd,{value}\n"));
    for bulk in [&[][..], &["--bulk"]] {
        let (code, _, said) = client(&[&["load", &long], bulk].concat());
        assert_eq!(code, Some(2));
        assert!(said.contains("long-value.csv, line 3: the value has 61441 bytes"), "{said}");
    }
    // An empty file was refused, because it has no header.
    let empty = file("empty.csv", "");
    for flags in [&[][..], &["--no-header"], &columns] {
        assert_eq!(client(&[&["load", &empty], flags].concat()), done("0 records\n"));
    }

    // The shell, and the commands that show keys.
    let script = file("script", "put 'z\\x00' 1\nget 'z\\x00'\nscan --prefix z\n");
    let shell = std::process::Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["shell", "--dir", cluster.dir()])
        .stdin(std::fs::File::open(script).unwrap())
        .output()
        .unwrap();
    assert_eq!(text(&shell.stdout), "ok\n1\nz\\x00,1\n", "{}", text(&shell.stderr));
    let status = text(&cluster.status().stdout);
    for part in ["keys: bytes, in pages of 1024 bytes", " ..m, ", " m,.. "] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let top = farleaf(&["top", "--dir", cluster.dir(), "--once", "--interval", "0.2"]);
    assert!(text(&top.stdout).contains(" ..m, "), "{top:?}");
    let seen = metrics(&compute(&cluster, 0).unwrap().metrics.unwrap()).unwrap();
    assert!(seen.contains("\nfarleaf_partition{lowest=\"\",end=\"m,\"} 1\n"), "{seen}");
    let moved = farleaf(&["move", "--dir", cluster.dir(), "0", "1"]);
    assert_eq!(moved.status.code(), Some(0), "{moved:?}");
    assert!(text(&moved.stdout).contains(": 1 owns .. in map epoch "), "{moved:?}");
    let json: serde_json::Value =
        serde_json::from_str(&text(&farleaf(&["status", "--dir", cluster.dir(), "--json"]).stdout))
            .unwrap();
    assert_eq!(
        (&json["settings"]["keys"], &json["map"]["owners"][0]),
        (&"bytes".into(), &1.into())
    );
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// The shell stored U+FFFD for bytes that are not UTF-8, and files of quoted fields lost the white
/// space within their quotes, or kept the quotes.
#[test]
fn what_is_stored_is_what_was_written_or_nothing() {
    use std::io::Write;
    let mut cluster = serving("tcp", &["--keys", "bytes"]);
    let mut shell = std::process::Command::new(env!("CARGO_BIN_EXE_farleaf"))
        .args(["shell", "--dir", cluster.dir()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(b"put k \xff\xfe\ncount\nput '\xc3\xa4' x\n").unwrap();
    let said = shell.wait_with_output().unwrap();
    assert_eq!((said.status.code(), text(&said.stdout)), (Some(1), "0\nok\n".to_owned()));
    assert!(text(&said.stderr).contains("line 1: the line is not UTF-8"), "{said:?}");

    let load = |bulk: &[&str], rows: &str| {
        let file = path(&cluster, "rows.csv");
        std::fs::write(&file, format!("key,value\n{rows}")).unwrap();
        client(&cluster, &[&["load", &file][..], bulk].concat())
    };
    let rows = "k2,\" \"\n\"b2\", \"vb\"\n \"c3\",vc\nd4,\"1\n2\"\n";
    assert_eq!(load(&[], rows).1, "4 records\n");
    let stored = "b2,vb\nc3,vc\nd4,1\\x0a2\nk2,\\x20\nä,x\n";
    assert_eq!(client(&cluster, &["scan"]).1, stored);
    for (row, why) in [
        ("e5, x\n", "line 2: column `value` is `x` with blanks"),
        ("e5,\"x\nf6,y\ng7,z\n", "line 2: a quote is not closed"),
        ("e5,x\"y\n", "line 2: a quote within a field"),
    ] {
        let (code, _, said) = load(&[], row);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(client(&cluster, &["scan"]).1, stored);

    // Ranges of keys with a prefix.
    assert_eq!(load(&[], "p1,1\np2,2\np3,3\nq1,4\n").1, "4 records\n");
    let scan = |words: &[&str]| client(&cluster, &[&["scan"][..], words].concat()).1;
    assert_eq!(scan(&["p2", "--prefix", "p"]), "p2,2\np3,3\n");
    assert_eq!(scan(&["--prefix", "p", "--end", "p3"]), "p1,1\np2,2\n");
    assert_eq!(scan(&["--prefix", "p", "p2", "--reverse"]), "p2,2\np1,1\n");
    assert_eq!(scan(&["--prefix", "p", "--end", "p1", "--reverse"]), "p3,3\np2,2\n");
    assert_eq!(client(&cluster, &["count", "--prefix", "p"]).1, "3\n");
    assert_eq!(client(&cluster, &["compare-exchange", "p1", "1", "9"]).0, Some(0));
    let (code, _, said) = client(&cluster, &["compare-exchange", "p1", "1", "8"]);
    assert_eq!((code, &*said), (Some(1), "key p1 has the value 9\n"));
    let (code, json, said) =
        client(&cluster, &["bench", "--existing", "--operations", "500", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!((code, &json["keys"], &json["absent"]), (Some(0), &9.into(), &0.into()));
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// A cluster of byte strings without boundaries, and with larger pages. A bulk load gives each
/// compute server its part, and a program with another layout is refused.
#[test]
fn larger_pages_take_longer_strings_and_a_load_spreads_them() {
    for (size, key_bytes, value_bytes) in [("2k", 256, 220), ("4k", 256, 900)] {
        let flags = ["--keys", "bytes", "--page-bytes", size];
        let mut cluster = serving("shm", &flags);
        let record = |number: usize| {
            let key = format!("{:k<1$}", format!("user{number:06}/"), key_bytes);
            (key, format!("{number:v<value_bytes$}"))
        };
        let records: Vec<(String, String)> = (0..1_000).map(record).collect();
        let rows = records.iter().map(|(key, value)| format!("{key},{value}\n"));
        let file = path(&cluster, "rows.csv");
        std::fs::write(&file, format!("key,value\n{}", rows.collect::<String>())).unwrap();
        let (code, out, said) = client(&cluster, &["load", "--bulk", &file]);
        assert_eq!((code, &*out, &*said), (Some(0), "1000 records\n", ""), "nothing to warn of");
        let (_, found, _) = client(&cluster, &["scan", "--limit", "2000"]);
        assert!(found.lines().eq(records.iter().map(|(key, value)| format!("{key},{value}"))));
        let status = text(&cluster.status().stdout);
        assert!(status.contains(" user00") && !status.contains("xff"), "{status}");
        let (code, _, said) = client(&cluster, &["put", &"k".repeat(257), "1"]);
        assert_eq!(code, Some(1));
        assert!(said.contains("keys can have at most 256"), "{said}");

        let token = path(&cluster, "token");
        let catalog = LauncherFolder(cluster.dir().into()).catalog().unwrap().to_string();
        let creates = ["--memory-servers", "2", "--compute-servers", "2"];
        let server = ["memory-server", "--number", "1", "--token-file", &token];
        let server =
            [&server[..], &["--catalog", &catalog, "--transport", "tcp"], &creates].concat();
        let said = farleaf(&server);
        let why = "as the layout, not u64 keys in pages of 1024 bytes";
        let error = text(&said.stderr);
        let last = error.lines().last().unwrap();
        assert_eq!(said.status.code(), Some(2), "{error}");
        assert!(last.starts_with("error: ") && last.ends_with(why), "{error}");
        assert_eq!(cluster.end(Signal::TERM), Some(0));
    }
}

/// Runs the benchmark; every operation must succeed and find what it looks for.
fn bench(cluster: &Launched, flags: &[&str]) -> serde_json::Value {
    let (code, json, said) = client(cluster, &[&["bench", "--json"], flags].concat());
    assert_eq!(code, Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["failed"], &report["missed"]), (&0.into(), &0.into()), "{json}");
    report
}

/// Keys of a cluster, in order.
fn keys(cluster: &Launched) -> Vec<Vec<u8>> {
    let records = connect_to::<Bytes>(cluster, DEADLINE * 5)
        .run(async |client| client.scan(&ScanRequest::range(..)).await)
        .unwrap_or_else(|error: IndexError| panic!("{error}"));
    records.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn the_benchmark_of_a_client_takes_every_form() {
    let mut cluster = serving("tcp", &["--keys", "bytes"]);
    let lines = path(&cluster, "lines");
    std::fs::write(&lines, "pear\napple\napple/red\n").unwrap();
    let file = format!("file:{lines}");
    let small = ["--keys", "900", "--operations", "3k", "--in-flight", "8"];
    for (form, first, last, bytes) in [
        ("ycsb", &b"user0000000000000000000"[..], &b"user"[..], 23.0),
        ("dlsm", b"00000000000000000000", b"18", 20.0),
        // Three keys of a line, each with a tab and three digits.
        (&*file, b"apple\t000", b"pear\t299", 10.0),
    ] {
        let flags = ["--load", "--key-form", form, "--value-bytes", "8-100"];
        let report = bench(&cluster, &[&small[..], &flags, &["--workload", "ycsb-a"]].concat());
        let described = [&report["key_form"], &report["keys"], &report["operations"]];
        assert_eq!(described, [&form.into(), &900.into(), &serde_json::Value::from(3_000)]);
        assert_eq!((&report["key_bytes"], &report["value_bytes"]), (&bytes.into(), &54.0.into()));
        let found = keys(&cluster);
        assert_eq!((found.len(), &*found[0]), (900, first));
        assert!(found[899].starts_with(last), "{:?}", found[899]);
        // A cluster that has records other than the benchmark's can still be measured.
        assert_eq!(client(&cluster, &["put", "another", ""]).0, Some(0));
        let flags = ["--key-form", form, "--workload", "ycsb-e", "--seconds", "0.3"];
        bench(&cluster, &[&flags[..], &["--keys", "900"]].concat());
        assert!(keys(&cluster).len() > 901, "ycsb-e inserts");
        assert_eq!(client(&cluster, &["clear"]).0, Some(0));
    }
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// The balancer of a cluster moves the most popular keys to the least loaded server.
#[test]
fn popular_byte_strings_move_to_an_idle_server() {
    let mut cluster = serving("tcp", &["--keys", "bytes", "--balance"]);
    let boundary = || {
        let json = text(&farleaf(&["status", "--dir", cluster.dir(), "--json"]).stdout);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["map"]["boundaries"][0].as_str().unwrap().to_owned()
    };
    let flags = ["--keys", "3k", "--value-bytes", "8-100", "--workload", "ycsb-b"];
    bench(&cluster, &[&flags[..], &["--load", "--operations", "1"]].concat());
    let (loaded, before) = (keys(&cluster), boundary());
    let place = |boundary: &str| loaded.partition_point(|key| &**key < boundary.as_bytes());
    assert!((1_300..1_700).contains(&place(&before)), "the load divided the keys: {before}");
    // Popular keys are adjacent, starting at the first one, so server 0 does nearly all the work.
    let busy = ["--clustered", "--distribution", "zipfian:0.99", "--seconds", "2"];
    let round = |_| {
        bench(&cluster, &[&flags[..], &busy].concat());
        Some(boundary()).filter(|now| place(now) < place(&before) / 2)
    };
    let after = (0..30).find_map(round);
    let after = after.expect("a move comes within a minute of work");
    // The boundary is a fence: a separator that is shorter than the keys.
    assert!(after.starts_with("user") && after.len() < 23, "{after}");
    assert!(keys(&cluster) == loaded, "no key is lost");
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

#[test]
fn a_cluster_of_numbers_refuses_what_is_for_byte_strings() {
    let mut cluster = serving("tcp", &[]);
    for (words, why) in [
        (&["get", "five"][..], "the key `five` is not a whole number from 0 to 2^64 - 1"),
        (&["put", "5", "x"], "the value `x` is not a whole number"),
        (&["get", "--hex", "05"], "--hex is for byte strings"),
        (&["scan", "--prefix", "5"], "--prefix is for byte strings"),
        (&["load", "--no-header", "x.csv"], "--no-header is for byte strings"),
        (&["bench", "--key-form", "ycsb"], "--key-form of byte strings and --value-bytes are for"),
        (&["bench", "--value-bytes", "8"], "--key-form of byte strings and --value-bytes are for"),
    ] {
        let (code, _, said) = client(&cluster, words);
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(why), "{said}");
    }
    // More than the client fetches at a time.
    let rows: String = (0..70_000).map(|key| format!("{key},1\n")).collect();
    let file = path(&cluster, "rows.csv");
    std::fs::write(&file, &rows).unwrap();
    assert_eq!(client(&cluster, &["load", "--bulk", &file]).0, Some(0));
    assert!(client(&cluster, &["scan", "--limit", "1M"]).1 == rows);
    let down = client(&cluster, &["scan", "--limit", "1M", "--reverse"]).1;
    assert!(down.lines().rev().eq(rows.lines()));
    assert_eq!(client(&cluster, &["clear"]).0, Some(0));
    assert_eq!(client(&cluster, &["put", "5", "50"]).0, Some(0));
    assert_eq!(client(&cluster, &["scan"]).1, "5,50\n");
    assert_eq!(client(&cluster, &["scan", "--reverse"]).1, "5,50\n");
    cluster.end(Signal::TERM);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let start = ["cluster", "--dir", dir, "--transport", "tcp", "--memory-servers", "1"];
    for (more, why) in [
        (&["--page-bytes", "2k"][..], "this program has no u64 keys in pages of 2048 bytes"),
        (&["--page-bytes", "3k"], "expected 1k, 2k or 4k"),
        (&["--keys", "text"], "possible values: u64, bytes"),
        (&["--boundaries", "m"], "--boundaries: `m` is not a whole number"),
        (&["--keys", "bytes", "--boundaries", ""], "must ascend strictly from above the empty key"),
        (&["--keys", "bytes", "--boundaries", &"m".repeat(129)], "a boundary is too long"),
    ] {
        let output = farleaf(&[&start[..], &["--compute-servers", "2"], more].concat());
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
