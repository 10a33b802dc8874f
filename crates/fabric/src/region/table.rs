//! Large tables on the heap, on huge pages where the system has them.
//!
//! *Thread safety*: plain values.

/// Creates the entries `0..count` of a table. Without huge pages, almost every lookup in a large
/// table of small entries would miss the processor's TLB.
pub fn table<T>(count: usize, entry: impl FnMut(usize) -> T) -> Box<[T]> {
    let mut entries = Vec::with_capacity(count);
    advise_huge(entries.spare_capacity_mut());
    entries.extend((0..count).map(entry));
    entries.into_boxed_slice()
}

/// Asks for huge pages under memory that has not been touched yet.
#[cfg(not(any(loom, shuttle, miri)))]
fn advise_huge<T>(memory: &mut [std::mem::MaybeUninit<T>]) {
    use rustix::mm::{Advice, madvise};
    const PAGE_BYTES: usize = 4096;
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE_BYTES);
    let whole = size_of_val(memory).saturating_sub(skipped) / PAGE_BYTES * PAGE_BYTES;
    if whole > 0 {
        // SAFETY: the range lies inside `memory`, and the advice changes no content. If it is
        // refused, small pages remain.
        unsafe { _ = madvise(start.wrapping_add(skipped).cast(), whole, Advice::LinuxHugepage) };
    }
}

#[cfg(any(loom, shuttle, miri))]
fn advise_huge<T>(_memory: &mut [std::mem::MaybeUninit<T>]) {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::table;

    #[test]
    fn a_table_has_its_entries() {
        for count in [0, 1, 511, 3_000_000] {
            let entries = table(count, |place| place as u64);
            assert!(entries.len() == count && entries.iter().copied().eq(0..count as u64));
        }
    }
}
