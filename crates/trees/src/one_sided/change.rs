//! Lookups, and changes of single records.

use super::{LeafLocator, TreeKey, TreeValue, tidy};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_page::{DescentProbe, EditAction, EditAnswer, LeafEdit, OwnedValue};
use farleaf_pool::remote::{MissCause, RemoteError, TimedPointer};
use std::borrow::Borrow;

/// The values of many keys, fetched one window at a time, because other operations of the endpoint
/// also need buffers.
pub async fn get_all<I: LeafLocator>(
    index: &I,
    keys: &[impl Borrow<TreeKey<I>>],
) -> Result<Vec<Option<OwnedValue<I::Layout>>>, IndexError> {
    let pages = index.pages();
    let mut values = Vec::with_capacity(keys.len());
    for window in keys.chunks((pages.fabric().depth() / 2).max(1)) {
        let found = index.get_together(window).await?;
        for (key, value) in window.iter().zip(found) {
            values.push(match value {
                Some(value) => value,
                // The lookup met a concurrent change: repeat it alone.
                None => pages.attempts(async || index.get_one(key.borrow()).await).await?,
            });
        }
    }
    Ok(values)
}

/// Applies `edit` to the leaf of its key, or splits the leaf if a new record does not fit.
pub(crate) async fn change<I: LeafLocator>(
    index: &I,
    edit: LeafEdit<&TreeKey<I>, &TreeValue<I>>,
) -> Result<EditAnswer<OwnedValue<I::Layout>>, IndexError> {
    let pages = index.pages();
    pages.settle_doubts().await;
    let (mut spare, mut leaf, mut is_emptied) = (Vec::new(), None, false);
    let attempt = async || try_change(index, edit, &mut leaf, &mut spare, &mut is_emptied).await;
    let outcome = pages.attempts(attempt).await;
    spare.into_iter().for_each(|node| pages.give_back_unseen(node));
    if is_emptied && outcome.is_ok() {
        Box::pin(tidy(index, edit.key)).await;
    }
    Ok(outcome?)
}

async fn try_change<I: LeafLocator>(
    index: &I,
    edit: LeafEdit<&TreeKey<I>, &TreeValue<I>>,
    leaf: &mut Option<TimedPointer>,
    spare: &mut Vec<GlobalAddr>,
    is_emptied: &mut bool,
) -> Result<EditAnswer<OwnedValue<I::Layout>>, MissCause> {
    // After losing against a concurrent change, continue from the leaf found earlier.
    let copy = match leaf.take() {
        Some(pointer) => index.find_from(pointer, DescentProbe::At(edit.key)).await?,
        None => index.find(DescentProbe::At(edit.key)).await?,
    };
    *leaf = Some(copy.itself());
    if let Some(answer) = index.pages().edit(&copy, edit).await? {
        let is_removal = matches!(edit.action, EditAction::Remove) && answer.applied;
        *is_emptied = is_removal && copy.page().live_count() == 1;
        return Ok(answer);
    }
    let Some(entry) = edit.new_record() else {
        return Err(RemoteError::BadReply { server: copy.at().server() }.into());
    };
    let answer = edit.answer_after_split(copy.page());
    index.split_and_add(&copy, &entry, spare).await?;
    Ok(answer)
}
