//! The guarantees of every catalog, checked on both back ends, and the additional ones of the
//! embedded catalog.
//!
//! The tests start an etcd if one is installed (Debian: `etcd-server`). Otherwise the etcd tests
//! print a notice and pass.

use farleaf_cluster::catalog::{
    Catalog, CatalogError, EmbeddedCatalog, EmbeddedConfig, RemoteCatalog,
};
use farleaf_cluster::stop::Stop;
use farleaf_fabric::handshake::{HandshakeError, Token};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

fn token() -> Token {
    Token::new(&[7; 32]).unwrap()
}

fn embedded(folder: &Path, port: u16) -> EmbeddedCatalog {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let config = EmbeddedConfig { state: folder.join("catalog.json"), connections: 8 };
    EmbeddedCatalog::start(listener, &token(), &config).unwrap()
}

/// Waits until a condition holds, and panics if it never does.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let never = Stop::default();
    for _ in 0..600 {
        if holds() {
            return;
        }
        never.wait(Duration::from_millis(50));
    }
    panic!("{what} did not come to hold");
}

fn value(catalog: &dyn Catalog, key: &str) -> Option<String> {
    catalog.get(key).unwrap().map(|entry| entry.value)
}

/// The suite of all catalogs.
fn conforms(catalog: &dyn Catalog) {
    entries_are_compared_and_set(catalog);
    lists_are_whole_and_in_order(catalog);
    leases_carry_their_entries(catalog);
    one_of_many_wins(catalog);
    what_makes_no_sense_is_refused(catalog);
}

fn entries_are_compared_and_set(catalog: &dyn Catalog) {
    let key = "suite/entry";
    assert_eq!(catalog.get(key).unwrap(), None);
    assert!(catalog.put_if(key, None, "first", None).unwrap());
    assert!(!catalog.put_if(key, None, "second", None).unwrap(), "there is one");
    let first = catalog.get(key).unwrap().unwrap();
    assert_eq!((first.key.as_str(), first.value.as_str()), (key, "first"));
    assert!(catalog.put_if(key, Some(first.version), "second \"quoted\" ü", None).unwrap());
    assert!(!catalog.put_if(key, Some(first.version), "third", None).unwrap(), "it has changed");
    assert!(!catalog.delete_if(key, first.version).unwrap());
    let second = catalog.get(key).unwrap().unwrap();
    assert!(second.version > first.version);
    assert_eq!(second.value, "second \"quoted\" ü");
    assert!(catalog.delete_if(key, second.version).unwrap());
    assert!(!catalog.delete_if(key, second.version).unwrap());
    assert!(!catalog.put_if(key, Some(second.version), "third", None).unwrap(), "it is gone");
    assert!(catalog.put_if(key, None, "first", None).unwrap());
    let again = catalog.get(key).unwrap().unwrap();
    assert!(again.version > second.version, "a version never comes again");
    assert!(catalog.delete_if(key, again.version).unwrap());
}

/// Lists more entries than one message can hold.
fn lists_are_whole_and_in_order(catalog: &dyn Catalog) {
    let long = "x".repeat(30_000);
    for number in 0..12 {
        assert!(catalog.put_if(&format!("suite/list/{number:02}"), None, &long, None).unwrap());
    }
    assert!(catalog.put_if("suite/lisu", None, "beside", None).unwrap());
    assert!(catalog.put_if("suite/lis", None, "beside", None).unwrap());
    let found = catalog.list("suite/list/").unwrap();
    let keys: Vec<&str> = found.iter().map(|entry| entry.key.as_str()).collect();
    let expected: Vec<String> = (0..12).map(|number| format!("suite/list/{number:02}")).collect();
    assert_eq!(keys, expected);
    assert!(found.iter().all(|entry| entry.value == long));
    assert_eq!(catalog.list("suite/nothing").unwrap(), []);
    for entry in found {
        assert!(catalog.delete_if(&entry.key, entry.version).unwrap());
    }
}

fn leases_carry_their_entries(catalog: &dyn Catalog) {
    let short = catalog.grant(Duration::from_secs(1)).unwrap();
    let revoked = catalog.grant(Duration::from_secs(60)).unwrap();
    assert!(catalog.put_if("suite/short", None, "v", Some(short)).unwrap());
    assert!(catalog.put_if("suite/stays", None, "v", Some(short)).unwrap());
    assert!(catalog.put_if("suite/revoked", None, "v", Some(revoked)).unwrap());
    // Putting an entry again without a lease detaches it from the lease.
    let version = catalog.get("suite/stays").unwrap().unwrap().version;
    assert!(catalog.put_if("suite/stays", Some(version), "w", None).unwrap());
    assert!(catalog.keep_alive(short).unwrap() && catalog.keep_alive(revoked).unwrap());
    catalog.revoke(revoked).unwrap();
    catalog.revoke(revoked).unwrap();
    assert_eq!(value(catalog, "suite/revoked"), None);
    assert!(!catalog.keep_alive(revoked).unwrap());
    assert!(catalog.put_if("suite/revoked", None, "v", Some(revoked)).is_err());
    eventually("the end of a lease", || value(catalog, "suite/short").is_none());
    assert!(!catalog.keep_alive(short).unwrap());
    assert_eq!(value(catalog, "suite/stays").as_deref(), Some("w"));
}

fn one_of_many_wins(catalog: &dyn Catalog) {
    let won: usize = std::thread::scope(|scope| {
        let race = |number: usize| {
            let put = catalog.put_if("suite/race", None, &number.to_string(), None);
            usize::from(put.unwrap())
        };
        let racers: Vec<_> = (0..4).map(|number| scope.spawn(move || race(number))).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).sum()
    });
    assert_eq!(won, 1);
}

fn what_makes_no_sense_is_refused(catalog: &dyn Catalog) {
    let refused = |put: Result<bool, CatalogError>| matches!(put, Err(CatalogError::Refused(_)));
    assert!(refused(catalog.put_if("", None, "v", None)));
    assert!(refused(catalog.put_if(&"k".repeat(300), None, "v", None)));
    assert!(refused(catalog.put_if("suite/long", None, &"v".repeat(70_000), None)));
    assert_eq!(value(catalog, "suite/long"), None);
}

#[test]
fn the_embedded_catalog_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let server = embedded(folder.path(), 0);
    conforms(&RemoteCatalog::new(server.local_address(), &token()));
}

#[test]
fn a_restart_is_survived_by_entries_handles_and_leases() {
    let folder = tempfile::tempdir().unwrap();
    let server = embedded(folder.path(), 0);
    let address = server.local_address();
    let catalog = RemoteCatalog::new(address, &token());
    let lease = catalog.grant(Duration::from_secs(60)).unwrap();
    assert!(catalog.put_if("stays", None, "a", None).unwrap());
    assert!(catalog.put_if("leased", None, "b", Some(lease)).unwrap());
    let version = catalog.get("stays").unwrap().unwrap().version;
    drop(server);
    assert!(matches!(catalog.get("stays"), Err(CatalogError::Unreachable { .. })));

    let _server = embedded(folder.path(), address.port());
    assert_eq!(catalog.get("stays").unwrap().unwrap().version, version);
    assert!(catalog.keep_alive(lease).unwrap());
    assert_eq!(value(&catalog, "leased").as_deref(), Some("b"));
    assert!(catalog.put_if("stays", Some(version), "c", None).unwrap());
    catalog.revoke(lease).unwrap();
    assert_eq!(catalog.list("").unwrap().len(), 1);
}

#[test]
fn nobody_without_the_token_learns_anything() {
    let folder = tempfile::tempdir().unwrap();
    let server = embedded(folder.path(), 0);
    let good = RemoteCatalog::new(server.local_address(), &token());
    assert!(good.put_if("secret", None, "v", None).unwrap());
    let bad = RemoteCatalog::new(server.local_address(), &Token::new(&[8; 32]).unwrap());
    for _ in 0..3 {
        let error = bad.get("secret").unwrap_err();
        assert!(matches!(error, CatalogError::NotLetIn { why: HandshakeError::Refused(_), .. }));
    }
    assert!(bad.put_if("secret/2", None, "v", None).is_err() && bad.list("").is_err());
    assert_eq!(good.list("").unwrap().len(), 1);
}

/// A peer that accepts all bytes but never answers costs only a bounded time.
#[test]
fn a_catalog_that_says_nothing_is_given_up() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let catalog = RemoteCatalog::new(silent.local_addr().unwrap(), &token());
    assert!(matches!(catalog.get("a"), Err(CatalogError::Unreachable { .. })));
}

#[cfg(feature = "etcd")]
mod etcd {
    use super::*;
    use farleaf_cluster::catalog::EtcdCatalog;
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};

    struct Etcd {
        process: Child,
        address: SocketAddr,
        _folder: tempfile::TempDir,
    }

    impl Drop for Etcd {
        fn drop(&mut self) {
            // The process may have ended by itself.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    fn free_port() -> SocketAddr {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
    }

    /// Starts a private etcd, if one is installed.
    fn start() -> Option<Etcd> {
        let folder = tempfile::tempdir().unwrap();
        let (clients, peers) = (free_port(), free_port());
        let (client_url, peer_url) = (format!("http://{clients}"), format!("http://{peers}"));
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.path())
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match process {
            Ok(process) => Some(Etcd { process, address: clients, _folder: folder }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: no etcd is installed (Debian: etcd-server)");
                None
            }
            Err(error) => panic!("etcd does not start: {error}"),
        }
    }

    #[test]
    fn an_etcd_conforms() {
        let Some(mut etcd) = start() else { return };
        let catalog = EtcdCatalog::new(&[etcd.address.to_string()]).unwrap();
        eventually("an etcd that answers", || catalog.get("a").is_ok());
        conforms(&catalog);
        etcd.process.kill().unwrap();
        etcd.process.wait().unwrap();
        assert!(catalog.get("a").is_err());
        let put = catalog.put_if("a", None, "v", None);
        assert!(matches!(put, Err(CatalogError::Indeterminate { .. })), "{put:?}");
    }
}
