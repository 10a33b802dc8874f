//! A shard that consists only of MemTables.

use farleaf_dlsm::{
    EditStep, LinkOutcome, MemTable, MemTableEdit, MemTableOptions, MemTableVersion,
    MemTableWriter, SearchKey, Sequences, WriterSlot,
};
use farleaf_fabric::sync::{Arc, Mutex, lock, thread};
use farleaf_index::{EditAction, EditAnswer};

/// Number of times that a wait lets other threads run before it counts as endless.
const MAX_YIELDS: u32 = 10_000_000;

/// MemTables of one shard, oldest first. Writes go to the last one.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) sequences: Arc<Sequences>,
    options: MemTableOptions,
    tables: Mutex<Vec<Arc<MemTable>>>,
}

impl Shard {
    pub(crate) fn new(writers: usize, options: MemTableOptions) -> Self {
        let sequences = Arc::new(Sequences::new(writers));
        let table = MemTable::new(&sequences, options.memory().unwrap(), options);
        Self { sequences, options, tables: Mutex::new(vec![Arc::new(table)]) }
    }

    pub(crate) fn writer(&self, seed: u64) -> MemTableWriter {
        let seat: WriterSlot = WriterSlot::take(&self.sequences).expect("a seat for each writer");
        MemTableWriter::new(seat, seed)
    }

    pub(crate) fn tables(&self) -> Vec<Arc<MemTable>> {
        lock(&self.tables).clone()
    }

    /// Closes `table` if it is the last one, and adds the next.
    pub(crate) fn switch(&self, table: &Arc<MemTable>) {
        let mut tables = lock(&self.tables);
        if tables.last().is_some_and(|last| Arc::ptr_eq(last, table)) {
            let memory = self.options.memory().unwrap();
            tables.push(Arc::new(table.next(&self.sequences, memory, self.options)));
        }
    }

    pub(crate) fn wait_until_settled(&self, bound: u64) {
        for _ in 0..MAX_YIELDS {
            if self.sequences.is_settled(bound) {
                return;
            }
            yield_now();
        }
        panic!("{bound} is never settled");
    }

    pub(crate) fn execute(
        &self,
        writer: &mut MemTableWriter,
        key: &[u8],
        action: EditAction<&[u8]>,
    ) -> EditAnswer<Vec<u8>> {
        self.execute_numbered(writer, key, action).0
    }

    /// Also returns the number of the version that was linked, if one was.
    pub(crate) fn execute_numbered(
        &self,
        writer: &mut MemTableWriter,
        key: &[u8],
        action: EditAction<&[u8]>,
    ) -> (EditAnswer<Vec<u8>>, Option<u64>) {
        let mut edit = MemTableEdit::new(key, action, &self.options).unwrap();
        let mut number = None;
        loop {
            let tables = self.tables();
            let (table, older) = tables.split_last().unwrap();
            let step = match edit.step(table, writer) {
                EditStep::Link(pending) => {
                    let link = pending.link();
                    if let LinkOutcome::Done(linked) = link {
                        number = Some(linked);
                    }
                    edit.linked(link)
                }
                other => other,
            };
            match step {
                EditStep::Done(answer) => return (answer, number),
                EditStep::Again => {}
                EditStep::Closed => self.switch(table),
                EditStep::NeedBelow => {
                    self.wait_until_settled(table.first() - 1); // Q5
                    let key = SearchKey::new(key);
                    let value =
                        newest_of(older, &key, u64::MAX).and_then(|version| version.value());
                    edit.found_below(table, value);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Lets other threads run.
#[expect(clippy::disallowed_methods, reason = "there is no fabric to wait through")]
pub(crate) fn yield_now() {
    thread::yield_now();
}

/// The newest version of `key` up to `bound`.
pub(crate) fn newest_of<'t>(
    tables: &'t [Arc<MemTable>],
    key: &SearchKey,
    bound: u64,
) -> Option<MemTableVersion<'t>> {
    let mut newest_first = tables.iter().rev().filter(|table| table.may_hold(key));
    newest_first.find_map(|table| table.newest_up_to(key, bound))
}
