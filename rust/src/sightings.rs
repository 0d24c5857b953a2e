//! What a scan saw. It borrows from the scan: at a million stalled jobs a copy would show.

/// Distances from the tail at which an id was seen: nearly always one; no two alike, for windows do not overlap.
#[derive(Debug)]
pub enum Places {
    One(u64),
    Many(Vec<u64>),
}

impl Places {
    /// It was seen there as well.
    pub fn add(&mut self, distance: u64) {
        match self {
            Self::One(known) => *self = Self::Many(vec![*known, distance]),
            Self::Many(known) => known.push(distance),
        }
    }

    /// The one nearest to the tail.
    pub fn first(&self) -> u64 {
        match self {
            Self::One(distance) => *distance,
            Self::Many(known) => known.iter().copied().min().unwrap_or_default(),
        }
    }

    /// All of them, ascending.
    pub fn ascending(&self) -> Vec<u64> {
        match self {
            Self::One(distance) => vec![*distance],
            Self::Many(known) => {
                let mut distances = known.clone();
                distances.sort_unstable();
                distances
            }
        }
    }
}

/// A stalled job: its id, where it was seen, whether it is marked.
pub type Sight<'a> = (&'a [u8], &'a Places, bool);

/// What a scan saw. An id is in one list only.
#[derive(Debug)]
pub struct Sightings<'a> {
    pub stalled: Vec<Sight<'a>>,
    pub locked_marks: Vec<&'a [u8]>,
    pub strays: Vec<&'a [u8]>,
}
