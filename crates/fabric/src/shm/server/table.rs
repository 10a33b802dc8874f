//! The connections of a memory server, and its pending fences.
//!
//! *Invariants*: table.T1. `endpoints` has every endpoint whose client may still execute verbs: an
//! endpoint leaves when its socket is closed, its process is gone, or its process has reported it
//! stopped. table.T2. A fence is complete when the endpoints that its compute server had when it
//! was requested have all left. table.T3. Numbers are never reused.
//!
//! *Thread safety*: behind the reactor's lock.

use super::super::socket::{self, SocketPacket};
use super::ShmServerConnection;
use crate::sync::{Arc, Ordering};
use std::collections::{BTreeMap, BTreeSet};

/// Limit on pending fences. Beyond it, the oldest are forgotten, and their requesters time out.
const MAX_FENCES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct EndpointTable {
    pub(super) connections: BTreeMap<u64, Arc<ShmServerConnection>>,
    pub(super) next_connection: u64,
    /// Connections that have not shown the token yet.
    pub(super) greetings: usize,
    /// Connections of processes, by process number.
    pub(super) processes: BTreeMap<u64, Arc<ShmServerConnection>>,
    /// Connections that have rings.
    pub(super) rings: BTreeSet<u64>,
    next_process: u64,
    endpoints: BTreeMap<u64, TableEndpoint>,
    next_endpoint: u64,
    fences: BTreeMap<u64, VerbFence>,
    next_fence: u64,
}

#[derive(Debug)]
struct TableEndpoint {
    connection: u64,
    process: u64,
    compute_server: u16,
}

#[derive(Debug)]
struct VerbFence {
    asked_by: Arc<ShmServerConnection>,
    request: u64,
    compute_server: u16,
    /// The first endpoint number that the fence does not cover.
    below: u64,
}

impl VerbFence {
    fn concerns(&self, number: u64, endpoint: &TableEndpoint) -> bool {
        endpoint.compute_server == self.compute_server && number < self.below
    }
}

impl EndpointTable {
    /// Returns `None` if there are `most` already.
    pub(super) fn add_process(
        &mut self,
        connection: &Arc<ShmServerConnection>,
        most: usize,
    ) -> Option<u64> {
        if self.processes.len() >= most {
            return None;
        }
        let number = self.next_process;
        self.next_process += 1;
        self.processes.insert(number, Arc::clone(connection));
        self.greetings -= 1;
        Some(number)
    }

    /// Returns `None` if there are `most` already, or there is no such process.
    pub(super) fn add_endpoint(
        &mut self,
        connection: &Arc<ShmServerConnection>,
        process: u64,
        compute_server: u16,
        most: usize,
    ) -> Option<u64> {
        if self.rings.len() >= most || !self.processes.contains_key(&process) {
            return None;
        }
        let number = self.next_endpoint;
        self.next_endpoint += 1;
        let endpoint = TableEndpoint { connection: connection.id, process, compute_server };
        self.endpoints.insert(number, endpoint);
        self.rings.insert(connection.id);
        self.greetings -= 1;
        Some(number)
    }

    /// Removes a connection. It closes once no thread uses it.
    pub(super) fn remove(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let process = self.processes.iter().find(|(_, it)| it.id == id).map(|(number, _)| *number);
        if let Some(process) = process {
            // A process ends its endpoints before its own connection, unless it has died.
            self.processes.remove(&process);
            self.endpoints.retain(|_, endpoint| endpoint.process != process);
            self.fences.retain(|_, fence| fence.asked_by.id != id);
        } else if self.rings.remove(&id) {
            self.endpoints.retain(|_, endpoint| endpoint.connection != id);
        } else if connection.greeting.load(Ordering::Relaxed) {
            self.greetings -= 1;
        }
        self.settle();
    }

    /// Begins a fence, and also returns the connections of the endpoints that it covers.
    pub(super) fn begin_fence(
        &mut self,
        asked_by: &Arc<ShmServerConnection>,
        request: u64,
        compute_server: u16,
    ) -> (u64, Vec<Arc<ShmServerConnection>>) {
        let asked_by = Arc::clone(asked_by);
        let fence = VerbFence { asked_by, request, compute_server, below: self.next_endpoint };
        let concerned = (self.endpoints.iter())
            .filter(|(number, endpoint)| fence.concerns(**number, endpoint))
            .filter_map(|(_, endpoint)| self.connections.get(&endpoint.connection).cloned())
            .collect();
        let number = self.next_fence;
        self.next_fence += 1;
        if self.fences.len() >= MAX_FENCES {
            self.fences.pop_first();
        }
        self.fences.insert(number, fence);
        (number, concerned)
    }

    /// Asks the processes of the endpoints that a fence covers to stop them.
    pub(super) fn order_fence(&mut self, number: u64) {
        let Some(fence) = self.fences.get(&number) else { return };
        let concerned: BTreeSet<u64> = (self.endpoints.iter())
            .filter(|(number, endpoint)| fence.concerns(**number, endpoint))
            .map(|(_, endpoint)| endpoint.process)
            .collect();
        let VerbFence { compute_server, below, .. } = *fence;
        for process in concerned {
            if let Some(connection) = self.processes.get(&process) {
                // A send only fails if the process reads no packets; the fence then stays pending.
                let stop = SocketPacket::Stop { fence: number, compute_server, below };
                let _ = socket::send_packet(&connection.socket, stop);
            }
        }
        self.settle();
    }

    /// Records that a process has stopped the endpoints that a fence covers.
    pub(super) fn stopped(&mut self, process: u64, number: u64) {
        if let Some(fence) = self.fences.get(&number) {
            self.endpoints.retain(|number, endpoint| {
                endpoint.process != process || !fence.concerns(*number, endpoint)
            });
        }
        self.settle();
    }

    /// Answers the completed fences.
    fn settle(&mut self) {
        let endpoints = &self.endpoints;
        self.fences.retain(|_, fence| {
            let open = endpoints.iter().any(|(number, endpoint)| fence.concerns(*number, endpoint));
            if !open {
                let fenced = SocketPacket::Fenced { request: fence.request };
                let _ = socket::send_packet(&fence.asked_by.socket, fenced);
            }
            open
        });
    }
}
