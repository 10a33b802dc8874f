//! Recovers pages that a dead client left locked or half written.
//!
//! A client that is blocked by a page for a long time asks memory server 0 whether the page's owner
//! has been declared dead. If so, it fences the dead client's compute server at all memory servers,
//! so that nothing it has posted can still land. (It skips the fence if another client has already
//! done so, because the compute server may be running again.) Then it looks for the page in the
//! dead client's log. Let `t` be the version that an entry gives the page. The page belongs to the
//! entry if its word is
//!
//! - `locked, owner, t-1`: the lock is held, and some of the body may be written;
//! - `owner, t` and torn: the WRITE has stopped half-way;
//! - `locked, owner, t` and torn: another client was about to finish such a page.
//!
//! To recover a page of an entry, a client logs the same change in its own name, takes the page
//! over by a CAS on its word, and writes the page's content after the change. A locked page without
//! an entry is untouched (inv. R1): it is unlocked with its content before the change. The pages of
//! one entry are finished in order (inv. R3).
//!
//! A client settles its own doubts in the same way, with a reset in place of the fence.
//!
//! *Thread safety*: belongs to its endpoint's thread; any number of clients may recover the same
//! page.

use super::commit::{CommitState, PageRewrite};
use super::identity::REGISTRAR;
use super::pages::READ_RETRIES;
use super::pieces::pieces;
use super::redo::{Redo, RedoPage};
use super::{HalfWritten, MissCause, PageClient, RemoteError};
use crate::wire::{LOG_SLOTS, OwnerRequest, Refusal, Reply, Request, log_slot_bytes};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord};
use std::collections::BTreeMap;

/// How long a page must stay unchanged to show that no client is writing it, in nanoseconds.
const STABLE_NS: u64 = 100_000;

/// The client that left the pages: a dead one, or this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LostClient {
    owner: u16,
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Declares all clients dead that `compute_server` has registered so far. Call it only when
    /// they are certainly dead, because other clients will fence them.
    ///
    /// # Errors
    /// [`RemoteError`] if memory server 0 does not answer.
    pub async fn declare_dead(&self, compute_server: u16) -> Result<(), RemoteError> {
        self.tell_dead(compute_server, false).await
    }

    /// Like [`PageClient::declare_dead`], for clients that are already fenced at all memory
    /// servers. After this, the compute server may restart.
    pub async fn declare_fenced(&self, compute_server: u16) -> Result<(), RemoteError> {
        self.tell_dead(compute_server, true).await
    }

    async fn tell_dead(&self, compute_server: u16, fenced: bool) -> Result<(), RemoteError> {
        let request = Request::from(OwnerRequest::DeclareDead { compute_server, fenced });
        // Declaring them dead twice is harmless.
        self.rpc.expect_done_idempotent(REGISTRAR, &request).await
    }

    /// Handles a page that blocks an operation and has `word` in its word 0: recovers it if its
    /// owner is dead.
    #[cold]
    pub(super) async fn look_after(
        &self,
        at: GlobalAddr,
        word: LockWord,
    ) -> Result<(), RemoteError> {
        if self.look_after_one(at, word).await? {
            return Ok(());
        }
        // The page may depend on another page of its entry, which a second client took over before
        // it died too. Retries always find this page first, so recover the other one here.
        match self.suspect.take() {
            Some(other) if other != (at, word) => {
                self.look_after_one(other.0, other.1).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Like [`PageClient::look_after`], for one page only. Returns whether nothing is left to do.
    async fn look_after_one(&self, at: GlobalAddr, word: LockWord) -> Result<bool, RemoteError> {
        let owner = word.owner();
        if owner == 0 || self.identity.owner() == Some(owner) {
            return Ok(true); // this client's own doubts are settled before every retry
        }
        let state =
            match self.rpc.ask_idempotent(REGISTRAR, &OwnerRequest::OwnerState { owner }).await {
                Ok(Reply::Owner { dead, compute_server, fenced, .. }) => {
                    let dead = dead || self.fabric().breaks(rules::DEAD_IF_DECLARED);
                    dead.then_some((compute_server, fenced))
                }
                Ok(_) => return Err(RemoteError::BadReply { server: REGISTRAR }),
                // Without an answer, assume that the owner is alive.
                Err(RemoteError::Indeterminate(_) | RemoteError::Refused { .. }) => None,
                Err(error) => return Err(error),
            };
        let Some((compute_server, fenced)) = state else { return Ok(true) };
        // Fence before reading the log: a late WRITE of the dead client could change it afterwards.
        if !fenced && !self.fabric().breaks(rules::RECOVERY_FENCES) {
            for server in self.rpc.servers() {
                let fence = async || Ok(self.fabric().fence(server, compute_server).await?);
                self.retrying(fence).await?;
            }
        }
        match self.recover(LostClient { owner }, at).await {
            Ok(()) => Ok(true),
            Err(MissCause::Restart) => Ok(false),
            Err(MissCause::Failed(error)) => Err(error),
        }
    }

    /// Settles a doubt of this client about a page.
    pub(super) async fn recover_own(&self, at: GlobalAddr) -> Result<(), MissCause> {
        let Some(owner) = self.identity.owner() else { return Ok(()) };
        for server in self.rpc.servers() {
            self.retrying(async || Ok(self.fabric().reset(server).await?)).await?;
        }
        self.recover(LostClient { owner }, at).await
    }

    async fn retrying<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let mut outcome = attempt().await;
        for _ in 0..READ_RETRIES {
            if !matches!(outcome, Err(RemoteError::Indeterminate(_))) {
                break;
            }
            self.fabric().counters().count_retry();
            outcome = attempt().await;
        }
        outcome
    }

    async fn recover(&self, gone: LostClient, at: GlobalAddr) -> Result<(), MissCause> {
        let found = match &self.leaf_hook {
            Some(hook) => match hook.protocol.recover(self, gone.owner, at).await? {
                Some(found) => found,
                None => return Ok(()),
            },
            None => self.read_raw(at).await?,
        };
        let word = found.word();
        let is_complete = found.is_complete();
        if word.owner() != gone.owner || (!word.is_locked() && is_complete) {
            return Ok(());
        }
        let entries = self.log_entries(gone.owner).await?;
        // A leaf's locked new version has landed whole: only one of its entries may be torn.
        let by_entries = L::BY_ENTRIES && found.page().level() == 0 && word.is_locked();
        let lacks_none = is_complete || by_entries && found.page().has_whole_header();
        let about = |version: u64| {
            let is_it = move |page: &RedoPage| {
                page.at == at
                    && page.version == version
                    && self.belongs(word, gone, page, is_complete)
            };
            entries.iter().find(move |entry| entry.pages.iter().any(is_it))
        };
        // Look for the next version first. The owner may have locked the page again for a change of
        // several pages, with its entry on another server, while the entry of its previous change
        // is still in its slot.
        if let Some(entry) = about(word.version() + 1) {
            for page in &entry.pages {
                if page.at == at || !self.fabric().breaks(rules::WHOLE_ENTRIES_FINISHED) {
                    self.finish_for(gone, page).await?;
                }
            }
            return Ok(());
        }
        // Finish this page only. Pages before it in the entry were written earlier; pages after it
        // may be in the middle of another entry's change.
        if !lacks_none && let Some(entry) = about(word.version()) {
            for page in entry.pages.iter().filter(|page| page.at == at) {
                self.finish_for(gone, page).await?;
            }
            return Ok(());
        }
        let is_own = self.identity.owner() == Some(gone.owner);
        if is_own && word.is_locked() && !is_complete {
            return Err(MissCause::Restart); // its entry has yet to be found
        }
        if word.is_locked() && is_complete && !self.fabric().breaks(rules::UNTOUCHED_UNLOCKED) {
            let free = word.unlocked_by(gone.owner);
            let swap = self.fabric().compare_swap(at, word.to_bits(), free.to_bits()).await;
            // If the outcome is unknown, the next attempt will find it out.
            swap.map_err(|_| MissCause::Restart)?;
        }
        Ok(())
    }

    /// The clients of a compute server that were declared dead, latest first.
    async fn dead_owners(&self, compute_server: u16) -> Result<Vec<u16>, RemoteError> {
        let request = Request::from(OwnerRequest::DeadOwners { compute_server });
        match self.rpc.ask_idempotent(REGISTRAR, &request).await? {
            Reply::Owners(owners) => Ok(owners),
            _ => Err(RemoteError::BadReply { server: REGISTRAR }),
        }
    }

    /// Finishes every logged change of locked pages by clients of a dead compute server. The next
    /// life of the compute server does so before it touches the nodes below: finishing these
    /// changes later would undo newer ones.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer.
    pub async fn finish_all(&self, compute_server: u16) -> Result<(), RemoteError> {
        for owner in self.dead_owners(compute_server).await? {
            for page in self.log_entries(owner).await?.iter().flat_map(|entry| &entry.pages) {
                let word = self.fresh_word(page.at).await?;
                if !word.is_locked() || word.owner() != owner {
                    continue; // finished already; the page may have been reused
                }
                // Other clients may be recovering the page as well.
                self.attempts(async || self.recover(LostClient { owner }, page.at).await).await?;
            }
        }
        Ok(())
    }

    /// Pages that a dead compute server left half written without holding their locks
    /// ([`PageClient::post_logged`], [`PageClient::post_leaf_logged`]), each with its intended
    /// content, upper levels first. They can include unreachable pages. The compute server must be
    /// fenced at all memory servers.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not answer.
    pub async fn half_written(
        &self,
        compute_server: u16,
    ) -> Result<Vec<HalfWritten<L>>, RemoteError> {
        // After failed WRITEs, a node has entries of several versions; the latest one counts. The
        // entry that counts for a leaf is the one whose mark the leaf has.
        let mut last = BTreeMap::<(GlobalAddr, Option<u64>), RedoPage>::new();
        for owner in self.dead_owners(compute_server).await? {
            for redo in self.log_entries(owner).await? {
                let sum = redo.sum();
                for page in redo.pages {
                    let place = (page.at, page.is_of_leaf().then_some(sum));
                    if last.get(&place).is_none_or(|other| other.version < page.version) {
                        last.insert(place, page);
                    }
                }
            }
        }
        let mut pages = Vec::new();
        for ((at, mark), redo) in last {
            let found = self.read_raw(at).await?;
            let (page, word) = (found.page(), found.word());
            let is_whole = match mark {
                Some(mark) => {
                    page.stamp() != mark || self.fabric().breaks(rules::MARKED_LEAVES_COMPLETED)
                }
                None => {
                    let is_newer = word.version() > redo.version;
                    word.is_locked() || page.is_of_one_piece() || page.level() == 0 || is_newer
                }
            };
            if is_whole {
                continue;
            }
            // A page that another client is writing at this moment looks the same.
            self.fabric().sleep(STABLE_NS).await;
            let again = self.read_raw(at).await?;
            let same = |word: usize| again.buffer.get(word) == found.buffer.get(word);
            if (0..L::page_words()).all(same) {
                let image = if mark.is_some() { redo.leaf(page) } else { redo.apply(page) };
                pages.extend(image.map(|image| HalfWritten { at, image, mark }));
            }
        }
        pages.sort_by_key(|page| std::cmp::Reverse(page.image.page().level()));
        Ok(pages)
    }

    /// Reads `words` words at `at`, piece by piece. No client may be writing them.
    async fn read_pieces(&self, at: GlobalAddr, words: usize) -> Result<Vec<u64>, RemoteError> {
        let mut found = Vec::with_capacity(words);
        for piece in pieces(words) {
            let place = at.plus(piece.start as u64 * 8);
            let buffer = self.read_words(place, piece.len() * 8).await?;
            found.extend((0..piece.len()).map(|index| buffer.get(index)));
        }
        Ok(found)
    }

    /// The complete entry in the slot at `at`, if there is one. No client may be writing it.
    pub(super) async fn entry_in(&self, at: GlobalAddr) -> Result<Option<Redo>, RemoteError> {
        let slot = self.read_pieces(at, log_slot_bytes::<L>() as usize / 8).await?;
        Ok(Redo::decode(&slot))
    }

    /// All complete entries in a client's log, on all memory servers.
    async fn log_entries(&self, owner: u16) -> Result<Vec<Redo>, RemoteError> {
        let mut entries = Vec::new();
        for server in self.rpc.servers() {
            let at = match self.log_of(owner, server, false).await {
                Ok(at) => at,
                Err(RemoteError::Refused { refusal: Refusal::NoSuchOwner, .. }) => continue,
                Err(error) => return Err(error),
            };
            for slot in 0..LOG_SLOTS {
                let entry = self.entry_in(at.plus(slot * log_slot_bytes::<L>())).await?;
                entries.extend(entry.filter(|entry| entry.owner == owner));
            }
        }
        Ok(entries)
    }

    /// Finishes one page of a dead client's entry, unless it is finished already.
    async fn finish_for(&self, gone: LostClient, redo: &RedoPage) -> Result<(), MissCause> {
        let found = self.read_raw(redo.at).await?;
        let word = found.word();
        if !self.belongs(word, gone, redo, found.is_complete()) {
            // Another client has taken the page over and has not finished it yet. The pages after
            // it must wait for that.
            let under_way = word.version() < redo.version
                || (word.version() == redo.version && !found.is_complete());
            return if under_way && !self.fabric().breaks(rules::SURVIVORS_AWAITED) {
                self.suspect.set(Some((redo.at, word)));
                Err(MissCause::Restart)
            } else {
                Ok(())
            };
        }
        let Some(after) = redo.apply(found.page()) else { return Err(MissCause::Restart) };
        let owner = self.prepare_log(redo.at.server()).await?;
        let own_doubt = owner == gone.owner;
        // If a client settles its own doubt, it has already marked the page.
        let hold = match self.hold(redo.at) {
            Some(hold) => hold,
            None if own_doubt => self.hold_again(redo.at),
            None => return Err(MissCause::Restart),
        };
        let mut slot = self.slot(redo.at.server(), None).await?;
        let taken = word.locked_by(owner);
        after.page().drop_needless_lock();
        after.page().seal(LockWord::from_bits(redo.version).unlocked_by(owner));
        let entry = RedoPage::between(redo.at, found.page(), after.page());
        let words = Redo { owner, pages: vec![entry.clone()] }.words();
        // From here on, the entry stays in the slot for as long as the page is in doubt.
        slot.keep = true;
        let hold = self.doubt(hold);
        let logs = !self.fabric().breaks(rules::SURVIVORS_LOG);
        let log = async || {
            self.post_pieces(slot.at, &words).await?.done().await.map_err(RemoteError::from)
        };
        if logs && log().await.is_err() {
            // Nothing has changed yet. The reset keeps a late WRITE from overwriting another entry
            // in this slot.
            self.fabric().reset(redo.at.server()).await?;
            slot.keep = false;
            drop(self.certain(hold));
            return Err(MissCause::Restart);
        }
        let locked = if taken == word {
            self.already_locked(hold, redo.at, word)
        } else {
            let locked = self.swap_lock(hold, redo.at, word, taken).await;
            // If another client holds the lock, nothing has changed.
            slot.keep = !matches!(locked, Err(MissCause::Restart));
            locked?
        };
        let rewrite = PageRewrite { at: redo.at, held: taken, after, redo: entry };
        // The entry has been written above.
        let written = self.write_unlock(redo.at, &rewrite.after).await;
        match self.finish_commit(written, slot, vec![locked], vec![rewrite]).await {
            CommitState::Now => Ok(()),
            CommitState::Later(error) => Err(error.into()),
        }
    }

    /// Whether a page with this word is an unfinished page of the entry.
    fn belongs(
        &self,
        word: LockWord,
        gone: LostClient,
        redo: &RedoPage,
        is_complete: bool,
    ) -> bool {
        let breaks = |rule| self.fabric().breaks(rule);
        let held = word.version() + 1 == redo.version && !breaks(rules::HELD_PAGES_FINISHED);
        let again = word.version() == redo.version && !breaks(rules::RELOCKED_PAGES_FINISHED);
        let half = word.version() == redo.version && !breaks(rules::HALF_PAGES_FINISHED);
        word.owner() == gone.owner
            && match word.is_locked() {
                true => held || again,
                false => half && !is_complete,
            }
    }
}
