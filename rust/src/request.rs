//! Encoding commands.

use std::io::Write as _;

/// Append a bulk string.
pub fn bulk(out: &mut Vec<u8>, data: &[u8]) {
    header(out, b'$', data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Append a header line: an array's or a bulk string's.
pub fn header(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    number(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Append a command.
pub fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    header(out, b'*', parts.len());
    for part in parts {
        bulk(out, part);
    }
}

/// Append `EXISTS` of the locks of these ids.
pub fn exists<'a>(out: &mut Vec<u8>, base: &[u8], ids: impl ExactSizeIterator<Item = &'a [u8]>) {
    header(out, b'*', ids.len() + 1);
    out.extend_from_slice(b"$6\r\nEXISTS\r\n");
    for id in ids {
        header(out, b'$', base.len() + id.len() + b":lock".len());
        out.extend_from_slice(base);
        out.extend_from_slice(id);
        out.extend_from_slice(b":lock\r\n");
    }
}

/// Append `SMISMEMBER` of these ids.
pub fn smismember<'a>(out: &mut Vec<u8>, key: &[u8], ids: impl ExactSizeIterator<Item = &'a [u8]>) {
    header(out, b'*', ids.len() + 2);
    out.extend_from_slice(b"$10\r\nSMISMEMBER\r\n");
    bulk(out, key);
    for id in ids {
        bulk(out, id);
    }
}

fn number(out: &mut Vec<u8>, value: usize) {
    // writing to a Vec cannot fail
    _ = write!(out, "{value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_locks() {
        let mut out = Vec::new();
        let ids: [&[u8]; 2] = [b"1", b"a\r\nb"];
        exists(&mut out, b"q:", ids.into_iter());
        assert_eq!(
            out,
            b"*3\r\n$6\r\nEXISTS\r\n$8\r\nq:1:lock\r\n$11\r\nq:a\r\nb:lock\r\n"
        );
    }
}
