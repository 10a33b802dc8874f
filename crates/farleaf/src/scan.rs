//! Scans in pages.

use crate::call::Call;
use crate::error::Error;
use crate::request::{Reply, Request};
use crate::shared::Shared;
use farleaf_core::index::Scan as Range;
use futures_core::Stream;
use std::future::poll_fn;
use std::ops::{Bound, RangeBounds};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Records of one page: the most that a scan holds.
const PAGE: usize = 256;

/// Records in the order of their keys, from [`crate::Handle::scan`].
///
/// A task calls [`Scan::next`], or uses it as a [`Stream`]; a plain thread iterates over it by
/// `for`. It reads pages of 256 records and holds one of them, so a scan of the whole index needs
/// little memory.
///
/// A scan is not a snapshot. It returns every key that is present throughout, once and in order,
/// and no key that never was; of keys that change meanwhile it returns some state. After an error
/// it ends.
#[derive(Debug)]
#[must_use = "a scan reads nothing before its first record is asked for"]
pub struct Scan {
    shared: Arc<Shared>,
    /// The records behind the current page, with their limit.
    rest: Range<u64>,
    page: std::vec::IntoIter<(u64, u64)>,
    reading: Option<Call<Vec<(u64, u64)>>>,
    is_last: bool,
}

impl Scan {
    pub(crate) fn new(shared: &Arc<Shared>, range: impl RangeBounds<u64>) -> Self {
        let (shared, rest) = (Arc::clone(shared), Range::range(range));
        Self { shared, rest, page: Vec::new().into_iter(), reading: None, is_last: false }
    }

    /// Returns at most `limit` records. Call it before the first record.
    pub fn limit(mut self, limit: usize) -> Self {
        self.rest = self.rest.limit(limit);
        self
    }

    /// The same range in the opposite direction. Call it before the first record.
    pub fn reverse(mut self) -> Self {
        self.rest = self.rest.reverse();
        self
    }

    /// The next record, with its key first; `None` behind the last one.
    pub async fn next(&mut self) -> Option<Result<(u64, u64), Error>> {
        poll_fn(|context| self.poll_record(context)).await
    }

    /// A call for the next page, if there may be one.
    fn read(&mut self) -> Option<Call<Vec<(u64, u64)>>> {
        if self.is_last || self.rest.limit == 0 {
            return None;
        }
        let asked = self.rest.clone().limit(self.rest.limit.min(PAGE));
        Some(Call::new(&self.shared, Request::Scan(asked), |reply| match reply {
            Reply::Records(records) => Some(records),
            _ => None,
        }))
    }

    /// Takes a page over; returns its first record.
    fn accept(
        &mut self,
        page: Result<Vec<(u64, u64)>, Error>,
    ) -> Option<Result<(u64, u64), Error>> {
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                self.is_last = true;
                return Some(Err(error));
            }
        };
        self.is_last = page.len() < self.rest.limit.min(PAGE);
        self.rest.limit -= page.len();
        if let Some((key, _)) = page.last() {
            let behind = Bound::Excluded(*key);
            match self.rest.reverse {
                false => self.rest.lower = behind,
                true => self.rest.upper = behind,
            }
        }
        self.page = page.into_iter();
        self.page.next().map(Ok)
    }

    fn poll_record(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(u64, u64), Error>>> {
        if let Some(record) = self.page.next() {
            return Poll::Ready(Some(Ok(record)));
        }
        if self.reading.is_none() {
            self.reading = self.read();
        }
        let Some(call) = &mut self.reading else { return Poll::Ready(None) };
        let page = ready!(Pin::new(call).poll(context));
        self.reading = None;
        Poll::Ready(self.accept(page))
    }

    /// The next record, for plain threads.
    fn wait_record(&mut self) -> Option<Result<(u64, u64), Error>> {
        if let Some(record) = self.page.next() {
            return Some(Ok(record));
        }
        let call = self.reading.take().or_else(|| self.read())?;
        self.accept(call.wait())
    }
}

impl Stream for Scan {
    type Item = Result<(u64, u64), Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_record(context)
    }
}

impl IntoIterator for Scan {
    type Item = Result<(u64, u64), Error>;
    type IntoIter = Records;

    /// The records for a plain thread: it blocks while a page is read.
    fn into_iter(self) -> Records {
        Records(self)
    }
}

/// The records of a [`Scan`] for a plain thread.
#[derive(Debug)]
#[must_use = "a scan reads nothing before its first record is asked for"]
pub struct Records(Scan);

impl Iterator for Records {
    type Item = Result<(u64, u64), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.wait_record()
    }
}
