//! The C interface, `include/farleaf.h`, which says what each function does.
//!
//! *Thread safety*: any thread, as the header says.

use crate::{ArenaConfig, FarArena, Metadata};
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig};
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, Leased, TERM_MS};
use farleaf_page::Fixed8;
use std::alloc::Layout;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{NonNull, null_mut};

/// `farleaf_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CArenaOptions {
    region_bytes: u64,
    page_bytes: u64,
    pinned_bytes: u64,
    buffer_pages: u32,
    decay_ms: u32,
    term_ms: u32,
    compute_server: u16,
    metadata: u8,
    retain: u8,
    mirror: u8,
}

const _: () = assert!(size_of::<CArenaOptions>() == 48, "as in the header");

/// Writes `text` and a zero, as far as there is room.
///
/// # Safety
/// `to` is null, or valid for `bytes` bytes.
unsafe fn tell(text: &str, to: *mut c_char, bytes: usize) {
    if to.is_null() || bytes == 0 {
        return;
    }
    let most = text.floor_char_boundary(text.len().min(bytes - 1));
    // SAFETY: the caller's contract; so many bytes and one more fit.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), most) };
    // SAFETY: as above.
    let end = unsafe { to.add(most) };
    // SAFETY: as above.
    unsafe { end.write(0) };
}

fn open(addresses: &str, token: &[u8], options: CArenaOptions) -> Result<FarArena, Box<dyn Error>> {
    let parse = |address: &str| {
        let parsed = address.trim().parse::<SocketAddr>();
        parsed.map_err(|_| format!("{address:?} is no address: use an IP address and a port"))
    };
    let addresses = addresses.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
    let token = Token::new(token)?;
    let cluster = TcpCluster::connect(addresses, &token, TcpConfig::default());
    let metadata = match options.metadata {
        0 => Metadata::Separated,
        1 => Metadata::Together,
        2 => Metadata::Pinned { bytes: options.pinned_bytes.try_into()? },
        other => return Err(format!("there is no place {other} for metadata: use 0 to 2").into()),
    };
    let config = FarConfig {
        mirror: options.mirror != 0,
        ..FarConfig::new(
            options.region_bytes.try_into()?,
            options.page_bytes.try_into()?,
            options.buffer_pages,
        )
    };
    let term_ms = if options.term_ms == 0 { TERM_MS } else { options.term_ms };
    let space = Leased::<Fixed8>::new(term_ms)?;
    let reach = ClusterEndpoints::new(Arc::new(cluster), options.compute_server, 0);
    let region = FarRegion::new(config, reach, space)?;
    let (decay_ms, retain) = (options.decay_ms, options.retain != 0);
    Ok(FarArena::new(region, ArenaConfig { metadata, decay_ms, retain, grow_bytes: None })?)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_open(
    addresses: *const c_char,
    token: *const u8,
    token_bytes: usize,
    options: *const CArenaOptions,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut FarArena {
    // SAFETY: the header asks for a string, and it is only read here.
    let addresses = unsafe { CStr::from_ptr(addresses) };
    let token = match token.is_null() {
        true => &[][..],
        // SAFETY: the header asks for so many bytes.
        false => unsafe { std::slice::from_raw_parts(token, token_bytes) },
    };
    // SAFETY: the header asks for options.
    let options = unsafe { *options };
    match open(&addresses.to_string_lossy(), token, options) {
        Ok(arena) => Box::into_raw(Box::new(arena)),
        Err(why) => {
            // SAFETY: the header asks for so many bytes, or null.
            unsafe { tell(&why.to_string(), error, error_bytes) };
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_close(arena: *mut FarArena) {
    if !arena.is_null() {
        // SAFETY: it is from `farleaf_arena_open`, and nothing uses it any more.
        drop(unsafe { Box::from_raw(arena) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_alloc(
    arena: *const FarArena,
    bytes: usize,
    align: usize,
) -> *mut c_void {
    // SAFETY: it is from `farleaf_arena_open`, and open.
    let arena = unsafe { &*arena };
    let layout = Layout::from_size_align(bytes, align).ok();
    let memory = layout.and_then(|layout| arena.alloc(layout, false));
    memory.map_or(null_mut(), |memory| memory.as_ptr().cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_resize(
    arena: *const FarArena,
    memory: *mut c_void,
    bytes: usize,
    align: usize,
    new_bytes: usize,
) -> *mut c_void {
    // SAFETY: it is from `farleaf_arena_open`, and open.
    let arena = unsafe { &*arena };
    let layouts = [bytes, new_bytes].map(|bytes| Layout::from_size_align(bytes, align));
    let ([Ok(old), Ok(new)], Some(memory)) = (layouts, NonNull::new(memory.cast::<u8>())) else {
        return null_mut();
    };
    // SAFETY: the header asks for memory of this arena, with this size and alignment.
    let resized = unsafe { arena.realloc(memory, old, new.size()) };
    resized.map_or(null_mut(), |memory| memory.as_ptr().cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_free(
    arena: *const FarArena,
    memory: *mut c_void,
    bytes: usize,
    align: usize,
) {
    let (memory, layout) = (NonNull::new(memory.cast()), Layout::from_size_align(bytes, align));
    if let (Some(memory), Ok(layout)) = (memory, layout) {
        // SAFETY: it is from `farleaf_arena_open`, and open.
        let arena = unsafe { &*arena };
        // SAFETY: the header asks for memory of this arena, with this size and alignment.
        unsafe { arena.dealloc(memory, layout) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_ensure(
    arena: *const FarArena,
    memory: *const c_void,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: it is from `farleaf_arena_open`, and open.
    let arena = unsafe { &*arena };
    let from = memory.addr().wrapping_sub(arena.addresses().start);
    match arena.ensure(from..from.saturating_add(bytes)) {
        Ok(()) => 0,
        Err(why) => {
            // SAFETY: the header asks for so many bytes, or null.
            unsafe { tell(&why.to_string(), error, error_bytes) };
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn farleaf_arena_metrics(
    arena: *const FarArena,
    name: *const c_char,
    text: *mut c_char,
    bytes: usize,
) -> usize {
    // SAFETY: it is from `farleaf_arena_open`, and open.
    let arena = unsafe { &*arena };
    // SAFETY: the header asks for a string, and it is only read here.
    let name = unsafe { CStr::from_ptr(name) };
    let Ok(metrics) = arena.metrics(&name.to_string_lossy()) else { return 0 };
    // SAFETY: the header asks for so many bytes, or null.
    unsafe { tell(&metrics, text, bytes) };
    metrics.len()
}
