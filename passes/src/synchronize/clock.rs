//! What an instruction knows to have happened when it is issued.
//!
//! An engine issues and completes its compute instructions in order, so knowledge about it is two
//! counts. A transfer completes on its own; who has waited for it knows.

use ir::program::Engine;

/// Of an engine that has not waited for an event.
pub(super) const NOBODY: u32 = u32::MAX;

/// Per engine, how many instructions of its stream are known to be issued and to be complete.
/// Complete counts speak of compute instructions only.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    pub issued: [u32; Engine::ALL.len()],
    pub complete: [u32; Engine::ALL.len()],
}

impl Clock {
    pub(super) fn join(&mut self, other: &Clock) {
        for engine in 0..Engine::ALL.len() {
            self.issued[engine] = self.issued[engine].max(other.issued[engine]);
            self.complete[engine] = self.complete[engine].max(other.complete[engine]);
        }
    }
}

/// An instruction as others wait for it.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub engine: Engine,
    /// Position in the engine's stream.
    pub stream_idx: u32,
    pub completion: Completion,
    /// What was known when it was issued.
    pub at_issue: Clock,
    /// Per engine, the stream position of the first instruction that waits for this transfer, or
    /// [`NOBODY`].
    pub first_waiters: [u32; Engine::ALL.len()],
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// In the order of the engine's stream.
    InOrder,
    /// Of a transfer, any time after its issue.
    OnItsOwn,
}

impl Event {
    /// True if a holder of this clock knows that the event is complete.
    pub(super) fn is_known_by(&self, clock: &Clock) -> bool {
        match self.completion {
            Completion::InOrder => clock.complete[self.engine as usize] > self.stream_idx,
            Completion::OnItsOwn => {
                self.first_waiters.iter().zip(&clock.issued).any(|(stream_idx, issued)| issued > stream_idx)
            }
        }
    }

    /// What is known once the event is complete.
    pub(super) fn clock_when_complete(&self) -> Clock {
        let mut clock = self.at_issue;
        let engine = self.engine as usize;
        clock.issued[engine] = clock.issued[engine].max(self.stream_idx + 1);
        if self.completion == Completion::InOrder {
            clock.complete[engine] = clock.complete[engine].max(self.stream_idx + 1);
        }
        clock
    }

    /// Records that an instruction waits for this event.
    pub(super) fn add_waiter(&mut self, engine: Engine, stream_idx: u32) {
        let first = &mut self.first_waiters[engine as usize];
        *first = (*first).min(stream_idx);
    }
}
