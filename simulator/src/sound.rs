//! Programs that this process has found nothing wrong with.
//!
//! A program is known by all bytes that its checks depend on, so that a NEFF that is loaded again is
//! not checked again. Programs with something wrong are not kept: who loads one again shall hear it
//! again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_128;

/// More than any process keeps loading in turn.
const MOST_PROGRAMS: usize = 1024;

/// The latest ones, the oldest first.
static SOUND: Mutex<VecDeque<Content>> = Mutex::new(VecDeque::new());

/// What tells one program from another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content(u128);

impl Content {
    /// Of all members that a program is made of, in this order.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a [u8]>) -> Content {
        let mut hash = XxHash3_128::new();
        for member in members {
            // Lengths keep the end of one member from being the beginning of the next.
            hash.write(&(member.len() as u64).to_le_bytes());
            hash.write(member);
        }
        Content(hash.finish_128())
    }

    pub fn is_known_sound(self) -> bool {
        programs().contains(&self)
    }

    pub fn note_sound(self) {
        let mut programs = programs();
        if programs.contains(&self) {
            return;
        }
        if programs.len() == MOST_PROGRAMS {
            programs.pop_front();
        }
        programs.push_back(self);
    }
}

fn programs() -> MutexGuard<'static, VecDeque<Content>> {
    SOUND.lock().unwrap_or_else(PoisonError::into_inner)
}
