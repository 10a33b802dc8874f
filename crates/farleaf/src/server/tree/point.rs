//! Operations on single keys.

use super::descend::restarting;
use super::split::Entry;
use super::{Fail, Tree};
use crate::page::{Layout, LeafInsert, Page, Probe};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, Work};

/// What a put does with a key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// Leaves it as it is.
    Keep,
    /// Replaces its value.
    Replace,
}

impl<L: Layout> Tree<L> {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`Refusal`] if there is no tree, or the operation lost too often against others.
    #[inline]
    pub async fn get<C: Cpu>(&self, cpu: &C, key: &L::Key) -> Result<Option<L::Value>, Refusal> {
        let _epoch = self.epochs.enter(cpu.stripe());
        restarting!(self, cpu, self.try_get(cpu, key))
    }

    #[inline]
    async fn try_get<C: Cpu>(&self, cpu: &C, key: &L::Key) -> Result<Option<L::Value>, Fail> {
        let leaf = self.descend(cpu, Probe::At(key), 0).await?;
        let value = L::leaf_get(leaf.page, key);
        self.validate(cpu, &leaf)?;
        Ok(value)
    }

    /// Adds `key`; `false` if it is there.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub async fn insert<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
        value: &L::Value,
    ) -> Result<bool, Refusal> {
        self.put(cpu, key, value, Existing::Keep).await
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub async fn upsert<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
        value: &L::Value,
    ) -> Result<(), Refusal> {
        self.put(cpu, key, value, Existing::Replace).await.map(|_| ())
    }

    async fn put<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
        value: &L::Value,
        existing: Existing,
    ) -> Result<bool, Refusal> {
        let _epoch = self.epochs.enter(cpu.stripe());
        restarting!(self, cpu, self.try_put(cpu, key, value, existing))
    }

    async fn try_put<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
        value: &L::Value,
        existing: Existing,
    ) -> Result<bool, Fail> {
        let leaf = self.descend(cpu, Probe::At(key), 0).await?;
        let guard = self.lock_found(&leaf)?;
        cpu.charge(Work::ChangeNode).await;
        if existing == Existing::Replace && L::leaf_replace(leaf.page, key, value) {
            return Ok(true);
        }
        let deleted = leaf.page.deleted_count();
        let outcome = L::leaf_insert(leaf.page, key, value);
        self.count_deleted(deleted, leaf.page.deleted_count());
        match outcome {
            LeafInsert::Inserted => Ok(true),
            LeafInsert::Exists => Ok(false),
            LeafInsert::Full => {
                let entry = Entry::Record(key.clone(), value.clone());
                self.split_and_add(cpu, leaf, guard, entry).await?;
                Ok(true)
            }
        }
    }

    /// Changes the value of `key`; `false` if it is absent.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub async fn update<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
        value: &L::Value,
    ) -> Result<bool, Refusal> {
        self.change(cpu, key, |leaf| L::leaf_replace(leaf, key, value)).await
    }

    /// Marks `key` as deleted; `false` if it is absent.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub async fn remove<C: Cpu>(&self, cpu: &C, key: &L::Key) -> Result<bool, Refusal> {
        let removed = self.change(cpu, key, |leaf| L::leaf_delete(leaf, key)).await?;
        if removed {
            self.count_deleted(0, 1);
            self.collector.owe(1);
        }
        Ok(removed)
    }

    /// Sets the value of `key` to `new` if it is `expected`, and returns what it was.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub async fn compare_exchange<C: Cpu>(
        &self,
        cpu: &C,
        key: &L::Key,
        expected: &L::Value,
        new: &L::Value,
    ) -> Result<Option<L::Value>, Refusal> {
        self.change(cpu, key, |leaf| {
            let found = L::leaf_get(leaf, key);
            if found.as_ref() == Some(expected) {
                L::leaf_replace(leaf, key, new);
            }
            found
        })
        .await
    }

    /// Applies `change` to the locked leaf that covers `key`.
    async fn change<C: Cpu, T>(
        &self,
        cpu: &C,
        key: &L::Key,
        change: impl Fn(Page<'_, L>) -> T,
    ) -> Result<T, Refusal> {
        let _epoch = self.epochs.enter(cpu.stripe());
        restarting!(self, cpu, self.try_change(cpu, key, &change))
    }

    async fn try_change<C: Cpu, T>(
        &self,
        cpu: &C,
        key: &L::Key,
        change: &impl Fn(Page<'_, L>) -> T,
    ) -> Result<T, Fail> {
        let leaf = self.descend(cpu, Probe::At(key), 0).await?;
        let _guard = self.lock_found(&leaf)?;
        cpu.charge(Work::ChangeNode).await;
        Ok(change(leaf.page))
    }
}
