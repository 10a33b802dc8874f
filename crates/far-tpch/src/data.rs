//! The tables: made in DRAM, and copied into an arena.

use crate::TableOrder;
use anyhow::{Context, Result};
use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchReader, make_array};
use arrow::datatypes::SchemaRef;
use farleaf_far_alloc::FarArena;
use std::sync::Arc;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// Rows of a batch, which is the engine's own size.
pub(crate) const BATCH_ROWS: usize = 8192;

/// A table as batches of columns.
#[derive(Clone, Debug)]
pub(crate) struct TpchTable {
    pub(crate) name: &'static str,
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

impl TpchTable {
    fn new(name: &'static str, rows: impl RecordBatchReader) -> Result<Self> {
        let schema = rows.schema();
        Ok(Self { name, schema, batches: rows.collect::<Result<_, _>>()? })
    }

    /// Its bytes: those of all buffers, as far as they are used.
    pub(crate) fn bytes(&self) -> usize {
        let columns = self.batches.iter().flat_map(RecordBatch::columns);
        columns.flat_map(buffer_bytes).sum()
    }

    /// Its bytes in an arena, with what the allocator adds to each buffer.
    pub(crate) fn footprint(&self) -> usize {
        let columns = self.batches.iter().flat_map(RecordBatch::columns);
        columns.flat_map(buffer_bytes).map(extent_bytes).sum()
    }

    /// Copies it into an arena.
    pub(crate) fn migrate(&self, arena: &Arc<FarArena>, layout: TableOrder) -> Result<Self> {
        let no_room = || format!("the arena has no room for {}", self.name);
        let far = |column: &ArrayRef| {
            arena.array(&column.to_data()).map(make_array).with_context(no_room)
        };
        let fields = self.schema.fields().len();
        let mut columns: Vec<Vec<ArrayRef>> = vec![Vec::new(); self.batches.len()];
        match layout {
            TableOrder::Batches => {
                for (batch, columns) in self.batches.iter().zip(&mut columns) {
                    *columns = batch.columns().iter().map(far).collect::<Result<_>>()?;
                }
            }
            TableOrder::Columns => {
                for field in 0..fields {
                    for (batch, columns) in self.batches.iter().zip(&mut columns) {
                        columns.push(far(batch.column(field))?);
                    }
                }
            }
        }
        let batch = |columns| Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        let batches = columns.into_iter().map(batch).collect::<Result<_>>()?;
        Ok(Self { name: self.name, schema: Arc::clone(&self.schema), batches })
    }
}

/// The sizes of a column's buffers.
fn buffer_bytes(column: &ArrayRef) -> Vec<usize> {
    let data = column.to_data();
    let nulls = data.nulls().map(|nulls| nulls.buffer().len());
    data.buffers().iter().map(|buffer| buffer.len()).chain(nulls).collect()
}

/// What jemalloc takes for an allocation: its size class, of which there are four for each power of
/// two, and a page of 4 KiB if the allocation has an extent of its own.
fn extent_bytes(bytes: usize) -> usize {
    const LARGEST_SMALL: usize = 14 << 10;
    let step = (bytes.max(128).next_power_of_two() / 8).max(16);
    let class = bytes.next_multiple_of(step);
    if class > LARGEST_SMALL { class + 4096 } else { class }
}

/// All tables at a scale factor.
pub(crate) fn generate(scale: f64, progress: impl Fn(&str)) -> Result<Vec<TpchTable>> {
    macro_rules! tables {
        ($($name:literal $arrow:ident $generator:ident,)*) => {
            vec![$({
                progress($name);
                let rows = $arrow::new($generator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS);
                TpchTable::new($name, rows)?
            },)*]
        };
    }
    Ok(tables! {
        "region" RegionArrow RegionGenerator,
        "nation" NationArrow NationGenerator,
        "supplier" SupplierArrow SupplierGenerator,
        "customer" CustomerArrow CustomerGenerator,
        "part" PartArrow PartGenerator,
        "partsupp" PartSuppArrow PartSuppGenerator,
        "orders" OrderArrow OrderGenerator,
        "lineitem" LineItemArrow LineItemGenerator,
    })
}
