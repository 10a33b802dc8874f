//! Random operations on the page table, and the orders of its policies.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Debug)]
enum TableTestStep {
    Touch(u32, AccessKind),
    Filled(Fill, bool),
    /// Whether the WRITE succeeded, whether it took effect if not, and whether touches wait.
    Left(bool, bool, bool),
    EndWait(u32),
    Evict(u32),
    EvictPage(u32),
    Discard(u32),
    Hold(u32),
    Release,
}

const PAGES: u32 = 24;
const SLOTS: u32 = 8;

fn steps() -> impl Strategy<Value = Vec<TableTestStep>> {
    let page = 0..PAGES;
    let access = prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)];
    let fill = prop_oneof![8 => Just(Fill::Read), 1 => Just(Fill::Failed), 1 => Just(Fill::Gone)];
    let step = prop_oneof![
        8 => (page.clone(), access).prop_map(|(page, access)| TableTestStep::Touch(page, access)),
        4 => (fill, any::<bool>()).prop_map(|(fill, waits)| TableTestStep::Filled(fill, waits)),
        4 => (prop::bool::weighted(0.8), any::<bool>(), any::<bool>())
            .prop_map(|(ok, lands, waits)| TableTestStep::Left(ok, lands, waits)),
        4 => page.clone().prop_map(TableTestStep::EndWait),
        3 => (0..4_u32).prop_map(TableTestStep::Evict),
        2 => page.clone().prop_map(TableTestStep::EvictPage),
        2 => page.clone().prop_map(TableTestStep::Discard),
        1 => page.prop_map(TableTestStep::Hold),
        1 => Just(TableTestStep::Release),
    ];
    prop::collection::vec(step, 1..400)
}

/// What the content of a page must be, by its number of writes; 0 is zeros.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedContent {
    here: Option<u64>,
    remote: u64,
    last: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Carries out the table's decisions on contents that are numbers, and compares them with what
    /// was written last.
    #[test]
    fn decisions_keep_contents_and_invariants(steps in steps(), clock in any::<bool>()) {
        let policy = if clock { Policy::Clock } else { Policy::Fifo };
        let mut table = PageTable::new(PAGES, SLOTS, policy);
        let mut contents = [ExpectedContent::default(); PAGES as usize];
        let (mut filling, mut leaving) = (VecDeque::new(), VecDeque::new());
        let (mut held, mut writes) = (Vec::new(), 0);
        let mut forgotten = BTreeSet::new();
        let mut lost = BTreeSet::new();
        for step in steps {
            let mut victims = Vec::new();
            match step {
                TableTestStep::Touch(page, access) => {
                    let content = &mut contents[page as usize];
                    let allowed = match table.touch(page, access, true) {
                        Touch::Allow(allowed) => Some(allowed),
                        Touch::Zero(allowed) => {
                            prop_assert_eq!(content.here, None);
                            prop_assert_eq!(content.last, 0, "zeros for page {}", page);
                            content.here = Some(0);
                            Some(allowed)
                        }
                        Touch::Fill => {
                            filling.push_back(page);
                            None
                        }
                        Touch::NoRoom => {
                            prop_assert_eq!(table.free(), 0);
                            None
                        }
                        Touch::Wait => None,
                        Touch::Lost => {
                            prop_assert!(lost.contains(&page));
                            None
                        }
                    };
                    if let Some(allowed) = allowed {
                        prop_assert!(allowed >= access);
                        if !forgotten.contains(&page) {
                            prop_assert_eq!(content.here, Some(content.last));
                        }
                        if access == AccessKind::Write {
                            writes += 1;
                            (content.here, content.last) = (Some(writes), writes);
                        }
                    }
                }
                TableTestStep::Filled(fill, waits) => {
                    let Some(page) = filling.pop_front() else { continue };
                    let content = &mut contents[page as usize];
                    let stays = table.filled(page, fill, waits);
                    prop_assert_eq!(stays, fill == Fill::Read && !forgotten.contains(&page));
                    if stays {
                        content.here = Some(content.remote);
                    }
                    if fill == Fill::Gone && !forgotten.contains(&page) {
                        lost.insert(page);
                    }
                    forgotten.remove(&page);
                }
                TableTestStep::Left(is_written, lands, waits) => {
                    let Some(page) = leaving.pop_front() else { continue };
                    let content = &mut contents[page as usize];
                    if is_written || lands {
                        content.remote = content.here.expect("a leaving page is here");
                    }
                    if table.left(page, is_written, waits) {
                        prop_assert_eq!(table.evict_page(page).is_none(), waits);
                        if !waits {
                            leaving.push_back(page);
                        }
                    } else {
                        prop_assert!(is_written || forgotten.contains(&page));
                        content.here = None;
                    }
                    forgotten.remove(&page);
                }
                TableTestStep::EndWait(page) => table.end_wait(page),
                TableTestStep::Evict(most) => table.evict(most, |page| page % 5 == 0, &mut victims),
                TableTestStep::EvictPage(page) => victims.extend(table.evict_page(page)),
                TableTestStep::Discard(page) => {
                    let content = &mut contents[page as usize];
                    match table.discard(page) {
                        Discard::Done | Discard::Remove { .. } => {
                            (content.here, content.last) = (None, 0);
                            lost.remove(&page);
                        }
                        Discard::Wait => {
                            content.last = 0;
                            forgotten.insert(page);
                        }
                        Discard::Held => prop_assert!(held.contains(&page)),
                    }
                }
                TableTestStep::Hold(page) => {
                    if matches!(table.state(page), PageState::Clean | PageState::Dirty) && held.len() < 4 {
                        prop_assert!(table.hold(page));
                        held.push(page);
                    }
                }
                TableTestStep::Release => {
                    if let Some(page) = held.pop() {
                        table.release_hold(page);
                    }
                }
            }
            for victim in victims {
                match victim {
                    Victim::Drop(page) => {
                        prop_assert!(!held.contains(&page));
                        contents[page as usize].here = None;
                    }
                    Victim::Write(page) => {
                        prop_assert!(!held.contains(&page));
                        leaving.push_back(page);
                    }
                    Victim::Hide(page) => prop_assert!(clock, "page {} is passed over", page),
                }
            }
            table.check();
        }
    }
}

/// A table whose pages `0..count` are Dirty, in this order.
fn dirty(count: u32, policy: Policy) -> PageTable {
    let mut table = PageTable::new(PAGES, SLOTS, policy);
    for page in 0..count {
        assert_eq!(table.touch(page, AccessKind::Write, true), Touch::Zero(AccessKind::Write));
    }
    table
}

fn evict(table: &mut PageTable, most: u32) -> Vec<Victim> {
    let mut victims = Vec::new();
    table.evict(most, |_| false, &mut victims);
    victims
}

#[test]
fn first_in_first_out() {
    let mut table = dirty(4, Policy::Fifo);
    table.touch(0, AccessKind::Read, true);
    assert_eq!(evict(&mut table, 2), [Victim::Write(0), Victim::Write(1)]);
    assert!(table.left(0, false, false), "a page that was not written stays");
    assert_eq!(evict(&mut table, 9), [Victim::Write(2), Victim::Write(3), Victim::Write(0)]);
}

#[test]
fn the_clock_passes_over_pages_in_use() {
    let mut table = dirty(3, Policy::Clock);
    let passes = [0, 1, 2].map(Victim::Hide);
    let victims = evict(&mut table, 1);
    assert_eq!((&victims[..3], victims[3]), (&passes[..], Victim::Write(0)));
    table.touch(1, AccessKind::Read, true);
    assert_eq!(evict(&mut table, 1), [Victim::Hide(1), Victim::Write(2)]);
}

#[test]
fn a_clean_page_without_a_copy_is_empty_again() {
    let mut table = PageTable::new(PAGES, SLOTS, Policy::Fifo);
    assert_eq!(table.touch(3, AccessKind::Read, true), Touch::Zero(AccessKind::Read));
    assert_eq!(evict(&mut table, 1), [Victim::Drop(3)]);
    assert_eq!(table.state(3), PageState::Empty);
}

#[test]
fn a_write_to_a_leaving_page_keeps_it() {
    let mut table = dirty(1, Policy::Fifo);
    evict(&mut table, 1);
    assert_eq!(table.touch(0, AccessKind::Read, true), Touch::Allow(AccessKind::Read));
    assert_eq!(table.touch(0, AccessKind::Write, true), Touch::Wait);
    assert!(table.left(0, true, false));
    assert_eq!(table.state(0), PageState::Dirty);
}
