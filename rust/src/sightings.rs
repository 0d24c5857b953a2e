//! What a scan saw, kept compactly: ids by number.

use std::sync::Arc;

use crate::ids::{self, Ids};

/// What a scan saw. An id is in one list only.
#[derive(Clone, Debug)]
pub struct Sightings {
    pub ids: Arc<Ids>,
    /// Numbers of ids in active without a lock, oldest first.
    pub stalled: Arc<Vec<usize>>,
    /// Of marked ids whose lock was seen.
    pub locked_marks: Arc<Vec<usize>>,
    /// Of marked ids that a complete walk did not meet.
    pub strays: Arc<Vec<usize>>,
}

impl Sightings {
    /// Sum up a walk that is complete.
    pub fn new(mut ids: Ids, watched: Vec<usize>, locked: Vec<usize>, keep_locked: bool) -> Self {
        ids.settle();
        let is_stalled = |&number: &usize| {
            let kept = ids.is(number, ids::WATCHED) && !ids.is(number, ids::CANDIDATE);
            ids.distance(number) > 0 && !ids.is(number, ids::LOCKED) && !kept
        };
        let mut stalled: Vec<_> = (0..ids.len()).filter(is_stalled).collect();
        stalled.sort_unstable_by_key(|&number| ids.distance(number)); // no two alike
        let mut strays = watched;
        strays.retain(|&number| !ids.is(number, ids::MET) && !ids.is(number, ids::LOCKED));
        Self {
            ids: Arc::new(ids),
            stalled: Arc::new(stalled),
            locked_marks: Arc::new(if keep_locked { Vec::new() } else { locked }),
            strays: Arc::new(strays),
        }
    }
}
