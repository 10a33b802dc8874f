//! A child process has no far memory: it can end an arena that it got by `fork`, and waits for
//! nothing.

use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Arc;
use farleaf_far_alloc::{ArenaConfig, FarArena, Metadata};
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, Reserved};
use std::alloc::Layout;

const REGION_BYTES: usize = 64 << 20;

fn arena(metadata: Metadata) -> FarArena {
    let config = FarConfig::new(REGION_BYTES, 64 << 10, 32);
    let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(REGION_BYTES)]));
    let space = Reserved::first(REGION_BYTES);
    let region = FarRegion::new(config, ClusterEndpoints::new(cluster, 0, 0), space).unwrap();
    let config = ArenaConfig { metadata, decay_ms: 60_000, ..ArenaConfig::default() };
    FarArena::new(region, config).unwrap()
}

fn free_in_a_child(metadata: Metadata) {
    let arena = arena(metadata);
    let layout = Layout::from_size_align(1 << 20, 64 << 10).unwrap();
    let memory = arena.alloc(layout, false).unwrap();
    // SAFETY: the memory is valid for so many bytes.
    unsafe { memory.as_ptr().write_bytes(7, layout.size()) };
    // SAFETY: the child only ends the arena, and calls `alarm` and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends the child if that waits for a thread that it does not have.
        unsafe { libc::alarm(20) };
        // SAFETY: the memory is from this arena, with this layout.
        unsafe { arena.dealloc(memory, layout) };
        let is_purged = arena.purge().is_ok();
        let is_refused = arena.ensure(0..1).is_err() && arena.far_stats().is_err();
        let counted = arena.stats().is_ok();
        drop(arena);
        let code = if is_purged && is_refused && counted { 3 } else { 4 };
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and the status is valid for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 3, "{metadata:?}");
    // SAFETY: the memory is live here, whatever the child did with its own.
    let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), layout.size()) };
    assert!(bytes.iter().all(|byte| *byte == 7));
    // SAFETY: the memory is from this arena, with this layout.
    unsafe { arena.dealloc(memory, layout) };
    assert_eq!(arena.stats().unwrap().allocated_bytes, 0);
}

#[test]
fn a_child_process_ends_arenas_without_a_pager() {
    free_in_a_child(Metadata::Separated);
    free_in_a_child(Metadata::Pinned { bytes: 8 << 20 });
}
