//! A program whose large allocations are far while a thread is in a scope.

use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Arc;
use farleaf_far_alloc::{ArenaConfig, FarArena, FarGlobal, FarScope, ProgramArena};
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, Reserved};
use std::alloc::System;
use std::collections::BTreeMap;

#[global_allocator]
static GLOBAL: FarGlobal<System> = FarGlobal::new(System, 64 << 10);

const REGION_BYTES: usize = 256 << 20;

fn arena() -> ProgramArena {
    let config = FarConfig::new(REGION_BYTES, 64 << 10, 64);
    let service = TestService::new(REGION_BYTES);
    let cluster = Arc::new(LocalConfig::default().start(vec![service]));
    let space = Reserved::first(REGION_BYTES);
    let region = FarRegion::new(config, ClusterEndpoints::new(cluster, 0, 0), space).unwrap();
    FarArena::new(region, ArenaConfig::default()).unwrap().serve_program().unwrap()
}

fn is_far<T>(arena: ProgramArena, slice: &[T]) -> bool {
    arena.addresses().contains(&slice.as_ptr().addr())
}

#[test]
fn large_allocations_of_a_scope_are_far() {
    let arena = arena();
    let near: Vec<u64> = (0..100_000).collect();
    assert!(!is_far(arena, &near), "there is no scope");
    let scope = FarScope::enter(arena);
    let small: Vec<u8> = vec![1; 1000];
    let mut large: Vec<u64> = (0..4_000_000).collect();
    let map: BTreeMap<u64, Vec<u8>> = (0..200).map(|key| (key, vec![key as u8; 100_000])).collect();
    assert!(!is_far(arena, &small) && is_far(arena, &large));
    assert!(map.values().all(|value| is_far(arena, value)));
    let other = std::thread::spawn(|| vec![7_u8; 1 << 20]).join().unwrap();
    assert!(!is_far(arena, &other), "another thread is in no scope");
    let zeroed = vec![0_u8; 1 << 20];
    assert!(is_far(arena, &zeroed) && zeroed.iter().all(|byte| *byte == 0));
    // It was near, and grows in the scope: the content goes along.
    let mut moved = near;
    moved.extend(100_000..300_000);
    assert!(is_far(arena, &moved) && moved.iter().copied().eq(0..300_000));
    drop(scope);

    // Far memory stays far, and is freed there, in no scope and on another thread.
    assert!(map.iter().all(|(key, value)| value.iter().all(|byte| *byte == *key as u8)));
    large.push(4_000_000);
    assert!(is_far(arena, &large) && large.iter().copied().eq(0..=4_000_000));
    large.truncate(10);
    large.shrink_to_fit();
    assert!(!is_far(arena, &large) && large.iter().copied().eq(0..10), "it is small now");
    assert!(arena.far_stats().unwrap().write_backs > 0, "32 MB went through 4 MiB");
    std::thread::spawn(move || drop((map, zeroed, moved))).join().unwrap();
    let stats = arena.stats().unwrap();
    assert_eq!(stats.allocated_bytes, 0, "{stats:?}");
    drop((small, other));
}

/// What does not fit is near.
#[test]
fn a_full_arena_is_no_failure() {
    let arena = arena();
    let _scope = FarScope::enter(arena);
    let too_large: Vec<u8> = vec![3; REGION_BYTES + 1];
    assert!(!is_far(arena, &too_large));
    assert_eq!((too_large[0], too_large[REGION_BYTES]), (3, 3));
}
