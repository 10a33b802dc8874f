//! Pages whose size is chosen at run time.
//!
//! The size of a page is a constant of its layout, which lets the compiler use it as one. But each
//! size compiles all code above it again, which is too much for a program that needs many sizes:
//! the simulator uses one copy for every page size, with the layout whose size the thread has
//! chosen.
//!
//! *Thread safety*: the choice belongs to one thread. A thread without a choice panics when it
//! needs the size.

use std::cell::Cell;

/// Stands for the size that the thread has chosen, in place of a layout's number of words.
pub const CHOSEN: usize = 0;

thread_local! {
    static WORDS: Cell<usize> = const { Cell::new(CHOSEN) };
}

/// Runs `play` with pages of `words` words wherever a layout's number of words is [`CHOSEN`].
///
/// # Panics
/// If it runs within another choice, because pages of one size would become pages of another. If no
/// page can have this size.
pub fn with_page_words<T>(words: usize, play: impl FnOnce() -> T) -> T {
    /// Ends the choice, also after a panic.
    struct Choice;
    impl Drop for Choice {
        fn drop(&mut self) {
            WORDS.set(CHOSEN);
        }
    }

    assert!(is_sensible(words), "a page has 16 to 136 words, not {words}");
    assert_eq!(WORDS.get(), CHOSEN, "a thread chooses one page size at a time");
    WORDS.set(words);
    let _choice = Choice;
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
    let chosen = WORDS.get();
    assert_ne!(chosen, CHOSEN, "the thread has chosen a page size");
    chosen
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
