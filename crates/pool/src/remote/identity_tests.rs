//! Crashes between the pieces of log entries, and slots that are pinned.

use super::identity::REGISTRAR;
use super::pieces::pieces;
use super::redo::{Redo, RedoPage};
use super::{PageClient, PageImage};
use crate::server::{MemoryServer, MemoryServerConfig};
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, Provider};
use farleaf_page::{Bytes, Layout, LockWord};

/// Its entries about a full node have two pieces.
type LargeEntries = Bytes<512>;

fn cluster() -> LocalCluster<MemoryServer<LargeEntries>> {
    let config = MemoryServerConfig { pool_bytes: 32 << 20, ..MemoryServerConfig::default() };
    let server = MemoryServer::new(REGISTRAR, &config).unwrap();
    LocalConfig::default().start(vec![Arc::new(server)])
}

/// A nearly full inner node with version number `version`.
fn node(at: GlobalAddr, owner: u16, version: u64) -> PageImage<LargeEntries> {
    let image = PageImage::<LargeEntries>::empty();
    image.page().format_empty(at, 1, b"", None);
    for child in 0..155_u64 {
        let key = if child == 0 { Vec::new() } else { child.to_be_bytes().to_vec() };
        let leaf = GlobalAddr::new(at.server(), (child + 200 * version) * 4096);
        assert!(LargeEntries::inner_insert(image.page(), &key, leaf));
    }
    image.page().seal(LockWord::from_bits(version - 1).next_by(owner));
    image
}

fn words(image: &PageImage<LargeEntries>) -> Vec<u64> {
    image.words().iter().map(|word| word.load(farleaf_fabric::sync::Ordering::Relaxed)).collect()
}

/// WRITEs some of `words` to their positions in the page.
async fn write<F: Fabric>(
    fabric: &F,
    to: GlobalAddr,
    words: &[u64],
    which: std::ops::Range<usize>,
) {
    let buffer = fabric.buffer(which.len() * 8).unwrap();
    words[which.clone()].iter().enumerate().for_each(|(at, word)| buffer.set(at, *word));
    fabric.write(to.plus(which.start as u64 * 8), buffer).await.unwrap();
}

/// A client whose node is half written. The log has an entry for the node's version 2.
async fn with_half_a_node<F: Fabric>(fabric: &F) -> (PageClient<F, LargeEntries>, GlobalAddr) {
    let client = PageClient::<F, LargeEntries>::new(fabric.clone(), 1 << 18);
    let owner = client.prepare_log(REGISTRAR).await.unwrap();
    let at = client.take_node(REGISTRAR).await.unwrap();
    let mut slot = client.slot(REGISTRAR, Some(at)).await.unwrap();
    slot.pin(at);
    let after = node(at, owner, 2);
    let (entry, page) = client.post_logged(&slot, at, None, &after).unwrap();
    entry.done().await.unwrap();
    page.await.unwrap();
    write(fabric, at, &words(&node(at, owner, 1)), 100..300).await;
    drop(slot);
    assert!(!client.read_raw(at).await.unwrap().page().is_of_one_piece());
    (client, at)
}

/// A WRITE of a node had failed half-way, and the client died between the two pieces of the entry
/// for the node's next version. That entry overwrote the previous version's entry, so nothing could
/// complete the node.
#[test]
fn a_death_between_the_pieces_of_an_entry_leaves_the_entry_before() {
    for landed in [1, 16, 256] {
        let cluster = cluster();
        let intended = cluster.run(&[1], async |fabric, _| {
            let (client, at) = with_half_a_node(&fabric).await;
            let slot = client.slot(REGISTRAR, Some(at)).await.unwrap();
            let (owner, next) = (slot.owner(), node(at, slot.owner(), 3));
            let redo = Redo { owner, pages: vec![RedoPage::whole(at, next.page())] };
            let entry = redo.words();
            let pieces: Vec<_> = pieces(entry.len()).collect();
            assert_eq!(pieces.len(), 2);
            write(&fabric, slot.at, &entry, pieces[1].clone()).await;
            write(&fabric, slot.at, &entry, 2..2 + landed).await;
            words(&node(at, owner, 2))
        });
        let found = cluster.run(&[2], async |fabric, _| {
            let client = PageClient::<_, LargeEntries>::new(fabric, 1 << 18);
            client.declare_dead(1).await.unwrap();
            let found = client.half_written(1).await.unwrap();
            found.iter().map(|page| words(&page.image)).collect::<Vec<_>>()
        });
        let version = |words: &Vec<u64>| LockWord::from_bits(words[0]).version();
        let (intended, found) = (intended[0].clone().unwrap(), found[0].clone().unwrap());
        assert_eq!(found.iter().map(version).collect::<Vec<_>>(), [2], "{landed} words landed");
        assert_eq!(found[0][1..], intended[1..]);
    }
}

/// Each failed attempt to write a node pins a slot. Only the newest complete entry is needed.
#[test]
fn entries_that_were_replaced_give_up_their_slots() {
    cluster().run_one(async |fabric| {
        let (client, at) = with_half_a_node(&fabric).await;
        for version in 3..9 {
            let mut slot = client.slot(REGISTRAR, Some(at)).await.unwrap();
            slot.pin(at);
            let redo = RedoPage::whole(at, node(at, slot.owner(), version).page());
            let entry = Redo { owner: slot.owner(), pages: vec![redo] }.words();
            // Half of the entries stay incomplete.
            let end = if version % 2 == 0 { entry.len() } else { 300 };
            client.post_pieces(slot.at, &entry[..end]).await.unwrap().done().await.unwrap();
            drop(slot);
            let slots = client.identity.pinned_for(REGISTRAR, at);
            assert!(slots.len() <= 3, "others have room");
            let mut newest = 0;
            for slot in slots {
                let entry = client.entry_in(slot.at).await.unwrap();
                newest = newest.max(entry.map_or(0, |entry| entry.pages[0].version));
            }
            assert_eq!(newest, version / 2 * 2);
        }
    });
}

/// A slot that was pinned before its entry landed held the entry of another node, whose version may
/// be higher. That entry once displaced the only entry of the node.
#[test]
fn the_entry_of_another_node_replaces_none() {
    cluster().run_one(async |fabric| {
        let (client, at) = with_half_a_node(&fabric).await;
        let other = client.take_node(REGISTRAR).await.unwrap();
        let mut slot = client.slot(REGISTRAR, Some(at)).await.unwrap();
        slot.pin(at);
        let redo = RedoPage::whole(other, node(other, slot.owner(), 57).page());
        let entry = Redo { owner: slot.owner(), pages: vec![redo] }.words();
        client.post_pieces(slot.at, &entry).await.unwrap().done().await.unwrap();
        drop(slot);
        client.unpin_replaced(REGISTRAR, at).await.unwrap();
        let left = client.identity.pinned_for(REGISTRAR, at);
        let entry = client.entry_in(left[0].at).await.unwrap().unwrap();
        assert_eq!((left.len(), entry.pages[0].at, entry.pages[0].version), (1, at, 2));
    });
}

/// While one task READs the entries of a node, another one completes the node, and its slots get
/// other entries. The first task once freed the slot of such an entry.
#[test]
fn a_slot_that_was_used_since_is_not_freed() {
    cluster().run_one(async |fabric| {
        let (client, at) = with_half_a_node(&fabric).await;
        let identity = &client.identity;
        let mut slot = client.slot(REGISTRAR, Some(at)).await.unwrap();
        slot.pin(at);
        drop(slot);
        let found: Vec<_> =
            identity.pinned_for(REGISTRAR, at).into_iter().zip([Some(2), Some(3)]).collect();
        assert_eq!(found.len(), 2);
        client.unpin(at);
        let mut slots = Vec::new();
        for _ in 0..2 {
            slots.push(client.slot(REGISTRAR, Some(at)).await.unwrap());
        }
        identity.unpin_replaced(REGISTRAR, at, &found);
        let third = client.slot(REGISTRAR, Some(at)).await.unwrap();
        assert!(slots.iter().all(|slot| slot.at != third.at), "all of them are in use");
        // Pinned again, with other entries.
        slots.iter_mut().for_each(|slot| slot.pin(at));
        drop(slots);
        identity.unpin_replaced(REGISTRAR, at, &found);
        assert_eq!(identity.pinned_for(REGISTRAR, at).len(), 2);
    });
}
