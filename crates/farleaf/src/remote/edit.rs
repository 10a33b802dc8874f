//! The change of one page: made on a private image, locked, written.

use super::{Change, Image, Miss, PageClient, PageCopy};
use crate::page::{Answer, Layout, LeafEdit, LeafOutcome};
use farleaf_fabric::{Fabric, Work};

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Does `edit` to the leaf that `copy` is of, if it is still as in the copy: one CAS and three
    /// WRITEs, or nothing at all if the edit changes nothing. `None`: there is no room for it.
    ///
    /// # Errors
    /// As [`PageClient::replace`].
    pub async fn edit(
        &self,
        copy: &PageCopy<L>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Option<Answer<L::Value>>, Miss> {
        let image = Image::of(copy.page());
        match edit.apply(image.page()) {
            LeafOutcome::Nothing(answer) => Ok(Some(answer)),
            LeafOutcome::Changed { answer, .. } => {
                self.replace(copy, image).await?;
                Ok(Some(answer))
            }
            LeafOutcome::Full => Ok(None),
        }
    }

    /// Makes `image` the content of the page that `copy` is of, if it is still as in the copy: one
    /// CAS and three WRITEs.
    ///
    /// # Errors
    /// [`Miss::Restart`] if the page has changed since, or is locked; nothing has changed then.
    pub async fn replace(&self, copy: &PageCopy<L>, image: Image<L>) -> Result<(), Miss> {
        let locked = self.lock(copy).await?;
        self.fabric().charge(Work::ChangeNode).await;
        Ok(self.commit(Change::new(locked, copy, image)).await?)
    }
}
