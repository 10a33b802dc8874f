//! The change of one page: made on a private image, locked, written.

use super::{Change, Image, Miss, PageClient, PageCopy};
use crate::page::{Layout, Page};
use farleaf_fabric::{Fabric, Work};

/// What an edit did to the image of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit<T> {
    /// It changed nothing: the answer follows from the page as it is.
    Nothing(T),
    /// It changed the image.
    Done(T),
    /// There is no room for the change.
    Full,
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Applies `edit` to the page that `copy` is of, if it is still as in the copy: one CAS and three WRITEs,
    /// or nothing at all if the edit changes nothing.
    ///
    /// # Errors
    /// [`Miss::Restart`] if the page is another by now, or held by somebody; nothing has changed then.
    pub async fn edit<T>(
        &self,
        copy: &PageCopy<L>,
        edit: impl FnOnce(Page<'_, L>) -> Edit<T>,
    ) -> Result<Edit<T>, Miss> {
        let image = Image::of(copy.page());
        let outcome = edit(image.page());
        let Edit::Done(_) = outcome else { return Ok(outcome) };
        let locked = self.lock(copy).await?;
        self.fabric().charge(Work::ChangeNode).await;
        self.commit(Change::new(locked, copy, image)).await?;
        Ok(outcome)
    }
}
