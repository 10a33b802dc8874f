//! Tables in far memory, for the engine: before it gets a batch, the pages of the batch are loaded,
//! so that a memory server that fails is mostly an error of the query. A batch that the engine
//! keeps, such as that of a hash join, can leave the buffer again: then a failure ends the process.
//! If batches are copied to local memory instead, a failure is always an error of the query.

use arrow::array::{Array, ArrayRef, RecordBatch, make_array};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, StatisticsArgs,
};
use farleaf_far_alloc::FarArena;
use futures::StreamExt;
use std::sync::Arc;

/// A table whose batches are in an arena.
#[derive(Debug)]
pub(crate) struct FarTable {
    pub(crate) table: MemTable,
    pub(crate) arena: Arc<FarArena>,
    /// The engine gets copies of the batches in local memory.
    pub(crate) copies: bool,
}

#[async_trait]
impl TableProvider for FarTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // What comes from there has only the columns that the query reads.
        let input = self.table.scan(session, projection, filters, limit).await?;
        Ok(Arc::new(EnsuredPages { input, arena: Arc::clone(&self.arena), copies: self.copies }))
    }
}

/// The step of a plan that asks for the pages of each batch.
#[derive(Debug)]
struct EnsuredPages {
    input: Arc<dyn ExecutionPlan>,
    arena: Arc<FarArena>,
    copies: bool,
}

/// Loads a batch, or copies it.
fn prepare(arena: &FarArena, copies: bool, batch: RecordBatch) -> Result<RecordBatch> {
    let failed = |error| DataFusionError::External(Box::new(error));
    if copies {
        let near = |column: &ArrayRef| arena.near_array(&column.to_data()).map(make_array);
        let columns = batch.columns().iter().map(near).collect::<std::result::Result<_, _>>();
        return Ok(RecordBatch::try_new(batch.schema(), columns.map_err(failed)?)?);
    }
    let columns: Vec<_> = batch.columns().iter().map(Array::to_data).collect();
    arena.ensure_arrays(&columns).map_err(failed)?;
    Ok(batch)
}

impl DisplayAs for EnsuredPages {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ensured")
    }
}

impl ExecutionPlan for EnsuredPages {
    fn name(&self) -> &str {
        "Ensured"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.swap_remove(0);
        Ok(Arc::new(Self { input, arena: Arc::clone(&self.arena), copies: self.copies }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let (arena, copies) = (Arc::clone(&self.arena), self.copies);
        let batches = self.input.execute(partition, context)?;
        let batches = batches.map(move |batch| prepare(&arena, copies, batch?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    // The order of joins depends on these.
    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }
}
