//! Finds sequential accesses among the faults, and says which pages to read ahead of them.
//!
//! Several streams can be mixed, such as the columns of a table. Two faults at adjacent pages begin
//! a stream. Each further fault at its next page, or at a page that was read ahead for it, doubles
//! its window up to a limit, as the kernel's readahead does.
//!
//! *Invariants*: far.Q1. A stream asks for each page at most once while it goes forward.
//!
//! *Thread safety*: one thread.

use std::collections::VecDeque;
use std::ops::Range;

/// Streams at the same time; the one that was idle longest gives way.
const MAX_STREAMS: usize = 32;
/// Faults that may begin a stream.
const MAX_BEGINNINGS: usize = 64;
/// Pages that a stream asks for at first.
const FIRST_WINDOW: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct AccessStream {
    /// The page that is expected next.
    next: u32,
    /// The first page that was not asked for.
    asked: u32,
    window: u32,
}

/// The streams of a region.
#[derive(Debug)]
pub(crate) struct AccessStreams {
    /// From the one that was idle longest on.
    streams: VecDeque<AccessStream>,
    beginnings: VecDeque<u32>,
    most_window: u32,
    pages: u32,
}

impl AccessStreams {
    /// Streams over `pages` pages that ask for up to `most_window` pages each; none if that is 0.
    pub(crate) fn new(pages: u32, most_window: u32) -> Self {
        let (streams, beginnings) = (VecDeque::new(), VecDeque::new());
        Self { streams, beginnings, most_window, pages }
    }

    /// Notes a fault at `page`. Returns the pages to read ahead.
    pub(crate) fn fault(&mut self, page: u32) -> Range<u32> {
        if self.most_window == 0 {
            return 0..0;
        }
        let continues = |stream: &AccessStream| {
            page == stream.next || (stream.next..stream.asked).contains(&page)
        };
        if let Some(place) = self.streams.iter().position(continues) {
            let mut stream = self.streams.remove(place).expect("the place was just found");
            stream.next = page + 1;
            stream.window = (stream.window * 2).min(self.most_window);
            return self.ask(stream);
        }
        let before = self.beginnings.iter().position(|begin| begin + 1 == page);
        if let Some(place) = before {
            self.beginnings.remove(place);
            let window = FIRST_WINDOW.min(self.most_window);
            return self.ask(AccessStream { next: page + 1, asked: page + 1, window });
        }
        if !self.beginnings.contains(&page) {
            if self.beginnings.len() == MAX_BEGINNINGS {
                self.beginnings.pop_front();
            }
            self.beginnings.push_back(page);
        }
        0..0
    }

    /// Begins a stream at `first`, which the program will access in order. The pages before `asked`
    /// are read ahead already.
    pub(crate) fn begin(&mut self, first: u32, asked: u32) {
        if self.most_window > 0 {
            self.keep(AccessStream { next: first, asked, window: self.most_window.div_ceil(2) });
        }
    }

    fn ask(&mut self, mut stream: AccessStream) -> Range<u32> {
        let from = stream.asked.max(stream.next);
        let end = stream.next.saturating_add(stream.window).min(self.pages);
        // Ask in halves of the window, so that adjacent pages can go together.
        let is_near = from.saturating_sub(stream.next) <= stream.window / 2;
        let asked = if is_near && from < end { from..end } else { from..from };
        stream.asked = asked.end;
        self.keep(stream);
        asked
    }

    fn keep(&mut self, stream: AccessStream) {
        if self.streams.len() == MAX_STREAMS {
            self.streams.pop_front();
        }
        self.streams.push_back(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_streams_are_told_apart_and_ask_for_each_page_once() {
        const COUNT: u32 = 8;
        let mut streams = AccessStreams::new(10_000, 16);
        let mut asked = vec![0; 10_000];
        for step in 0..200 {
            for stream in 0..COUNT {
                let page = stream * 1000 + step;
                for page in streams.fault(page) {
                    asked[page as usize] += 1;
                }
            }
        }
        for stream in 0..COUNT {
            let of =
                |steps: Range<u32>| &asked[(stream * 1000 + steps.start) as usize..][..steps.len()];
            assert!(of(0..2).iter().all(|count| *count == 0), "nothing is known yet");
            assert!(of(2..200).iter().all(|count| *count == 1), "far.Q1: {:?}", of(2..200));
            assert!(of(200..208).iter().all(|count| *count == 1), "the stream is ahead");
            assert!(
                of(216..300).iter().all(|count| *count == 0),
                "but not by more than its window"
            );
        }
    }

    #[test]
    fn random_faults_ask_for_nothing_and_the_end_is_the_end() {
        let mut streams = AccessStreams::new(100_000, 16);
        assert!((0..10_000_u32).all(|step| streams.fault(step * 7919 % 100_000).is_empty()));
        let mut streams = AccessStreams::new(20, 16);
        let asked: Vec<u32> = (0..20).flat_map(|page| streams.fault(page)).collect();
        assert_eq!(asked, (2..20).collect::<Vec<_>>());
        let mut streams = AccessStreams::new(20, 0);
        assert!((0..20).all(|page| streams.fault(page).is_empty()));
    }

    #[test]
    fn an_announced_stream_needs_no_second_fault() {
        let mut streams = AccessStreams::new(100, 8);
        streams.begin(10, 10);
        assert_eq!(streams.fault(10), 11..19);
    }
}
