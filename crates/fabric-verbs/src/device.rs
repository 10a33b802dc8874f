//! Chooses the device, port and address to use, and reports what is missing if there is none.
//!
//! *Thread safety*: any number of threads.

use crate::bring_up::{ConnectionEnd, NetworkKind};
use crate::ffi;
use crate::objects::{DeviceContext, ProtectionDomain, QueuePair, Registration, VerbsLibrary};
use farleaf_fabric::Region;
use farleaf_fabric::sync::Arc;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use thiserror::Error;

/// Which device to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The file name of libibverbs.
    pub library: String,
    /// The device's name; `None` for the first one.
    pub device: Option<String>,
    /// Its port, counted from 1.
    pub port: u8,
    /// Index of its address in the port's table. `None` selects the first RoCE v2 address that maps
    /// an IPv4 address, or, failing that, the first RoCE v2 address; on InfiniBand, 0.
    pub address_index: Option<u32>,
}

impl Default for DeviceChoice {
    fn default() -> Self {
        Self { library: "libibverbs.so.1".into(), device: None, port: 1, address_index: None }
    }
}

/// Why RDMA cannot be used here; each message fits in one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RdmaUnavailable {
    /// libibverbs cannot be loaded.
    #[error(
        "no RDMA: {library} cannot be loaded ({why}); Debian has it in libibverbs1 and ibverbs-providers"
    )]
    Library {
        /// The library's file name.
        library: String,
        /// The loader's error.
        why: String,
    },
    /// There is no RDMA device at all.
    #[error(
        "no RDMA: there is no device (is there a NIC, or rdma_rxe, and its driver for libibverbs?)"
    )]
    AnyDevice,
    /// There is no device of that name.
    #[error("no RDMA: there is no device {name}, only {there}", there = .there.join(", "))]
    Device {
        /// The requested name.
        name: String,
        /// The names of the existing devices.
        there: Vec<String>,
    },
    /// The port is down.
    #[error("no RDMA: port {port} of {device} is not active")]
    Port {
        /// Name of the device.
        device: String,
        /// Number of its port.
        port: u8,
    },
    /// The port has no usable address.
    #[error(
        "no RDMA: port {port} of {device} has no RoCE v2 address (give its network interface an IPv4 address)"
    )]
    Address {
        /// Name of the device.
        device: String,
        /// Number of its port.
        port: u8,
    },
    /// The device has no atomics.
    #[error("no RDMA: {device} has no CAS and no FETCH-ADD")]
    Atomics {
        /// Name of the device.
        device: String,
    },
    /// The memory cannot be registered, often because of the limit on locked memory.
    #[error(
        "no RDMA: {bytes} bytes of memory cannot be registered ({why}); the limit of locked memory is {limit} (ulimit -l)",
        limit = match .limit { Some(bytes) => format!("{bytes} bytes"), None => "unlimited".into() }
    )]
    LockedMemory {
        /// The requested size.
        bytes: usize,
        /// The process's limit on locked memory; `None` if unlimited.
        limit: Option<u64>,
        /// The operating system's error.
        why: io::Error,
    },
    /// Another step failed.
    #[error("no RDMA: {what} of {device}: {why}")]
    Broken {
        /// Name of the device.
        device: String,
        /// The step that failed.
        what: &'static str,
        /// The operating system's error.
        why: io::Error,
    },
}

impl From<RdmaUnavailable> for io::Error {
    fn from(missing: RdmaUnavailable) -> Self {
        Self::other(missing)
    }
}

/// A usable device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableDevice {
    /// The device's name.
    pub device: String,
    /// Number of its port.
    pub port: u8,
    /// The port's address.
    pub address: Ipv6Addr,
}

/// Checks whether RDMA can be used here with `bytes` bytes of registered memory.
///
/// # Errors
/// [`RdmaUnavailable`], which states in one line what is missing.
pub fn probe(choice: &DeviceChoice, bytes: usize) -> Result<UsableDevice, RdmaUnavailable> {
    let adapter = RdmaAdapter::open(choice)?;
    let region = Region::new(bytes.next_multiple_of(4096).max(4096));
    let broken = |why| RdmaUnavailable::Broken {
        device: adapter.context().name.clone(),
        what: "memory for a trial",
        why: io::Error::other(why),
    };
    let region = region.map_err(broken)?;
    adapter.register(Arc::new(region), false)?;
    Ok(UsableDevice {
        device: adapter.context().name.clone(),
        port: adapter.port,
        address: Ipv6Addr::from(adapter.gid),
    })
}

/// The device's limits that matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLimits {
    /// Maximum number of requests in one queue.
    pub(crate) requests: usize,
    /// Maximum number of completions in one queue.
    pub(crate) completions: usize,
    /// Maximum number of entries of a shared receive queue.
    pub(crate) shared_receives: usize,
    /// Maximum number of READs and atomics that it serves for a peer at a time.
    pub(crate) served_reads: u8,
    /// Maximum number of READs and atomics that it issues at a time.
    pub(crate) own_reads: u8,
    /// Maximum size of one request, in bytes.
    pub(crate) message_bytes: usize,
}

/// An open device, with everything needed for connecting through it.
#[derive(Debug)]
pub(crate) struct RdmaAdapter {
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) limits: DeviceLimits,
    port: u8,
    gid_index: u8,
    gid: [u8; 16],
    lid: u16,
    mtu: u8,
    link: NetworkKind,
}

impl RdmaAdapter {
    pub(crate) fn open(choice: &DeviceChoice) -> Result<Self, RdmaUnavailable> {
        let library = VerbsLibrary::load(&choice.library)
            .map_err(|why| RdmaUnavailable::Library { library: choice.library.clone(), why })?;
        let wanted = choice.device.as_deref();
        let opened = library.open(wanted).map_err(|why| RdmaUnavailable::Broken {
            device: wanted.unwrap_or("the first device").into(),
            what: "opening",
            why,
        })?;
        let context = opened.map_err(|there| no_device(wanted, there))?;
        let device = context.name.clone();
        let broken = |what| {
            let device = device.clone();
            move |why| RdmaUnavailable::Broken { device, what, why }
        };
        let context = Arc::new(context);
        let can = context.attributes().map_err(broken("the attributes"))?;
        if can.atomic_cap == ffi::ATOMIC_NONE {
            return Err(RdmaUnavailable::Atomics { device });
        }
        let port = context.port(choice.port).map_err(broken("the port"))?;
        if port.state != ffi::PORT_ACTIVE {
            return Err(RdmaUnavailable::Port { device, port: choice.port });
        }
        let link = match port.link_layer {
            ffi::LINK_LAYER_INFINIBAND => NetworkKind::InfiniBand,
            _ => NetworkKind::Ethernet,
        };
        let index = match (choice.address_index, link) {
            (Some(index), _) => Some(index),
            (None, NetworkKind::InfiniBand) => Some(0),
            (None, NetworkKind::Ethernet) => {
                choose_address(&addresses(&context, choice.port, &port))
            }
        };
        let index = index.and_then(|index| u8::try_from(index).ok());
        let Some(gid_index) = index else {
            return Err(RdmaUnavailable::Address { device, port: choice.port });
        };
        let gid = context.gid(choice.port, gid_index.into()).map_err(broken("the address"))?;
        let domain = ProtectionDomain::new(&context).map_err(broken("a protection domain"))?;
        let count = |of_device: i32| usize::try_from(of_device).unwrap_or(0);
        let few = |of_device: i32| u8::try_from(of_device.clamp(1, 128)).unwrap_or(1);
        let limits = DeviceLimits {
            requests: count(can.max_qp_wr),
            completions: count(can.max_cqe),
            shared_receives: count(can.max_srq_wr),
            served_reads: few(can.max_qp_rd_atom),
            own_reads: few(can.max_qp_init_rd_atom),
            message_bytes: port.max_msg_sz as usize,
        };
        let mtu = u8::try_from(port.active_mtu).unwrap_or(1);
        Ok(Self { domain, limits, port: choice.port, gid_index, gid, lid: port.lid, mtu, link })
    }

    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        self.domain.context()
    }

    /// Registers all of `region`; with access for peers if `shared`.
    pub(crate) fn register(
        &self,
        region: Arc<Region>,
        shared: bool,
    ) -> Result<Registration, RdmaUnavailable> {
        let bytes = region.bytes();
        Registration::new(&self.domain, region, shared).map_err(|why| {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
            RdmaUnavailable::LockedMemory { bytes, limit: limit.current, why }
        })
    }

    /// The description of `pair` that the other side needs; its packet numbers start at `psn`.
    pub(crate) fn end(&self, pair: &QueuePair, psn: u32) -> ConnectionEnd {
        ConnectionEnd {
            link: self.link,
            mtu: self.mtu,
            reads: self.limits.served_reads,
            lid: self.lid,
            pair: pair.number,
            psn,
            gid: self.gid,
        }
    }

    /// Connects `pair`, with own end `own`, to `peer`. Afterwards the pair can send and receive.
    pub(crate) fn connect(
        &self,
        pair: &QueuePair,
        own: ConnectionEnd,
        peer: ConnectionEnd,
        retry_timers: RetryTimers,
        serves: bool,
    ) -> io::Result<()> {
        if own.link != peer.link {
            return Err(io::Error::other(
                "cannot connect: one side is InfiniBand, the other Ethernet",
            ));
        }
        let remote = ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_ATOMIC;
        let init = ffi::QpAttr {
            qp_state: ffi::QPS_INIT,
            qp_access_flags: if serves { remote as u32 } else { 0 },
            port_num: self.port,
            ..Default::default()
        };
        let mask = ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS;
        pair.modify(init, mask)?;
        let route = ffi::AhAttr {
            dgid: peer.gid,
            sgid_index: self.gid_index,
            hop_limit: 64,
            dlid: peer.lid,
            is_global: u8::from(self.link == NetworkKind::Ethernet),
            port_num: self.port,
            ..Default::default()
        };
        let receiving = ffi::QpAttr {
            qp_state: ffi::QPS_RTR,
            path_mtu: own.mtu.min(peer.mtu).clamp(1, 5).into(),
            rq_psn: peer.psn,
            dest_qp_num: peer.pair,
            ah_attr: route,
            max_dest_rd_atomic: self.limits.served_reads,
            min_rnr_timer: retry_timers.receiver_not_ready_timer,
            ..Default::default()
        };
        let mask = ffi::QP_STATE
            | ffi::QP_AV
            | ffi::QP_PATH_MTU
            | ffi::QP_DEST_QPN
            | ffi::QP_RQ_PSN
            | ffi::QP_MAX_DEST_RD_ATOMIC
            | ffi::QP_MIN_RNR_TIMER;
        pair.modify(receiving, mask)?;
        let sending = ffi::QpAttr {
            qp_state: ffi::QPS_RTS,
            sq_psn: own.psn,
            max_rd_atomic: self.limits.own_reads.min(peer.reads).max(1),
            timeout: retry_timers.acknowledgement_timer.clamp(1, 31),
            // 7 would mean infinite retries.
            retry_cnt: retry_timers.retries.min(6),
            rnr_retry: retry_timers.retries.min(6),
            ..Default::default()
        };
        let mask = ffi::QP_STATE
            | ffi::QP_TIMEOUT
            | ffi::QP_RETRY_CNT
            | ffi::QP_RNR_RETRY
            | ffi::QP_SQ_PSN
            | ffi::QP_MAX_RD_ATOMIC;
        pair.modify(sending, mask)
    }
}

/// When a connection gives up on a peer that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryTimers {
    /// Code of the acknowledgement timeout, 1 to 31: after 4.096 µs × 2^this, a request is sent
    /// again.
    pub acknowledgement_timer: u8,
    /// Number of such retries before the connection counts as lost; at most 6.
    pub retries: u8,
    /// Code of the time that a sender waits after a receiver-not-ready reply: 12 is 0.64 ms, 20 is
    /// 10.24 ms.
    pub receiver_not_ready_timer: u8,
}

impl Default for RetryTimers {
    /// Gives up on a peer that does not answer after 3.8 s, before operations reach their
    /// deadlines. This is long enough for machines that pause occasionally, as virtual ones do. The
    /// end of a process is noticed at once, by the TCP connection that brought this one up.
    fn default() -> Self {
        Self { acknowledgement_timer: 17, retries: 6, receiver_not_ready_timer: 20 }
    }
}

fn no_device(wanted: Option<&str>, there: Vec<String>) -> RdmaUnavailable {
    match wanted {
        Some(name) if !there.is_empty() => RdmaUnavailable::Device { name: name.into(), there },
        _ => RdmaUnavailable::AnyDevice,
    }
}

/// One entry of a port's address table.
#[derive(Clone, Copy, Debug)]
struct Address {
    index: u32,
    gid: [u8; 16],
    is_roce_v2: bool,
}

/// The port's addresses. Only sysfs gives the type of each address in all versions of the kernel
/// and the library.
fn addresses(context: &DeviceContext, port: u8, of_port: &ffi::PortAttr) -> Vec<Address> {
    let count = u32::try_from(of_port.gid_tbl_len).unwrap_or(0).min(256);
    let of_index = |index| {
        let device = &context.name;
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
        let kind = fs::read_to_string(path).ok()?;
        let gid = context.gid(port, index).ok()?;
        Some(Address { index, gid, is_roce_v2: kind.trim() == "RoCE v2" })
    };
    (0..count).filter_map(of_index).collect()
}

fn choose_address(addresses: &[Address]) -> Option<u32> {
    let good = |address: &&Address| address.is_roce_v2 && address.gid != [0; 16];
    let is_ipv4 = |address: &&Address| Ipv6Addr::from(address.gid).to_ipv4_mapped().is_some();
    let chosen = addresses.iter().filter(good).find(is_ipv4);
    Some(chosen.or_else(|| addresses.iter().find(good))?.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_missing_library_is_told_in_one_line() {
        let library = "libibverbs-that-nobody-has.so.1".to_owned();
        let choice = DeviceChoice { library, ..DeviceChoice::default() };
        let missing = probe(&choice, 4096).unwrap_err();
        assert!(matches!(missing, RdmaUnavailable::Library { .. }), "{missing}");
        let line = missing.to_string();
        assert!(line.contains("libibverbs-that-nobody-has.so.1") && !line.contains('\n'), "{line}");
    }

    /// On a host without library or device, the probe reports that; on a host with a device, it
    /// finds it.
    #[test]
    fn what_is_here_is_told() {
        let has_device =
            fs::read_dir("/sys/class/infiniband").is_ok_and(|mut d| d.next().is_some());
        match probe(&DeviceChoice::default(), 1 << 20) {
            Ok(found) => assert!(has_device, "{found:?} out of nothing"),
            Err(RdmaUnavailable::Library { .. }) => {}
            Err(RdmaUnavailable::AnyDevice) => assert!(!has_device),
            Err(other) => assert!(has_device, "{other}"),
        }
    }

    #[test]
    fn missing_devices_are_told_apart() {
        assert!(matches!(no_device(None, Vec::new()), RdmaUnavailable::AnyDevice));
        assert!(matches!(no_device(Some("mlx5_9"), Vec::new()), RdmaUnavailable::AnyDevice));
        let there = vec!["mlx5_0".to_owned(), "rxe0".to_owned()];
        let missing = no_device(Some("mlx5_9"), there);
        assert_eq!(missing.to_string(), "no RDMA: there is no device mlx5_9, only mlx5_0, rxe0");
    }

    #[test]
    fn a_limit_of_locked_memory_is_told() {
        let why = io::Error::from_raw_os_error(12);
        let missing = RdmaUnavailable::LockedMemory { bytes: 1 << 30, limit: Some(65_536), why };
        let line = missing.to_string();
        assert!(line.contains("1073741824 bytes") && line.contains("65536 bytes"), "{line}");
    }

    #[test]
    fn an_address_of_ipv4_is_chosen_first() {
        let gid = |address: Ipv6Addr| address.octets();
        let local = gid("fe80::1".parse().unwrap());
        let mapped = gid(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        let entry = |index, gid, is_roce_v2| Address { index, gid, is_roce_v2 };
        let both = [entry(0, local, false), entry(1, local, true), entry(3, mapped, true)];
        assert_eq!(choose_address(&both), Some(3));
        assert_eq!(choose_address(&both[..2]), Some(1));
        assert_eq!(choose_address(&[entry(2, mapped, false)]), None, "RoCE v1 is of no use");
        assert_eq!(choose_address(&[entry(0, [0; 16], true)]), None, "an empty entry");
    }
}
