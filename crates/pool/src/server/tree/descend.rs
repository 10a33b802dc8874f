//! Descents from the root to a node, coupling versions on the way.

use super::{MAX_RESTARTS, MAX_SPINS, ServerTree, TreeFailure};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr, Work, prefetch};
use farleaf_page::rules;
use farleaf_page::{DescentProbe, ExclusiveLatch, LatchVersion, Layout, Page, WalkStep, step};

/// A node found by a descent. Its content can be trusted only while its version validates.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundNode<'a, L: Layout> {
    pub(super) at: GlobalAddr,
    pub(super) page: Page<'a, L>,
    pub(super) version: LatchVersion,
}

impl<L: Layout> ServerTree<L> {
    /// The version of a page. While the page is locked, waits for a bounded time.
    #[inline]
    pub(super) async fn version<C: Cpu>(
        &self,
        cpu: &C,
        page: Page<'_, L>,
    ) -> Result<LatchVersion, TreeFailure> {
        match page.latch().optimistic() {
            Some(version) => Ok(version),
            None => self.version_later(cpu, page).await,
        }
    }

    /// Waits for the version of a locked page.
    #[cold]
    async fn version_later<C: Cpu>(
        &self,
        cpu: &C,
        page: Page<'_, L>,
    ) -> Result<LatchVersion, TreeFailure> {
        for attempt in 0..MAX_SPINS {
            if let Some(version) = page.latch().optimistic() {
                return Ok(version);
            }
            if cpu.breaks(rules::VALIDATION) {
                return LatchVersion::from_word(0).ok_or(TreeFailure::Restart);
            }
            cpu.pause(attempt).await;
        }
        Err(TreeFailure::Restart)
    }

    /// Restarts unless `found` is unchanged since its version was taken.
    #[inline]
    pub(super) fn validate<C: Cpu>(
        &self,
        cpu: &C,
        found: &FoundNode<'_, L>,
    ) -> Result<(), TreeFailure> {
        match found.page.latch().validate(found.version) || cpu.breaks(rules::VALIDATION) {
            true => Ok(()),
            false => Err(TreeFailure::Restart),
        }
    }

    /// Locks the page if it is unchanged since it was found; restarts otherwise.
    pub(super) fn lock_found<'a>(
        &self,
        found: &FoundNode<'a, L>,
    ) -> Result<ExclusiveLatch<'a>, TreeFailure> {
        found.page.latch().try_lock(found.version, self.server.number()).ok_or(TreeFailure::Restart)
    }

    /// Locks a page at any version. While the page is locked, waits for a bounded time.
    pub(super) async fn lock_any<'a, C: Cpu>(
        &self,
        cpu: &C,
        page: Page<'a, L>,
    ) -> Result<ExclusiveLatch<'a>, TreeFailure> {
        for attempt in 0..MAX_SPINS {
            let version = page.latch().optimistic();
            let guard = version.and_then(|v| page.latch().try_lock(v, self.server.number()));
            if let Some(guard) = guard {
                return Ok(guard);
            }
            cpu.pause(attempt).await;
        }
        Err(TreeFailure::Restart)
    }

    /// Moves from `found` to the node at `to`. Takes the version of `to` before it validates
    /// `found`; otherwise `to` might no longer be a child.
    #[inline]
    pub(super) async fn hand_over<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        found: &FoundNode<'_, L>,
        to: GlobalAddr,
    ) -> Result<FoundNode<'a, L>, TreeFailure> {
        match self.hand_over_now(cpu, found, to)? {
            Ok(next) => Ok(next),
            Err(locked) => self.hand_over_later(cpu, found, (to, locked)).await,
        }
    }

    /// Moves from `found` to the node at `to` unless that is locked; then returns its page. A plain
    /// function, which the compiler inlines: descents run it at every level.
    #[inline(always)]
    fn hand_over_now<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        found: &FoundNode<'_, L>,
        to: GlobalAddr,
    ) -> Result<Result<FoundNode<'a, L>, Page<'a, L>>, TreeFailure> {
        let page = self.page(to).ok_or(Refusal::Damaged)?;
        prefetch(page.words());
        match page.latch().optimistic() {
            Some(version) => self.arrive(cpu, found, FoundNode { at: to, page, version }).map(Ok),
            None => Ok(Err(page)),
        }
    }

    #[cold]
    async fn hand_over_later<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        found: &FoundNode<'_, L>,
        (to, page): (GlobalAddr, Page<'a, L>),
    ) -> Result<FoundNode<'a, L>, TreeFailure> {
        let version = self.version_later(cpu, page).await?;
        self.arrive(cpu, found, FoundNode { at: to, page, version })
    }

    #[inline(always)]
    fn arrive<'a, C: Cpu>(
        &self,
        cpu: &C,
        from: &FoundNode<'_, L>,
        next: FoundNode<'a, L>,
    ) -> Result<FoundNode<'a, L>, TreeFailure> {
        if !cpu.breaks(rules::HAND_OVER_VALIDATED) {
            self.validate(cpu, from)?;
        }
        Ok(next)
    }

    /// The root, where every descent begins.
    #[inline]
    pub(super) async fn find_root<C: Cpu>(&self, cpu: &C) -> Result<FoundNode<'_, L>, TreeFailure> {
        let at = self.root();
        let page = self.page(at).ok_or(Refusal::NoTree)?;
        let version = match page.latch().optimistic() {
            Some(version) => version,
            None => self.version_later(cpu, page).await?,
        };
        Ok(FoundNode { at, page, version })
    }

    /// One descent to the node at level `target` that covers `probe`.
    #[inline]
    pub(super) async fn descend<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        probe: DescentProbe<'_, L::Key>,
        target: u8,
    ) -> Result<FoundNode<'a, L>, TreeFailure> {
        let mut found = self.find_root(cpu).await?;
        loop {
            cpu.charge(Work::VisitNode).await;
            let step = step(found.page, probe, target);
            // Validate before following the address: an invalid page may contain any words.
            self.validate(cpu, &found)?;
            match step {
                WalkStep::Here => return Ok(found),
                WalkStep::Child(to) | WalkStep::Right(to) => {
                    found = match self.hand_over_now(cpu, &found, to)? {
                        Ok(next) => next,
                        Err(locked) => self.hand_over_later(cpu, &found, (to, locked)).await?,
                    }
                }
                WalkStep::Lost => return Err(TreeFailure::Restart),
            }
        }
    }

    /// Waits a little before restart number `attempt`, or gives up after the last one.
    pub(super) async fn before_restart<C: Cpu>(
        &self,
        cpu: &C,
        attempt: u32,
    ) -> Result<(), Refusal> {
        if attempt >= MAX_RESTARTS {
            return Err(Refusal::Contended);
        }
        cpu.pause(attempt).await;
        Ok(())
    }
}

/// Retries `$attempt` while it restarts, within bounds.
macro_rules! restarting {
    ($tree:expr, $cpu:expr, $attempt:expr) => {{
        let mut restarts = 0;
        loop {
            match $attempt.await {
                Ok(value) => break Ok(value),
                Err($crate::server::tree::TreeFailure::Refused(refusal)) => break Err(refusal),
                Err($crate::server::tree::TreeFailure::Restart) => {}
            }
            if let Err(refusal) = $tree.before_restart($cpu, restarts).await {
                break Err(refusal);
            }
            restarts += 1;
        }
    }};
}
pub(super) use restarting;
