//! One look at a queue: its marks, then active from head to tail.
//!
//! The twin of `python/mqsweep/scan.py`: fed the same bytes both send and say the same.

use std::collections::VecDeque;

use crate::check::Check;
use crate::ids::{CANDIDATE, Ids, LOCKED, MET, READ, WATCHED};
use crate::reply::{Fault, ReplyReader};
use crate::request;
use crate::sightings::Sightings;

const MARKS: &[u8] = b"1000";
const MARKS_MOST: usize = 1 << 24;
const FIRST_WINDOW: usize = 16;
const REPLY_GOAL: usize = 1 << 20;
const PIECES: usize = 8;

const MEMORY: u64 = 16_384;
const SIZES: [usize; 9] = [1000, 500, 200, 100, 50, 25, 12, 6, 3];

/// What to look at, and how.
#[derive(Debug)]
pub struct Settings {
    pub stalled: Vec<u8>,
    pub active: Vec<u8>,
    pub base: Vec<u8>,
    pub window: usize,
    pub check: usize,
    pub depth: usize,
    pub keep_locked: bool,
    /// Read about so many marks and no more; ask for the rest only of jobs without a lock.
    pub most_marks: Option<usize>,
    /// Where the slice of marks begins.
    pub cursor: Vec<u8>,
}

#[derive(Debug)]
enum Asked {
    Marks,
    Length,
    /// Distances from and to, both included.
    Window(u64, u64),
    Check(Check),
    /// Which of these, none of which has a lock, are marked.
    Marked(Check),
}

/// One pass over a queue.
#[derive(Debug)]
pub struct Scan {
    settings: Settings,
    out: Vec<u8>,
    expected: VecDeque<Asked>,
    replies: ReplyReader,
    fault: Option<Fault>,
    /// Some marks are not read.
    slice: bool,
    pub cursor: Vec<u8>,
    marks_read: bool,
    walking: bool,
    marks_open: usize,
    left: u64,
    /// Windows asked for ahead of their replies.
    depth: usize,
    /// Elements that one request asks for, at most.
    most: usize,
    windows_open: usize,
    windows_read: usize,
    size: usize,
    settled_lately: u64,
    dead_lately: u64,
    /// Ids that matter: marks, and those in active without a lock.
    ids: Ids,
    /// Numbers of ids, as they came; of marks without a lock how many.
    watched: Vec<usize>,
    locked: Vec<usize>,
    candidates: usize,
    /// What was seen, once it was asked for.
    sightings: Option<Sightings>,
    pub active_scanned: u64,
    pub active_total: u64,
    pub stalled_scanned: usize,
}

impl Scan {
    pub fn new(settings: Settings) -> Self {
        let depth = settings.depth.min(settings.window);
        let most = settings.window / depth;
        let cursor = settings.cursor.clone();
        let mut scan = Self {
            settings,
            out: Vec::new(),
            expected: VecDeque::new(),
            replies: ReplyReader::default(),
            fault: None,
            slice: cursor != b"0",
            cursor: cursor.clone(),
            marks_read: false,
            walking: false,
            marks_open: 0,
            left: 0,
            depth,
            most,
            windows_open: 0,
            windows_read: 0,
            size: FIRST_WINDOW.min(most),
            settled_lately: 0,
            dead_lately: 0,
            ids: Ids::default(),
            watched: Vec::new(),
            locked: Vec::new(),
            candidates: 0,
            sightings: None,
            active_scanned: 0,
            active_total: 0,
            stalled_scanned: 0,
        };
        scan.ask_marks(&cursor);
        scan
    }

    /// Whether all has been seen.
    pub fn done(&self) -> bool {
        self.walking && self.expected.is_empty() && self.fault.is_none()
    }

    /// Bytes to send now; each is given out once.
    pub fn outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Take bytes that came back, cut anywhere.
    pub fn feed(&mut self, data: &[u8]) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        self.replies.feed(data);
        self.read()
            .inspect_err(|fault| self.fault = Some(fault.clone()))
    }

    /// What was seen; nothing while the scan is not done.
    pub fn sightings(&mut self) -> Option<Sightings> {
        if !self.done() {
            return None;
        }
        if self.sightings.is_none() {
            let (ids, watched) = (
                std::mem::take(&mut self.ids),
                std::mem::take(&mut self.watched),
            );
            let locked = std::mem::take(&mut self.locked);
            self.sightings = Some(Sightings::new(
                ids,
                watched,
                locked,
                self.settings.keep_locked,
            ));
        }
        self.sightings.clone()
    }

    fn ask_marks(&mut self, cursor: &[u8]) {
        request::command(
            &mut self.out,
            &[b"SSCAN", &self.settings.stalled, cursor, b"COUNT", MARKS],
        );
        self.expected.push_back(Asked::Marks);
    }

    fn ask_windows(&mut self) {
        // how long ids are shows in the first reply
        let depth = if self.windows_read > 0 { self.depth } else { 1 };
        while self.left > 0 && self.windows_open < depth {
            let low = self.left.saturating_sub(self.size as u64 - 1).max(1);
            let (from, to) = (format!("-{}", self.left), format!("-{low}"));
            let parts: [&[u8]; 4] = [
                b"LRANGE",
                &self.settings.active,
                from.as_bytes(),
                to.as_bytes(),
            ];
            request::command(&mut self.out, &parts);
            self.expected.push_back(Asked::Window(self.left, low));
            self.windows_open += 1;
            self.left = low - 1;
        }
    }

    /// How many locks to ask for at once: fewer, the more often a check would come back mixed.
    fn check_size(&self) -> usize {
        let rare = self.dead_lately.min(self.settled_lately - self.dead_lately);
        let fits = |size: &usize| {
            *size <= self.settings.check
                && (*size as u64 * *size as u64).saturating_mul(rare) <= self.settled_lately
        };
        SIZES.into_iter().find(fits).unwrap_or(1)
    }

    fn ask_check(&mut self, check: Check) {
        if check.first.is_none() {
            self.marks_open += 1;
        }
        let ids = (0..check.len()).map(|index| check.id(index));
        request::exists(&mut self.out, &self.settings.base, ids);
        self.expected.push_back(Asked::Check(check));
    }

    fn read(&mut self) -> Result<(), Fault> {
        while let Some(asked) = self.expected.pop_front() {
            if let Some(asked) = self.take(asked)? {
                self.expected.push_front(asked); // not complete
                return Ok(());
            }
        }
        if self.replies.pending() {
            return Err(Fault::Protocol(
                "the server sent a reply that was not asked for".into(),
            ));
        }
        Ok(())
    }

    /// Read the reply to what was asked; what was asked comes back if the reply is not complete.
    fn take(&mut self, asked: Asked) -> Result<Option<Asked>, Fault> {
        match asked {
            Asked::Window(high, low) => {
                let most = usize::try_from(high - low + 1).unwrap_or(usize::MAX);
                let Some(ranges) = self.replies.bulks(most)? else {
                    return Ok(Some(asked));
                };
                self.window_read(&ranges, high, low);
            }
            Asked::Marks => {
                let Some((cursor, ranges)) = self.replies.scanned(MARKS_MOST)? else {
                    return Ok(Some(asked));
                };
                self.marks_read_on(&cursor, &ranges);
            }
            Asked::Length => {
                let Some(length) = self.replies.integer()? else {
                    return Ok(Some(asked));
                };
                self.left = u64::try_from(length)
                    .map_err(|_| Fault::Protocol(format!("LLEN answered {length}")))?;
                self.active_total = self.left;
                self.ask_windows();
            }
            Asked::Check(check) => {
                let Some(alive) = self.replies.integer()? else {
                    return Ok(Some(Asked::Check(check)));
                };
                self.settle(check, alive)?;
            }
            Asked::Marked(check) => {
                let Some(flags) = self.replies.flags(check.len())? else {
                    return Ok(Some(Asked::Marked(check)));
                };
                if flags.len() != check.len() {
                    let text = format!(
                        "SMISMEMBER of {} members answered {}",
                        check.len(),
                        flags.len()
                    );
                    return Err(Fault::Protocol(text));
                }
                for index in (0..check.len()).filter(|index| flags[*index]) {
                    let number = self.ids.number(check.id(index));
                    self.candidates += usize::from(self.ids.set(number, CANDIDATE));
                }
            }
        }
        Ok(None)
    }

    fn marks_read_on(&mut self, cursor: &[u8], ranges: &[std::ops::Range<usize>]) {
        let mut fresh = Vec::new();
        for range in ranges {
            let id = self.replies.element(range);
            let number = self.ids.number(id);
            if self.ids.set(number, READ) {
                fresh.push(range);
            }
        }
        self.stalled_scanned += fresh.len();
        let checks: Vec<_> = fresh
            .chunks(self.check_size())
            .map(|part| Check::new(part.iter().map(|range| self.replies.element(range)), None))
            .collect();
        self.cursor = cursor.to_vec();
        if cursor != b"0"
            && self
                .settings
                .most_marks
                .is_none_or(|most| self.stalled_scanned < most)
        {
            self.ask_marks(cursor);
        } else {
            self.slice |= cursor != b"0";
            self.marks_read = true;
        }
        for check in checks {
            self.ask_check(check);
        }
        self.walk_if_ready();
    }

    fn window_read(&mut self, ranges: &[std::ops::Range<usize>], high: u64, low: u64) {
        self.windows_open -= 1;
        self.windows_read += 1;
        self.active_scanned += ranges.len() as u64;
        let size: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        if size > REPLY_GOAL {
            self.size = (ranges.len() * REPLY_GOAL / size).max(1);
        } else if size < REPLY_GOAL / 8 && high - low + 1 >= self.size as u64 {
            self.size = (self.size * 4).min(self.most);
        }
        if !self.watched.is_empty() {
            for id in ranges.iter().map(|range| self.replies.element(range)) {
                if let Some(number) = self.ids.find(id) {
                    self.ids.set(number, MET);
                }
            }
        }
        self.ask_windows();
        let mut first = low + ranges.len() as u64;
        for part in ranges.chunks(self.check_size()) {
            let ids = part.iter().map(|range| self.replies.element(range));
            let check = Check::new(ids, Some(first - 1));
            first -= part.len() as u64;
            self.ask_check(check);
        }
    }

    fn settle(&mut self, check: Check, alive: i64) -> Result<(), Fault> {
        let count = check.len();
        let alive = usize::try_from(alive)
            .ok()
            .filter(|alive| *alive <= count)
            .ok_or_else(|| Fault::Protocol(format!("EXISTS of {count} keys answered {alive}")))?;
        if check.first.is_none() {
            self.marks_open -= 1;
        }
        if 0 < alive && alive < count {
            let piece = count.div_ceil(PIECES);
            for from in (0..count).step_by(piece) {
                self.ask_check(check.part(from, (from + piece).min(count)));
            }
        } else {
            self.settled(&check, alive > 0);
            if self.slice && alive == 0 && check.first.is_some() {
                let ids = (0..check.len()).map(|index| check.id(index));
                request::smismember(&mut self.out, &self.settings.stalled, ids);
                self.expected.push_back(Asked::Marked(check));
            }
        }
        self.walk_if_ready();
        Ok(())
    }

    /// All of these have a lock, or none has.
    fn settled(&mut self, check: &Check, alive: bool) {
        self.settled_lately += check.len() as u64;
        if !alive {
            self.dead_lately += check.len() as u64;
        }
        if self.settled_lately > MEMORY {
            self.settled_lately /= 2;
            self.dead_lately /= 2;
        }
        let ids = (0..check.len()).map(|index| check.id(index));
        match (check.first, alive) {
            (None, alive) => {
                for id in ids {
                    let number = self.ids.number(id);
                    if !alive {
                        self.candidates += usize::from(self.ids.set(number, CANDIDATE));
                    }
                    if alive && !self.settings.keep_locked {
                        self.lock(number);
                    } else if self.ids.set(number, WATCHED) {
                        self.watched.push(number);
                    }
                }
            }
            (Some(first), false) => {
                for (distance, id) in (0..=first).rev().zip(ids) {
                    let number = self.ids.number(id);
                    self.ids.see(number, distance);
                }
            }
            (Some(_), true) if self.candidates > 0 => {
                for id in ids {
                    if let Some(number) = self.ids.find(id)
                        && self.ids.is(number, CANDIDATE)
                    {
                        self.lock(number);
                    }
                }
            }
            (Some(_), true) => {}
        }
    }

    /// The lock of a mark was seen.
    fn lock(&mut self, number: usize) {
        if self.ids.set(number, LOCKED) {
            self.locked.push(number);
        }
    }

    /// The walk begins when every mark is settled: only then is it known which ids to look out for.
    fn walk_if_ready(&mut self) {
        if self.marks_read && self.marks_open == 0 && !self.walking {
            self.walking = true;
            // how many of the marked are dead says nothing about active
            (self.settled_lately, self.dead_lately) = (0, 0);
            request::command(&mut self.out, &[b"LLEN", &self.settings.active]);
            self.expected.push_back(Asked::Length);
        }
    }
}
