//! Merges on the memory server that has the tables, and the choice of the side.
//!
//! A memory server merges only tables that lie on it alone. If one does not, or the server refuses
//! the job, or its outcome is unknown, the compute side merges.
//!
//! *Thread safety*: that of the handle. One handle at a time merges.

use super::handle::DlsmIndex;
use super::place::MergePlace;
use super::shard::Merging;
use super::version::{Table, TreeVersion};
use crate::index::IndexError;
use crate::page::Layout;
use crate::remote::{JobId, Lease, NearMerge, RemoteError};
use crate::table::{ExtentRun, FOOTER_WORDS, Index, JobTable, MergeJob, Meta};
use farleaf_fabric::sync::{Arc, lock};
use farleaf_fabric::{Fabric, GlobalAddr, MAX_MESSAGE_BYTES, ServerId};

/// A job that needs more than one step for this many words of input is given up: a server that
/// never finishes must not keep the right to merge.
const LEAST_STEP_WORDS: u64 = 1 << 10;
/// Steps that a job may need for each output beside.
const OUTPUT_STEPS: u64 = 16;

/// The job for a merge, and how much room its outputs need.
struct Plan {
    server: ServerId,
    job: MergeJob,
    extents: usize,
    /// More steps than the job can need.
    most_steps: u64,
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    /// Merges tables of `version` into `level`, on the side that the options choose.
    pub(super) async fn merge_somewhere(
        &self,
        merging: &Merging,
        version: &TreeVersion,
        sources: Vec<Vec<Arc<Table>>>,
        level: usize,
    ) -> Result<(), IndexError> {
        let place = self.shard.options.merges;
        let wants_near = match place {
            MergePlace::Compute => false,
            MergePlace::Memory => true,
            MergePlace::ByCost => lock(&self.shard.merge_costs).decide(),
        };
        let words: u64 = sources.iter().flatten().map(|table| table.bytes() / 8).sum();
        let began_ns = self.fabric().now_ns();
        let is_near = wants_near && self.merge_near(merging, version, &sources, level).await;
        if !is_near {
            self.merge(merging, version, sources, level).await?;
        }
        if place == MergePlace::ByCost {
            let took_ns = self.fabric().now_ns().saturating_sub(began_ns);
            let ns_per_word = took_ns as f64 / words.max(1) as f64;
            // A merge that the memory server could not make has cost what the attempt cost, too.
            lock(&self.shard.merge_costs).note(wants_near, ns_per_word);
        }
        Ok(())
    }

    /// Merges on the memory server of the tables. Returns false if the compute side must do it.
    async fn merge_near(
        &self,
        merging: &Merging,
        version: &TreeVersion,
        sources: &[Vec<Arc<Table>>],
        level: usize,
    ) -> bool {
        let Some(mut plan) = self.plan(version, sources, level) else { return false };
        // Beside the words the request has a tag, the process and the job's number.
        let words = plan.job.encode().len() + plan.extents;
        if words * 8 + 64 > MAX_MESSAGE_BYTES {
            return false;
        }
        let Ok(lease) = self.extents.lease(plan.server, plan.extents).await else {
            return false;
        };
        plan.job.extents = lease.places().iter().map(|place| place.offset()).collect();
        let words = plan.job.encode();
        // Whatever has failed, the compute side can merge. It finds a damaged table again.
        let Ok(outputs) = self.run_job(&plan, lease, words).await else { return false };
        self.shard.count_near_merge();
        merging.merged(&sources.concat(), level, outputs);
        true
    }

    /// What the memory server is asked to do. `None` if the tables are on several servers.
    fn plan(
        &self,
        version: &TreeVersion,
        sources: &[Vec<Arc<Table>>],
        level: usize,
    ) -> Option<Plan> {
        let shard = &self.shard;
        let server = sources.iter().flatten().next()?.lease.place().server();
        let job_table = |table: &Arc<Table>| {
            let is_there = |place: &GlobalAddr| place.server() == server;
            let words = u64::from(table.meta.footer.table_words());
            let pieces = table.lease.pieces(0, words, u64::MAX);
            table.lease.places().iter().all(is_there).then(|| JobTable {
                id: table.id(),
                data_words: table.meta.footer.data_words,
                pieces: pieces.iter().map(|(at, words)| (at.offset(), *words)).collect(),
            })
        };
        let of_source = |tables: &Vec<Arc<Table>>| tables.iter().map(job_table).collect();
        let sources = sources.iter().map(of_source).collect::<Option<Vec<Vec<JobTable>>>>()?;
        let tables = sources.iter().flatten();
        let all_words =
            tables.clone().map(|table| table.pieces.iter().map(|piece| piece.1).sum::<u64>());
        let all_words: u64 = all_words.sum();
        let data_words: u64 = tables.map(|table| u64::from(table.data_words)).sum();
        let table_words = u32::try_from(shard.options.table_bytes / 8).unwrap_or(u32::MAX);
        let outputs = u32::try_from(data_words / u64::from(table_words.max(1)) + 1).ok()?;
        let extent_words = u32::try_from(shard.space.extent_bytes() / 8).ok()?;
        // Indexes of other groups may be somewhat larger, and each output begins an extent.
        let room = all_words + all_words / 8 + 64 * u64::from(outputs);
        let extents = room.div_ceil(extent_words.into()) + u64::from(outputs);
        let below = version.levels[level + 1..].iter().flatten();
        Some(Plan {
            server,
            extents: extents as usize,
            // A step takes in 2^15 words or goes on with 2^14 keys of an output's index.
            most_steps: data_words / LEAST_STEP_WORDS + u64::from(outputs) * OUTPUT_STEPS + 64,
            job: MergeJob {
                sources,
                // Later snapshots are newer than all inputs (J5).
                snapshots: self.snapshot_bounds(),
                below: self.ranges_below(below),
                table_words,
                index: shard.options.index,
                level: level as u8,
                first_output: shard.table_ids(u64::from(outputs)),
                outputs,
                extent_words,
                extents: Vec::new(),
            },
        })
    }

    /// Runs a job to its end. Returns its outputs.
    async fn run_job(
        &self,
        plan: &Plan,
        lease: Lease,
        words: Vec<u64>,
    ) -> Result<Vec<Table>, RemoteError> {
        let server = plan.server;
        let (owner, job) = self.shard.next_job();
        let mut merge =
            NearMerge::begin(&self.extents, JobId { server, owner, job }, lease, words).await?;
        let mut metas = Vec::new();
        let mut steps = 0;
        loop {
            steps += 1;
            if steps > plan.most_steps || metas.len() > plan.job.outputs as usize {
                return Err(bad_reply(server));
            }
            let (done, outputs) = merge.step().await?;
            self.shard.step();
            let mut rest = &outputs[..];
            while !rest.is_empty() {
                metas.push(Meta::decode(&mut rest).map_err(|_| bad_reply(server))?);
            }
            if done {
                break;
            }
        }
        let mut lease = merge.close().await?;
        let mut tables = Vec::new();
        for mut meta in metas {
            let extents = meta.extents.iter().map(|run| run.count as usize).sum();
            let own = lease.split_off_first(extents).ok_or(bad_reply(server))?;
            let run = |(first, count)| ExtentRun { first, count };
            meta.extents = own.runs().into_iter().map(run).collect();
            let footer = &meta.footer;
            let words = footer.data_words..footer.table_words();
            if u64::from(words.end) * 8 > own.bytes() || words.len() < FOOTER_WORDS {
                return Err(bad_reply(server));
            }
            let sections = self.extents.read(&own, words.start, words.end - words.start).await?;
            let index = Index::open(sections, footer.table).map_err(|_| bad_reply(server))?;
            if index.footer() != footer {
                return Err(bad_reply(server));
            }
            tables.push(Table { meta, index: Arc::new(index), lease: Arc::new(own) });
        }
        Ok(tables)
    }
}

fn bad_reply(server: ServerId) -> RemoteError {
    RemoteError::BadReply { server }
}
