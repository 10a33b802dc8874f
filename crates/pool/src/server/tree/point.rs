//! Operations on single keys.

use super::descend::{FoundNode, restarting};
use super::{ServerTree, TreeFailure};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, Work};
use farleaf_page::{
    DescentProbe, EditAction, EditAnswer, Layout, LeafEdit, LeafOutcome, OwnedValue, Page,
};

impl<L: Layout> ServerTree<L> {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`Refusal`] if there is no tree, or if the operation lost too often to concurrent ones.
    #[inline]
    pub async fn get<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
    ) -> Result<Option<OwnedValue<L>>, Refusal> {
        let _epoch = self.epochs.enter(cpu.stripe());
        restarting!(self, cpu, self.try_get(cpu, key))
    }

    #[inline]
    async fn try_get<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
    ) -> Result<Option<OwnedValue<L>>, TreeFailure> {
        let leaf = self.descend(cpu, DescentProbe::At(key), 0).await?;
        self.get_at(cpu, &leaf, key)
    }

    #[inline]
    fn get_at<C: Cpu>(
        &self,
        cpu: &C,
        leaf: &FoundNode<'_, L>,
        key: &L::Key,
    ) -> Result<Option<OwnedValue<L>>, TreeFailure> {
        let value = L::leaf_get(leaf.page, key);
        self.validate(cpu, leaf)?;
        Ok(value)
    }

    /// Applies any single-key operation.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed in that case.
    #[inline]
    pub async fn execute<C: Cpu>(
        &self,
        cpu: &C,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, Refusal> {
        if !edit.changes() {
            return self.get(cpu, edit.key).await.map(EditAnswer::from_lookup);
        }
        let _epoch = self.epochs.enter(cpu.stripe());
        restarting!(self, cpu, self.try_execute(cpu, edit))
    }

    async fn try_execute<C: Cpu>(
        &self,
        cpu: &C,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, TreeFailure> {
        let leaf = self.descend(cpu, DescentProbe::At(edit.key), 0).await?;
        self.change_at(cpu, leaf, edit).await
    }

    /// Executes an operation at its leaf.
    #[inline]
    pub(super) async fn execute_at<C: Cpu>(
        &self,
        cpu: &C,
        leaf: FoundNode<'_, L>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, TreeFailure> {
        match edit.changes() {
            true => self.change_at(cpu, leaf, edit).await,
            false => self.get_at(cpu, &leaf, edit.key).map(EditAnswer::from_lookup),
        }
    }

    async fn change_at<C: Cpu>(
        &self,
        cpu: &C,
        leaf: FoundNode<'_, L>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, TreeFailure> {
        let guard = self.lock_found(&leaf)?;
        cpu.charge(Work::ChangeNode).await;
        // No outcome lives across a further await: the state would keep it, and copy it once more.
        let answer = match self.apply(leaf.page, edit) {
            LeafOutcome::Nothing(answer) => return Ok(answer),
            LeafOutcome::Changed { answer, .. } => {
                if matches!(edit.action, EditAction::Remove) {
                    self.collector.owe(1);
                }
                return Ok(answer);
            }
            LeafOutcome::Full => edit.answer_after_split(leaf.page),
        };
        let record = edit.new_record().ok_or(Refusal::Damaged)?;
        self.split_and_add(cpu, leaf, guard, record).await?;
        Ok(answer)
    }

    /// Applies an operation to the page of a locked leaf.
    #[inline]
    fn apply(
        &self,
        page: Page<'_, L>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> LeafOutcome<EditAnswer<OwnedValue<L>>> {
        let deleted = page.deleted_count();
        let outcome = edit.apply(page);
        self.count_deleted(deleted, page.deleted_count());
        outcome
    }
}
