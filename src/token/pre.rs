//! Pre-tokenisation: cuts a text into the pieces that merges never cross.
//!
//! Called by encode, piece by piece. Classes of characters are Unicode's general categories; white
//! space is the White_Space property. The tables are those of Unicode 18, so a letter added since a
//! model was trained counts as one here, where its own tokenizer took it for another sign.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::image::tokenizer::PreTokenizer;

/// What GPT-2's expression tells characters apart by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        _ if c.is_whitespace() => Class::Space,
        _ if c.is_ascii() => Class::Other,
        _ => match c.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            _ => Class::Other,
        },
    }
}

/// Bytes of the first piece of `text`: 0 only where `text` is empty.
pub fn piece_bytes(pre: PreTokenizer, text: &str) -> usize {
    match pre {
        PreTokenizer::Gpt2 => gpt2(text),
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, first match.
fn gpt2(text: &str) -> usize {
    const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
    if let Some(found) = CONTRACTIONS.iter().find(|&&c| text.starts_with(c)) {
        return found.len();
    }
    let run = text.strip_prefix(' ').unwrap_or(text);
    if let Some(kind) = run.chars().next().map(class).filter(|&kind| kind != Class::Space) {
        return text.len() - run.len() + run_bytes(run, kind);
    }
    let spaces = run_bytes(text, Class::Space);
    // The last space before a word belongs to the word, unless it is the only one.
    let last = text[..spaces].chars().next_back().map_or(0, char::len_utf8);
    if spaces < text.len() && spaces > last { spaces - last } else { spaces }
}

/// Bytes of the characters of `kind` that `text` starts with.
fn run_bytes(text: &str, kind: Class) -> usize {
    text.find(|c| class(c) != kind).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(mut text: &str) -> Vec<&str> {
        let mut all = Vec::new();
        while !text.is_empty() {
            let (piece, rest) = text.split_at(piece_bytes(PreTokenizer::Gpt2, text));
            all.push(piece);
            text = rest;
        }
        all
    }

    #[test]
    fn cut_by_hand() {
        let cases: [(&str, &[&str]); 18] = [
            ("", &[]),
            ("Hello world", &["Hello", " world"]),
            ("I'll, we've", &["I", "'ll", ",", " we", "'ve"]),
            ("I'LL", &["I", "'", "LL"]),
            ("'s't're've'm'll'd", &["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"]),
            ("''s", &["''", "s"]),
            (" 's", &[" '", "s"]),
            ("'sun", &["'s", "un"]),
            ("a  b", &["a", " ", " b"]),
            ("a \n b", &["a", " \n", " b"]),
            ("a\nb", &["a", "\n", "b"]),
            ("a\n\nb", &["a", "\n", "\n", "b"]),
            ("a  ", &["a", "  "]),
            ("x12y", &["x", "12", "y"]),
            ("\u{a0}x", &["\u{a0}", "x"]),
            ("e\u{301}e", &["e", "\u{301}", "e"]),
            ("½ ٣ Ⅷ", &["½", " ٣", " Ⅷ"]),
            ("a½٣Ⅷ!é", &["a", "½٣Ⅷ", "!", "é"]),
        ];
        for (text, wanted) in cases {
            assert_eq!(pieces(text), wanted, "{text:?}");
        }
    }
}
