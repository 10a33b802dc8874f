//! Far memory for programs: a range of address space that any thread accesses like other memory.
//!
//! *Invariants*: far.R1. The pager's thread ends before the program's mapping does, and that before
//! the descriptor of its faults is closed. So no fault is answered with zeros, and the pager
//! changes no address space that belongs to something else by then.
//!
//! *Thread safety*: any number of threads. All calls may block for as long as memory servers take
//! to answer; the pager's thread must not make them, so a [`ChunkSpace`] must not use far memory.

use crate::arena::ArenaMappings;
use crate::metrics;
use crate::mode::{FaultMode, FaultProvider};
use crate::pager::pages_of;
use crate::reach::EndpointSource;
use crate::signal::{SignalMemory, SignalRange};
use crate::space::ChunkSpace;
use crate::stats::FarStats;
use crate::thread::{AnswerSender, PagerRequest, PagerRequests, serve};
use crate::userfault::{Userfault, UserfaultMemory};
use crate::{FarConfig, FarError};
use farleaf_fabric::sync::{Arc, AtomicU64};
use rustix::process::{Pid, getpid};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// What a program says about its coming accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessAdvice {
    /// It will access the range soon: pages are read as far as the buffer has room.
    WillNeed,
    /// It will access the range from its start on: pages are read ahead from the first fault on.
    Sequential,
    /// It will not access the range for a while: pages leave the buffer and keep their content.
    DontNeed,
}

/// A region of far memory. It is all zeros at first. Dropping it ends the mapping and discards the
/// content.
#[derive(Debug)]
pub struct FarRegion {
    config: FarConfig,
    requests: Arc<PagerRequests>,
    thread: Option<JoinHandle<()>>,
    /// The process that made the region. Its child processes have neither the pages nor the thread.
    process: Pid,
    /// Why the provider is not the first choice; `None` if it is.
    fallback: Option<FarError>,
    // Dropped last (R1).
    backing: MappingOwner,
}

/// What owns the program's mapping.
#[derive(Clone, Debug)]
enum MappingOwner {
    Userfaultfd(Arc<Userfault>),
    Signal(Arc<SignalRange>),
}

impl MappingOwner {
    fn new(provider: FaultProvider, config: &FarConfig) -> Result<Self, FarError> {
        match provider {
            FaultProvider::Userfaultfd => Ok(Self::Userfaultfd(Arc::new(Userfault::new(config)?))),
            FaultProvider::Signal => Ok(Self::Signal(SignalRange::new(config)?)),
        }
    }

    fn arena(&self) -> &ArenaMappings {
        match self {
            Self::Userfaultfd(userfault) => userfault.arena(),
            Self::Signal(signals) => signals.arena(),
        }
    }
}

impl FarRegion {
    /// Reserves the address space and starts its pager, which reaches memory servers by `reach`
    /// and has their memory from `space`. Faults are noticed by `userfaultfd` if it is allowed, and
    /// otherwise by signals: see [`FarRegion::mode`] and [`FarRegion::fallback`].
    ///
    /// # Errors
    /// [`FarError`] if the settings are wrong, or the operating system does not allow it.
    pub fn new<R, S>(config: FarConfig, reach: R, space: S) -> Result<Self, FarError>
    where
        R: EndpointSource,
        S: ChunkSpace<R::Fabric> + Send,
    {
        config.check()?;
        let (backing, fallback) = match MappingOwner::new(FaultProvider::Userfaultfd, &config) {
            Err(error @ FarError::System { .. }) => {
                (MappingOwner::new(FaultProvider::Signal, &config)?, Some(error))
            }
            backing => (backing?, None),
        };
        Self::start(config, (reach, space), backing, fallback)
    }

    /// The same, by this provider of faults alone.
    ///
    /// # Errors
    /// As for [`FarRegion::new`].
    pub fn by<R, S>(
        provider: FaultProvider,
        config: FarConfig,
        reach: R,
        space: S,
    ) -> Result<Self, FarError>
    where
        R: EndpointSource,
        S: ChunkSpace<R::Fabric> + Send,
    {
        config.check()?;
        let backing = MappingOwner::new(provider, &config)?;
        Self::start(config, (reach, space), backing, None)
    }

    fn start<R, S>(
        config: FarConfig,
        (reach, space): (R, S),
        backing: MappingOwner,
        fallback: Option<FarError>,
    ) -> Result<Self, FarError>
    where
        R: EndpointSource,
        S: ChunkSpace<R::Fabric> + Send,
    {
        let requests = Arc::new(PagerRequests::new()?);
        let (sender, started) = sync_channel(1);
        let (settings, pages) = (config.clone(), config.pages());
        let (to_serve, to_page) = (Arc::clone(&requests), backing.clone());
        let thread = std::thread::Builder::new().name("farleaf-pager".into());
        let thread = thread.spawn(move || match to_page {
            MappingOwner::Userfaultfd(userfault) => {
                let memory = UserfaultMemory::new(userfault, pages);
                serve(settings, (reach, memory, space), &to_serve, &sender);
            }
            MappingOwner::Signal(signals) => {
                let memory = SignalMemory::new(signals, pages);
                serve(settings, (reach, memory, space), &to_serve, &sender);
            }
        });
        let thread = thread.map_err(|error| FarError::System {
            action: "start the pager's thread",
            cause: error.to_string(),
        })?;
        let (thread, process) = (Some(thread), getpid());
        let region = Self { config, requests, thread, process, fallback, backing };
        started.recv().unwrap_or(Err(FarError::Stopped))?;
        Ok(region)
    }

    /// How faults are noticed.
    pub fn mode(&self) -> FaultMode {
        match &self.backing {
            MappingOwner::Userfaultfd(userfault) => {
                FaultMode::Userfaultfd { kernel_faults: userfault.has_kernel_faults() }
            }
            MappingOwner::Signal(_) => FaultMode::Signal,
        }
    }

    /// Why faults are noticed by signals although the program left the choice open.
    pub fn fallback(&self) -> Option<&FarError> {
        self.fallback.as_ref()
    }

    /// The settings.
    pub fn config(&self) -> &FarConfig {
        &self.config
    }

    /// The first byte. Accesses inside the region wait for their page. If the page is lost, or its
    /// memory server does not answer in time, the process aborts; [`FarRegion::ensure`] is told of
    /// an error instead.
    pub fn base(&self) -> NonNull<u8> {
        self.backing.arena().base().cast()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.backing.arena().bytes()
    }

    /// The region as words.
    pub fn words(&self) -> &[AtomicU64] {
        self.backing.arena().words()
    }

    /// Bytes of local memory that the content takes now, by the operating system's count.
    pub fn local_bytes(&self) -> u64 {
        self.backing.arena().local_bytes()
    }

    /// Loads a range of bytes, so that accesses succeed at once unless its pages leave again.
    ///
    /// # Errors
    /// [`FarError`] if a page cannot be had; it stays on its memory server if that may come back.
    pub fn ensure(&self, bytes: Range<usize>) -> Result<(), FarError> {
        self.ensure_all([bytes])
    }

    /// Loads several ranges of bytes, as [`FarRegion::ensure`] does, by one request to the pager's
    /// thread. Each page is asked for once.
    ///
    /// # Errors
    /// As there.
    pub fn ensure_all(
        &self,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<(), FarError> {
        let pages = ranges.into_iter().map(|bytes| pages_of(&self.config, &bytes));
        let mut pages = pages.collect::<Result<Vec<_>, _>>()?;
        pages.sort_unstable_by_key(|part| part.start);
        let mut parts: Vec<Range<u32>> = Vec::new();
        for part in pages {
            match parts.last_mut() {
                Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
                _ => parts.push(part),
            }
        }
        self.ask(|answer| PagerRequest::Ensure(parts, answer))?
    }

    /// Loads a range of bytes, and holds its pages in the buffer until the value is dropped.
    ///
    /// # Errors
    /// [`FarError`] if a page cannot be had, or more than [`FarConfig::held_pages`] would be held.
    pub fn hold(&self, bytes: Range<usize>) -> Result<RegionHold<'_>, FarError> {
        let pages = pages_of(&self.config, &bytes)?;
        let held = pages.clone();
        self.ask(|answer| PagerRequest::Hold(pages, answer))??;
        Ok(RegionHold { region: self, pages: held })
    }

    /// Forgets the content of all pages that lie in a range of bytes as a whole. They become zeros
    /// and are not written back. Returns the range of bytes that was discarded.
    ///
    /// # Errors
    /// [`FarError::Held`] if a page is held; those before it are discarded.
    pub fn discard(&self, bytes: Range<usize>) -> Result<Range<usize>, FarError> {
        pages_of(&self.config, &bytes)?;
        let page_bytes = self.config.page_bytes;
        let first = bytes.start.div_ceil(page_bytes);
        let end = (bytes.end / page_bytes).max(first);
        self.ask(|answer| PagerRequest::Discard(first as u32..end as u32, answer))??;
        Ok(first * page_bytes..end * page_bytes)
    }

    /// Gives advice about a range of bytes.
    ///
    /// # Errors
    /// [`FarError::Outside`] if it is not inside the region.
    pub fn advise(&self, bytes: Range<usize>, advice: AccessAdvice) -> Result<(), FarError> {
        let pages = pages_of(&self.config, &bytes)?;
        match advice {
            AccessAdvice::WillNeed => self.post(PagerRequest::WillNeed(pages)),
            AccessAdvice::Sequential => self.post(PagerRequest::Sequential(pages)),
            AccessAdvice::DontNeed => self.ask(|answer| PagerRequest::Evict(pages, answer))?,
        }
        Ok(())
    }

    /// The counts so far.
    ///
    /// # Errors
    /// [`FarError::Stopped`] if the pager has ended.
    pub fn stats(&self) -> Result<FarStats, FarError> {
        self.ask(PagerRequest::Stats)
    }

    /// The counts so far as text in Prometheus' format, which the program may serve at a path of
    /// its own. All have the label `region` with this name.
    ///
    /// # Errors
    /// [`FarError::Stopped`] if the pager has ended.
    pub fn metrics(&self, name: &str) -> Result<String, FarError> {
        Ok(metrics::text(name, self.mode(), &self.stats()?))
    }

    /// Checks the invariants of the page table, in time proportional to the region. If one does not
    /// hold, the process aborts.
    ///
    /// # Errors
    /// [`FarError::Stopped`] if the pager has ended.
    pub fn check(&self) -> Result<(), FarError> {
        self.ask(PagerRequest::Check)
    }

    fn ask<T>(&self, request: impl FnOnce(AnswerSender<T>) -> PagerRequest) -> Result<T, FarError> {
        let (sender, answer) = sync_channel(1);
        self.post(request(sender));
        answer.recv().map_err(|_| FarError::Stopped)
    }

    /// Whether this is a child process of the one that has made the region, and has none.
    pub fn is_inherited(&self) -> bool {
        self.process != getpid()
    }

    /// Posts a request. In a child process nothing would answer it, and a thread that the child
    /// does not have may have locked the queue: it is dropped.
    fn post(&self, request: PagerRequest) {
        if !self.is_inherited() {
            self.requests.post(request);
        }
    }
}

impl Drop for FarRegion {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        self.post(PagerRequest::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has aborted the process (D3).
            let _ = thread.join();
        }
    }
}

/// Pages that are held in the buffer.
#[derive(Debug)]
pub struct RegionHold<'r> {
    region: &'r FarRegion,
    pages: Range<u32>,
}

impl Drop for RegionHold<'_> {
    fn drop(&mut self) {
        self.region.post(PagerRequest::Release(self.pages.clone()));
    }
}
