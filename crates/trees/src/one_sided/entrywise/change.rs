//! Changes under a leaf's entry lock: lock, READ, WRITE of one entry with the unlock.

use super::EntryTree;
use crate::entry_lock::{EntryHold, EntryWords};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, EditAnswer, Layout, LeafEdit, LeafOutcome, OwnedValue, WalkStep, step,
};
use farleaf_pool::remote::{MissCause, PageCopy, PageImage, RemoteError, TimedPointer};
use smallvec::SmallVec;

/// Maximum number of siblings that one change follows. A longer chain would mean that clients do
/// not install separators.
const MAX_STEPS: usize = 1_000;

/// What a change does at a leaf.
enum LeafTurn<T> {
    Done(T),
    /// The key is in a leaf further to the right.
    Right(GlobalAddr),
    /// The leaf is another compute server's (entrywise.O1).
    Of(usize),
}

type EntryEdit<'e, L> = LeafEdit<&'e <L as Layout>::Key, &'e <L as Layout>::Value>;

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    pub(super) async fn change_entry(
        &self,
        edit: EntryEdit<'_, L>,
    ) -> Result<EditAnswer<OwnedValue<L>>, IndexError> {
        let pages = &self.tree.pages;
        pages.settle_doubts().await;
        let mut spare = Vec::new();
        let outcome = pages.attempts(async || self.try_change(edit, &mut spare).await).await;
        spare.into_iter().for_each(|node| pages.give_back_unseen(node));
        Ok(outcome?)
    }

    async fn try_change(
        &self,
        edit: EntryEdit<'_, L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<EditAnswer<OwnedValue<L>>, MissCause> {
        let mut at = self.leaf_of(DescentProbe::At(edit.key)).await?;
        if at == self.tree.root() && !self.tree.knows_root() {
            // Entries are locked before the READ, and an inner root has none. Clients that lock it
            // all the same would keep each other busy.
            self.read(at).await?;
            at = self.leaf_of(DescentProbe::At(edit.key)).await?;
        }
        let mut owner = self.sides.owner_of(DescentProbe::At(edit.key));
        for _ in 0..MAX_STEPS {
            match self.change_at(at, owner, edit, spare).await? {
                LeafTurn::Done(answer) => return Ok(answer),
                LeafTurn::Right(to) => at = to,
                LeafTurn::Of(other) => owner = other,
            }
        }
        Err(MissCause::Restart)
    }

    /// Changes the leaf at `at`, if that is the one of the key and `owner` is its owner.
    async fn change_at(
        &self,
        at: GlobalAddr,
        owner: usize,
        edit: EntryEdit<'_, L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<LeafTurn<EditAnswer<OwnedValue<L>>>, MissCause> {
        let (pages, entries) = (&self.tree.pages, self.entries());
        let earlier = match pages.fabric().breaks(rules::READ_UNDER_LOCK) {
            true => Some(self.read(at).await?),
            false => None,
        };
        let mut hold = match entries.hold_entries_by(self.sides.locks(owner), at).await {
            Err(MissCause::Restart) if at == self.tree.root() => {
                // It may have become an inner page, whose lock others hold in vain.
                self.read(at).await?;
                return Err(MissCause::Restart);
            }
            hold => hold?,
        };
        if L::WINDOWS && at != self.tree.root() && earlier.is_none() {
            hold = match self.change_window(hold, at, edit).await? {
                Ok(answer) => return Ok(LeafTurn::Done(answer)),
                Err(hold) => hold,
            };
        }
        let copy = match earlier {
            Some(copy) => Ok(copy),
            None => self.read(at).await,
        };
        let copy = match copy {
            Ok(copy) => copy,
            Err(miss) => {
                entries.release_entries(hold).await;
                return Err(miss);
            }
        };
        // A whole page that is being written may still look like the old one.
        let next = match copy.word().is_locked() {
            true => WalkStep::Lost,
            false => step(copy.page(), DescentProbe::At(edit.key), 0),
        };
        if next != WalkStep::Here {
            entries.release_entries(hold).await;
            self.forget(DescentProbe::At(edit.key));
            return match next {
                WalkStep::Right(to) => Ok(LeafTurn::Right(to)),
                _ => Err(MissCause::Restart),
            };
        }
        let of_leaf = self.sides.owner_of(DescentProbe::At(L::key(&L::low(copy.page()))));
        if of_leaf != owner {
            entries.release_entries(hold).await;
            return Ok(LeafTurn::Of(of_leaf));
        }
        let image = PageImage::of(copy.page());
        match edit.apply(image.page()) {
            LeafOutcome::Nothing(answer) => {
                entries.release_entries(hold).await;
                Ok(LeafTurn::Done(answer))
            }
            LeafOutcome::Changed { answer, words, .. } => {
                pages.fabric().charge(Work::ChangeNode).await;
                if let Some(writes) = L::entry_writes(words.front()) {
                    entries.write_entries(hold, &image, &listed(writes)).await?;
                } else if pages.fabric().breaks(rules::MOVES_VERSIONED) {
                    entries.write_entries(hold, &image, &[words.front()]).await?;
                } else {
                    // Entries move only with the version of the page (hops.P2).
                    let rewritten = hold.rewriting(pages.replace(&copy, image)).await;
                    entries.end_entries(hold).await;
                    rewritten?;
                }
                Ok(LeafTurn::Done(answer))
            }
            LeafOutcome::Full => {
                let Some(entry) = edit.new_record() else {
                    entries.release_entries(hold).await;
                    return Err(RemoteError::BadReply { server: at.server() }.into());
                };
                let answer = edit.answer_after_split(copy.page());
                let split = async {
                    self.tree.provide_all(spare).await?;
                    self.tree.split_page(&copy, &entry, spare).await
                };
                let split = hold.rewriting(split).await;
                entries.end_entries(hold).await;
                self.tree.install_all(split?, spare).await;
                self.forget(DescentProbe::At(edit.key));
                Ok(LeafTurn::Done(answer))
            }
        }
    }

    /// READs a leaf whose address a parent has named, and whose lock this client need not have.
    pub(super) async fn read_unlocked(&self, at: GlobalAddr) -> Result<PageCopy<L>, MissCause> {
        if !self.by_versions || at == self.tree.root() {
            return self.read(at).await;
        }
        let copy = self.read_between_versions(at).await?;
        self.tree.pages.fabric().charge(Work::VisitNode).await;
        Ok(copy)
    }

    /// Changes the leaf at `at` by the window of its key. Returns the hold, with nothing changed,
    /// if that takes the whole leaf: the window is torn, it is not of the key's leaf, or has no
    /// room.
    ///
    /// A window does not show a lock on the whole page. A client without the entry lock can have
    /// that one in two cases. One is a root that becomes an inner page, and this leaf is no root
    /// (entries.E3). The other is a commit that got no log entry and could not unlock the page: it
    /// has written nothing, and settling the doubt only unlocks word 0, which no entry shares.
    async fn change_window<'a>(
        &'a self,
        hold: EntryHold<'a>,
        at: GlobalAddr,
        edit: EntryEdit<'_, L>,
    ) -> Result<Result<EditAnswer<OwnedValue<L>>, EntryHold<'a>>, MissCause> {
        let (pages, entries) = (&self.tree.pages, self.entries());
        let window = match self.read_window(at, edit.key).await {
            Ok(window) => self.covering(window, edit.key),
            Err(error) => {
                entries.release_entries(hold).await;
                return Err(error.into());
            }
        };
        pages.fabric().charge(Work::VisitNode).await;
        let Some(image) = window else { return Ok(Err(hold)) };
        match edit.apply(image.page()) {
            LeafOutcome::Nothing(answer) => {
                entries.release_entries(hold).await;
                Ok(Ok(answer))
            }
            LeafOutcome::Changed { answer, words, .. } => {
                let Some(writes) = L::entry_writes(words.front()) else { return Ok(Err(hold)) };
                pages.fabric().charge(Work::ChangeNode).await;
                entries.write_entries(hold, &image, &listed(writes)).await?;
                Ok(Ok(answer))
            }
            LeafOutcome::Full => Ok(Err(hold)),
        }
    }

    /// READs a leaf whose address a parent has named.
    pub(super) async fn read(&self, at: GlobalAddr) -> Result<PageCopy<L>, MissCause> {
        let copy = self.tree.pages.read(TimedPointer::fixed(at)).await?;
        self.tree.note_root(&copy);
        self.tree.pages.fabric().charge(Work::VisitNode).await;
        Ok(copy)
    }
}

fn listed((first, second): (EntryWords, Option<EntryWords>)) -> SmallVec<[EntryWords; 2]> {
    [first].into_iter().chain(second).collect()
}
