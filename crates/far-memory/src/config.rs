//! Settings of a region of far memory, and their limits.
//!
//! *Thread safety*: plain values.

use crate::FarError;

/// Sizes of a page, in bytes.
pub const PAGE_BYTES: std::ops::RangeInclusive<usize> = 4096..=1 << 20;
/// Fewest pages of a buffer.
pub const MIN_BUFFER_PAGES: u32 = 8;
/// Most pages of a region. Pages have numbers of 32 bits, and the page table has 8 bytes for each.
pub const MAX_PAGES: usize = 1 << 28;

/// Which page leaves the buffer next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The page that came first.
    #[default]
    Fifo,
    /// The page that came first and was not used since it was last passed over. Where uses cannot
    /// be seen, a page that is passed over becomes inaccessible, so that its next use faults.
    Clock,
}

/// Settings of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarConfig {
    /// Size of the region, a multiple of `page_bytes`.
    pub region_bytes: usize,
    /// Size of a page: a power of two in [`PAGE_BYTES`].
    pub page_bytes: usize,
    /// Pages that can be in local memory at the same time, at least [`MIN_BUFFER_PAGES`]. Pages
    /// that are being read, and pages that are being written back, count.
    pub buffer_pages: u32,
    /// Which page leaves first.
    pub policy: Policy,
    /// With fewer free places in the buffer than this, pages begin to leave.
    pub low_water_pages: u32,
    /// Pages leave until this many places are free.
    pub high_water_pages: u32,
    /// Maximum number of pages that can be held in the buffer at the same time; at most half of it.
    pub held_pages: u32,
    /// Memory that is taken from a memory server at a time: a multiple of `page_bytes`.
    pub chunk_bytes: usize,
    /// Limit on READs and WRITEs in flight. WRITEs take at most half of it. With
    /// [`FarConfig::mirror`] at least 4, and most changed pages take two WRITEs.
    pub depth: usize,
    /// Limit on the bytes of WRITEs in flight to one memory server. One WRITE is always allowed,
    /// and one more to a chunk that is new.
    pub write_back_bytes: usize,
    /// Longest READ or WRITE. Adjacent pages go together up to this size; a page larger than this
    /// goes alone.
    pub run_bytes: usize,
    /// Most pages that are read ahead of each sequence of accesses; 0 reads none ahead. At most a
    /// quarter of the buffer.
    pub ahead_pages: u32,
    /// How long an operation on a memory server is repeated before it counts as failed, in
    /// nanoseconds. The last attempt comes on top: a reset and an operation, each as long as the
    /// fabric's own timeout. A server that has failed less than [`FarConfig::rest_ns`] ago gets
    /// one attempt only.
    pub patience_ns: u64,
    /// Keeps each page on two memory servers, so that one of them may die. A chunk that finds no
    /// second server with room, or whose copy misses a WRITE, has one copy from then on. A server
    /// that has failed is tried again after [`FarConfig::rest_ns`], by one WRITE at a time, for
    /// chunks whose copies there have missed none and for new ones.
    pub mirror: bool,
    /// How long a memory server that has failed is left alone before pages are written back there
    /// again, in nanoseconds. READs get one attempt meanwhile. A space that has refused a chunk is
    /// asked again after this time, too.
    pub rest_ns: u64,
}

impl FarConfig {
    /// A region of `region_bytes` bytes in pages of `page_bytes`, of which `buffer_pages` are in
    /// local memory; everything else has its default.
    pub fn new(region_bytes: usize, page_bytes: usize, buffer_pages: u32) -> Self {
        let page = page_bytes.max(1);
        let high_water_pages = (buffer_pages / 5).clamp(2, 4096);
        Self {
            region_bytes,
            page_bytes,
            buffer_pages,
            policy: Policy::default(),
            low_water_pages: (buffer_pages / 10).clamp(1, high_water_pages),
            high_water_pages,
            held_pages: buffer_pages / 2,
            chunk_bytes: (64 << 20_usize).min(region_bytes).next_multiple_of(page),
            depth: 32,
            write_back_bytes: 256 << 10,
            run_bytes: 256 << 10,
            // About as many bytes as a network has in flight, and at least a few pages.
            ahead_pages: ((512 << 10_usize) / page).clamp(4, 32).min(buffer_pages as usize / 8)
                as u32,
            patience_ns: 10_000_000_000,
            mirror: false,
            rest_ns: 1_000_000_000,
        }
    }

    /// The number of pages.
    pub fn pages(&self) -> u32 {
        (self.region_bytes / self.page_bytes) as u32
    }

    /// Words of a page.
    pub(crate) fn page_words(&self) -> usize {
        self.page_bytes / 8
    }

    /// Pages of a chunk.
    pub(crate) fn chunk_pages(&self) -> u32 {
        (self.chunk_bytes / self.page_bytes) as u32
    }

    /// Most pages of one READ or WRITE.
    pub(crate) fn run_pages(&self) -> u32 {
        (self.run_bytes / self.page_bytes).max(1) as u32
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`FarError::Config`] names the first setting that cannot be used.
    pub fn check(&self) -> Result<(), FarError> {
        let page = self.page_bytes;
        let fault = if !PAGE_BYTES.contains(&page) || !page.is_power_of_two() {
            format!("pages of {page} bytes: use a power of two from 4 KiB to 1 MiB")
        } else if self.region_bytes == 0 || !self.region_bytes.is_multiple_of(page) {
            format!("a region of {} bytes: use a multiple of the page size", self.region_bytes)
        } else if self.region_bytes / page > MAX_PAGES {
            format!("{} pages: use larger pages, at most 2^28", self.region_bytes / page)
        } else if self.buffer_pages < MIN_BUFFER_PAGES {
            format!("a buffer of {} pages: use at least 8", self.buffer_pages)
        } else if self.low_water_pages == 0
            || self.low_water_pages > self.high_water_pages
            || self.high_water_pages > self.buffer_pages / 2
        {
            format!(
                "low and high water of {} and {} pages: use 1 <= low <= high <= half of the buffer",
                self.low_water_pages, self.high_water_pages
            )
        } else if self.held_pages > self.buffer_pages / 2 {
            format!("{} held pages: use at most half of the buffer", self.held_pages)
        } else if self.ahead_pages > self.buffer_pages / 4 {
            format!("{} pages read ahead: use at most a quarter of the buffer", self.ahead_pages)
        } else if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(page) {
            format!("chunks of {} bytes: use a multiple of the page size", self.chunk_bytes)
        } else if self.depth < 2 || (self.mirror && self.depth < 4) {
            format!("{} operations in flight: use at least 2, with a mirror 4", self.depth)
        } else {
            return Ok(());
        };
        Err(FarError::Config { fault })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let good = FarConfig::new(1 << 20, 4096, 16);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.pages(), 256);
        let bad = [
            FarConfig { page_bytes: 2048, ..good.clone() },
            FarConfig { page_bytes: 12 << 10, ..good.clone() },
            FarConfig { page_bytes: 2 << 20, ..good.clone() },
            FarConfig { region_bytes: 0, ..good.clone() },
            FarConfig { region_bytes: 4097, ..good.clone() },
            FarConfig { region_bytes: 4096 * (MAX_PAGES + 1), ..good.clone() },
            FarConfig { buffer_pages: 7, ..good.clone() },
            FarConfig { low_water_pages: 0, ..good.clone() },
            FarConfig { low_water_pages: 4, high_water_pages: 3, ..good.clone() },
            FarConfig { high_water_pages: 9, ..good.clone() },
            FarConfig { held_pages: 9, ..good.clone() },
            FarConfig { ahead_pages: 5, ..good.clone() },
            FarConfig { chunk_bytes: 6000, ..good.clone() },
            FarConfig { depth: 1, ..good.clone() },
            FarConfig { depth: 3, mirror: true, ..good.clone() },
        ];
        for config in bad {
            assert!(matches!(config.check(), Err(FarError::Config { .. })), "{config:?}");
        }
    }
}
