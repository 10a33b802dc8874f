//! Changes of one page: edit a private image, lock the page, write it.

use super::{MissCause, PageChange, PageClient, PageCopy, PageImage};
use farleaf_fabric::{Fabric, Work};
use farleaf_page::{EditAnswer, Layout, LeafEdit, LeafOutcome, OwnedValue};

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Applies `edit` to the leaf that `copy` was read from, if the leaf still equals the copy: one
    /// CAS and three WRITEs, or nothing if the edit changes nothing. Returns `None` if the leaf has
    /// no room.
    ///
    /// # Errors
    /// As [`PageClient::replace`].
    pub async fn edit(
        &self,
        copy: &PageCopy<L>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Option<EditAnswer<OwnedValue<L>>>, MissCause> {
        let image = PageImage::of(copy.page());
        match edit.apply(image.page()) {
            LeafOutcome::Nothing(answer) => Ok(Some(answer)),
            LeafOutcome::Changed { answer, .. } => {
                self.replace(copy, image).await?;
                Ok(Some(answer))
            }
            LeafOutcome::Full => Ok(None),
        }
    }

    /// Replaces the content of the page that `copy` was read from with `image`, if the page still
    /// equals the copy: one CAS and three WRITEs.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the page has changed or is locked; nothing has changed in that
    /// case.
    pub async fn replace(&self, copy: &PageCopy<L>, image: PageImage<L>) -> Result<(), MissCause> {
        let locked = self.lock(copy).await?;
        self.fabric().charge(Work::ChangeNode).await;
        Ok(self.commit(PageChange::new(locked, copy, image)).await?)
    }
}
