//! Writes to the active MemTable, and its replacement when it is full.
//!
//! *Thread safety*: that of the handle.

use super::handle::DlsmIndex;
use super::memtable::{EditStep, MemTable, MemTableEdit};
use super::version::{Intake, SwitchOutcome};
use super::wal::record_of;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, Section, Work};
use farleaf_index::{EditAction, EditAnswer, IndexError, LeafEdit};
use farleaf_page::Layout;
use farleaf_page::rules::{ANSWERS_AWAIT_LOG, BELOW_SETTLED};

/// What an operation needs before it goes on.
enum WriteStep {
    Ended(EditAnswer<Vec<u8>>),
    Below,
    OtherTable,
    Contended,
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Executes an operation that may change its key. Where there is a log, the caller has reserved
    /// room for its record.
    pub(super) async fn change(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, IndexError> {
        let LeafEdit { key, action } = edit;
        let options = &self.shard.options.memtable;
        if let EditAction::CompareExchange(expected, _) = action {
            options.check(key.len(), expected.len())?;
        }
        let (record, mut linked) = (record_of(key, &action), None);
        let mut edit = MemTableEdit::new(key, action, options)?;
        if self.shard.options.write_queue {
            self.fabric().charge(Work::Enter(Section::WriteQueue)).await;
        }
        let mut writer = self.writer().await?;
        self.fabric().charge(Work::SearchMemTable).await;
        let (mut wait, mut least) = (None, Intake::Everything);
        loop {
            let version = self.shard.pin();
            if version.takes < least {
                let takes = version.takes;
                drop(version); // compactions give back nothing that it has
                if self.admit(takes, (key, &action), &mut wait).await? {
                    least = Intake::Shrinking;
                }
                continue;
            }
            least = Intake::Everything;
            let table = &version.active;
            let next = loop {
                let link = match edit.step(table, &mut writer) {
                    EditStep::Link(pending) => {
                        // The write has its number. In the simulator, other writers can overtake it
                        // here.
                        self.fabric().charge(Work::ChangeNode).await;
                        pending.link_and(|number| {
                            linked = Some(number);
                            if let Some(log) = &self.log {
                                log.append(number, &record);
                            }
                        })
                    }
                    EditStep::Done(answer) => break WriteStep::Ended(answer),
                    EditStep::NeedBelow => break WriteStep::Below,
                    EditStep::Again => continue,
                    EditStep::Closed => break WriteStep::OtherTable,
                    EditStep::Contended => break WriteStep::Contended,
                };
                match edit.linked(link) {
                    EditStep::Again => {}
                    EditStep::Done(answer) => break WriteStep::Ended(answer),
                    EditStep::Closed => break WriteStep::OtherTable,
                    _ => break WriteStep::Contended,
                }
            };
            match next {
                WriteStep::Ended(answer) => {
                    drop((version, writer)); // others need what they hold
                    match linked {
                        Some(number) => self.until_durable(number, ANSWERS_AWAIT_LOG).await?,
                        // Whatever it has seen has a number by now.
                        None => self.until_seen_durable(self.shard.sequences.latest()).await?,
                    }
                    return Ok(answer);
                }
                WriteStep::Below => {
                    if !self.fabric().breaks(BELOW_SETTLED) {
                        self.until_settled(table.first() - 1).await?; // Q5
                    }
                    let value = self.value_below(&version, key).await?;
                    edit.found_below(table, value);
                }
                WriteStep::OtherTable => {
                    let table = Arc::clone(table);
                    // Flushes and compactions free nothing that this version has.
                    drop(version);
                    self.replace(&table).await?;
                }
                WriteStep::Contended => return Err(IndexError::Contended { retries: 0 }),
            }
        }
    }

    /// Replaces `full` as the active MemTable. Without background tasks, the handle that does so
    /// flushes `full` and runs the compactions that are due, unless others do. If memory for its
    /// flush is short, the new MemTable does not accept every write (S1, S2).
    pub(super) async fn replace(&self, full: &Arc<MemTable>) -> Result<(), IndexError> {
        let mut wait = self.wait();
        let mut is_stalled = false;
        loop {
            let seen = self.shard.changed.count();
            let switched = self.shard.switch(full, Intake::Everything)?;
            let (workers, _) = self.shard.workers();
            if switched == SwitchOutcome::NoRoom && !std::mem::replace(&mut is_stalled, true) {
                self.shard.count_stall();
            }
            match switched {
                SwitchOutcome::Before => return Ok(()),
                SwitchOutcome::Here if workers > 0 => return Ok(()),
                SwitchOutcome::Here => {
                    // If this fails, there is still room, and the next writer tries again.
                    let _ = self.work().await;
                    return Ok(());
                }
                SwitchOutcome::NoSpace if wait.works_itself(&self.shard) => {
                    if !self.own_next().await? {
                        self.close_in_full_pool(full)?;
                    }
                }
                SwitchOutcome::NoSpace if self.shard.needs.is_refused() => {
                    self.close_in_full_pool(full)?;
                }
                SwitchOutcome::NoSpace => {
                    self.shard.ask_for_room();
                    wait.for_change(&self.shard, seen).await?;
                }
                SwitchOutcome::NoRoom if wait.works_itself(&self.shard) => {
                    // A compaction may fail although the flush before it has made room.
                    let worked = self.work().await;
                    if self.shard.switch(full, Intake::Everything)? != SwitchOutcome::NoRoom {
                        continue;
                    }
                    match worked {
                        // Running compactions hold the extents, and will give them back.
                        Err(IndexError::OutOfMemory { .. })
                            if workers > 0 && wait.looks_again() =>
                        {
                            wait.for_change(&self.shard, self.shard.changed.count()).await?;
                        }
                        // A flush under way may still make room.
                        Err(error) if !self.shard.is_flushing() => return Err(error),
                        Err(_) | Ok(0) => wait.for_change(&self.shard, seen).await?,
                        Ok(_) => {}
                    }
                }
                SwitchOutcome::NoRoom => wait.for_change(&self.shard, seen).await?,
            }
        }
    }

    /// Replaces `full` as the active MemTable. The next one accepts what there is memory for.
    pub(super) fn close_in_full_pool(&self, full: &Arc<MemTable>) -> Result<(), IndexError> {
        if self.shard.switch(full, Intake::Shrinking)? == SwitchOutcome::NoSpace {
            self.shard.switch(full, Intake::Nothing)?;
        }
        Ok(())
    }
}
