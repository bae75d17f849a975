//! Text to tokens, over borrowed memory: byte-level BPE and SentencePiece.
//!
//! Special tokens cut a text first, then the pre-tokenizer cuts what stands between them into
//! pieces. A piece starts as bytes or as characters, by the model; then both merge alike. The pair
//! of lowest rank merges first, the leftmost of equals. A tournament tree over the pairs' ranks
//! finds it, so a piece of n bytes takes O(n log n) steps, whatever it holds.
//!
//! No text is normalised, as in llama.cpp: where a model's own tokenizer composes characters first
//! (Qwen2's: NFC), a letter and its accent in two characters get other tokens than there.

use core::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::image::tokenizer::{NONE, SPACE, TokenizerModel};
use crate::token::pre::piece_bytes;
use crate::token::{TokenError, Tokenizer};

/// How a text is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put BOS first. For a prompt: [`Tokenizer::adds_bos`].
    pub bos: bool,
    /// Read the names of control tokens in the text as those tokens. Off for text from outside:
    /// it could end a turn or forge a role.
    pub parse_special: bool,
}

/// What stands before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing.
    Text,
    /// BOS, which is put there.
    Bos,
    /// Text of which this is the rest: the model's space before a text is not for it.
    Within,
}

/// A symbol of the piece at hand: a token and its neighbours, [`NONE`] at the ends.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
}

/// Memory for one piece, lent by the caller.
pub struct EncodeScratch<'a> {
    symbols: &'a mut [Symbol],
    /// Tournament tree: node i is the least of nodes 2i and 2i + 1, leaf i the rank of the pair
    /// that starts at symbol i, NONE where there is none.
    ranks: &'a mut [u32],
}

impl<'a> EncodeScratch<'a> {
    const WORDS_PER_BYTE: usize = size_of::<Symbol>() / 4 + 2;

    /// Words needed for pieces of up to `piece_bytes_max` bytes.
    pub const fn words(piece_bytes_max: usize) -> usize {
        piece_bytes_max.next_power_of_two() * Self::WORDS_PER_BYTE
    }

    /// Scratch in `words`, for the largest power of two of bytes that fits; content is ignored.
    pub fn new(words: &'a mut [u32]) -> EncodeScratch<'a> {
        let room = words.len() / Self::WORDS_PER_BYTE;
        let bytes = if room == 0 { 0 } else { 1 << room.ilog2() };
        let (symbols, rest) = words.split_at_mut(bytes * (size_of::<Symbol>() / 4));
        EncodeScratch { symbols: bytemuck::cast_slice_mut(symbols), ranks: &mut rest[..2 * bytes] }
    }

    /// Bytes of the longest piece that fits.
    pub fn piece_bytes_max(&self) -> usize {
        self.symbols.len()
    }
}

/// The tokens so far. Counts on when `out` is full, so that an error can tell the whole length.
struct Sink<'a> {
    out: &'a mut [u32],
    count: usize,
}

impl Sink<'_> {
    fn push(&mut self, id: u32) {
        if let Some(place) = self.out.get_mut(self.count) {
            *place = id;
        }
        self.count += 1;
    }
}

impl Tokenizer<'_> {
    /// Writes the tokens of `text` to `out` and returns their number. When they don't fit, `out`
    /// holds the first ones and [`TokenError::TooManyTokens`] the number of all.
    pub fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
        scratch: &mut EncodeScratch<'_>,
        out: &mut [u32],
    ) -> Result<usize, TokenError> {
        let start = if options.bos { Start::Bos } else { Start::Text };
        self.encode_marked(text, start, |_| options.parse_special, scratch, out)
    }

    /// As [`Tokenizer::encode`], for a text that is only partly one's own, such as a conversation:
    /// the name of a control token is read as that token where `is_mark` says so of its bytes, and
    /// as text elsewhere.
    pub fn encode_marked(
        &self,
        text: &str,
        start: Start,
        is_mark: impl Fn(Range<usize>) -> bool,
        scratch: &mut EncodeScratch<'_>,
        out: &mut [u32],
    ) -> Result<usize, TokenError> {
        let max = out.len();
        let mut sink = Sink { out, count: 0 };
        if start == Start::Bos {
            sink.push(self.bos().ok_or(TokenError::NoBos)?);
        }
        let mut space = self.adds_space() && start != Start::Within;
        let mut at = 0;
        while let Some(special) = self.find_special(text, at, &is_mark) {
            self.encode_plain(&text[at..special.start], space, scratch, &mut sink)?;
            sink.push(special.id);
            (at, space) = (special.end, self.adds_space());
        }
        self.encode_plain(&text[at..], space, scratch, &mut sink)?;
        if sink.count > max {
            return Err(TokenError::TooManyTokens { total: sink.count, max });
        }
        Ok(sink.count)
    }

    /// Text without special tokens, after the space that a text gets before it where `space`.
    fn encode_plain(
        &self,
        mut text: &str,
        mut space: bool,
        scratch: &mut EncodeScratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenError> {
        while !text.is_empty() {
            let (piece, rest) = text.split_at(piece_bytes(self.pre, text));
            match self.whole_piece(piece.as_bytes()) {
                Some(id) => sink.push(id),
                None => self.encode_piece(piece, space, scratch, sink)?,
            }
            space = false;
            text = rest;
        }
        Ok(())
    }

    fn whole_piece(&self, piece: &[u8]) -> Option<u32> {
        if self.pre.takes_whole_pieces() { self.whole(piece) } else { None }
    }

    /// A piece, after the space that a text gets before it where `space`.
    fn encode_piece(
        &self,
        piece: &str,
        space: bool,
        scratch: &mut EncodeScratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenError> {
        let (bytes, max) = (piece.len() + usize::from(space), scratch.piece_bytes_max());
        if bytes > max {
            return Err(TokenError::PieceTooLong { bytes, max });
        }
        let room = &mut scratch.symbols[..bytes];
        let count = match self.model {
            TokenizerModel::Gpt2 => self.start_as_bytes(piece.as_bytes(), room),
            TokenizerModel::Llama => self.start_as_characters(piece, space, room)?,
        };
        let symbols = &mut room[..count];
        for (index, symbol) in symbols.iter_mut().enumerate() {
            symbol.prev = if index == 0 { NONE } else { index as u32 - 1 };
            symbol.next = if index + 1 == count { NONE } else { index as u32 + 1 };
        }
        self.merge_symbols(symbols, &mut scratch.ranks[..2 * count.next_power_of_two()]);
        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            sink.push(symbol.id);
            at = symbol.next as usize;
        }
        Ok(())
    }

    /// Writes the ids of `bytes`; returns their number. Some vocabularies lack control characters:
    /// a byte that is no token is left out, as the models' own tokenizers do.
    fn start_as_bytes(&self, bytes: &[u8], symbols: &mut [Symbol]) -> usize {
        let ids = bytes.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
        let mut count = 0;
        for (symbol, id) in symbols.iter_mut().zip(ids.filter(|&id| id != NONE)) {
            symbol.id = id;
            count += 1;
        }
        count
    }

    /// Writes the ids of the characters of `piece`, in which a space is [`SPACE`], and those of its
    /// bytes for a character that is no token; returns their number. Byte tokens never merge.
    fn start_as_characters(
        &self,
        piece: &str,
        space: bool,
        symbols: &mut [Symbol],
    ) -> Result<usize, TokenError> {
        let mut count = 0;
        let mut push = |id| {
            symbols[count].id = id;
            count += 1;
        };
        for c in space.then_some(' ').into_iter().chain(piece.chars()) {
            let c = if c == ' ' { SPACE } else { c };
            if let Some(id) = self.character(c) {
                push(id);
                continue;
            }
            for &byte in c.encode_utf8(&mut [0; 4]).as_bytes() {
                match self.byte_ids[usize::from(byte)] {
                    NONE => return Err(TokenError::NoByteToken { byte }),
                    id => push(id),
                }
            }
        }
        Ok(count)
    }

    /// Merges neighbours until no pair has a rank. `ranks` has two words for each of a power of two
    /// of leaves, at least one a symbol.
    fn merge_symbols(&self, symbols: &mut [Symbol], ranks: &mut [u32]) {
        let leaves = ranks.len() / 2;
        for leaf in 0..leaves {
            ranks[leaves + leaf] = self.pair_rank(symbols, leaf as u32);
        }
        for node in (1..leaves).rev() {
            ranks[node] = ranks[2 * node].min(ranks[2 * node + 1]);
        }
        while ranks[1] != NONE {
            let mut node = 1;
            while node < leaves {
                node = if ranks[2 * node] == ranks[1] { 2 * node } else { 2 * node + 1 };
            }
            let left = node - leaves;
            let Symbol { id, prev, next: right } = symbols[left];
            let gone = symbols[right as usize];
            let Some(merge) = self.merge(id, gone.id) else {
                return;
            };
            symbols[left] = Symbol { id: merge.merged, prev, next: gone.next };
            if let Some(after) = symbols.get_mut(gone.next as usize) {
                after.prev = left as u32;
            }
            set_rank(ranks, right, NONE);
            set_rank(ranks, left as u32, self.pair_rank(symbols, left as u32));
            if prev != NONE {
                set_rank(ranks, prev, self.pair_rank(symbols, prev));
            }
        }
    }

    /// Rank of the pair that starts at symbol `left`, NONE where none does or it doesn't merge.
    fn pair_rank(&self, symbols: &[Symbol], left: u32) -> u32 {
        let symbol = |index: u32| symbols.get(index as usize);
        let pair = symbol(left).and_then(|left| Some((left.id, symbol(left.next)?.id)));
        pair.and_then(|(left, right)| self.merge(left, right)).map_or(NONE, |merge| merge.rank)
    }
}

/// Sets a leaf of the tree and what depends on it.
fn set_rank(ranks: &mut [u32], leaf: u32, rank: u32) {
    let mut node = ranks.len() / 2 + leaf as usize;
    ranks[node] = rank;
    while node > 1 {
        node /= 2;
        let least = ranks[2 * node].min(ranks[2 * node + 1]);
        if ranks[node] == least {
            return;
        }
        ranks[node] = least;
    }
}
