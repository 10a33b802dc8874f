//! Finishes a commit after a WRITE of unknown outcome: reset, read the pages, write what is
//! missing.
//!
//! After the reset, nothing that this client has posted to that server can still land. Each page is
//! then in one of three states:
//!
//! - Still locked by this client: no other client has touched it.
//! - Unlocked by this client in the new version, but torn: no other client could lock it (W2). This
//!   client locks it again before it writes the rest, because other clients could take the page the
//!   moment the last word lands.
//! - Written, and possibly changed by other clients since.

use super::commit::PageRewrite;
use super::pages::{READ_RETRIES, SETTLES};
use super::{Backoff, PageClient, RemoteError};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::Layout;
use farleaf_page::rules;
use std::collections::BTreeSet;

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Finishes a commit, with retries (W3).
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if a memory server is unreachable.
    pub(super) async fn settle(
        &self,
        slot: GlobalAddr,
        rewrites: &[PageRewrite<L>],
    ) -> Result<(), RemoteError> {
        self.until_settled(async || self.finish(slot, rewrites).await).await
    }

    /// Repeats an attempt to settle a change of unknown outcome until it succeeds, within bounds.
    /// An attempt begins with a reset, which ends the operations of this client's other tasks too.
    /// These then settle theirs: without pauses of different lengths, they would do so for ever.
    ///
    /// # Errors
    /// That of the last attempt.
    pub async fn until_settled(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let mut backoff = Backoff::default();
        let mut outcome = Err(RemoteError::Contended { retries: READ_RETRIES });
        for _ in 0..SETTLES {
            self.fabric().counters().count_retry();
            outcome = attempt().await;
            if outcome.is_ok() {
                break;
            }
            backoff.count();
            backoff.wait(self.fabric()).await;
        }
        outcome
    }

    /// One attempt to finish a commit with its entry in `slot`.
    pub(super) async fn finish(
        &self,
        slot: GlobalAddr,
        rewrites: &[PageRewrite<L>],
    ) -> Result<(), RemoteError> {
        let servers: BTreeSet<ServerId> = rewrites.iter().map(|page| page.at.server()).collect();
        for server in servers {
            if !self.fabric().breaks(rules::SETTLED_AFTER_RESET) {
                self.fabric().reset(server).await?;
            }
        }
        // Rewriting the entry is safe: it only overwrites itself with the same words.
        self.post_entry(slot, rewrites).await?.done().await?;
        for page in rewrites {
            self.finish_page(page).await?;
        }
        Ok(())
    }

    async fn finish_page(&self, page: &PageRewrite<L>) -> Result<(), RemoteError> {
        let at = page.at;
        let target = page.after.page().lock_word();
        let relocked = target.locked_by(target.owner());
        let found = self.read_raw(at).await?;
        let word = found.word();
        if word == target && !found.is_complete() {
            // Torn and unlocked: lock it again in the new version before writing the rest.
            let swap = self.fabric().compare_swap(at, word.to_bits(), relocked.to_bits());
            if swap.await? != word.to_bits() {
                return Err(RemoteError::Contended { retries: 0 });
            }
        } else if word != page.held && word != relocked {
            return Ok(());
        }
        // The version does not change: no client has ever seen it complete.
        self.write_unlock(at, &page.after).await
    }
}
