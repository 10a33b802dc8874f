//! Buffers: the registered memory for the data of READs and WRITEs.
//!
//! A buffer is lent to an operation and returned with its completion. Meanwhile, the operation owns
//! it. Dropping a future in flight does not free the buffer: the fabric's side of the operation
//! holds it until the fabric is done with it.
//!
//! *Thread safety*: a buffer belongs to one endpoint's thread; its words are atomics because the
//! fabric may be writing them.

use crate::region::{Region, RegionError, copy_words};
use crate::sync::{Arc, AtomicU64, Ordering};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// Size of an endpoint's largest scratch buffer, in bytes.
pub const BUFFER_BYTES: usize = 4096;

/// A part of registered memory, a whole number of words.
pub struct Buffer {
    memory: Arc<Region>,
    first_word: usize,
    words: usize,
    home: Option<Rc<PoolInner>>,
}

impl Buffer {
    /// A buffer over `words` words of `memory`, starting at word `first_word`. Dropping it returns
    /// the words to no pool. An arena of frames lends its frames this way.
    ///
    /// # Panics
    /// If the words are not all inside `memory`.
    #[inline]
    pub fn over(memory: Arc<Region>, first_word: usize, words: usize) -> Self {
        assert!(
            first_word.checked_add(words).is_some_and(|end| end <= memory.words().len()),
            "a buffer lies inside its region"
        );
        Self { memory, first_word, words, home: None }
    }

    /// The memory that contains it, for providers that must register it.
    #[inline]
    pub fn memory(&self) -> &Arc<Region> {
        &self.memory
    }

    /// The words of the memory that belong to the buffer.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        &self.memory.words()[self.first_word..self.first_word + self.words]
    }

    /// The length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.words * 8
    }

    /// The word at `index`.
    ///
    /// # Panics
    /// If `index` is not below the length in words.
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.words()[index].load(Ordering::Relaxed)
    }

    /// Sets the word at `index`.
    ///
    /// # Panics
    /// If `index` is not below the length in words.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.words()[index].store(value, Ordering::Relaxed);
    }

    /// Copies all words of `source` into this buffer.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from(&self, source: &[AtomicU64]) {
        copy_words(source, self.words());
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.free.borrow_mut().push(self.first_word);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

struct PoolInner {
    memory: Arc<Region>,
    slot_words: usize,
    /// First words of the free slots.
    free: RefCell<Vec<usize>>,
}

/// An endpoint's scratch buffers: a bounded number of slots of one size.
#[derive(Clone)]
pub struct BufferPool(Rc<PoolInner>);

impl BufferPool {
    /// A pool of `slots` buffers of up to `slot_bytes` bytes each (rounded up to whole words).
    ///
    /// # Errors
    /// [`RegionError`] if the memory cannot be allocated.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Self, RegionError> {
        let slot_words = slot_bytes.div_ceil(8);
        let memory = Arc::new(Region::new((slots * slot_words * 8).next_multiple_of(4096))?);
        let free = (0..slots).rev().map(|slot| slot * slot_words).collect();
        Ok(Self(Rc::new(PoolInner { memory, slot_words, free: RefCell::new(free) })))
    }

    /// A buffer of `bytes` bytes with unspecified content. `None` if `bytes` is not a positive
    /// multiple of 8 or is larger than a slot, or if no slot is free.
    #[inline]
    pub fn take(&self, bytes: usize) -> Option<Buffer> {
        let words = bytes / 8;
        if words == 0 || !bytes.is_multiple_of(8) || words > self.0.slot_words {
            return None;
        }
        let first_word = self.0.free.borrow_mut().pop()?;
        let memory = Arc::clone(&self.0.memory);
        Some(Buffer { memory, first_word, words, home: Some(Rc::clone(&self.0)) })
    }

    /// Number of buffers that can still be taken.
    pub fn available(&self) -> usize {
        self.0.free.borrow().len()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("available", &self.available()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_takes_back() {
        let pool = BufferPool::new(2, 64).unwrap();
        let first = pool.take(64).unwrap();
        let second = pool.take(8).unwrap();
        assert!(pool.take(8).is_none());
        second.set(0, 7);
        assert_eq!(second.get(0), 7);
        drop(first);
        assert_eq!(pool.available(), 1);
        assert!(pool.take(72).is_none());
        assert!(pool.take(12).is_none());
    }
}
