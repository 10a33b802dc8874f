//! Tests of the bytes of nodes and leaves.

use super::*;
use smallvec::SmallVec;

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId::new(7), offset)
}

fn room(offset: u64) -> LeafMemory {
    LeafMemory { at: at(offset), size: 0 }
}

#[test]
fn slots_keep_what_they_are_made_of() {
    let place = at((1 << 45) + 64);
    for size in [0, 1, 63] {
        let room = LeafMemory { at: place, size };
        let leaf = RadixSlot::leaf(0xfe, room);
        assert_eq!((leaf.byte(), leaf.child(), leaf.leaf_room()), (0xfe, RadixChild::Leaf, room));
    }
    let node = RadixSlot::node(0, place, NodeSize::SMALLEST);
    assert_eq!((node.child(), node.at()), (RadixChild::Node(NodeSize::SMALLEST), place));
    assert_ne!(node, RadixSlot::FREE);
    let grown = node.with_size(NodeSize::LARGEST).with_byte(9);
    assert_eq!((grown.byte(), grown.child()), (9, RadixChild::Node(NodeSize::LARGEST)));
    assert_eq!(grown.at(), place);
    assert_eq!(RadixSlot::FREE.child(), RadixChild::None);
}

#[test]
fn nodes_keep_the_end_of_their_path() {
    let long: Vec<u8> = (1..=200).collect();
    for (form, most) in [(RadixForm::Numbers, 7), (RadixForm::Strings, 199)] {
        for depth in 0..=most {
            let content = (&long[..depth], NodeSize::LARGEST, vec![0; 256]);
            let node = NodeCopy::made(form, at(0), at(8), content);
            assert_eq!(node.words().len() as u64 * 8, if most == 7 { 2_064 } else { NODE_SPACE });
            let copy = NodeCopy::new(form, at(0), node.words()).unwrap();
            assert_eq!((&copy.header, copy.reverse, copy.slots.len()), (&node.header, at(8), 256));
            let known = depth.saturating_sub(form.most_tail());
            for known in known..=depth {
                let path = copy.header.path_below(&long[..known]);
                assert_eq!(path.as_deref(), Some(&long[..depth]));
                let mut other = long[..known].to_vec();
                let is_checked = other.last_mut().is_some_and(|last| {
                    *last = 0;
                    known > depth.saturating_sub(form.most_tail())
                });
                let path = copy.header.path_below(&other);
                assert_eq!(path.is_none(), is_checked, "{known} of {depth}");
            }
            assert!(copy.header.path_below(&long[..depth + 1]).is_none());
            assert_eq!(copy.header.compare(&long[..depth + 1]), PathMatch::Same);
            assert_eq!(copy.header.compare(&long[..depth]), PathMatch::Never);
            if depth > 0 {
                let mut key = long[..depth + 1].to_vec();
                key[depth - 1] = 0;
                let differs = PathMatch::Differs(depth - 1, long[depth - 1]);
                assert_eq!(copy.header.compare(&key), differs);
            }
        }
        assert!(NodeCopy::new(form, at(0), [0; 12].into_iter()).is_none(), "never used");
    }
    assert_eq!(
        [common_bytes(b"ab", b"ab"), common_bytes(b"ab", b"ac"), common_bytes(b"", b"a")],
        [2, 1, 0]
    );
}

#[test]
fn sizes_are_powers_of_two() {
    let sizes: Vec<usize> = std::iter::successors(Some(NodeSize::SMALLEST), |size| size.grown())
        .map(NodeSize::slots)
        .collect();
    assert_eq!(sizes, [4, 8, 16, 32, 64, 128, 256]);
    for slots in 1..=256 {
        let size = NodeSize::for_slots(slots);
        assert!(size.slots() >= slots && (size.slots() < 2 * slots || slots < 4));
    }
}

#[test]
fn a_search_finds_slots_in_any_order() {
    let slot = |byte: u8| RadixSlot::leaf(byte, room(64 * (1 + u64::from(byte)))).to_bits();
    let content = (&[0; 7][..], NodeSize::SMALLEST, vec![slot(9), slot(1), 0, 0]);
    let mut node = NodeCopy::made(RadixForm::Numbers, at(0), at(8), content);
    assert_eq!(node.search(1), SlotSearch::At(1, RadixSlot::from_bits(slot(1))));
    assert_eq!(node.search(9), SlotSearch::At(0, RadixSlot::from_bits(slot(9))));
    assert_eq!(node.search(0), SlotSearch::Free(2));
    (node.slots[2], node.slots[3]) = (slot(7), slot(0));
    assert_eq!(node.search(0), SlotSearch::At(3, RadixSlot::from_bits(slot(0))));
    assert_eq!(node.search(200), SlotSearch::Full);
}

fn number(of: u64) -> [u8; 8] {
    of.to_be_bytes()
}

/// A copy with words of two versions is not whole, whichever words are of which version.
#[test]
fn a_torn_leaf_is_not_whole() {
    let leaf_in = |words: &[u64]| LeafCopy::new(RadixForm::Numbers, room(64), words);
    let record = (&number(5)[..], &number(6)[..]);
    let before = LeafCopy::first(RadixForm::Numbers, room(64), at(8), record);
    assert!(before.is_whole() && before.is_live());
    assert_eq!(before.words()[..4], [1, at(8).to_bits(), 5, 6]);
    let held = before.clone().with_word(before.word.locked_by(3));
    assert!(held.is_whole(), "the lock is no part of the content");
    for (value, live) in [(7, true), (6, false), (6, true)] {
        let after = held.clone().next(&number(value), live);
        assert!(after.is_whole() && !after.word.is_locked() && after.is_live() == live);
        let (old, new) = (held.words(), after.words());
        for newer in 0..1_u32 << LEAF_WORDS {
            let word = |place: usize| if newer >> place & 1 == 1 { new[place] } else { old[place] };
            let words: Vec<u64> = (0..LEAF_WORDS).map(word).collect();
            let all_old = words[0] == old[0] && words[3] == old[3] && words[4] == old[4];
            let all_new = words[0] == new[0] && words[3] == new[3] && words[4] == new[4];
            assert_eq!(leaf_in(&words).is_whole(), all_old || all_new, "{newer:b}");
        }
    }
    // Without a lock, the version stays.
    for (value, live) in [(7, true), (6, false)] {
        let after = before.clone().with_record(&number(value), live);
        let (old, new) = (before.words(), after.words());
        let torn = |newer: usize| {
            let mut words = old.clone();
            words[newer] = new[newer];
            leaf_in(&words)
        };
        assert!(after.is_whole() && after.word == before.word && after.is_live() == live);
        assert_eq!(torn(3).is_whole(), value == 6, "the value is new, if it has changed");
        assert_eq!(torn(4).is_whole(), value == 6, "the check is new");
    }
    let elsewhere = LeafCopy::new(RadixForm::Numbers, room(128), &before.words());
    assert!(!elsewhere.is_whole());
    assert!(!leaf_in(&[0; LEAF_WORDS]).is_whole());
}

/// The leaf of a string keeps its value until the check names the new one (radix.B3), wherever the
/// WRITEs end.
#[test]
fn a_string_has_its_old_value_until_its_check_changes() {
    let form = RadixForm::Strings;
    let values: [&[u8]; 5] = [b"", b"seven b", b"eight by", b"nine byte", &[7; 40]];
    for key in [&form.key(b"")[..], &form.key(b"a key of more than eight bytes")] {
        let size = LeafMemory::size_for(form, key, &[0; 40]).unwrap();
        let room = LeafMemory { at: at(64), size };
        for (old, new) in values.iter().flat_map(|old| values.map(|new| (*old, new))) {
            let mut words: SmallVec<[u64; 64]> = SmallVec::from_elem(99, room.words());
            let first = LeafCopy::first(form, room, at(8), (key, old));
            words[..first.words().len()].copy_from_slice(&first.words());
            let copy = |words: &[u64]| LeafCopy::new(form, room, words);
            assert_eq!((copy(&words), copy(&words).is_whole()), (first.clone(), true));
            assert!(copy(&words).has_room(new) && !first.has_room(&[0; 4_000]));
            let held = first.clone().with_word(first.word.locked_by(3));
            words[0] = held.word.to_bits();
            let after = held.next(new, true);
            let (from, value) = after.value_words();
            for (place, word) in (from as usize..).zip(&value) {
                words[place] = *word;
                assert!(copy(&words).is_whole());
                assert_eq!(copy(&words).found().as_deref(), Some(old));
            }
            words[STRING_CHECK_WORD as usize] = after.check();
            assert!(!copy(&words).is_whole() && copy(&words).is_whole_in(after.word.version()));
            words[0] = after.word.to_bits();
            assert_eq!((copy(&words), copy(&words).is_whole()), (after.clone(), true));
            assert_eq!(copy(&words).found().as_deref(), Some(new));
            let gone = after.clone().next(&after.value, false);
            words[STRING_CHECK_WORD as usize] = gone.check();
            words[0] = gone.word.to_bits();
            assert_eq!((copy(&words).is_whole(), copy(&words).found()), (true, None));
            let larger = LeafMemory { at: at(640), size: size + 1 };
            words[STRING_CHECK_WORD as usize] = gone.moved_to(larger).check();
            let moved = copy(&words);
            assert_eq!((moved.is_whole(), moved.found()), (true, None));
            assert_eq!(
                (moved.key[..].to_vec(), moved.moved().unwrap().leaf_room()),
                (key.to_vec(), larger)
            );
            words[2] += 1 << 20;
            assert!(copy(&words).key.is_empty(), "of another length");
        }
    }
    let most = RadixForm::Strings.key(&[0; 256]);
    assert!(LeafMemory::size_for(form, &most, &[0; 8_000]).is_some());
    assert_eq!(LeafMemory::size_for(form, &most, &[0; 8_192]), None);
}
