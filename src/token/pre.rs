//! Pre-tokenisation: cuts a text into the pieces that merges never cross.
//!
//! Called by encode, piece by piece. Each function is one regular expression, first match, written
//! out over classes of characters; it looks at no more than the piece it returns and one run behind
//! it. Classes are Unicode's general categories; white space is the White_Space property. The
//! tables are those of Unicode 18: 17,480 characters that `tokenizers` 0.23.3 does not know yet,
//! and 21,862 that llama.cpp does not, are letters or numbers here and other signs there. 15,626 of
//! them are two blocks, U+323B0 to U+33479 and U+3D000 to U+3FC3F; all were unassigned in Unicode
//! 14, and no older character differs.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::image::tokenizer::{PreTokenizer, SPACE};

/// What the expressions tell characters apart by.
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
        PreTokenizer::SmolLm => smollm(text),
        PreTokenizer::Qwen2 => signed_words(text, 1),
        PreTokenizer::LlamaBpe => signed_words(text, 3),
        PreTokenizer::Words => words(text),
        PreTokenizer::Whole => text.len(),
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(text: &str) -> usize {
    if let Some(bytes) = contraction(text, |c| c) {
        return bytes;
    }
    let run = text.strip_prefix(' ').unwrap_or(text);
    match class_of_first(run) {
        None | Some(Class::Space) => white_space(text),
        Some(kind) => text.len() - run.len() + run_bytes(run, kind),
    }
}

/// `\p{N}` anywhere, and between those what GPT-2's expression makes of each part on its own.
fn smollm(text: &str) -> usize {
    let first = text.chars().next().map_or(0, char::len_utf8);
    let spaces = run_bytes(text, Class::Space);
    match (class_of_first(text), class_of_first(&text[spaces..])) {
        (Some(Class::Number), _) => first,
        // Its part ends with these spaces: no word takes the last one.
        (Some(Class::Space), Some(Class::Number)) => spaces,
        _ => gpt2(text),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits_max}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, a space before the question mark.
fn signed_words(text: &str, digits_max: usize) -> usize {
    if let Some(bytes) = contraction(text, lower) {
        return bytes;
    }
    let Some(first) = text.chars().next() else { return 0 };
    let kind = class(first);
    if kind == Class::Number {
        let digits = text.chars().take(digits_max).take_while(|&c| class(c) == Class::Number);
        return digits.map(char::len_utf8).sum();
    }
    let sign = if kind == Class::Letter || is_break(first) { 0 } else { first.len_utf8() };
    let letters = run_bytes(&text[sign..], Class::Letter);
    if letters > 0 {
        return sign + letters;
    }
    let signs = text.strip_prefix(' ').unwrap_or(text);
    let others = run_bytes(signs, Class::Other);
    if others > 0 {
        let end = text.len() - signs.len() + others;
        let breaks = text[end..].find(|c| !is_break(c)).unwrap_or(text.len() - end);
        return end + breaks;
    }
    let spaces = run_bytes(text, Class::Space);
    text[..spaces].rfind(is_break).map_or_else(|| white_space(text), |at| at + 1)
}

/// ` *[^ ]*`, where [`SPACE`] is a space too.
fn words(text: &str) -> usize {
    let is_space = |c: char| c == ' ' || c == SPACE;
    let spaces = text.find(|c| !is_space(c)).unwrap_or(text.len());
    text[spaces..].find(is_space).map_or(text.len(), |bytes| spaces + bytes)
}

/// `\s+(?!\S)|\s+`: the last space before a word belongs to the word, unless it is the only one.
fn white_space(text: &str) -> usize {
    let spaces = run_bytes(text, Class::Space);
    let last = text[..spaces].chars().next_back().map_or(0, char::len_utf8);
    if spaces < text.len() && spaces > last { spaces - last } else { spaces }
}

/// Bytes of the English contraction that `text` starts with, once its letters are folded.
fn contraction(text: &str, fold: fn(char) -> char) -> Option<usize> {
    const ENDS: [&str; 7] = ["s", "t", "re", "ve", "m", "ll", "d"];
    let rest = text.strip_prefix('\'')?;
    let folded = |letters: usize| rest.chars().take(letters).map(fold);
    let end = ENDS.into_iter().find(|end| end.chars().eq(folded(end.len())))?;
    Some(1 + rest.chars().take(end.len()).map(char::len_utf8).sum::<usize>())
}

/// Lower case, as far as contractions need it: the long s is an s of another form.
fn lower(c: char) -> char {
    if c == 'ſ' { 's' } else { c.to_ascii_lowercase() }
}

fn is_break(c: char) -> bool {
    c == '\r' || c == '\n'
}

fn class_of_first(text: &str) -> Option<Class> {
    text.chars().next().map(class)
}

/// Bytes of the characters of `kind` that `text` starts with.
fn run_bytes(text: &str, kind: Class) -> usize {
    text.find(|c| class(c) != kind).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pre: PreTokenizer, cases: &[(&str, &[&str])]) {
        for (text, wanted) in cases {
            let (mut all, mut rest) = (Vec::new(), *text);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(piece_bytes(pre, rest));
                all.push(piece);
                rest = after;
            }
            assert_eq!(all, *wanted, "{text:?}");
        }
        assert_eq!(piece_bytes(pre, ""), 0);
    }

    #[test]
    fn gpt2_by_hand() {
        check(
            PreTokenizer::Gpt2,
            &[
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
            ],
        );
    }

    #[test]
    fn smollm_by_hand() {
        check(
            PreTokenizer::SmolLm,
            &[
                ("12", &["1", "2"]),
                ("x 12y", &["x", " ", "1", "2", "y"]),
                ("x  1", &["x", "  ", "1"]),
                ("1  x", &["1", " ", " x"]),
                ("'s1's", &["'s", "1", "'s"]),
                ("½٣!", &["½", "٣", "!"]),
                ("a \n 7", &["a", " \n ", "7"]),
            ],
        );
    }

    #[test]
    fn words_that_take_a_sign_by_hand() {
        let cases: [(&str, &[&str]); 15] = [
            ("Hello world", &["Hello", " world"]),
            ("I'LL (we)", &["I", "'LL", " (", "we", ")"]),
            ("(we)", &["(we", ")"]),
            ("'sſun'ſa", &["'s", "ſun", "'ſ", "a"]),
            ("'sun", &["'s", "un"]),
            ("\tx\nx", &["\tx", "\n", "x"]),
            ("!!x", &["!!", "x"]),
            ("!\n\r\nx", &["!\n\r\n", "x"]),
            (" !\n x", &[" !\n", " x"]),
            ("a \n \n  b", &["a", " \n \n", " ", " b"]),
            ("a  \n", &["a", "  \n"]),
            ("a  !", &["a", " ", " !"]),
            ("a  ", &["a", "  "]),
            ("\u{a0}x", &["\u{a0}x"]),
            ("e\u{301}e", &["e", "\u{301}e"]),
        ];
        for pre in [PreTokenizer::Qwen2, PreTokenizer::LlamaBpe] {
            check(pre, &cases);
        }
        // Of two spaces the last is left for what follows, and a number does not take it.
        check(PreTokenizer::Qwen2, &[("  12345", &[" ", " ", "1", "2", "3", "4", "5"])]);
        check(PreTokenizer::LlamaBpe, &[("  12345x", &[" ", " ", "123", "45", "x"])]);
    }

    #[test]
    fn spaces_start_words() {
        let cases: [(&str, &[&str]); 4] = [
            ("a  b c ", &["a", "  b", " c", " "]),
            (" a", &[" a"]),
            ("a▁ b\n c", &["a", "▁ b\n", " c"]),
            ("  ", &["  "]),
        ];
        check(PreTokenizer::Words, &cases);
        check(PreTokenizer::Whole, &[("a  b", &["a  b"])]);
    }
}
