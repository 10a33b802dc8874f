//! The critical sections of a compute server: when each becomes free, and which socket used it
//! last.

use crate::Section;

/// By section.
#[derive(Debug, Default)]
pub(super) struct Sections([SectionState; Section::COUNT]);

#[derive(Clone, Copy, Debug, Default)]
struct SectionState {
    free_ns: u64,
    /// The socket of the last thread inside, if any.
    socket: Option<u64>,
}

impl Sections {
    /// Takes the next turn in `section` for a thread on `socket` that is ready at `ready_ns`.
    /// Returns when the thread leaves it. The turn takes `ns`, multiplied by `factor` if the
    /// section's cache lines are on the other socket.
    pub(super) fn enter(
        &mut self,
        section: Section,
        socket: u64,
        ready_ns: u64,
        (ns, factor): (u64, u64),
    ) -> u64 {
        let state = &mut self.0[section.index()];
        let is_away = state.socket.is_some_and(|last| last != socket);
        let turn_ns = if is_away { ns * factor } else { ns };
        *state =
            SectionState { free_ns: state.free_ns.max(ready_ns) + turn_ns, socket: Some(socket) };
        state.free_ns
    }
}
