//! The one place with `unsafe`: an engine, which is full of `Rc`s, may change threads.
//!
//! An `Rc` is not `Send` because a clone of it could stay behind on another thread, and the two
//! would change its count at the same time. Here no clone can stay behind:
//! - An engine is built by a closure that is `Send`, so it captures no `Rc`: every `Rc` in an
//!   engine was created by that closure or later by the engine itself.
//! - Only [`ConfinedEngine::with`] accesses the engine, through `&mut`, so only one thread at a
//!   time does, and the lock of [`crate::cores::EngineSlot`] orders these accesses. Its closure and
//!   its result are `Send`, so no `Rc` enters or leaves.
//! - Anything else that an engine gives to other threads is `Send` by its type: wakers, and the
//!   `Arc`s of a connection.
//! - The one hole in these types would be a thread-local variable in which an engine kept an `Rc`.
//!   The crates below have two thread-locals, which hold no `Rc` and are reset by the code that
//!   sets them; a test reads their sources.
//! - Nothing in an engine is tied to one thread for another reason. It holds no lock guard between
//!   two polls: `clippy::await_holding_lock` is denied in the whole workspace.

#![expect(unsafe_code, reason = "the argument is above")]

use crate::data::KeyKind;
use crate::engine::AnyEngine;
use std::fmt;

/// An engine that any thread may use, one at a time.
pub(crate) struct ConfinedEngine<K: ?Sized + KeyKind>(Box<dyn AnyEngine<K>>);

// SAFETY: all `Rc`s that an engine reaches are reached by it alone, as the module's head argues, so
// they move to another thread together.
unsafe impl<K: ?Sized + KeyKind> Send for ConfinedEngine<K> {}

impl<K: ?Sized + KeyKind> fmt::Debug for ConfinedEngine<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Confined")
    }
}

impl<K: ?Sized + KeyKind> ConfinedEngine<K> {
    /// Builds an engine.
    pub(crate) fn new<E: Send>(
        build: impl FnOnce() -> Result<Box<dyn AnyEngine<K>>, E> + Send,
    ) -> Result<Self, E> {
        build().map(Self)
    }

    /// Uses the engine.
    pub(crate) fn with<T: Send>(
        &mut self,
        act: impl FnOnce(&mut dyn AnyEngine<K>) -> T + Send,
    ) -> T {
        act(&mut *self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }

    /// The tasks of the executor that runs, as `Arc`s, the page size, and a number in tests.
    const HARMLESS: [&str; 3] =
        ["fabric/src/executor.rs", "page/src/chosen.rs", "page/src/bytes/slots.rs"];

    #[test]
    fn no_crate_below_keeps_an_rc_in_a_thread_local() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for folder in ["fabric", "page", "pool", "index", "dex", "cluster"] {
            sources(&crates.join(folder).join("src"), &mut found);
        }
        assert!(found.len() > 100);
        for path in found {
            let text = fs::read_to_string(&path).unwrap();
            let Some(at) = text.find("thread_local!") else { continue };
            assert!(HARMLESS.iter().any(|name| path.ends_with(name)), "{}", path.display());
            let variables = &text[at..][..text[at..].find("\n}\n").unwrap()];
            assert!(!variables.contains("Rc<"), "{variables}");
        }
    }
}
