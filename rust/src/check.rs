//! A batch of ids whose locks, or marks, are asked for at once.

/// Locks asked for at once.
#[derive(Debug)]
pub struct Check {
    ids: Vec<u8>,
    ends: Vec<usize>,
    /// Distance of the first id, the others follow descending; `None`: these are marks.
    pub first: Option<u64>,
}

impl Check {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn id(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.ids[start..self.ends[index]]
    }

    pub fn part(&self, from: usize, to: usize) -> Self {
        let ids = (from..to).map(|index| self.id(index));
        Self::new(ids, self.first.map(|first| first - from as u64))
    }

    pub fn new<'a>(ids: impl Iterator<Item = &'a [u8]>, first: Option<u64>) -> Self {
        let mut check = Self {
            ids: Vec::new(),
            ends: Vec::new(),
            first,
        };
        for id in ids {
            check.ids.extend_from_slice(id);
            check.ends.push(check.ids.len());
        }
        check
    }
}
