//! Each inspector passes an intact index and reports a damaged one.

use super::walk::{Inspection, PageAccess};
use super::{ExpectedState, InspectedPool};
use crate::scenario::Scenario;
use crate::setup::{dex_options, start};
use crate::workload;
use farleaf_dex::Dex;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Ordering;
use farleaf_fabric::{Cluster, GlobalAddr, Provider, RpcService};
use farleaf_index::{Design, IndexAdmin, RangeIndex};
use farleaf_page::{Fixed8, Layout, LeafDelete, Page, Superblock};
use farleaf_pool::remote::RpcClient;
use farleaf_pool::wire::{PoolRequest, Request};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};

type Small = Fixed8<16>;

/// The pages to damage: two neighbouring leaves, and the page that points to them, which is their
/// parent or a page of a memory server's tree.
struct DamagedPages<'a> {
    pool: &'a InspectedPool<Small>,
    parent: Page<'a, Small>,
    left: Page<'a, Small>,
    right: Page<'a, Small>,
}

type Make = fn() -> InspectedPool<Small>;
type Find = for<'a> fn(&'a InspectedPool<Small>) -> DamagedPages<'a>;
type Harm = fn(&DamagedPages<'_>);

/// An index with enough records for several levels, after a collection.
fn filled<De: Design<Small>>(
    scenario: &str,
    options: impl Fn(&Scenario) -> De::Options,
) -> InspectedPool<Small> {
    let mut scenario = Scenario::registered(scenario).unwrap();
    scenario.cluster.memory_servers = 2;
    let options = options(&scenario);
    let servers = start::<Small, De>(&scenario, &options).unwrap();
    let compute = De::compute(&options).unwrap();
    let filled = LocalConfig::default().start(servers.clone()).run_one(async |fabric| {
        let index = De::open(fabric, &compute).await?;
        for key in 0..160 {
            index.insert(&key, &(key + 1000)).await?;
        }
        for key in (0..160).filter(|key| key % 7 == 3) {
            index.remove(&key).await?;
        }
        index.collect().await?;
        index.flush().await
    });
    filled.unwrap();
    InspectedPool::new(&servers, &scenario)
}

fn coarse() -> InspectedPool<Small> {
    filled::<Coarse>("coarse-churn", |scenario| CoarseOptions {
        partitioning: Partitioning::Range {
            boundaries: workload::boundaries(&scenario.workload, 2),
        },
    })
}

fn fine() -> InspectedPool<Small> {
    let options = FineOptions { chunk_nodes_log2: 3, leaves_per_head: 4, ..FineOptions::default() };
    filled::<Fine>("fine-churn", |_| options)
}

fn hybrid() -> InspectedPool<Small> {
    filled::<Hybrid>("hybrid-churn", |scenario| {
        HybridOptions::with_boundaries(workload::boundaries(&scenario.workload, 2))
    })
}

fn dex() -> InspectedPool<Small> {
    filled::<Dex>("dex-churn", |scenario| dex_options::<Small>(scenario).unwrap())
}

/// The first two children of the leftmost page on level 1.
fn below_root(pool: &InspectedPool<Small>) -> DamagedPages<'_> {
    let words = &pool.servers[0].region().words()[..Superblock::WORDS];
    let mut parent = pool.page(Superblock::root(words)).unwrap();
    while parent.level() > 1 {
        parent = pool.page(Small::inner_child(parent, 0)).unwrap();
    }
    let child = |slot| pool.page(Small::inner_child(parent, slot)).unwrap();
    assert!(parent.count() > 1, "there are leaves to harm");
    DamagedPages { pool, parent, left: child(0), right: child(1) }
}

/// The first two leaves that memory server 0's tree names.
fn named_leaves(pool: &InspectedPool<Small>) -> DamagedPages<'_> {
    let words = &pool.servers[0].region().words()[..Superblock::WORDS];
    let first = Superblock::read::<Small>(words).unwrap().first_leaf;
    let chain =
        Inspection::new(pool, ExpectedState::Exact).chain(first, 0, PageAccess::OneSided).unwrap();
    let mut parent = pool.page(Superblock::root(words)).unwrap();
    while parent.level() > 0 {
        parent = pool.page(Small::inner_child(parent, 0)).unwrap();
    }
    DamagedPages { pool, parent, left: chain[1], right: chain[2] }
}

/// Recomputes the checksum.
fn seal(page: Page<'_, Small>) {
    page.seal(page.lock_word());
}

fn redirect(victims: &DamagedPages<'_>, to: GlobalAddr) {
    let DamagedPages { parent, right, .. } = victims;
    if parent.level() > 0 {
        let slot = (0..parent.count())
            .find(|slot| Small::inner_child(*parent, *slot) == right.address())
            .unwrap();
        Small::inner_set_child(*parent, slot, to);
        seal(*parent);
    } else {
        Small::leaf_replace(*parent, &Small::low(*right), &to.to_bits());
    }
}

fn forget(victims: &DamagedPages<'_>) {
    let DamagedPages { parent, right, .. } = victims;
    if parent.level() > 0 {
        let slot = (0..parent.count())
            .find(|slot| Small::inner_child(*parent, *slot) == right.address())
            .unwrap();
        Small::inner_remove(*parent, slot);
        seal(*parent);
    } else {
        assert_ne!(Small::leaf_delete(*parent, &Small::low(*right)), LeafDelete::Absent);
    }
}

fn bypass(victims: &DamagedPages<'_>) {
    victims.left.set_sibling(victims.right.sibling());
    seal(victims.left);
}

fn kill(victims: &DamagedPages<'_>) {
    victims.right.set_dead();
    seal(victims.right);
}

fn kill_forgotten(victims: &DamagedPages<'_>) {
    forget(victims);
    kill(victims);
}

fn move_low_fence(victims: &DamagedPages<'_>) {
    Small::set_low(victims.right, &(Small::low(victims.right) + 1));
    seal(victims.right);
}

fn cut_off(victims: &DamagedPages<'_>) {
    Small::set_high(victims.left, Some(&(Small::low(victims.left) + 1)));
    seal(victims.left);
}

fn turn_back(victims: &DamagedPages<'_>) {
    victims.right.set_sibling(victims.left.address());
    seal(victims.right);
}

fn lock(victims: &DamagedPages<'_>) {
    let word = victims.right.lock_word().locked_by(5);
    victims.right.words()[0].store(word.to_bits(), Ordering::Relaxed);
}

fn tear(victims: &DamagedPages<'_>) {
    victims.right.words()[8].fetch_add(1, Ordering::Relaxed);
}

fn free(victims: &DamagedPages<'_>) {
    let node = victims.right.address();
    LocalConfig::default().start(victims.pool.servers.clone()).run_one(async |fabric| {
        let request = Request::<Small>::from(PoolRequest::GiveBack { nodes: vec![node] });
        drop(RpcClient::new(fabric).post(node.server(), &request).await);
    });
}

/// Removes a leaf together with all pointers to it.
fn lose(victims: &DamagedPages<'_>) {
    Small::set_high(victims.left, Small::high(victims.right).as_ref());
    bypass(victims);
    forget(victims);
}

/// Checks that, at the end of a run, the inspector reports each kind of damage with the given
/// words.
fn check(make: Make, find: Find, harms: &[(Harm, &str)]) {
    let whole = make();
    let found = whole.look(ExpectedState::Exact).unwrap();
    let expected = (0..160).filter(|key| key % 7 != 3).map(|key| (key, key + 1000));
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(whole.look(ExpectedState::WellFormed), Ok(found));
    for (number, (harm, words)) in harms.iter().enumerate() {
        let pool = make();
        harm(&find(&pool));
        let report = pool.look(ExpectedState::Exact).expect_err(words);
        assert!(report.contains(words), "harm {number}: {report}, not {words}");
    }
}

#[test]
fn harm_to_a_server_tree_shows() {
    let harms: &[(Harm, &str)] = &[
        (kill, "is dead"),
        (move_low_fence, "its fences are"),
        (cut_off, "its keys are"),
        (bypass, "its fences are"),
        (turn_back, "it is reached twice"),
        (forget, "a parent has no entry for"),
        (|victims| redirect(victims, victims.left.address()), "a parent has no entry for"),
        (lock, "is still locked"),
        (free, "free"),
        (lose, "nodes,"),
    ];
    check(coarse, below_root, harms);
}

#[test]
fn harm_to_a_one_sided_tree_shows() {
    let harms: &[(Harm, &str)] = &[
        (kill, "is dead"),
        (move_low_fence, "its fences are"),
        (cut_off, "its keys are"),
        (bypass, "fences"),
        (turn_back, "it is reached twice"),
        (forget, "a parent has no entry for"),
        (|victims| redirect(victims, victims.left.address()), "a parent has no entry for"),
        (lock, "is still locked"),
        (tear, "a checksum that does not match"),
        (free, "free"),
    ];
    check(fine, below_root, harms);
}

#[test]
fn harm_to_leaves_below_server_trees_shows() {
    let harms: &[(Harm, &str)] = &[
        (kill, "which is dead"),
        (kill_forgotten, "is dead"),
        (move_low_fence, "which does not begin there"),
        (cut_off, "its keys are"),
        (bypass, "its fences are"),
        (turn_back, "it is reached twice"),
        (forget, "a memory server has no entry for"),
        (|victims| redirect(victims, victims.left.address()), "which does not begin there"),
        (lock, "is still locked"),
        (tear, "a checksum that does not match"),
        (free, "which is free"),
    ];
    check(hybrid, named_leaves, harms);
}

#[test]
fn harm_to_the_tree_below_caches_shows() {
    let harms: &[(Harm, &str)] = &[
        (move_low_fence, "its fences are"),
        (|victims| redirect(victims, victims.parent.address()), "it is reached twice"),
        (forget, "its fences are"),
        (tear, "its stamp does not match"),
        (free, "free"),
    ];
    check(dex, below_root, harms);
}

#[test]
fn what_a_parent_has_not_heard_is_a_fault_at_the_end_only() {
    for make in [coarse, fine] {
        let pool = make();
        let found = pool.look(ExpectedState::WellFormed);
        forget(&below_root(&pool));
        assert_eq!(pool.look(ExpectedState::WellFormed), found);
        let pool = make();
        redirect(&below_root(&pool), GlobalAddr::NULL);
        let report = pool.look(ExpectedState::WellFormed).unwrap_err();
        assert!(report.contains("not in the chain"), "{report}");
    }
}

#[test]
fn a_look_ends_at_a_page_that_is_held() {
    let designs: [(Make, Find); 3] =
        [(coarse, below_root), (fine, below_root), (hybrid, named_leaves)];
    for (make, find) in designs {
        let pool = make();
        let harmed = find(&pool);
        lock(&harmed);
        turn_back(&harmed);
        assert_eq!(pool.look(ExpectedState::WellFormed).map(|found| found.len() < 137), Ok(true));
    }
}
