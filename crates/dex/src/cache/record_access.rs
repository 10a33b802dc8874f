//! A handle's access to the hot records of its compute server (C31, C32).
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{CacheClient, RecordChange, RecordTicket};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::LiveCounters;
use farleaf_page::rules;
use farleaf_page::{EditAnswer, Layout, LeafEdit, OwnedValue};

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Whether this compute server owns `key` now.
    #[inline]
    fn owns(&self, key: &L::Key) -> bool {
        let owned = self.cache().owned();
        let changes = owned.changes();
        let mut seen = self.owned_seen.borrow_mut();
        if seen.0 != changes {
            *seen = (changes, owned.range());
        }
        seen.1.has(key)
    }

    /// Prefetches what [`CacheClient::hot_value`] looks at.
    #[inline]
    pub(crate) fn prefetch_hot_value(&self, key: &L::Key) {
        if let Some(records) = self.cache().records() {
            records.prefetch(L::hash(key));
        }
    }

    /// The value of `key`, if its record is in the table of hot records.
    #[inline]
    pub(crate) fn hot_value(&self, key: &L::Key) -> Option<OwnedValue<L>> {
        let records = self.cache().records()?;
        if !self.owns(key) && !self.fabric().breaks(rules::RECORDS_OWNED) {
            return None; // C32
        }
        let value = records.look(L::hash(key))?;
        LiveCounters::count(&self.counters.record_hits);
        Some(L::value_of_address(GlobalAddr::from_bits(value)))
    }

    /// The right to put the record of `key` in, if its leaf is READ from now on.
    pub(super) fn record_ticket(&self, key: &L::Key) -> Option<RecordTicket> {
        self.cache().records()?.ticket(L::hash(key), false)
    }

    /// Puts the record of a leaf in, which was READ after `ticket` was taken.
    pub(super) fn put_record(
        &self,
        ticket: Option<RecordTicket>,
        key: &L::Key,
        value: Option<&OwnedValue<L>>,
    ) {
        let (Some(records), Some(value)) = (self.cache().records(), value) else { return };
        let hash = L::hash(key);
        let ticket = match self.fabric().breaks(rules::RECORDS_UNCHANGED) {
            true => records.ticket(hash, true),
            false => ticket,
        };
        if let Some(ticket) = ticket {
            records.put(ticket, hash, L::address_of_value(L::value(value)).to_bits());
        }
    }

    /// Begins a change of the record of `key` (C31). End it when the change is answered.
    #[inline]
    pub(crate) fn begin_record_change(&self, key: &L::Key) -> Option<RecordChange<'_>> {
        let keeps_it = self.fabric().breaks(rules::RECORDS_REMOVED);
        self.cache().records().map(|records| records.begin_change(L::hash(key), keeps_it))
    }
}

/// Ends the change of a record by an edit that was answered.
pub(crate) fn end_record_change<L: Layout>(
    change: Option<RecordChange<'_>>,
    edit: &LeafEdit<&L::Key, &L::Value>,
    answer: &EditAnswer<OwnedValue<L>>,
) {
    if let Some(change) = change {
        let value = match answer.applied {
            true => edit.action.new_value(),
            // An exchange that has failed tells the value.
            false => answer.found.as_ref().map(L::value),
        };
        change.end(value.map(|value| L::address_of_value(value).to_bits()));
    }
}
