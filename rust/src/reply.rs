//! Reading replies: RESP2, cut anywhere, of the four shapes that a scan asks for.
//!
//! The twin of `python/mqsweep/reply.py`; fed the same bytes both say the same, to the letter.

use std::ops::Range;

use memchr::memmem;

/// Bytes of one element at most, the server's own bound.
pub const LONGEST: usize = 512 << 20;
/// Bytes of a line that is no element at most.
pub const LONGEST_LINE: usize = 64 << 10;
/// Bytes of an element's header at most.
pub const LONGEST_HEADER: usize = 64;
/// Bytes that an element takes at least.
const SHORTEST: usize = b"$0\r\n\r\n".len();

/// What ends a scan: it is dead afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bytes are not the reply that was asked for.
    Protocol(String),
    /// The server answered with an error; its line without the leading `-`.
    Server(Vec<u8>),
}

/// `None` while the reply is not complete.
pub type Read<T> = Result<Option<T>, Fault>;

/// A cursor and the elements that came with it.
pub type Scanned = (Vec<u8>, Vec<Range<usize>>);

/// Takes bytes as they come and gives out replies in order.
///
/// A reply that was asked for as one kind is to be asked for as that kind until it is complete.
#[derive(Debug, Default)]
pub struct ReplyReader {
    buffer: Vec<u8>,
    at: usize,
    /// Complete elements of an array that is not, so that none is looked at again for each chunk that follows it.
    framed: Vec<Range<usize>>,
    /// Where that array begins.
    framed_from: usize,
}

impl ReplyReader {
    /// Take bytes that came back. Ranges that were given out are void afterwards.
    pub fn feed(&mut self, data: &[u8]) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            if self.framed_from < self.at {
                self.framed.clear();
            }
            self.framed_from = self.framed_from.saturating_sub(self.at);
            for range in &mut self.framed {
                *range = range.start - self.at..range.end - self.at;
            }
            self.at = 0;
        }
        self.buffer.extend_from_slice(data);
    }

    /// Whether bytes have arrived that no reply was read from yet.
    pub fn pending(&self) -> bool {
        self.at < self.buffer.len()
    }

    /// The bytes of an element that was given out.
    pub fn element(&self, range: &Range<usize>) -> &[u8] {
        &self.buffer[range.clone()]
    }

    /// The next reply, a number.
    pub fn integer(&mut self) -> Read<i64> {
        let Some((line, next)) = self.head()? else {
            return Ok(None);
        };
        let value = parse_integer(&self.buffer[line.clone()])
            .ok_or_else(|| protocol("expected a number, got", &self.buffer[line]))?;
        self.at = next;
        Ok(Some(value))
    }

    /// The next reply, an array of at most so many bulk strings.
    pub fn bulks(&mut self, most: usize) -> Read<Vec<Range<usize>>> {
        let Some((line, _)) = self.head()? else {
            return Ok(None);
        };
        let Some((elements, next)) = self.array(line.start, most)? else {
            return Ok(None);
        };
        self.at = next;
        Ok(Some(elements))
    }

    /// The next reply, an array of zeros and ones, as `SMISMEMBER` sends it.
    pub fn flags(&mut self, most: usize) -> Read<Vec<bool>> {
        let Some((line, mut next)) = self.head()? else {
            return Ok(None);
        };
        let count = length(&self.buffer[line], b'*', most)?;
        let mut flags = Vec::new();
        for _ in 0..count {
            let Some(end) = self.line_end(next) else {
                self.bound(next)?;
                return Ok(None);
            };
            match &self.buffer[next..end] {
                b":0" => flags.push(false),
                b":1" => flags.push(true),
                wrong => return Err(protocol("expected 0 or 1, got", wrong)),
            }
            next = end + 2;
        }
        self.at = next;
        Ok(Some(flags))
    }

    /// The next reply, a cursor and an array, as `SSCAN` sends it.
    pub fn scanned(&mut self, most: usize) -> Read<Scanned> {
        let Some((line, next)) = self.head()? else {
            return Ok(None);
        };
        if self.buffer[line.clone()] != *b"*2" {
            return Err(protocol(
                "expected a cursor and elements, got",
                &self.buffer[line],
            ));
        }
        let mut lines = [next, 0, 0, 0];
        for i in 0..3 {
            let Some(end) = self.line_end(lines[i]) else {
                self.bound(lines[i])?;
                return Ok(None);
            };
            lines[i + 1] = end + 2;
        }
        let header = &self.buffer[lines[0]..lines[1] - 2];
        let cursor = &self.buffer[lines[1]..lines[2] - 2];
        if !is_digits(cursor) || header != format!("${}", cursor.len()).as_bytes() {
            return Err(protocol("expected a cursor, got", cursor));
        }
        let cursor = cursor.to_vec();
        let Some((elements, next)) = self.array(lines[2], most)? else {
            return Ok(None);
        };
        self.at = next;
        Ok(Some((cursor, elements)))
    }

    /// The line that the next reply begins with, and where the next one starts.
    fn head(&self) -> Read<(Range<usize>, usize)> {
        let Some(end) = self.line_end(self.at) else {
            self.bound(self.at)?;
            return Ok(None);
        };
        let line = self.at..end;
        if self.buffer[line.clone()].first() == Some(&b'-') {
            return Err(Fault::Server(self.buffer[self.at + 1..end].to_vec()));
        }
        Ok(Some((line, end + 2)))
    }

    fn line_end(&self, from: usize) -> Option<usize> {
        memmem::find(&self.buffer[from..], b"\r\n").map(|found| from + found)
    }

    fn bound(&self, from: usize) -> Result<(), Fault> {
        if self.buffer.len() - from > LONGEST_LINE {
            return Err(protocol("a line without end:", &self.buffer[from..]));
        }
        Ok(())
    }

    /// An array that begins at an offset: its elements, and where the next reply starts.
    fn array(&mut self, from: usize, most: usize) -> Read<(Vec<Range<usize>>, usize)> {
        let Some(end) = self.line_end(from) else {
            return Ok(None);
        };
        let count = length(&self.buffer[from..end], b'*', most)?;
        if self.framed_from != from {
            self.framed.clear();
            self.framed_from = from;
        }
        let mut at = self.framed.last().map_or(end + 2, |last| last.end + 2);
        // as many as have arrived, not as many as are announced
        let arrived = (self.buffer.len() - at) / SHORTEST;
        let left = count - self.framed.len();
        self.framed.reserve(left.min(arrived));
        for _ in 0..left {
            let Some((size, start)) = self.element_header(at)? else {
                return Ok(None);
            };
            let end = start + size;
            match self.buffer.get(end..end + 2) {
                None => return Ok(None),
                Some(b"\r\n") => self.framed.push(start..end),
                Some(_) => {
                    let rest = &self.buffer[end..];
                    return Err(protocol(
                        "an element does not end where its header says:",
                        rest,
                    ));
                }
            }
            at = end + 2;
        }
        Ok(Some((std::mem::take(&mut self.framed), at)))
    }

    /// How long the element that begins here is, and where its bytes start.
    fn element_header(&self, at: usize) -> Read<(usize, usize)> {
        let rest = &self.buffer[at..];
        // nearly all headers are a few digits: look no further for their end than that takes
        let near = rest.len().min(16);
        let end = match memchr::memchr(b'\r', &rest[..near]) {
            Some(end) if rest.get(end + 1) == Some(&b'\n') => end,
            _ => match memmem::find(rest, b"\r\n") {
                Some(end) => end,
                None if rest.len() > LONGEST_HEADER => {
                    return Err(protocol("a line without end:", rest));
                }
                None => return Ok(None),
            },
        };
        Ok(Some((length(&rest[..end], b'$', LONGEST)?, at + end + 2)))
    }
}

fn is_digits(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
}

fn parse_integer(line: &[u8]) -> Option<i64> {
    let digits = line.strip_prefix(b":")?;
    let bare = digits.strip_prefix(b"-").unwrap_or(digits);
    if !is_digits(bare) || bare.len() > 19 {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn length(line: &[u8], kind: u8, most: usize) -> Result<usize, Fault> {
    let wrong = || {
        let text = format!(
            "expected {} and a number up to {most}, got",
            char::from(kind)
        );
        protocol(&text, line)
    };
    let digits = match line.split_first() {
        Some((first, digits)) if *first == kind && is_digits(digits) && digits.len() <= 10 => {
            digits
        }
        _ => return Err(wrong()),
    };
    let value = digits
        .iter()
        .fold(0_u64, |value, digit| value * 10 + u64::from(digit - b'0'));
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or_else(wrong)
}

/// A fault whose text quotes bytes of the server, cut and escaped.
pub fn protocol(text: &str, quoted: &[u8]) -> Fault {
    Fault::Protocol(format!("{text} {}", shown(quoted)))
}

/// Bytes as Python writes them, without the `b`.
fn shown(data: &[u8]) -> String {
    use std::fmt::Write as _;

    let data = &data[..data.len().min(40)];
    let quote = if data.contains(&b'\'') && !data.contains(&b'"') {
        '"'
    } else {
        '\''
    };
    let mut text = String::from(quote);
    for &byte in data {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' if char::from(byte) == quote => {
                text.push('\\');
                text.push(quote);
            }
            b' '..=b'~' => text.push(char::from(byte)),
            // writing to a String cannot fail
            _ => _ = write!(text, "\\x{byte:02x}"),
        }
    }
    text.push(quote);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(reader: &ReplyReader, ranges: &[Range<usize>]) -> Vec<Vec<u8>> {
        ranges
            .iter()
            .map(|range| reader.element(range).to_vec())
            .collect()
    }

    #[test]
    fn reads_each_shape() {
        let mut reader = ReplyReader::default();
        reader.feed(b":-7\r\n*2\r\n$1\r\na\r\n$4\r\n\r\n\r\n\r\n*2\r\n$2\r\n12\r\n*0\r\n");
        assert_eq!(reader.integer(), Ok(Some(-7)));
        let elements = reader.bulks(2).unwrap().unwrap();
        assert_eq!(
            texts(&reader, &elements),
            [b"a".to_vec(), b"\r\n\r\n".to_vec()]
        );
        assert_eq!(reader.scanned(0), Ok(Some((b"12".to_vec(), vec![]))));
        assert!(!reader.pending());
        assert_eq!(reader.integer(), Ok(None));
    }

    #[test]
    fn quotes_like_python() {
        assert_eq!(shown(b"it's\x00\xff\\"), "\"it's\\x00\\xff\\\\\"");
        assert_eq!(shown(b"\"'\r\n\t"), "'\"\\'\\r\\n\\t'");
        assert_eq!(shown(&[b'x'; 50]).len(), 42);
    }

    proptest! {
        #[test]
        fn any_cut_reads_the_same(
            ids in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            cuts in proptest::collection::vec(1_usize..50, 1..50),
        ) {
            let mut stream = format!("*{}\r\n", ids.len()).into_bytes();
            for id in &ids {
                stream.extend_from_slice(format!("${}\r\n", id.len()).as_bytes());
                stream.extend_from_slice(id);
                stream.extend_from_slice(b"\r\n");
            }
            let mut reader = ReplyReader::default();
            let mut rest = &stream[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                reader.feed(chunk);
                rest = after;
                match reader.bulks(ids.len()).unwrap() {
                    Some(found) => {
                        prop_assert!(rest.is_empty());
                        prop_assert_eq!(texts(&reader, &found), ids.clone());
                    }
                    None => prop_assert!(!rest.is_empty()),
                }
            }
        }

        #[test]
        fn garbage_never_panics(data in proptest::collection::vec(any::<u8>(), 0..200), most in 0_usize..9) {
            let mut reader = ReplyReader::default();
            reader.feed(&data);
            _ = reader.integer();
            _ = reader.bulks(most);
            _ = reader.flags(most);
            _ = reader.scanned(most);
        }
    }
}
