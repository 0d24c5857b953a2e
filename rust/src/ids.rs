//! Ids that matter to a scan, each kept once: its bytes in one arena, and what is known of it.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

/// It is a mark that was read.
pub const READ: u8 = 1;
/// It is a mark whose place in active matters.
pub const WATCHED: u8 = 2;
/// It is a mark without a lock.
pub const CANDIDATE: u8 = 4;
/// It is watched, and the walk met it.
pub const MET: u8 = 8;
/// It is a mark whose lock was seen.
pub const LOCKED: u8 = 16;

/// Ids by number, in the order in which they came.
#[derive(Debug, Default)]
pub struct Ids {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    flags: Vec<u8>,
    /// Where each was seen in active without a lock, counted from the tail: the least; 0 = nowhere.
    distances: Vec<u64>,
    /// All distances of those that were seen at several.
    more: HashMap<usize, Vec<u64>>,
    numbers: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

fn slice<'a>(bytes: &'a [u8], ends: &[usize], number: usize) -> &'a [u8] {
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &bytes[start..ends[number]]
}

impl Ids {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, number: usize) -> &[u8] {
        slice(&self.bytes, &self.ends, number)
    }

    pub fn find(&self, id: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(id);
        self.numbers
            .find(hash, |&number| self.get(number) == id)
            .copied()
    }

    /// The number of an id, which is a new one if it was not known.
    pub fn number(&mut self, id: &[u8]) -> usize {
        let (bytes, ends, hasher) = (&mut self.bytes, &mut self.ends, &self.hasher);
        let entry = self.numbers.entry(
            hasher.hash_one(id),
            |&number| slice(bytes, ends, number) == id,
            |&number| hasher.hash_one(slice(bytes, ends, number)),
        );
        match entry {
            hashbrown::hash_table::Entry::Occupied(known) => *known.get(),
            hashbrown::hash_table::Entry::Vacant(free) => {
                let number = ends.len();
                free.insert(number);
                bytes.extend_from_slice(id);
                ends.push(bytes.len());
                self.flags.push(0);
                self.distances.push(0);
                number
            }
        }
    }

    pub fn is(&self, number: usize, flag: u8) -> bool {
        self.flags[number] & flag != 0
    }

    /// Say something about an id. Returns whether that is new.
    pub fn set(&mut self, number: usize, flag: u8) -> bool {
        let new = !self.is(number, flag);
        self.flags[number] |= flag;
        new
    }

    /// It was seen there without a lock; never twice at one distance, for windows do not overlap.
    pub fn see(&mut self, number: usize, distance: u64) {
        let known = &mut self.distances[number];
        if *known == 0 {
            *known = distance;
            return;
        }
        let first = *known;
        *known = first.min(distance);
        self.more
            .entry(number)
            .or_insert_with(|| vec![first])
            .push(distance);
    }

    /// The distance nearest to the tail; 0 = it was not seen without a lock.
    pub fn distance(&self, number: usize) -> u64 {
        self.distances[number]
    }

    /// All distances, ascending, of an id that was seen at several.
    pub fn several(&self, number: usize) -> Option<Vec<u64>> {
        let mut known = self.more.get(&number)?.clone();
        known.sort_unstable();
        Some(known)
    }

    /// Nothing more is looked up: what that takes is not needed any more.
    pub fn settle(&mut self) {
        self.numbers = HashTable::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_kept_once() {
        let mut ids = Ids::default();
        let names: Vec<_> = (0..1000).map(|n| format!("job-{n}").into_bytes()).collect();
        for _ in 0..2 {
            for (number, name) in names.iter().enumerate() {
                assert_eq!(ids.number(name), number);
            }
        }
        assert_eq!(ids.len(), 1000);
        assert_eq!(ids.number(b""), 1000);
        assert_eq!((ids.get(1000), ids.get(7)), (&b""[..], &b"job-7"[..]));
        assert_eq!((ids.find(b"job-999"), ids.find(b"job-")), (Some(999), None));
    }

    #[test]
    fn remembers_what_is_said() {
        let mut ids = Ids::default();
        let number = ids.number(b"a");
        assert!(ids.set(number, LOCKED));
        assert!(!ids.set(number, LOCKED));
        assert!(ids.is(number, LOCKED) && !ids.is(number, MET));
        assert_eq!((ids.distance(number), ids.several(number)), (0, None));
        for distance in [7, 3, 9] {
            ids.see(number, distance);
        }
        assert_eq!(
            (ids.distance(number), ids.several(number)),
            (3, Some(vec![3, 7, 9]))
        );
    }
}
