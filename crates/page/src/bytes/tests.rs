//! What operations on a leaf cost, counted.

use super::Bytes;
use super::slots::SEARCHES;
use crate::{BlockRef, EditAction, EditAnswer, LeafEdit, LeafOutcome, Page};
use farleaf_fabric::sync::AtomicU64;
use farleaf_fabric::{GlobalAddr, ServerId};

type BytesEdit<'a> = LeafEdit<&'a [u8], &'a [u8]>;

fn edit(action: EditAction<&[u8]>) -> BytesEdit<'_> {
    LeafEdit { key: b"key", action }
}

/// Applies an edit, and counts the searches.
fn applied(page: Page<'_, Bytes<128>>, edit: BytesEdit<'_>) -> (EditAnswer<Vec<u8>>, u64) {
    let before = SEARCHES.get();
    let answer = match edit.apply(page) {
        LeafOutcome::Nothing(answer) | LeafOutcome::Changed { answer, .. } => answer,
        LeafOutcome::Full => panic!("the leaf has room"),
    };
    (answer, SEARCHES.get() - before)
}

/// The replaced value is found by the search that replaces it.
#[test]
fn an_update_searches_its_leaf_once() {
    let words: Vec<AtomicU64> = (0..128).map(|_| AtomicU64::new(0)).collect();
    let page = Page::<Bytes<128>>::new(&words);
    let at = GlobalAddr::new(ServerId::new(0), 1024);
    page.format_empty(at, 0, b"", None);
    let block = |number| BlockRef { at, bytes: 400, check: number }.to_stored();
    let changed =
        |found: Option<&[u8]>| EditAnswer { applied: true, found: found.map(<[u8]>::to_vec) };

    assert_eq!(applied(page, edit(EditAction::Insert(b"short"))), (changed(None), 1));
    assert_eq!(applied(page, edit(EditAction::Update(&block(1)[..]))), (changed(None), 1));
    let first = (changed(Some(&block(1))), 1);
    assert_eq!(applied(page, edit(EditAction::Update(&block(2)[..]))), first, "in the old place");
    let second = (changed(Some(&block(2))), 1);
    assert_eq!(applied(page, edit(EditAction::Upsert(&[7; 40][..]))), second, "in another place");
    let new = block(3);
    let exchange = edit(EditAction::CompareExchange(&[7; 40][..], &new[..]));
    assert_eq!(applied(page, exchange), (changed(None), 2));
    let absent = LeafEdit { key: &b"absent"[..], action: EditAction::Update(&b"short"[..]) };
    assert_eq!(applied(page, absent), (EditAnswer { applied: false, found: None }, 1));
}
