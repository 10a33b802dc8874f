//! What commands reply.

use crate::memory::{Client, MAX_VALUE_BYTES, MemoryStore, command, shared};
use farleaf_resp::{COMMANDS, REFUSED, RespLimits, StoreError};

/// Sends lines, and compares each reply.
fn converse(client: &mut Client<'_>, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        assert_eq!(client.line(line), *expected, "{line}");
    }
}

fn with_client(converse: impl FnOnce(&mut Client<'_>)) {
    let (store, shared) = (MemoryStore::new(1, 2), shared(None, RespLimits::default()));
    converse(&mut Client::new(&store, &shared, 1));
}

#[test]
fn strings_are_set_and_read() {
    with_client(|client| {
        let lines = [
            ("GET a", "$-1"),
            ("SET a 1", "+OK"),
            ("get a", "$1 1"),
            ("SET a 2 NX", "$-1"),
            ("SET b 2 NX", "+OK"),
            ("SET c 2 XX", "$-1"),
            ("SET a 3 XX GET", "$1 1"),
            ("SET c 3 XX GET", "$-1"),
            ("EXISTS c", ":0"),
            ("SET d 3 NX GET", "$-1"),
            ("SET d 4 NX GET", "$1 3"),
            ("GET d", "$1 3"),
            ("SET a 5 IFEQ 4", "$-1"),
            ("SET a 5 IFEQ 3", "+OK"),
            ("SET a 6 IFEQ 5 GET", "$1 5"),
            ("SET a 6 KEEPTTL", "+OK"),
            ("SET a 6 NX XX", "-ERR syntax error"),
            ("SET a 7 EX 10", "-ERR this cluster has no expiry: EX is refused, nothing was done"),
            ("SET a 7 IFNE 10", "-ERR SET IFNE is refused"),
            ("GET a", "$1 6"),
            ("SETNX a 7", ":0"),
            ("GETSET a 7", "$1 6"),
            ("GETEX a", "$1 7"),
            ("GETEX a PX 5", "-ERR this cluster has no expiry: PX is refused, nothing was done"),
            ("STRLEN a", ":1"),
            ("STRLEN none", ":0"),
            ("APPEND a bcd", ":4"),
            ("GETRANGE a 1 -2", "$2 bc"),
            ("SETRANGE a 6 xy", ":8"),
            ("GET a", "$8 7bcd\\x00\\x00xy"),
            ("SETBIT bits 9 1", ":0"),
            ("GET bits", "$2 \\x00@"),
            ("GETBIT bits 9", ":1"),
            ("GETBIT bits 1000", ":0"),
            ("SETBIT bits 9 0", ":1"),
            ("SETBIT bits -1 0", "-ERR bit offset is not an integer or out of range"),
            ("SETBIT bits 1 2", "-ERR bit is not an integer or out of range"),
            ("SETRANGE none 5 \"\"", ":0"),
            ("EXISTS none", ":0"),
            ("MSET x 1 y 2 x 3", "+OK"),
            ("MGET x y z x", "*4 $1 3 $1 2 $-1 $1 3"),
            ("MSET x 1 y", "-ERR wrong number of arguments for 'mset' command"),
            ("EXISTS x x z", ":2"),
            ("TOUCH x z", ":1"),
            ("DEL x x z", ":1"),
            ("UNLINK y", ":1"),
            ("TYPE a", "+string"),
            ("TYPE y", "+none"),
            ("TTL a", ":-1"),
            ("PTTL y", ":-2"),
            ("PERSIST a", ":0"),
        ];
        converse(client, &lines);
        let long = "x".repeat(MAX_VALUE_BYTES);
        let why = "-ERR string exceeds maximum allowed size: 1008 bytes, of at most 1000";
        assert_eq!(client.line(&format!("APPEND a {long}")), why);
        assert!(client.line("SETRANGE a 536870908 x").starts_with("-ERR string exceeds"));
    });
}

#[test]
fn numbers_are_added() {
    with_client(|client| {
        let lines = [
            ("INCR n", ":1"),
            ("INCRBY n 41", ":42"),
            ("DECR n", ":41"),
            ("DECRBY n 50", ":-9"),
            ("SET n 9223372036854775807", "+OK"),
            ("INCR n", "-ERR increment or decrement would overflow"),
            ("DECRBY n -9223372036854775808", "-ERR decrement would overflow"),
            ("SET n \" 1\"", "+OK"),
            ("INCR n", "-ERR value is not an integer or out of range"),
            ("INCRBY n x", "-ERR value is not an integer or out of range"),
            ("SET n 3", "+OK"),
            ("INCRBYFLOAT n 1.1", "$3 4.1"),
            ("INCRBYFLOAT n -4.2", "$4 -0.1"),
            ("INCRBYFLOAT n nan", "-ERR value is not a valid float"),
        ];
        converse(client, &lines);
    });
}

#[test]
fn keys_come_in_order() {
    with_client(|client| {
        for number in 0..25 {
            client.line(&format!("SET user:{number:02} {number}"));
        }
        client.line("MSET a 1 z 2");
        assert_eq!(client.line("DBSIZE"), ":27");
        assert_eq!(client.line("KEYS user:1[0-1]"), "*2 $7 user:10 $7 user:11");
        assert_eq!(client.line("KEYS a"), "*1 $1 a");
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        loop {
            let reply = client.line(&format!("SCAN {cursor} MATCH user:* COUNT 10"));
            let words: Vec<&str> = reply.split(' ').collect();
            found.extend(words[4..].chunks(2).map(|pair| pair[1].to_owned()));
            cursor = words[2].to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), 25);
        assert!(found.is_sorted());
        assert_eq!(client.line("SCAN 0 TYPE list"), "*2 $1 0 *0");
        assert_eq!(client.line("SCAN 0 COUNT 0"), "-ERR syntax error");
        assert_eq!(client.line("SCAN x"), "-ERR invalid cursor");
        assert!(client.line("SCAN 7").starts_with("-ERR invalid cursor: this gateway"));
        assert_eq!(client.line("FLUSHALL"), "+OK");
        assert_eq!(client.line("DBSIZE SCAN"), ":0");
    });
}

#[test]
fn ranges_have_ends_and_both_directions() {
    with_client(|client| {
        let lines = [
            ("RI.SET default a 1", "+OK"),
            ("RI.SET default b 2", "+OK"),
            ("SET c 3", "+OK"),
            ("RI.SET other a 1", "-ERR no such index 'other': this cluster has 'default'"),
            ("RI.GET default c", "$1 3"),
            ("RI.EXISTS default", ":1"),
            ("RI.EXISTS other", ":0"),
            ("RI.EXISTS default d", ":0"),
            ("RI.RANGE default a c FIELDS KEY", "*3 $1 a $1 b $1 c"),
            ("RI.RANGE default a c FIELDS KEY REV LIMIT 2", "*2 $1 c $1 b"),
            ("RI.RANGE default a c FIELDS KEY EXCLUSIVE END", "*2 $1 a $1 b"),
            ("RI.RANGE default a c FIELDS VALUE EXCLUSIVE BOTH", "*1 $1 2"),
            ("RI.RANGE default b \"\"", "*2 *2 $1 b $1 2 *2 $1 c $1 3"),
            ("RI.RANGE default c a", "*0"),
            ("RI.SCAN default b COUNT 1 FIELDS KEY", "*1 $1 b"),
            ("RI.SCAN default b COUNT 9 FIELDS KEY REV", "*2 $1 b $1 a"),
            ("RI.SCAN default \"\" COUNT 9 FIELDS KEY REV END b", "*2 $1 c $1 b"),
            ("RI.SCAN default b COUNT 9 FIELDS KEY EXCLUSIVE START", "*1 $1 c"),
            ("RI.SCAN default b COUNT", "-ERR wrong number of arguments for 'ri.scan' command"),
            ("RI.SCAN default b LIMIT 3", "-ERR syntax error"),
            ("RI.COUNT default a b", ":2"),
            ("RI.DELRANGE default a b LIMIT 1", ":1"),
            ("RI.DELRANGE default \"\" \"\"", ":2"),
            ("RI.DEL default a", ":0"),
        ];
        converse(client, &lines);
    });
}

/// The empty key is one that pages can end with, in both directions.
#[test]
fn pages_continue_behind_the_empty_key() {
    with_client(|client| {
        let lines = [
            ("MSET \"\" x a y", "+OK"),
            ("RI.SCAN default \"\" COUNT 1 FIELDS KEY", "*1 $0"),
            ("RI.SCAN default \"\" COUNT 1 EXCLUSIVE START FIELDS KEY", "*1 $1 a"),
            ("RI.SCAN default \"\" COUNT 9 EXCLUSIVE BOTH FIELDS KEY", "*1 $1 a"),
            ("RI.SCAN default a COUNT 1 EXCLUSIVE START FIELDS KEY", "*0"),
            ("RI.SCAN default \"\" COUNT 1 REV FIELDS KEY", "*1 $1 a"),
            ("RI.SCAN default a COUNT 1 REV EXCLUSIVE START FIELDS KEY", "*1 $0"),
            ("RI.SCAN default \"\" COUNT 1 REV EXCLUSIVE START FIELDS KEY", "*0"),
            ("RI.SCAN default \"\" COUNT 9 REV EXCLUSIVE END FIELDS VALUE", "*2 $1 y $1 x"),
            ("RI.RANGE default \"\" \"\" EXCLUSIVE BOTH FIELDS KEY", "*1 $1 a"),
            ("RI.RANGE default \"\" \"\" REV EXCLUSIVE END FIELDS KEY", "*0"),
            ("RI.COUNT default \"\" \"\"", ":2"),
            ("RI.COUNT default \"\" \"\" EXCLUSIVE BOTH", ":1"),
            ("RI.DELRANGE default \"\" \"\" EXCLUSIVE START", ":1"),
            ("EXISTS \"\" a", ":1"),
        ];
        converse(client, &lines);
    });
}

/// Only what a reply has counts against its size.
#[test]
fn keys_have_room_without_their_values() {
    let limits = RespLimits { reply_bytes: 2000, ..RespLimits::default() };
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, limits));
    let mut client = Client::new(&store, &shared, 1);
    let large = "v".repeat(900);
    client.line(&format!("MSET a {large} b {large} c {large}"));
    let range = "RI.RANGE default a z FIELDS";
    assert_eq!(client.line(&format!("{range} KEY")), "*3 $1 a $1 b $1 c");
    for fields in ["VALUE", "BOTH"] {
        let reply = client.line(&format!("{range} {fields}"));
        assert_eq!(reply, "-ERR the reply has more than 2000 bytes: use LIMIT or COUNT");
    }
}

/// No key matches a pattern whose literal beginning is longer than any key.
#[test]
fn a_pattern_longer_than_any_key_matches_none() {
    with_client(|client| {
        let longest = "k".repeat(128);
        client.line(&format!("SET {longest} 1"));
        for rest in ["", "*", "?*"] {
            assert_eq!(client.line(&format!("KEYS {longest}k{rest}")), "*0");
            assert_eq!(client.line(&format!("SCAN 0 MATCH {longest}k{rest}")), "*2 $1 0 *0");
        }
        assert_eq!(client.line(&format!("KEYS {longest}*")), format!("*1 $128 {longest}"));
        let why = "-ERR the key has 129 bytes";
        assert_eq!(client.line(&format!("RI.COUNT default {longest}k z")), why);
    });
}

/// MSET sets nothing if one of its records is too long.
#[test]
fn records_that_are_too_long_are_refused_together() {
    with_client(|client| {
        let long = "k".repeat(129);
        assert_eq!(client.line(&format!("MSET a 1 {long} 2")), "-ERR the key has 129 bytes");
        let long = "v".repeat(MAX_VALUE_BYTES + 1);
        let why = "-ERR string exceeds maximum allowed size: 1001 bytes, of at most 1000";
        assert_eq!(client.line(&format!("MSET a 1 b {long}")), why);
        assert_eq!(client.line("DBSIZE"), ":0");
    });
}

#[test]
fn a_long_pattern_is_refused() {
    with_client(|client| {
        client.line("SET a 1");
        for (before, after) in [("KEYS ", ""), ("SCAN 0 MATCH ", " COUNT 9"), ("CONFIG GET x ", "")]
        {
            let ask = |bytes| format!("{before}{}{after}", "*".repeat(bytes));
            assert!(client.line(&ask(1024)).starts_with('*'));
            let why = "-ERR the pattern has 1025 bytes, and can have at most 1024";
            assert_eq!(client.line(&ask(1025)), why);
        }
        let many = client.line(&format!("CONFIG GET{}", " *".repeat(65)));
        assert_eq!(many, "-ERR unknown subcommand or wrong arguments: CONFIG GET");
    });
}

#[test]
fn a_connection_has_a_version_and_a_name() {
    with_client(|client| {
        assert!(client.line("HELLO").contains("$5 proto :2 $2 id :1 $4 mode"));
        assert!(client.line("HELLO 3 SETNAME me").starts_with("%7 $6 server"));
        let lines = [
            ("GET none", "_"),
            ("CLIENT GETNAME", "$2 me"),
            ("CLIENT ID", ":1"),
            ("CLIENT SETINFO lib-name x", "+OK"),
            ("CLIENT NO-EVICT on", "+OK"),
            ("CONFIG GET sav*", "%1 $4 save $0"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            ("SELECT 0", "+OK"),
            ("SELECT 1", "-ERR DB index is out of range: there is only database 0"),
            ("PING", "+PONG"),
            ("PING \"a b\"", "$3 a b"),
            ("ECHO hi", "$2 hi"),
            ("TIME", "*2 $10 1700000000 $1 0"),
            ("WAIT 0 10", ":0"),
            ("AUTH x", "-ERR AUTH was called, but this server has no password"),
            ("RESET", "+RESET"),
            ("GET none", "$-1"),
            ("CLIENT GETNAME", "$-1"),
        ];
        converse(client, &lines);
        let maintenance = client.line("CLIENT MAINT_NOTIFICATIONS ON");
        assert!(maintenance.starts_with("-ERR unknown subcommand"), "{maintenance}");
        let info = client.line("INFO server replication");
        assert!(info.contains("redis_version:") && info.contains("role:master"), "{info}");
        assert!(client.line("INFO").contains(" # Persistence loading:0 "));
        assert!(client.line("CLIENT LIST").contains("id=1 addr=127.0.0.1:1 name="));
        assert_eq!(client.line("COMMAND COUNT"), format!(":{}", COMMANDS.len()));
        assert!(client.line("COMMAND INFO get none").starts_with("*2 *10 $3 get :2 *2 +readonly"));
        assert!(client.line("COMMAND DOCS get").contains("$7 summary"));
        assert_eq!(client.line("QUIT"), "+OK");
        assert!(client.session.is_over());
    });
}

/// A small request has no large reply.
#[test]
fn descriptions_are_bounded() {
    let limits = RespLimits { reply_bytes: 10_000, ..RespLimits::default() };
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, limits));
    let mut client = Client::new(&store, &shared, 1);
    let most = COMMANDS.len();
    for line in ["COMMAND INFO", "COMMAND DOCS"] {
        let reply = client.line(&format!("{line}{}", " get".repeat(most)));
        assert!(reply.starts_with('*'), "{reply}");
        let reply = client.line(&format!("{line}{}", " get".repeat(most + 1)));
        assert!(reply.ends_with(&format!("names are given, and can be at most {most}")), "{reply}");
    }
    let others: Vec<_> = (0..300).map(|_| Client::new(&store, &shared, 1)).collect();
    assert_eq!(client.line("CLIENT LIST"), "-ERR the list has more than 10000 bytes");
    drop(others);
    assert!(client.line("CLIENT LIST").contains(" id=1 "));
}

#[test]
fn every_command_of_the_tables_is_known_with_any_number_of_words() {
    with_client(|client| {
        for spec in COMMANDS.iter().filter(|spec| spec.name != "QUIT") {
            for words in 0..8 {
                let reply = client.line(&format!("{}{}", spec.name, " 1".repeat(words)));
                assert!(!reply.is_empty() && !reply.contains("unknown command"), "{reply}");
            }
        }
        for (name, _) in REFUSED {
            assert!(client.line(name).starts_with(&format!("-ERR {name} is refused: ")), "{name}");
        }
        assert_eq!(client.line("\"a\\r\\n+OK\" b"), "-ERR unknown command 'A  +OK'");
    });
}

#[test]
fn without_the_password_nothing_is_done() {
    let (store, shared) = (MemoryStore::new(1, 0), shared(Some("pw"), RespLimits::default()));
    let mut client = Client::new(&store, &shared, 1);
    let lines = [
        ("SET a 1", "-NOAUTH Authentication required."),
        ("NONSENSE", "-NOAUTH Authentication required."),
        ("AUTH no", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH other pw", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH pw", "+OK"),
        ("SET a 1", "+OK"),
        ("RESET", "+RESET"),
        ("GET a", "-NOAUTH Authentication required."),
        ("AUTH default pw", "+OK"),
        ("GET a", "$1 1"),
    ];
    converse(&mut client, &lines);
    let mut other = Client::new(&store, &shared, 1);
    assert!(client.session.is_authenticated() && !other.session.is_authenticated());
    assert!(other.line("HELLO 3").starts_with("-NOAUTH"));
    assert!(other.line("HELLO 3 AUTH default no").starts_with("-WRONGPASS"));
    assert_eq!(other.line("GET a"), "-NOAUTH Authentication required.");
    assert!(other.line("HELLO 3 AUTH default pw").starts_with("%7"));
    assert_eq!(other.line("GET a"), "$1 1");
    let mut third = Client::new(&store, &shared, 1);
    for _ in 0..8 {
        assert!(!third.session.is_over());
        third.line("AUTH guess");
    }
    assert!(third.session.is_over());
}

#[test]
fn an_error_of_the_store_has_its_code() {
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, RespLimits::default()));
    let mut client = Client::new(&store, &shared, 1);
    client.line("SET n 1");
    for (error, code) in [
        (StoreError::Indeterminate("x".into()), "-INDETERMINATE x"),
        (StoreError::Unavailable("x".into()), "-LOADING x"),
        (StoreError::Contended("x".into()), "-TRYAGAIN x"),
        (StoreError::OutOfMemory("x".into()), "-OOM x"),
        (StoreError::Invalid("x".into()), "-ERR x"),
    ] {
        *store.broken.borrow_mut() = Some(error);
        for line in ["SET a 1", "SETNX a 1", "DEL a", "INCR n", "APPEND a 1", "RI.SET default a 1"]
        {
            assert_eq!(client.line(line), code, "{line}");
        }
        assert_eq!(client.line("GET n"), "$1 1");
    }
    *store.broken.borrow_mut() = Some(StoreError::Indeterminate("x".into()));
    assert_eq!(client.line("MSET a 1 b 2"), "-INDETERMINATE done in part, at least 0 of 2 keys: x");
    assert_eq!(
        client.line("RI.DELRANGE default a z"),
        "-INDETERMINATE 0 keys or more are removed: x"
    );
    // Also if another key has certainly not been removed.
    *store.broken.borrow_mut() = None;
    client.line("MSET a 1 b 2");
    for line in ["DEL a b", "RI.DELRANGE default a z", "FLUSHALL"] {
        *store.broken.borrow_mut() = Some(StoreError::Unavailable("x".into()));
        *store.broken_next.borrow_mut() = Some(StoreError::Indeterminate("y".into()));
        assert!(client.line(line).starts_with("-INDETERMINATE "), "{line}");
    }
}

/// Some clients repeat a whole pipeline after such an error, so a pipeline has others.
#[test]
fn a_pipeline_gets_no_error_after_which_clients_repeat_it() {
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, RespLimits::default()));
    let large = command(&[b"GET", &[b'k'; 2000]]);
    let set = command(&[b"SET", b"a", b"1"]);
    for (error, single, in_pipeline) in [
        (StoreError::Unavailable("x".into()), "-LOADING x\r\n", "-UNAVAILABLE x\r\n"),
        (StoreError::Contended("x".into()), "-TRYAGAIN x\r\n", "-CONTENDED x\r\n"),
    ] {
        *store.broken.borrow_mut() = Some(error);
        let mut client = Client::new(&store, &shared, 1);
        let greeting = b"HELLO 2\r\nCLIENT SETINFO lib-name a\r\nCLIENT SETINFO lib-ver 1\r\n";
        assert!(client.send(greeting, usize::MAX).ends_with(b"+OK\r\n+OK\r\n"));
        assert_eq!(client.send(&set, usize::MAX), single.as_bytes());
        assert_eq!(client.send(&large, usize::MAX), b"$-1\r\n");
        assert_eq!(client.send(&set, usize::MAX), in_pipeline.as_bytes());
        assert_eq!(client.send(&set, usize::MAX), single.as_bytes());
        assert_eq!(client.send(&set.repeat(2), usize::MAX), in_pipeline.repeat(2).as_bytes());
        assert_eq!(client.send(&set, usize::MAX), in_pipeline.as_bytes());
    }
}

/// What waits for others is bounded, and has done nothing.
#[test]
fn a_turn_that_does_not_come_is_given_up() {
    let (store, shared) = (MemoryStore::new(1, 0), shared(None, RespLimits::default()));
    let mut client = Client::new(&store, &shared, 1);
    store.is_taken.set(true);
    for line in ["INCR n", "APPEND n 1", "SETRANGE n 1 x", "GETSET n 1", "SET n 1 GET"] {
        let reply = client.line(line);
        assert!(reply.starts_with("-TRYAGAIN ") && reply.ends_with("nothing was done"), "{reply}");
    }
    assert!(store.now.get() >= 5000);
    store.is_taken.set(false);
    // The read takes as long as the whole command may.
    store.operation_ms.set(1001);
    assert!(client.line("INCR n").starts_with("-TRYAGAIN "));
    store.operation_ms.set(1);
    assert_eq!(client.line("EXISTS n"), ":0");
    assert_eq!(client.line("INCR n"), ":1");
}

/// A change of many keys stops in time, and says how much it has done.
#[test]
fn a_change_of_many_keys_has_a_deadline() {
    let (store, shared) = (MemoryStore::new(1, 1), shared(None, RespLimits::default()));
    let mut client = Client::new(&store, &shared, 1);
    let key = |number: usize| format!("key:{number:03}");
    let all = (0..600).map(key).collect::<Vec<_>>().join(" ");
    let set = format!("MSET {}", (0..600).map(|number| key(number) + " v ").collect::<String>());
    let done = |reply: String, before: &str| {
        let done = reply.strip_prefix(before).and_then(|rest| rest.split(' ').next());
        let done: usize = done.and_then(|done| done.parse().ok()).expect(&reply);
        assert!((1..600).contains(&done) && reply.contains("the 1 s for a command were over"));
        done
    };
    store.operation_ms.set(5);
    let set_in_time = done(client.line(&set), "-INDETERMINATE done in part, at least ");
    store.operation_ms.set(1);
    assert_eq!(client.line("DBSIZE SCAN"), format!(":{set_in_time}"));
    for line in [format!("DEL {all}"), "RI.DELRANGE default a z".into(), "FLUSHALL".into()] {
        client.line(&set);
        store.operation_ms.set(5);
        let reply = client.line(&line);
        store.operation_ms.set(1);
        let before = if line.starts_with("DEL") { "done in part, at least " } else { "" };
        let removed = done(reply, &format!("-INDETERMINATE {before}"));
        assert_eq!(client.line("DBSIZE SCAN"), format!(":{}", 600 - removed), "{line:.12}");
    }
}

/// A command that others disturb all the time gives up, and one that is disturbed a little repeats.
#[test]
fn additions_of_several_clients_are_all_kept() {
    let (store, shared) = (MemoryStore::new(7, 3), shared(None, RespLimits::default()));
    let mut clients: Vec<_> = (0..4).map(|seed| Client::new(&store, &shared, seed)).collect();
    for client in &mut clients {
        client.session.receive(&command(&[b"INCR", b"n"]).repeat(50));
    }
    while clients.iter_mut().map(Client::step).fold(false, |any, is_busy| any | is_busy) {}
    let replies = clients.iter().map(|client| String::from_utf8_lossy(client.session.output()));
    let mut sums: Vec<i64> = replies
        .flat_map(|text| text.lines().map(|line| line[1..].parse().unwrap()).collect::<Vec<_>>())
        .collect();
    sums.sort_unstable();
    assert!(sums.into_iter().eq(1..=200));
}
