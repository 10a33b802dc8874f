//! The state of the embedded catalog and its file. It has no threads, sockets or clock: callers
//! pass in the time.
//!
//! *Invariants*: the file is only replaced as a whole, after the new file is on disk; a change is
//! written before it is acknowledged. A failed write does not change the state in memory. Entries,
//! their bytes and leases are bounded.
//!
//! *Thread safety*: one thread.

use super::messages::{CatalogAnswer, CatalogRequest, entry_bytes, fits};
use super::{CatalogEntry, CatalogLease, EntryVersion, check};
use farleaf_fabric::handshake::draw_epoch;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum numbers of entries, of their bytes, and of leases.
const MAX_ENTRIES: usize = 8192;
const MAX_BYTES: usize = 16 << 20;
const MAX_LEASES: usize = 8192;
/// The shortest and the longest term of a lease, in nanoseconds.
const TERMS_NS: std::ops::RangeInclusive<u64> = 1_000_000..=3_600_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredEntry {
    value: String,
    version: u64,
    lease: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogState {
    format: u32,
    /// The last version that was assigned.
    version: u64,
    entries: BTreeMap<String, StoredEntry>,
    /// Terms of the leases that have entries, in nanoseconds.
    terms_ns: BTreeMap<u64, u64>,
}

const FORMAT: u32 = 1;

#[derive(Clone, Copy, Debug)]
struct CatalogTerm {
    term_ns: u64,
    ends_ns: u64,
}

#[derive(Debug)]
pub(super) struct CatalogStore {
    path: PathBuf,
    version: u64,
    entries: BTreeMap<String, StoredEntry>,
    leases: BTreeMap<u64, CatalogTerm>,
}

fn invalid(path: &Path, why: impl std::fmt::Display) -> io::Error {
    let text = format!("{} is not a catalog's state file: {why}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl CatalogStore {
    /// Reads the state from the file at `path`, or starts empty if there is no file. Every lease
    /// gets a whole term from `now_ns`.
    pub(super) fn open(path: &Path, now_ns: u64) -> io::Result<Self> {
        let empty = CatalogState {
            format: FORMAT,
            version: 0,
            entries: BTreeMap::new(),
            terms_ns: BTreeMap::new(),
        };
        let content = match fs::read(path) {
            Ok(bytes) => {
                serde_json::from_slice::<CatalogState>(&bytes).map_err(|why| invalid(path, why))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => empty,
            Err(error) => return Err(error),
        };
        if content.format != FORMAT {
            return Err(invalid(path, format!("its format is {}", content.format)));
        }
        let fresh = |(lease, term_ns): (u64, u64)| {
            (lease, CatalogTerm { term_ns, ends_ns: now_ns.saturating_add(term_ns) })
        };
        let store = Self {
            path: path.to_owned(),
            version: content.version,
            entries: content.entries,
            leases: content.terms_ns.into_iter().map(fresh).collect(),
        };
        let known =
            |stored: &StoredEntry| stored.lease.is_none_or(|id| store.leases.contains_key(&id));
        if !store.entries.values().all(known) {
            return Err(invalid(path, "an entry's lease is missing"));
        }
        // Check now, not when the first server registers, whether the file can be written.
        store.save().map_err(|error| io::Error::new(error.kind(), store.unwritten(&error)))?;
        Ok(store)
    }

    /// Writes the state to a new file and renames it over the old one.
    fn save(&self) -> io::Result<()> {
        let used: BTreeSet<u64> = self.entries.values().filter_map(|stored| stored.lease).collect();
        let terms = self.leases.iter().filter(|(id, _)| used.contains(id));
        let content = CatalogState {
            format: FORMAT,
            version: self.version,
            entries: self.entries.clone(),
            terms_ns: terms.map(|(id, term)| (*id, term.term_ns)).collect(),
        };
        let temporary = self.path.with_added_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        file.write_all(&serde_json::to_vec_pretty(&content)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn unwritten(&self, error: &io::Error) -> String {
        format!("cannot write the catalog's state {}: {error}", self.path.display())
    }

    /// Makes a change of the entries and writes it. If the write fails, the change is undone.
    fn change(&mut self, make: impl FnOnce(&mut Self)) -> Result<(), String> {
        let before = (self.entries.clone(), self.leases.clone());
        make(self);
        self.save().map_err(|error| {
            (self.entries, self.leases) = before;
            // The rename may have happened, so do not reuse versions that a reader may have seen.
            self.unwritten(&error)
        })
    }

    /// Answers a request at the time `now_ns`. The caller must have called [`CatalogStore::expire`]
    /// for that time; a lease whose end could not be recorded counts as one that has not ended.
    pub(super) fn answer(&mut self, request: CatalogRequest, now_ns: u64) -> CatalogAnswer {
        self.carry_out(request, now_ns).unwrap_or_else(CatalogAnswer::Refused)
    }

    fn carry_out(&mut self, request: CatalogRequest, now_ns: u64) -> Result<CatalogAnswer, String> {
        Ok(match request {
            CatalogRequest::Get { key } => CatalogAnswer::Entry(self.entry(&key)),
            CatalogRequest::List { prefix, after } => self.page(&prefix, after.as_deref()),
            CatalogRequest::PutIf { key, expected, value, lease } => {
                check(&key, &value).map_err(|error| error.to_string())?;
                self.put_if(key, expected, value, lease)?
            }
            CatalogRequest::DeleteIf { key, expected } => {
                let is = self.entries.get(&key).is_some_and(|stored| stored.version == expected.0);
                if is {
                    self.change(|store| drop(store.entries.remove(&key)))?;
                }
                CatalogAnswer::Done(is)
            }
            CatalogRequest::Grant { term_ns } => self.grant(term_ns, now_ns)?,
            CatalogRequest::KeepAlive { lease } => {
                let term = self.leases.get_mut(&lease.0);
                let is = term.is_some();
                if let Some(term) = term {
                    term.ends_ns = now_ns.saturating_add(term.term_ns);
                }
                CatalogAnswer::Done(is)
            }
            CatalogRequest::Revoke { lease } => {
                self.end(&[lease.0])?;
                CatalogAnswer::Revoked
            }
        })
    }

    fn entry(&self, key: &str) -> Option<CatalogEntry> {
        let stored = self.entries.get(key)?;
        let version = EntryVersion(stored.version);
        Some(CatalogEntry { key: key.to_owned(), value: stored.value.clone(), version })
    }

    fn page(&self, prefix: &str, after: Option<&str>) -> CatalogAnswer {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (key, _) in self.entries.range::<str, _>((start, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            let Some(entry) = self.entry(key) else { continue };
            bytes += entry_bytes(&entry);
            if !fits(bytes) {
                return CatalogAnswer::Page { entries, more: true };
            }
            entries.push(entry);
        }
        CatalogAnswer::Page { entries, more: false }
    }

    fn put_if(
        &mut self,
        key: String,
        expected: Option<EntryVersion>,
        value: String,
        lease: Option<CatalogLease>,
    ) -> Result<CatalogAnswer, String> {
        let found = self.entries.get(&key);
        if found.map(|stored| EntryVersion(stored.version)) != expected {
            return Ok(CatalogAnswer::Done(false));
        }
        let lease = lease.map(|lease| lease.0);
        if lease.is_some_and(|id| !self.leases.contains_key(&id)) {
            return Err("the lease has ended".to_owned());
        }
        let bytes = |(key, stored): (&String, &StoredEntry)| key.len() + stored.value.len();
        let held: usize = self.entries.iter().map(bytes).sum();
        if self.entries.len() >= MAX_ENTRIES || held + key.len() + value.len() > MAX_BYTES {
            return Err("it is full".to_owned());
        }
        self.version += 1;
        let stored = StoredEntry { value, version: self.version, lease };
        let entry = CatalogEntry {
            key,
            value: stored.value.clone(),
            version: EntryVersion(stored.version),
        };
        if !fits(entry_bytes(&entry)) {
            return Err("the value is too long once escaped as JSON".to_owned());
        }
        self.change(|store| drop(store.entries.insert(entry.key, stored)))?;
        Ok(CatalogAnswer::Done(true))
    }

    fn grant(&mut self, term_ns: u64, now_ns: u64) -> Result<CatalogAnswer, String> {
        if !TERMS_NS.contains(&term_ns) {
            return Err("a lease's term must be from 1 millisecond to 1 hour".to_owned());
        }
        if self.leases.len() >= MAX_LEASES {
            return Err("it is full".to_owned());
        }
        // Draw the id at random: a counter could reuse the id of a lease that a restart has
        // forgotten.
        let mut id = 0;
        while id == 0 || self.leases.contains_key(&id) {
            id = draw_epoch().map_err(|error| error.to_string())? >> 1;
        }
        self.leases.insert(id, CatalogTerm { term_ns, ends_ns: now_ns.saturating_add(term_ns) });
        Ok(CatalogAnswer::Granted(CatalogLease(id)))
    }

    /// Ends leases and deletes their entries.
    fn end(&mut self, ids: &[u64]) -> Result<(), String> {
        let under = |stored: &StoredEntry| stored.lease.is_some_and(|id| ids.contains(&id));
        if !self.entries.values().any(under) {
            self.leases.retain(|id, _| !ids.contains(id));
            return Ok(());
        }
        self.change(|store| {
            store.entries.retain(|_, stored| !under(stored));
            store.leases.retain(|id, _| !ids.contains(id));
        })
    }

    /// Ends the leases that have expired by `now_ns`.
    pub(super) fn expire(&mut self, now_ns: u64) -> Result<(), String> {
        let over = |(id, term): (&u64, &CatalogTerm)| (term.ends_ns <= now_ns).then_some(*id);
        let ids: Vec<u64> = self.leases.iter().filter_map(over).collect();
        if ids.is_empty() { Ok(()) } else { self.end(&ids) }
    }

    /// When the next lease expires.
    pub(super) fn next_end_ns(&self) -> Option<u64> {
        self.leases.values().map(|term| term.ends_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn put(store: &mut CatalogStore, key: &str, lease: Option<CatalogLease>) {
        let request =
            CatalogRequest::PutIf { key: key.into(), expected: None, value: "v".into(), lease };
        assert_eq!(store.answer(request, 0), CatalogAnswer::Done(true));
    }

    fn granted(store: &mut CatalogStore, now_ns: u64) -> CatalogLease {
        match store.answer(CatalogRequest::Grant { term_ns: SECOND_NS }, now_ns) {
            CatalogAnswer::Granted(lease) => lease,
            answer => panic!("{answer:?}"),
        }
    }

    fn keys(store: &CatalogStore) -> Vec<&str> {
        store.entries.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_restart_keeps_entries_and_gives_leases_a_whole_term() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut store = CatalogStore::open(&path, 0).unwrap();
        let (lease, bare) = (granted(&mut store, 0), granted(&mut store, 0));
        put(&mut store, "stays", None);
        put(&mut store, "goes", Some(lease));
        let version = store.version;
        drop(store);

        let mut store = CatalogStore::open(&path, 50 * SECOND_NS).unwrap();
        assert_eq!((keys(&store), store.version), (vec!["goes", "stays"], version));
        // A lease without entries is not written, so it does not survive a restart.
        let alive = |store: &mut CatalogStore, lease, now_ns| {
            store.answer(CatalogRequest::KeepAlive { lease }, now_ns) == CatalogAnswer::Done(true)
        };
        assert!(!alive(&mut store, bare, 50 * SECOND_NS));
        store.expire(51 * SECOND_NS - 1).unwrap();
        assert!(alive(&mut store, lease, 51 * SECOND_NS - 1));
        store.expire(51 * SECOND_NS).unwrap();
        assert_eq!(keys(&store).len(), 2);
        store.expire(52 * SECOND_NS).unwrap();
        assert_eq!(keys(&store), ["stays"]);
        assert_eq!(
            keys(&CatalogStore::open(&path, 0).unwrap()),
            ["stays"],
            "an end is written too"
        );
    }

    /// A crash in the middle of a write leaves a torn temporary file next to an intact state.
    #[test]
    fn a_torn_temporary_file_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut store = CatalogStore::open(&path, 0).unwrap();
        put(&mut store, "a", None);
        drop(store);
        let whole = fs::read(&path).unwrap();
        fs::write(path.with_added_extension("new"), &whole[..whole.len() / 2]).unwrap();
        let mut store = CatalogStore::open(&path, 0).unwrap();
        put(&mut store, "b", None);
        assert_eq!(keys(&CatalogStore::open(&path, 0).unwrap()), ["a", "b"]);
        // An invalid file in the place of the state is not overwritten.
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = CatalogStore::open(&path, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read(&path).unwrap(), whole[..whole.len() / 2]);
    }

    #[test]
    fn what_cannot_be_written_has_not_happened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut store = CatalogStore::open(&path, 0).unwrap();
        put(&mut store, "a", None);
        fs::create_dir(path.with_added_extension("new")).unwrap();
        let request = CatalogRequest::PutIf {
            key: "b".into(),
            expected: None,
            value: "v".into(),
            lease: None,
        };
        assert!(matches!(store.answer(request.clone(), 0), CatalogAnswer::Refused(_)));
        assert_eq!(keys(&store), ["a"]);
        fs::remove_dir(path.with_added_extension("new")).unwrap();
        assert_eq!(store.answer(request, 0), CatalogAnswer::Done(true));
    }

    /// A disk was full, and a server died: the end of its lease could not be recorded, and the
    /// catalog answered nobody any more, not even those who asked for living servers.
    #[test]
    fn a_lease_whose_end_cannot_be_recorded_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut store = CatalogStore::open(&path, 0).unwrap();
        let (gone, kept) = (granted(&mut store, 0), granted(&mut store, 0));
        put(&mut store, "gone", Some(gone));
        put(&mut store, "kept", Some(kept));
        fs::create_dir(path.with_added_extension("new")).unwrap();
        let late_ns = 2 * SECOND_NS;
        assert!(store.expire(late_ns).is_err());
        let get = |key: &str| CatalogRequest::Get { key: key.into() };
        for key in ["gone", "kept"] {
            assert!(matches!(store.answer(get(key), late_ns), CatalogAnswer::Entry(Some(_))));
        }
        let keep = CatalogRequest::KeepAlive { lease: kept };
        assert_eq!(store.answer(keep, late_ns), CatalogAnswer::Done(true));
        fs::remove_dir(path.with_added_extension("new")).unwrap();
        store.expire(late_ns).unwrap();
        assert_eq!(keys(&store), ["kept"]);
    }
}
