//! The engine on one set of tables, and the queries.

use crate::Batches;
use crate::data::{BATCH_ROWS, TpchTable};
use crate::table::FarTable;
use anyhow::{Context, Result};
use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use farleaf_far_alloc::{FarArena, FarScope, ProgramArena};
use std::sync::Arc;

macro_rules! queries {
    ($($number:literal)*) => {
        [$(include_str!(concat!("../queries/", $number, ".sql"))),*]
    };
}

/// The queries' texts, with the values of TPC-H's validation.
const QUERIES: [&str; 22] = queries!(
    "01" "02" "03" "04" "05" "06" "07" "08" "09" "10" "11"
    "12" "13" "14" "15" "16" "17" "18" "19" "20" "21" "22"
);

/// An answer as text: rows of cells.
pub(crate) type QueryAnswer = Vec<Vec<String>>;

/// The engine, on one thread.
pub(crate) struct QueryEngine {
    session: SessionContext,
    /// Where large allocations of queries go.
    intermediates: Option<ProgramArena>,
}

/// Where an engine's tables are, and what is done with their batches.
pub(crate) type TablePlacement<'a> = (&'a Arc<FarArena>, Batches);

impl QueryEngine {
    /// An engine with these tables, which are in DRAM or in an arena.
    pub(crate) fn new(
        tables: &[TpchTable],
        place: Option<TablePlacement<'_>>,
        intermediates: Option<ProgramArena>,
    ) -> Result<Self> {
        let config = SessionConfig::new().with_target_partitions(1).with_batch_size(BATCH_ROWS);
        let session = SessionContext::new_with_config(config);
        for TpchTable { name, schema, batches } in tables {
            let table = MemTable::try_new(Arc::clone(schema), vec![batches.clone()])?;
            match place {
                Some((arena, batches)) if batches != Batches::Fault => {
                    let (arena, copies) = (Arc::clone(arena), batches == Batches::Copy);
                    let table = FarTable { table, arena, copies };
                    session.register_table(*name, Arc::new(table))?
                }
                _ => session.register_table(*name, Arc::new(table))?,
            };
        }
        Ok(Self { session, intermediates })
    }

    /// The answer to query `number`, 1 to 22.
    pub(crate) async fn ask(&self, number: u8) -> Result<Vec<RecordBatch>> {
        let text = QUERIES[usize::from(number) - 1];
        // The runtime has one thread, so the scope is that of all that the query does.
        let _scope = self.intermediates.map(FarScope::enter);
        let answer = async { self.session.sql(text).await?.collect().await };
        answer.await.with_context(|| format!("query {number}"))
    }
}

/// The cells of an answer.
pub(crate) fn cells(batches: &[RecordBatch]) -> Result<QueryAnswer> {
    let options = FormatOptions::default();
    let mut answer = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        answer.extend((0..batch.num_rows()).map(|row| {
            columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>()
        }));
    }
    Ok(answer)
}
