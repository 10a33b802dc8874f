//! Scans, page by page.
//!
//! *Invariant*: scan.A1. At most [`PAGE_RECORDS`] records are held. The next page begins after the
//! last key of the previous one, so changes in between neither repeat nor hide other keys.

use crate::data::KeyKind;
use crate::error::Error;
use crate::index::Index;
use crate::operation::Operation;
use crate::request::KeyedRecord;
use farleaf_index::ScanRequest as Selection;
use futures_core::Stream;
use std::future::{Future, poll_fn};
use std::ops::{Bound, RangeBounds};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec::IntoIter;

/// Maximum number of records that are fetched at a time.
const PAGE_RECORDS: usize = 256;

/// A scan of an [`Index`]: an iterator that blocks or, with [`Scan::stream`], an async stream.
///
/// It is not a snapshot: it returns every key that is present throughout, once and in order, and no
/// key that never existed. It ends after an error.
#[derive(Debug)]
#[must_use = "a scan does nothing until it is iterated"]
pub struct Scan<K: ?Sized + KeyKind = u64> {
    index: Index<K>,
    /// The part that has not been fetched yet; its limit is the number of records still allowed.
    rest: Selection<K::Owned>,
    page: IntoIter<KeyedRecord<K>>,
}

impl<K: ?Sized + KeyKind> Scan<K> {
    pub(crate) fn new(index: Index<K>, range: impl RangeBounds<K::Owned>) -> Self {
        let rest = Selection::range((range.start_bound().cloned(), range.end_bound().cloned()));
        Self { index, rest, page: Vec::new().into_iter() }
    }

    /// Returns at most `limit` records.
    pub fn limit(mut self, limit: usize) -> Self {
        self.rest.limit = limit;
        self
    }

    /// Scans in the opposite direction: by default, from the highest key of the range to the
    /// lowest.
    pub fn reverse(mut self) -> Self {
        self.rest = self.rest.reverse();
        self
    }

    /// The scan as an async stream.
    pub fn stream(self) -> ScanStream<K> {
        ScanStream { scan: self, fetch: None }
    }

    /// The operation that fetches the next page; `None` at the end of the scan.
    fn next_page(&self) -> Option<Operation<Vec<KeyedRecord<K>>, K>> {
        let limit = self.rest.limit.min(PAGE_RECORDS);
        (limit > 0).then(|| self.index.page(self.rest.clone().limit(limit)))
    }

    /// Takes a page, or the error that ends the scan.
    fn take_page(&mut self, page: Result<Vec<KeyedRecord<K>>, Error>) -> Result<(), Error> {
        let asked = self.rest.limit.min(PAGE_RECORDS);
        let page = page.inspect_err(|_| self.rest.limit = 0)?;
        self.rest.limit = match page.last() {
            Some((last, _)) if page.len() == asked => {
                let behind = Bound::Excluded(last.clone());
                match self.rest.reverse {
                    true => self.rest.upper = behind,
                    false => self.rest.lower = behind,
                }
                self.rest.limit - asked
            }
            _ => 0,
        };
        self.page = page.into_iter();
        Ok(())
    }
}

impl<K: ?Sized + KeyKind> Iterator for Scan<K> {
    type Item = Result<(K::Owned, K::Owned), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.page.next() {
            return Some(Ok(record));
        }
        let page = self.next_page()?.wait();
        match self.take_page(page) {
            Ok(()) => self.page.next().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }
}

/// A [`Scan`] as an async stream.
#[derive(Debug)]
#[must_use = "a stream does nothing until it is polled"]
pub struct ScanStream<K: ?Sized + KeyKind = u64> {
    scan: Scan<K>,
    fetch: Option<Operation<Vec<KeyedRecord<K>>, K>>,
}

impl<K: ?Sized + KeyKind> ScanStream<K> {
    /// The next record, or `None` at the end.
    pub async fn next(&mut self) -> Option<Result<(K::Owned, K::Owned), Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl<K: ?Sized + KeyKind> Stream for ScanStream<K> {
    type Item = Result<(K::Owned, K::Owned), Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { scan, fetch } = &mut *self;
        if let Some(record) = scan.page.next() {
            return Poll::Ready(Some(Ok(record)));
        }
        if fetch.is_none() {
            *fetch = scan.next_page();
        }
        let Some(operation) = fetch else { return Poll::Ready(None) };
        let Poll::Ready(page) = Pin::new(operation).poll(context) else { return Poll::Pending };
        *fetch = None;
        Poll::Ready(match scan.take_page(page) {
            Ok(()) => scan.page.next().map(Ok),
            Err(error) => Some(Err(error)),
        })
    }
}
