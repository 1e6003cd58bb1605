//! What an instruction knows to have happened when it is issued.
//!
//! An engine issues and completes its compute instructions in order, so knowledge about it is two
//! counts. A transfer completes on its own; who has waited for it knows.

use ir::program::Engine;
use smallvec::SmallVec;

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
    /// The first instruction per engine, by stream position, that waits for this transfer.
    pub first_waiters: SmallVec<[(Engine, u32); 2]>,
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
                self.first_waiters.iter().any(|&(engine, stream_idx)| clock.issued[engine as usize] > stream_idx)
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
        if !self.first_waiters.iter().any(|(other, _)| *other == engine) {
            self.first_waiters.push((engine, stream_idx));
        }
    }
}
