//! The interface of libibverbs: the layouts of its public structures, as far as they are used here,
//! and its functions, which are looked up at run time.
//!
//! Sizes and offsets were taken from a C program that includes `infiniband/verbs.h` of rdma-core 44
//! on x86-64. They are part of the library's binary interface, unchanged since its version 1.1, and
//! asserted below. Structures that only the library accesses are opaque.
//!
//! *Thread safety*: plain data and function pointers; libibverbs itself may be called from any
//! thread.
#![expect(unsafe_code, reason = "the functions of a C library")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque!(Device Pd Srq);

pub(crate) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub(crate) type NotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(crate) type PostSrq = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub(crate) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub(crate) type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// An open device. The functions of the data path are not exported; this table has them.
#[repr(C)]
pub(crate) struct IbvContext {
    device: *mut Device,
    before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) notify_cq: Option<NotifyCq>,
    before_post_srq: [*mut c_void; 7],
    pub(crate) post_srq_recv: Option<PostSrq>,
    before_post_send: [*mut c_void; 4],
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    after_post_recv: [*mut c_void; 5],
    cmd_fd: c_int,
    async_fd: c_int,
}
const _: () = assert!(offset_of!(IbvContext, poll_cq) == 8 + 88);
const _: () = assert!(offset_of!(IbvContext, notify_cq) == 8 + 96);
const _: () = assert!(offset_of!(IbvContext, post_srq_recv) == 8 + 160);
const _: () = assert!(offset_of!(IbvContext, post_send) == 8 + 200);
const _: () = assert!(offset_of!(IbvContext, post_recv) == 8 + 208);
const _: () = assert!(offset_of!(IbvContext, cmd_fd) == 264);

/// Attributes of a device.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttr {
    before_max_qp_wr: [u8; 112],
    pub(crate) max_qp_wr: c_int,
    before_max_cqe: [u8; 16],
    pub(crate) max_cqe: c_int,
    before_max_rd_atom: [u8; 8],
    pub(crate) max_qp_rd_atom: c_int,
    before_max_init_rd_atom: [u8; 8],
    pub(crate) max_qp_init_rd_atom: c_int,
    before_atomic_cap: [u8; 4],
    pub(crate) atomic_cap: c_int,
    before_max_srq_wr: [u8; 48],
    pub(crate) max_srq_wr: c_int,
    after_max_srq_wr: [u8; 12],
}
const _: () = assert!(size_of::<DeviceAttr>() == 232);
const _: () = assert!(offset_of!(DeviceAttr, max_qp_wr) == 112);
const _: () = assert!(offset_of!(DeviceAttr, max_cqe) == 132);
const _: () = assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
const _: () = assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
const _: () = assert!(offset_of!(DeviceAttr, atomic_cap) == 164);
const _: () = assert!(offset_of!(DeviceAttr, max_srq_wr) == 216);

/// Attributes of a port. The library fills only the fields that its caller's version knew: zero it
/// first.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    before_lid: [u8; 10],
    pub(crate) lid: u16,
    before_link_layer: [u8; 10],
    pub(crate) link_layer: u8,
    after_link_layer: [u8; 5],
}
const _: () = assert!(size_of::<PortAttr>() == 52);
const _: () = assert!(offset_of!(PortAttr, max_msg_sz) == 20);
const _: () = assert!(offset_of!(PortAttr, lid) == 34);
const _: () = assert!(offset_of!(PortAttr, link_layer) == 46);

pub(crate) const PORT_ACTIVE: c_int = 4;
pub(crate) const LINK_LAYER_INFINIBAND: u8 = 1;
pub(crate) const ATOMIC_NONE: c_int = 0;

/// Registered memory.
#[repr(C)]
pub(crate) struct Mr {
    context: *mut IbvContext,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}
const _: () = assert!(size_of::<Mr>() == 48);
const _: () = assert!(offset_of!(Mr, lkey) == 36);
const _: () = assert!(offset_of!(Mr, rkey) == 40);

/// The channel that reports events of completion queues.
#[repr(C)]
pub(crate) struct CompChannel {
    context: *mut IbvContext,
    pub(crate) fd: c_int,
    refcnt: c_int,
}
const _: () = assert!(size_of::<CompChannel>() == 16);

opaque!(Cq);

/// A queue pair; only its number is read.
#[repr(C)]
pub(crate) struct Qp {
    before_qp_num: [u8; 52],
    pub(crate) qp_num: u32,
}
const _: () = assert!(offset_of!(Qp, qp_num) == 52);

/// A completion. After an error, only `wr_id`, `status` and `qp_num` are valid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    opcode: c_int,
    vendor_err: u32,
    pub(crate) byte_len: u32,
    imm_data: u32,
    pub(crate) qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}
const _: () = assert!(size_of::<Wc>() == 48);
const _: () = assert!(offset_of!(Wc, byte_len) == 20);
const _: () = assert!(offset_of!(Wc, qp_num) == 28);

/// A piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}
const _: () = assert!(size_of::<Sge>() == 16);

/// A send request. `remote` is a union in C: of READ and WRITE (address, key), and of atomics
/// (address, two operands, key).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) remote: RemoteAddress,
    pub(crate) after_remote: [u64; 7],
}
const _: () = assert!(size_of::<SendWr>() == 128);
const _: () = assert!(offset_of!(SendWr, remote) == 40);

impl SendWr {
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 1,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote: RemoteAddress { rdma: RemoteRdma { addr: 0, rkey: 0 } },
        after_remote: [0; 7],
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RemoteAddress {
    pub(crate) rdma: RemoteRdma,
    pub(crate) atomic: RemoteAtomic,
}
const _: () = assert!(size_of::<RemoteAddress>() == 32);

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RemoteRdma {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RemoteAtomic {
    pub(crate) addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}
const _: () = assert!(offset_of!(RemoteAtomic, rkey) == 24);

pub(crate) const WR_RDMA_WRITE: c_int = 0;
pub(crate) const WR_SEND: c_int = 2;
pub(crate) const WR_RDMA_READ: c_int = 4;
pub(crate) const WR_CMP_AND_SWP: c_int = 5;
pub(crate) const WR_FETCH_AND_ADD: c_int = 6;
pub(crate) const SEND_SIGNALED: u32 = 2;

/// A receive request.
#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}
const _: () = assert!(size_of::<RecvWr>() == 32);

#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}
const _: () = assert!(size_of::<SrqInitAttr>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}
const _: () = assert!(size_of::<QpCap>() == 20);

#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}
const _: () = assert!(size_of::<QpInitAttr>() == 64);
const _: () = assert!(offset_of!(QpInitAttr, qp_type) == 52);

pub(crate) const QPT_RC: c_int = 2;

#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct AhAttr {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}
const _: () = assert!(size_of::<AhAttr>() == 32);
const _: () = assert!(offset_of!(AhAttr, dlid) == 24);
const _: () = assert!(offset_of!(AhAttr, is_global) == 29);
const _: () = assert!(offset_of!(AhAttr, port_num) == 30);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}
const _: () = assert!(size_of::<QpAttr>() == 144);
const _: () = assert!(offset_of!(QpAttr, ah_attr) == 56);
const _: () = assert!(offset_of!(QpAttr, pkey_index) == 120);
const _: () = assert!(offset_of!(QpAttr, max_rd_atomic) == 126);
const _: () = assert!(offset_of!(QpAttr, port_num) == 129);
const _: () = assert!(offset_of!(QpAttr, rnr_retry) == 132);
const _: () = assert!(offset_of!(QpAttr, rate_limit) == 136);

pub(crate) const QPS_INIT: c_int = 1;
pub(crate) const QPS_RTR: c_int = 2;
pub(crate) const QPS_RTS: c_int = 3;
pub(crate) const QPS_ERR: c_int = 6;

pub(crate) const QP_STATE: c_int = 1;
pub(crate) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const QP_PORT: c_int = 1 << 5;
pub(crate) const QP_AV: c_int = 1 << 7;
pub(crate) const QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const QP_MAX_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const QP_DEST_QPN: c_int = 1 << 20;

pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(crate) const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;

macro_rules! functions {
    ($($field:ident: $symbol:literal, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The exported functions used here.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Finds the functions in `library`, which must stay loaded as long as they are used.
            pub(crate) fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($field: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        // SAFETY: the function of this name has this signature in every
                        // libibverbs.so.1.
                        let found = unsafe {
                            library.get::<Function>(concat!($symbol, "\0").as_bytes())
                        };
                        *found?
                    },)*
                })
            }
        }
    };
}

functions! {
    get_device_list: "ibv_get_device_list", fn(*mut c_int) -> *mut *mut Device;
    free_device_list: "ibv_free_device_list", fn(*mut *mut Device);
    get_device_name: "ibv_get_device_name", fn(*mut Device) -> *const c_char;
    open_device: "ibv_open_device", fn(*mut Device) -> *mut IbvContext;
    close_device: "ibv_close_device", fn(*mut IbvContext) -> c_int;
    query_device: "ibv_query_device", fn(*mut IbvContext, *mut DeviceAttr) -> c_int;
    query_port: "ibv_query_port", fn(*mut IbvContext, u8, *mut PortAttr) -> c_int;
    query_gid: "ibv_query_gid", fn(*mut IbvContext, u8, c_int, *mut [u8; 16]) -> c_int;
    alloc_pd: "ibv_alloc_pd", fn(*mut IbvContext) -> *mut Pd;
    dealloc_pd: "ibv_dealloc_pd", fn(*mut Pd) -> c_int;
    reg_mr: "ibv_reg_mr", fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: "ibv_dereg_mr", fn(*mut Mr) -> c_int;
    create_comp_channel: "ibv_create_comp_channel", fn(*mut IbvContext) -> *mut CompChannel;
    destroy_comp_channel: "ibv_destroy_comp_channel", fn(*mut CompChannel) -> c_int;
    create_cq: "ibv_create_cq",
        fn(*mut IbvContext, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: "ibv_destroy_cq", fn(*mut Cq) -> c_int;
    get_cq_event: "ibv_get_cq_event",
        fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: "ibv_ack_cq_events", fn(*mut Cq, u32);
    create_srq: "ibv_create_srq", fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq: "ibv_destroy_srq", fn(*mut Srq) -> c_int;
    create_qp: "ibv_create_qp", fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    destroy_qp: "ibv_destroy_qp", fn(*mut Qp) -> c_int;
    modify_qp: "ibv_modify_qp", fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
}
