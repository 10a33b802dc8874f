//! Pages whose size is chosen at run time.
//!
//! If the size of a page is a constant of its layout, programs compute with constants, but each
//! size is another copy of all the code above. That is too much where a program wants many sizes.
//! The simulator plays every page size with one copy: each of its threads chooses the size of its
//! run. A program of a cluster learns its size when it starts, and chooses it for all threads.
//!
//! *Thread safety*: a thread uses its own choice, or else that of the process. If there is neither,
//! it panics when it asks.

use std::cell::Cell;
use std::sync::OnceLock;

/// In place of a layout's number of words: the number that the thread or the process has chosen.
pub const CHOSEN: usize = 0;

/// The size for threads that have not chosen another.
static OF_PROCESS: OnceLock<usize> = OnceLock::new();

thread_local! {
    /// The choice of the thread, or what it has learned of that of the process.
    static WORDS: Cell<usize> = const { Cell::new(CHOSEN) };
}

/// Chooses pages of `words` words for all threads of this process, for good.
///
/// # Panics
/// If the process has chosen another size before: its pages would become pages of this one.
pub(super) fn choose_for_process(words: usize) {
    let chosen = *OF_PROCESS.get_or_init(|| words);
    assert_eq!(chosen, words, "a process chooses one page size");
}

/// Runs `play` with pages of `words` words, where a layout's number of words is [`CHOSEN`].
///
/// # Panics
/// If it runs within another choice, because pages of one size would become pages of another. If no
/// page can have this size.
pub fn with_page_words<T>(words: usize, play: impl FnOnce() -> T) -> T {
    /// Ends the choice, also after a panic.
    struct PageSizeChoice;
    impl Drop for PageSizeChoice {
        fn drop(&mut self) {
            WORDS.set(CHOSEN);
        }
    }

    assert!(is_sensible(words), "a page has 16 to 136 words, not {words}");
    assert_eq!(WORDS.get(), CHOSEN, "a thread chooses one page size at a time");
    WORDS.set(words);
    let _choice = PageSizeChoice;
    play()
}

/// Whether a page of this size has room for four entries, and its deleted bits fit one word.
pub(super) const fn is_sensible(words: usize) -> bool {
    16 <= words && words <= 136
}

/// Number of words of a page whose layout states `words`.
#[inline]
pub(super) fn words_of(words: usize) -> usize {
    if words != CHOSEN {
        return words;
    }
    match WORDS.get() {
        CHOSEN => words_of_process(),
        chosen => chosen,
    }
}

#[cold]
fn words_of_process() -> usize {
    let words = *OF_PROCESS.get().expect("the thread or the process has chosen a page size");
    WORDS.set(words);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_size_that_pages_can_have_and_stays() {
        for words in [CHOSEN, 15, 137] {
            assert!(std::panic::catch_unwind(|| with_page_words(words, || ())).is_err(), "{words}");
        }
        with_page_words(16, || {
            let inner = || with_page_words(24, || ());
            assert!(std::panic::catch_unwind(inner).is_err());
            assert_eq!(words_of(CHOSEN), 16);
        });
    }

    #[test]
    fn a_choice_ends_with_its_run_also_after_a_panic() {
        assert_eq!(with_page_words(16, || words_of(CHOSEN)), 16);
        assert_eq!(with_page_words(24, || (words_of(CHOSEN), words_of(128))), (24, 128));
        for run in [
            || with_page_words(16, || panic!("on purpose")),
            || with_page_words(16, || with_page_words(24, || ())),
        ] {
            assert!(std::panic::catch_unwind(run).is_err());
            assert!(std::panic::catch_unwind(|| words_of(CHOSEN)).is_err(), "the choice has ended");
        }
    }
}
