//! The state of a cluster according to the catalog.
//!
//! A server is live if it is registered, that is, if it has renewed its lease within a term.
//!
//! *Thread safety*: plain values.

use crate::catalog::Catalog;
use crate::records::{
    self, CatalogKeys, ComputeRecord, IndexRecord, IndexState, MapRecord, MemoryRecord,
    RecordError, SettingsRecord,
};
use crate::text::KeyRecord;
use serde::Serialize;

/// A cluster's records in the catalog. They were read one after the other, not as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterStatus {
    /// The settings; `None` before the first program has written them.
    pub settings: Option<SettingsRecord>,
    /// The live memory servers, by number.
    pub memory: Vec<MemoryRecord>,
    /// The live compute servers, by number.
    pub compute: Vec<ComputeRecord>,
    /// The index, once a compute server has begun to create it.
    pub index: Option<IndexRecord>,
    /// The partition map.
    pub map: Option<MapRecord>,
}

/// A server as a row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRow {
    /// Its kind and number.
    pub server: String,
    /// Whether it is live.
    pub is_live: bool,
    /// Its address. This and the following fields are empty if it is not live.
    pub address: String,
    pub epoch: String,
    /// The generation of a memory server, or the keys that a compute server owns.
    pub holds: String,
    /// The address of its metrics.
    pub metrics: String,
}

impl StatusRow {
    /// Whether this is the row of a memory server.
    pub fn is_memory(&self) -> bool {
        self.server.starts_with("memory")
    }
}

impl ClusterStatus {
    /// Reads the state of the cluster from the catalog.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(catalog: &dyn Catalog, keys: &CatalogKeys) -> Result<Self, RecordError> {
        fn value<T>(found: Option<(T, crate::catalog::EntryVersion)>) -> Option<T> {
            found.map(|(record, _)| record)
        }
        let mut memory: Vec<MemoryRecord> = records::list(catalog, &keys.memory_prefix())?;
        let mut compute: Vec<ComputeRecord> = records::list(catalog, &keys.compute_prefix())?;
        memory.sort_by_key(|record| record.number);
        compute.sort_by_key(|record| record.number);
        Ok(Self {
            settings: value(records::get(catalog, &keys.settings())?),
            memory,
            compute,
            index: value(records::get(catalog, &keys.index())?),
            map: value(records::get(catalog, &keys.map())?),
        })
    }

    /// The record of a live memory server.
    pub fn memory_server(&self, number: u16) -> Option<&MemoryRecord> {
        self.memory.iter().find(|record| record.number == number)
    }

    /// The record of a live compute server.
    pub fn compute_server(&self, number: u16) -> Option<&ComputeRecord> {
        self.compute.iter().find(|record| record.number == number)
    }

    /// Whether the cluster serves, and otherwise why not, in a line.
    pub fn summary(&self) -> String {
        match self.missing().as_slice() {
            [] if self.compute.is_empty() => {
                "serves memory only: it has no compute servers, and so no index".to_owned()
            }
            [] => "serves".to_owned(),
            missing => format!("does not serve: {}", missing.join("; ")),
        }
    }

    /// The reasons why the cluster does not serve, one line each; empty if it serves. A cluster
    /// without compute servers serves without an index.
    pub fn missing(&self) -> Vec<String> {
        let Some(settings) = &self.settings else {
            return vec!["the size of the cluster is not set yet".to_owned()];
        };
        let mut missing = Vec::new();
        for number in 0..settings.memory_servers {
            if self.memory_server(number).is_none() {
                missing.push(format!("memory server {number} is not registered"));
            }
        }
        // Once there is a map, its owners matter: initial servers may have been drained, and others
        // may have joined.
        let mut needed: Vec<u16> = match &self.map {
            Some(map) => map.owners.clone(),
            None => (0..settings.compute_servers).collect(),
        };
        needed.sort_unstable();
        for number in needed {
            if self.compute_server(number).is_none() {
                let what = format!("compute server {number} is not registered");
                missing.push(match self.taker_of(number) {
                    Some(to) => format!("{what}: compute server {to} takes over its keys"),
                    None => what,
                });
            }
        }
        if settings.compute_servers == 0 {
            return missing;
        }
        match &self.index {
            None => missing.push("there is no index yet".to_owned()),
            Some(IndexRecord { state: IndexState::Making, generation, .. }) => {
                missing.push(format!("generation {generation} of the index is not ready yet"));
            }
            Some(index) => {
                let other = |record: &&MemoryRecord| {
                    let known = index.memory_epochs.get(usize::from(record.number));
                    known != Some(&record.epoch) || record.generation != index.generation
                };
                let part = |record: &&MemoryRecord| record.number < settings.memory_servers;
                for record in self.memory.iter().filter(part).filter(other) {
                    let number = record.number;
                    missing.push(format!(
                        "the index is lost: memory server {number} no longer has its part"
                    ));
                }
                let idle = |record: &&ComputeRecord| record.generation != index.generation;
                for record in self.compute.iter().filter(idle) {
                    missing.push(format!("compute server {} does not serve yet", record.number));
                }
                for record in &self.compute {
                    let (from, to) = (record.number, &record.unreachable);
                    missing.extend(to.iter().map(|number| {
                        format!("compute server {from} cannot reach memory server {number}")
                    }));
                }
            }
        }
        missing
    }

    /// The compute server that is taking over the keys of a dead one.
    pub fn taker_of(&self, dead: u16) -> Option<u16> {
        let moving = self.map.as_ref()?.moving.as_ref()?;
        (moving.dead && moving.from == dead).then_some(moving.to)
    }

    /// The keys of a compute server, as `LOW..HIGH`.
    fn range(&self, number: u16) -> String {
        let Some(map) = &self.map else { return String::new() };
        let Some(place) = map.owners.iter().position(|owner| *owner == number) else {
            return "no keys".to_owned();
        };
        let boundary = |place: Option<usize>| place.and_then(|place| map.boundaries.get(place));
        let text = |key: Option<&KeyRecord>| key.map_or(String::new(), KeyRecord::to_string);
        format!("{}..{}", text(boundary(place.checked_sub(1))), text(boundary(Some(place))))
    }

    /// One row for each server that should exist or does exist.
    pub fn rows(&self) -> Vec<StatusRow> {
        let count = |said: Option<u16>, live: Option<u16>| {
            said.unwrap_or(0).max(live.map_or(0, |number| number.saturating_add(1)))
        };
        let said = self.settings.as_ref();
        let memory = count(
            said.map(|settings| settings.memory_servers),
            self.memory.last().map(|record| record.number),
        );
        let compute = count(
            said.map(|settings| settings.compute_servers),
            self.compute.last().map(|record| record.number),
        );
        let gone = |server: String| StatusRow {
            server,
            is_live: false,
            address: String::new(),
            epoch: String::new(),
            holds: String::new(),
            metrics: String::new(),
        };
        let memory_row = |number| {
            let row = gone(format!("memory server {number}"));
            match self.memory_server(number) {
                None => row,
                Some(record) => StatusRow {
                    is_live: true,
                    address: format!("{} {}", record.transport, record.address),
                    epoch: format!("{:016x}", record.epoch),
                    holds: format!("generation {}", record.generation),
                    metrics: record.metrics.clone().unwrap_or_default(),
                    ..row
                },
            }
        };
        let compute_row = |number| {
            let row = gone(format!("compute server {number}"));
            match self.compute_server(number) {
                None => row,
                Some(record) => StatusRow {
                    is_live: true,
                    address: record.address.clone(),
                    epoch: format!("{:016x}", record.epoch),
                    holds: self.range(number),
                    metrics: record.metrics.clone().unwrap_or_default(),
                    ..row
                },
            }
        };
        (0..memory).map(memory_row).chain((0..compute).map(compute_row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::IndexName;
    use crate::records::PoolTransport;

    fn memory(number: u16, epoch: u64) -> MemoryRecord {
        let (transport, address) = (PoolTransport::Tcp, "127.0.0.1:1".to_owned());
        MemoryRecord { number, pid: 1, transport, address, epoch, generation: 1, metrics: None }
    }

    fn compute(number: u16) -> ComputeRecord {
        let address = "127.0.0.1:2".to_owned();
        ComputeRecord {
            number,
            pid: 2,
            address,
            epoch: 9,
            generation: 1,
            unreachable: Vec::new(),
            metrics: None,
            right_ms: None,
        }
    }

    fn whole() -> ClusterStatus {
        ClusterStatus {
            settings: Some(SettingsRecord {
                memory_servers: 2,
                compute_servers: 2,
                transport: PoolTransport::Tcp,
                placement_level: 3,
                keys: "u64".to_owned(),
                page_bytes: 1024,
                index: IndexName::default(),
            }),
            memory: vec![memory(0, 10), memory(1, 11)],
            compute: vec![compute(0), compute(1)],
            index: Some(IndexRecord {
                generation: 1,
                state: IndexState::Ready,
                memory_epochs: vec![10, 11],
            }),
            map: Some(MapRecord {
                epoch: 4,
                boundaries: vec![KeyRecord::Number(500)],
                owners: vec![1, 0],
                generation: Some(1),
                moving: None,
                replacing: None,
            }),
        }
    }

    #[test]
    fn it_serves_when_everybody_is_there_and_the_index_is_theirs() {
        assert_eq!(whole().missing(), Vec::<String>::new());
        let missing = |change: fn(&mut ClusterStatus)| {
            let mut standing = whole();
            change(&mut standing);
            let missing = standing.missing();
            assert_eq!(missing.len(), 1, "{missing:?}");
            missing[0].clone()
        };
        assert!(missing(|standing| drop(standing.memory.remove(1))).contains("memory server 1"));
        assert!(missing(|standing| drop(standing.compute.remove(0))).contains("compute server 0"));
        assert!(missing(|standing| standing.settings = None).contains("not set"));
        assert!(missing(|standing| standing.index = None).contains("no index"));
        let making = missing(|standing| {
            standing.index.as_mut().unwrap().state = IndexState::Making;
        });
        assert!(making.contains("not ready"));
        let restarted = missing(|standing| standing.memory[1].epoch = 12);
        assert!(restarted.contains("lost: memory server 1"));
        let cut_off = missing(|standing| standing.compute[1].unreachable = vec![0]);
        assert!(cut_off.contains("compute server 1 cannot reach memory server 0"));
        let renewed = missing(|standing| standing.memory[0].generation = 2);
        assert!(renewed.contains("lost: memory server 0"));
    }

    /// `farleaf cluster --compute-servers 0` said *serves*, and no client could use it.
    #[test]
    fn memory_servers_alone_serve_no_index() {
        assert_eq!(whole().summary(), "serves");
        let mut alone = whole();
        alone.settings.as_mut().unwrap().compute_servers = 0;
        (alone.compute, alone.index, alone.map) = (Vec::new(), None, None);
        assert_eq!(alone.missing(), Vec::<String>::new());
        assert!(alone.summary().starts_with("serves memory only"), "{}", alone.summary());
        alone.memory.remove(0);
        assert!(alone.summary().starts_with("does not serve: memory server 0"));
    }

    #[test]
    fn everybody_has_a_line() {
        let mut standing = whole();
        standing.memory.remove(0);
        let rows = standing.rows();
        assert_eq!(rows.len(), 4);
        assert_eq!((rows[0].server.as_str(), rows[0].is_live), ("memory server 0", false));
        assert_eq!(rows[1].epoch, "000000000000000b");
        assert_eq!((rows[2].holds.as_str(), rows[3].holds.as_str()), ("500..", "..500"));
    }
}
