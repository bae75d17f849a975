//! Token bytes to whole characters.
//!
//! A token may end within a character; a terminal or a JSON string must not see half of one.

use core::str::from_utf8;

/// Turns a stream of bytes into text, with U+FFFD for what is not UTF-8, just as
/// `String::from_utf8_lossy` would with the whole stream at hand.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The start of a character: at most 3 bytes between calls.
    held: [u8; 8],
    held_bytes: usize,
}

const REPLACEMENT: &str = "\u{FFFD}";

impl Utf8Stream {
    /// A stream that holds nothing.
    pub const fn new() -> Utf8Stream {
        Utf8Stream { held: [0; 8], held_bytes: 0 }
    }

    /// Takes the next bytes and hands every character they complete to `emit`.
    pub fn push(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&str)) {
        while self.held_bytes > 0 {
            let Some((&byte, rest)) = bytes.split_first() else {
                return;
            };
            self.held[self.held_bytes] = byte;
            let joined = &self.held[..self.held_bytes + 1];
            match from_utf8(joined) {
                Ok(character) => {
                    emit(character);
                    self.held_bytes = 0;
                    bytes = rest;
                }
                Err(error) if error.error_len().is_none() => {
                    self.held_bytes += 1;
                    bytes = rest;
                }
                // What was held can't become a character; `byte` may start one.
                Err(_) => {
                    emit(REPLACEMENT);
                    self.held_bytes = 0;
                }
            }
        }
        let mut left = bytes.len();
        for chunk in bytes.utf8_chunks() {
            let (text, broken) = (chunk.valid(), chunk.invalid());
            left -= text.len() + broken.len();
            if !text.is_empty() {
                emit(text);
            }
            match from_utf8(broken) {
                Ok(_) => {}
                // Half a character at the very end may still be completed.
                Err(error) if left == 0 && error.error_len().is_none() => {
                    self.held[..broken.len()].copy_from_slice(broken);
                    self.held_bytes = broken.len();
                }
                Err(_) => emit(REPLACEMENT),
            }
        }
    }

    /// Ends the stream: half a character becomes U+FFFD.
    pub fn finish(&mut self, mut emit: impl FnMut(&str)) {
        if self.held_bytes > 0 {
            emit(REPLACEMENT);
            self.held_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(bytes: &[u8], cut: impl Fn(usize) -> usize) -> String {
        let mut stream = Utf8Stream::new();
        let mut text = String::new();
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + cut(at));
            stream.push(&bytes[at..end], |part| text.push_str(part));
            at = end;
        }
        stream.finish(|part| text.push_str(part));
        text
    }

    #[test]
    fn characters_come_whole() {
        let mut stream = Utf8Stream::new();
        let mut parts: Vec<String> = Vec::new();
        for bytes in [&b"a\xF0"[..], b"\x9F\x99", b"\x82b", b"\xE2\x82"] {
            stream.push(bytes, |part| parts.push(part.into()));
        }
        assert_eq!(parts, ["a", "\u{1F642}", "b"]);
        stream.finish(|part| parts.push(part.into()));
        stream.finish(|part| parts.push(part.into()));
        assert_eq!(parts, ["a", "\u{1F642}", "b", "\u{FFFD}"]);
    }

    /// Every string of up to 6 bytes of an alphabet that holds each kind of UTF-8 byte.
    #[test]
    fn equals_from_utf8_lossy_however_it_is_cut() {
        const BYTES: [u8; 9] = [b'a', 0x80, 0x9F, 0xBF, 0xC3, 0xE0, 0xED, 0xF0, 0xF5];
        for length in 1..=6u32 {
            for code in 0..9usize.pow(length) {
                let bytes: Vec<u8> =
                    (0..length).map(|place| BYTES[code / 9usize.pow(place) % 9]).collect();
                let wanted = String::from_utf8_lossy(&bytes);
                for cut in 1..=3 {
                    assert_eq!(streamed(&bytes, |_| cut), wanted, "{bytes:x?} cut at {cut}");
                }
                assert_eq!(streamed(&bytes, |at| at % 3 + 1), wanted, "{bytes:x?}");
            }
        }
    }
}
