//! Single-key operations on leaves that are in no frame, by the part of the leaf that can have the
//! key: a lookup READs a window of records, and a new value is one WRITE of a word.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C33. A leaf stays marked until no WRITE of a value in it, outside a frame, can land any more.
//!   If the outcome of the WRITE is unknown, the connection is reset first.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::{
    CacheClient, FreeFrame, LeafRead, OptimisticRef, RemoteIoMark, Restart, WriteBackName,
};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_index::{LiveCounters, OwnedRange, Ownership};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, EditAnswer, Layout, LeafEdit, LeafOutcome, LeafOutline, OwnedKey, OwnedValue,
    Page, RecordEdit, WindowLookup,
};
use farleaf_pool::remote::RemoteError;
use std::cell::Cell;

/// What a window of a leaf tells about an edit.
enum WindowOutcome<L: Layout> {
    /// The edit is done.
    Done(EditAnswer<OwnedValue<L>>),
    /// The edit needs the leaf.
    NeedsLeaf,
}

/// A WRITE of a value in a leaf that is in no frame. If this is dropped before the WRITE has ended,
/// the mark stays until the WRITE can no longer land (C33).
struct ValueWriteInFlight<'a, F: Fabric, L: Layout> {
    client: &'a CacheClient<F, L>,
    mark: Option<RemoteIoMark<'a>>,
    server: ServerId,
}

impl<'a, F: Fabric, L: Layout> ValueWriteInFlight<'a, F, L> {
    /// No part of the WRITE can still land.
    fn has_ended(mut self) -> Option<RemoteIoMark<'a>> {
        self.mark.take()
    }
}

impl<F: Fabric, L: Layout> Drop for ValueWriteInFlight<'_, F, L> {
    fn drop(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        if !self.client.fabric().breaks(rules::VALUE_WRITES_MARKED) {
            self.client.marked_writes.borrow_mut().push((mark.keep(), self.server));
            self.client.pages().doubtful().set(true);
        }
    }
}

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Executes a single-key operation on the leaf at `address`. READs only a window of the leaf,
    /// and WRITEs only the value, if that is known to be enough, and if the leaf is not to be
    /// admitted (C29).
    ///
    /// # Errors
    /// [`Restart`]. Unless the outcome is unknown, nothing has changed.
    pub(crate) async fn run_in_pool(
        &self,
        (parent, slot): (OptimisticRef<'_, L>, usize),
        address: GlobalAddr,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<LeafOutcome<EditAnswer<OwnedValue<L>>>, Restart> {
        // A window does not show which leaf it is of. Below a shared node only the leaf's fences
        // do, because the copy of the node may be old (C29).
        let (low, high) = (L::low(parent.page), L::high(parent.page));
        let is_certain = self.cache().owned().of(&low, high.as_ref()) == Ownership::All;
        let (mut free, mut mark, keys) = self.begin_fetch(parent, slot, address).await?;
        let ticket = (!edit.changes()).then(|| self.record_ticket(edit.key)).flatten(); // C31
        let outlines = self.cache().outlines().filter(|_| is_certain);
        if let Some(LeafRead::Window(outline)) = outlines.map(|outlines| outlines.miss(address)) {
            let (read, still, outcome) =
                self.try_window((free, mark), (address, &keys), outline, edit).await?;
            (free, mark) = (read, still);
            if let WindowOutcome::Done(answer) = outcome {
                LiveCounters::count(&self.counters.leaf_misses);
                LiveCounters::count(&self.counters.leaf_windows);
                self.put_record(ticket, edit.key, answer.found.as_ref());
                drop(mark);
                self.keep(free);
                return Ok(LeafOutcome::Nothing(answer));
            }
        }
        let work = |page: Page<'_, L>| edit.apply(page);
        let (place, below) = ((address, &keys), Some((parent, slot)));
        let probe = DescentProbe::At(edit.key);
        let outcome = self.bring_marked_leaf((free, mark), below, place, probe, work).await?;
        if let LeafOutcome::Nothing(answer) = &outcome {
            self.put_record(ticket, edit.key, answer.found.as_ref());
        }
        Ok(outcome)
    }

    /// READs the window of a leaf that can have the key of `edit`, and WRITEs the new value if that
    /// is all that changes.
    async fn try_window<'a>(
        &'a self,
        (free, mark): (FreeFrame<'a, L>, RemoteIoMark<'a>),
        (address, keys): (GlobalAddr, &OwnedRange<OwnedKey<L>>),
        outline: LeafOutline,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<(FreeFrame<'a, L>, RemoteIoMark<'a>, WindowOutcome<L>), Restart> {
        let fences = (L::key(&keys.low), keys.high.as_ref().map(L::key));
        let slots = L::outlined_slots(outline, edit.key, fences);
        let free = self.read_into(free, address, L::slot_words(&slots)).await?;
        let held = match L::outlined_get(free.page(), outline, &slots, edit.key) {
            WindowLookup::Found(value) => Some(value),
            WindowLookup::Absent => None,
            WindowLookup::Unknown => return Ok((free, mark, WindowOutcome::NeedsLeaf)),
        };
        let by_words = self.cache().options().write_back == WriteBackName::Words;
        match edit.at_record::<L>(held) {
            RecordEdit::Nothing(answer) => Ok((free, mark, WindowOutcome::Done(answer))),
            RecordEdit::NewValue(value) if by_words => {
                match L::window_value_word(free.page(), &slots, edit.key) {
                    Some(word) => {
                        let at = address.plus(word as u64 * 8);
                        let mark = self.write_value(mark, at, value).await?;
                        LiveCounters::count(&self.counters.write_throughs);
                        let answer = EditAnswer::from_change(true);
                        Ok((free, mark, WindowOutcome::Done(answer)))
                    }
                    None => Ok((free, mark, WindowOutcome::NeedsLeaf)),
                }
            }
            RecordEdit::NewValue(_) | RecordEdit::NeedsLeaf => {
                Ok((free, mark, WindowOutcome::NeedsLeaf))
            }
        }
    }

    /// WRITEs a value, which is one word, into a leaf that is in no frame.
    ///
    /// # Errors
    /// [`Restart`]. It is `Indeterminate` if the value may have been written.
    async fn write_value<'a>(
        &'a self,
        mark: RemoteIoMark<'a>,
        at: GlobalAddr,
        value: &L::Value,
    ) -> Result<RemoteIoMark<'a>, Restart> {
        let word = L::address_of_value(value).to_bits();
        let buffer = || -> Result<Buffer, Restart> {
            let buffer = self.fabric().buffer(8).map_err(|_| Restart::Busy)?;
            buffer.set(0, word);
            Ok(buffer)
        };
        let may_have_landed = Cell::new(false);
        let mut backoff = self.pages().backoff();
        let post = async || {
            // Other tasks of this handle reset the same connection, which ends this WRITE, too.
            if may_have_landed.get() {
                self.pages().before_retry(&mut backoff).await?;
            }
            let written = self.fabric().write(at, buffer()?).await.map(drop);
            if let Err(FabricError::Indeterminate { .. }) = written {
                may_have_landed.set(true);
            }
            Ok(written)
        };
        let under_way = ValueWriteInFlight { client: self, mark: Some(mark), server: at.server() };
        match self.write_to_the_end(at, post).await {
            // Nobody else can take the mark away.
            Ok(()) => under_way.has_ended().ok_or(Restart::Busy),
            Err(restart) if !may_have_landed.get() => {
                drop(under_way.has_ended());
                Err(restart)
            }
            Err(restart) => {
                let error = match restart {
                    Restart::Failed(error) => error,
                    _ => RemoteError::Contended { retries: 0 },
                };
                Err(Restart::Failed(error.after_a_change(at.server())))
            }
        }
    }

    /// Ends the marks of the oldest `many` WRITEs of values whose leaves are on `server`. The
    /// connection to `server` has been reset.
    pub(super) fn end_marked_writes(&self, server: ServerId, many: usize) {
        let is_on = |write: &mut (u64, ServerId)| write.1 == server;
        let ended: Vec<_> = self.marked_writes.borrow_mut().extract_if(..many, is_on).collect();
        ended.into_iter().for_each(|(id, _)| drop(self.cache().mapping().resume_io(id)));
    }
}
