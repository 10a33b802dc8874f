//! What a dead life had in its write-ahead log comes back into the tables of its shards.
//!
//! The life has ended, so nobody has the shards. A server without a log opens them, writes what
//! counts as usual changes, flushes and leaves them; then the log ends (log.L7). Whoever dies on
//! the way has changed nothing that the log does not have: the next one does it all again.
//!
//! *Thread safety*: private to one task.

use super::options::DlsmServerOptions;
use super::part::PartTrees;
use super::pool::DlsmPool;
use super::server::DlsmServer;
use crate::handle::DlsmIndex;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::together::all;
use farleaf_index::{
    AcknowledgeName, EditAction, Encoded, IndexError, LeafEdit, OwnedRange, PartPool, PartState,
};
use farleaf_page::rules::LOG_ENDS_LAST;
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::{RemoteError, RpcClient, end_wal, recover_wal};

/// Records that are written together.
const RECORDS_AT_ONCE: usize = 64;

/// Brings what counts in the log of a dead life into tables, and ends the log.
///
/// # Errors
/// [`IndexError`]; it can be repeated.
pub(super) async fn recover<F: Fabric, L: Layout>(
    pool: &DlsmPool<F, L>,
    options: &DlsmServerOptions,
    compute_server: u16,
    range: &OwnedRange<OwnedKey<L>>,
) -> Result<(), IndexError> {
    let fabric = pool.fabric();
    let rpc = RpcClient::<F, L>::new(fabric.clone());
    let Some(found) = recover_wal(&rpc, compute_server).await? else { return Ok(()) };
    if fabric.breaks(LOG_ENDS_LAST) {
        end_wal(&rpc, compute_server).await?;
    }
    let is_owned =
        |key: &Vec<u8>| L::Key::decoded(key.clone()).is_some_and(|key| range.has(L::key(&key)));
    let records: Vec<_> = found.records.into_iter().filter(|(key, _)| is_owned(key)).collect();
    if !records.is_empty() {
        let mut options = options.clone();
        options.tree.acknowledge = AcknowledgeName::Cached;
        let longest = records.iter().filter_map(|(_, value)| Some(value.as_ref()?.len())).max();
        options.longest_value = options.longest_value.max(longest);
        let server = Arc::new(DlsmServer::new(&options, compute_server, range.clone())?);
        pool.tell(&server)?;
        let part = PartTrees::new(fabric.clone(), &server, None);
        part.look_for_splits(None).await?;
        for some in records.chunks(RECORDS_AT_ONCE) {
            for written in all(some.iter().map(|record| write(&part, record))).await {
                written?;
            }
        }
        part.on_all(DlsmIndex::flush_everything).await?;
        server.set_range(OwnedRange::empty(range.low.clone()));
        for shard in server.with_trees() {
            part.tree(shard)?.leave().await?;
        }
    }
    Ok(end_wal(&rpc, compute_server).await?)
}

async fn write<F: Fabric, L: Layout>(
    part: &PartTrees<F, L>,
    (key, value): &(Vec<u8>, Option<Vec<u8>>),
) -> Result<(), RemoteError> {
    let (_, (tree, _visit)) = part.enter_at(key).await?;
    let action = value.as_deref().map_or(EditAction::Remove, EditAction::Upsert);
    tree.change(LeafEdit { key, action }).await?;
    Ok(())
}
