//! The tokenizer section, checked once and then read in place.

use core::ops::Range;

use bytemuck::Pod;

use crate::image::tokenizer::{
    CHARACTER, CHAT_TEMPLATE_SHIFT, ChatTemplate, END_NAMES, FLAG_ADD_BOS, FLAG_ADD_SPACE, MAGIC,
    Merge, NONE, PreTokenizer, SPACE, TokenType, TokenizerHeader, TokenizerLayout, TokenizerModel,
    WHOLE, piece_key,
};
use crate::token::TokenError;

/// A vocabulary in the image. Cheap to copy: it holds borrowed tables only.
#[derive(Clone, Copy, Debug)]
pub struct Tokenizer<'a> {
    header: TokenizerHeader,
    pub(super) model: TokenizerModel,
    pub(super) pre: PreTokenizer,
    merges: &'a [Merge],
    token_offsets: &'a [u32],
    pub(super) byte_ids: &'a [u32],
    special_first: &'a [u32],
    special_ids: &'a [u32],
    token_types: &'a [u8],
    blob: &'a [u8],
    end_ids: &'a [u32],
    system: &'a str,
}

/// Where a special token stands in a text.
pub(super) struct SpecialMatch {
    /// First byte.
    pub start: usize,
    /// First byte after it.
    pub end: usize,
    /// The token.
    pub id: u32,
}

impl<'a> Tokenizer<'a> {
    /// The tokenizer of a packed section, which starts at a multiple of 16 bytes; bytes after the
    /// section are ignored. Reads the whole section once and trusts it from then on.
    pub fn new(section: &'a [u8]) -> Result<Tokenizer<'a>, TokenError> {
        at_least("its size in bytes", section.len() as u64, size_of::<TokenizerHeader>() as u64)?;
        let header = table::<TokenizerHeader>(section, 0, 1)?[0];
        let [magic, wanted] = [header.magic, MAGIC].map(u64::from_le_bytes);
        exactly("its magic number", magic, wanted)?;
        let layout = TokenizerLayout::of(&header);
        exactly("its stated size", header.section_bytes.into(), layout.section_bytes)?;
        at_least("its size in bytes", section.len() as u64, layout.section_bytes)?;
        let model = TokenizerModel::from_code(header.model).ok_or(at_most_error(
            "its model code",
            header.model,
            TokenizerModel::ALL.len(),
        ))?;
        let pre = PreTokenizer::from_code(header.pre).ok_or(at_most_error(
            "its pre-tokenizer code",
            header.pre,
            PreTokenizer::ALL.len(),
        ))?;
        let tokens = header.token_count as usize;
        let tokenizer = Tokenizer {
            header,
            model,
            pre,
            merges: table(section, layout.merges, header.merge_slots as usize)?,
            token_offsets: table(section, layout.token_offsets, tokens + 1)?,
            byte_ids: table(section, layout.byte_ids, 256)?,
            special_first: table(section, layout.special_first, 257)?,
            special_ids: table(section, layout.special_ids, header.special_count as usize)?,
            token_types: table(section, layout.token_types, tokens)?,
            blob: table(section, layout.blob, header.blob_bytes as usize)?,
            end_ids: table(section, layout.end_ids, header.end_count.into())?,
            system: text(table(section, layout.system, header.system_bytes.into())?)?,
        };
        tokenizer.check_tokens()?;
        tokenizer.check_specials()?;
        tokenizer.check_merges()?;
        Ok(tokenizer)
    }

    fn check_tokens(&self) -> Result<(), TokenError> {
        let header = &self.header;
        at_least("its token count", header.token_count.into(), 1)?;
        at_most("its flags", header.flags & 0xFF, FLAG_ADD_BOS | FLAG_ADD_SPACE)?;
        let templates = ChatTemplate::ALL.len() as u32;
        at_most("its chat template", header.flags >> CHAT_TEMPLATE_SHIFT, templates)?;
        let mut longest = 0;
        let mut start = 0;
        for &end in self.token_offsets {
            at_least("a token's offset", end.into(), start.into())?;
            longest = longest.max(end - start);
            start = end;
        }
        exactly("its first token's offset", self.token_offsets[0].into(), 0)?;
        exactly("its last token's end", start.into(), header.blob_bytes.into())?;
        exactly("its longest token", longest.into(), header.token_bytes_max.into())?;
        for &code in self.token_types {
            if TokenType::from_code(code).is_none() {
                return Err(at_most_error("a token's type", code.into(), 7));
            }
        }
        let ends = [header.bos, header.eos];
        for &id in self.byte_ids.iter().chain(&ends).filter(|&&id| id != NONE) {
            self.check_id("a byte, BOS or EOS token", id)?;
        }
        for &id in self.end_ids {
            self.check_id("a token that ends an answer", id)?;
        }
        if self.adds_bos() {
            at_most("its BOS token", header.bos, header.token_count - 1)?;
        }
        Ok(())
    }

    fn check_specials(&self) -> Result<(), TokenError> {
        let mut start = 0;
        for &end in self.special_first {
            at_least("an index of special tokens", end.into(), start.into())?;
            start = end;
        }
        exactly("its first index of special tokens", self.special_first[0].into(), 0)?;
        exactly(
            "its last index of special tokens",
            start.into(),
            self.header.special_count.into(),
        )?;
        for &id in self.special_ids {
            // No such token has no bytes.
            at_least("a special token's size", self.token_bytes(id).len() as u64, 1)?;
        }
        Ok(())
    }

    fn check_merges(&self) -> Result<(), TokenError> {
        let header = &self.header;
        let slots = header.merge_slots;
        at_least("its merge slots", slots.into(), u64::from(header.merge_count) + 1)?;
        at_most("its longest search for a merge", header.merge_probe_max, slots)?;
        let mut count = 0;
        for (slot, merge) in (0..slots).zip(self.merges) {
            if *merge == Merge::EMPTY {
                continue;
            }
            count += 1;
            self.check_id("a merge's token", merge.merged)?;
            if ![CHARACTER, WHOLE].contains(&merge.left) {
                self.check_id("a merge's token", merge.left)?;
                self.check_id("a merge's token", merge.right)?;
            }
            at_least("its merge count", header.merge_count.into(), u64::from(merge.rank) + 1)?;
            let home = Merge::home(merge.left, merge.right, slots);
            let probe = if slot >= home { slot - home } else { slot + (slots - home) };
            at_least(
                "its longest search for a merge",
                header.merge_probe_max.into(),
                u64::from(probe) + 1,
            )?;
        }
        exactly("its number of merges", count, header.merge_count.into())?;
        // A space is one byte of a text: as one symbol it fits where the text does.
        let spaces = self.model == TokenizerModel::Gpt2 || self.character(SPACE).is_some();
        exactly("its number of tokens for a space", spaces.into(), 1)
    }

    fn check_id(&self, what: &'static str, id: u32) -> Result<(), TokenError> {
        at_most(what, id, self.header.token_count - 1)
    }

    /// Tokens in the vocabulary; ids are below it.
    pub fn token_count(&self) -> u32 {
        self.header.token_count
    }

    /// Bytes of the longest token.
    pub fn token_bytes_max(&self) -> usize {
        self.header.token_bytes_max as usize
    }

    /// Token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        Some(self.header.bos).filter(|&id| id != NONE)
    }

    /// Token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        Some(self.header.eos).filter(|&id| id != NONE)
    }

    /// Whether token `id` ends an answer: EOS, a control token such as `<|im_end|>` that ends a
    /// turn, or what the model names as one.
    pub fn is_end(&self, id: u32) -> bool {
        let name = self.token_bytes(id);
        let is_control = self.token_type(id) == Some(TokenType::Control);
        let is_named = is_control && END_NAMES.iter().any(|end| end.as_bytes() == name);
        is_named || self.eos() == Some(id) || self.end_ids.contains(&id)
    }

    /// How the model wants a conversation written, or `None` where the packer did not know.
    pub fn chat_template(&self) -> Option<ChatTemplate> {
        ChatTemplate::from_code(self.header.flags >> CHAT_TEMPLATE_SHIFT)
    }

    /// What the model's template has the system say where the user sets nothing; often empty.
    pub fn system_prompt(&self) -> &'a str {
        self.system
    }

    /// Whether the model expects BOS before a prompt.
    pub fn adds_bos(&self) -> bool {
        self.header.flags & FLAG_ADD_BOS != 0
    }

    /// Whether a text gets a space before it, which is not part of it.
    pub fn adds_space(&self) -> bool {
        self.header.flags & FLAG_ADD_SPACE != 0
    }

    /// Bytes of token `id`: often not whole characters, see [`crate::token::Utf8Stream`]. Empty
    /// where there is no such token.
    pub fn token_bytes(&self, id: u32) -> &'a [u8] {
        let id = id as usize;
        match self.token_offsets.get(id..).and_then(|from| from.get(..2)) {
            Some(&[start, end]) => self.blob.get(start as usize..end as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// What token `id` adds to a text: nothing where it steers the model, stands for what the
    /// vocabulary can't say or is unused.
    pub fn text_bytes(&self, id: u32) -> &'a [u8] {
        match self.token_type(id) {
            Some(TokenType::Normal | TokenType::UserDefined | TokenType::Byte) => {
                self.token_bytes(id)
            }
            _ => &[],
        }
    }

    /// What token `id` adds to a text that starts with it: [`Tokenizer::text_bytes`] without the
    /// space that the model's texts get before them.
    pub fn first_bytes(&self, id: u32) -> &'a [u8] {
        let bytes = self.text_bytes(id);
        bytes.strip_prefix(b" ").filter(|_| self.adds_space()).unwrap_or(bytes)
    }

    /// What token `id` is for, or `None` where there is no such token.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.token_types.get(id as usize).and_then(|&code| TokenType::from_code(code))
    }

    /// What tokens `left` and `right` become side by side, or `None` where they don't merge.
    pub(super) fn merge(&self, left: u32, right: u32) -> Option<&'a Merge> {
        let slots = self.merges.len();
        let home = Merge::home(left, right, slots as u32) as usize;
        let probes = (home..slots).chain(0..home).take(self.header.merge_probe_max as usize);
        for slot in probes {
            let merge = &self.merges[slot];
            if (merge.left, merge.right) == (left, right) {
                return Some(merge);
            }
            if merge.left == NONE {
                return None;
            }
        }
        None
    }

    /// The token a character starts as, or `None` where only its bytes are tokens.
    pub(super) fn character(&self, c: char) -> Option<u32> {
        self.merge(CHARACTER, c.into()).map(|entry| entry.merged)
    }

    /// The token that is `piece` though merges don't reach it.
    pub(super) fn whole(&self, piece: &[u8]) -> Option<u32> {
        let first = piece_key(piece);
        let keys = (0..self.header.merge_count).map(|step| first.wrapping_add(step));
        let entries = keys.map_while(|key| self.merge(WHOLE, key));
        entries.map(|entry| entry.merged).find(|&id| self.token_bytes(id) == piece)
    }

    /// The first special token in `text` from byte `from` on, the longest one where several start
    /// together. Control and unknown tokens count only where `is_mark` their bytes; user-defined
    /// ones are text and always do.
    pub(super) fn find_special(
        &self,
        text: &str,
        from: usize,
        is_mark: &impl Fn(Range<usize>) -> bool,
    ) -> Option<SpecialMatch> {
        if self.special_ids.is_empty() {
            return None;
        }
        let bytes = text.as_bytes();
        for (start, &byte) in bytes.iter().enumerate().skip(from) {
            let first = self.special_first[usize::from(byte)] as usize;
            let last = self.special_first[usize::from(byte) + 1] as usize;
            for &id in &self.special_ids[first..last] {
                let special = self.token_bytes(id);
                let end = start + special.len();
                // A damaged section could hold half a character.
                let whole = text.is_char_boundary(start) && text.is_char_boundary(end);
                let found = whole && bytes[start..].starts_with(special);
                let is_text = || self.token_type(id) == Some(TokenType::UserDefined);
                if found && (is_text() || is_mark(start..end)) {
                    return Some(SpecialMatch { start, end, id });
                }
            }
        }
        None
    }
}

/// `count` records at byte `offset` of the section.
fn table<T: Pod>(section: &[u8], offset: u64, count: usize) -> Result<&[T], TokenError> {
    let start = offset as usize;
    let end = offset.saturating_add((count as u64).saturating_mul(size_of::<T>() as u64));
    at_least("its size in bytes", section.len() as u64, end)?;
    let address = section.as_ptr() as usize + start;
    bytemuck::try_cast_slice(&section[start..end as usize]).map_err(|_| TokenError::Section {
        what: "a table's address modulo 4",
        found: (address % 4) as u64,
        rule: "exactly",
        bound: 0,
    })
}

fn text(bytes: &[u8]) -> Result<&str, TokenError> {
    core::str::from_utf8(bytes).map_err(|error| TokenError::Section {
        what: "the UTF-8 of its system prompt in bytes",
        found: error.valid_up_to() as u64,
        rule: "exactly",
        bound: bytes.len() as u64,
    })
}

fn exactly(what: &'static str, found: u64, bound: u64) -> Result<(), TokenError> {
    if found == bound {
        return Ok(());
    }
    Err(TokenError::Section { what, found, rule: "exactly", bound })
}

fn at_least(what: &'static str, found: u64, bound: u64) -> Result<(), TokenError> {
    if found >= bound {
        return Ok(());
    }
    Err(TokenError::Section { what, found, rule: "at least", bound })
}

fn at_most(what: &'static str, found: u32, bound: u32) -> Result<(), TokenError> {
    if found <= bound {
        return Ok(());
    }
    Err(TokenError::Section { what, found: found.into(), rule: "at most", bound: bound.into() })
}

/// `found` is not one of `codes` codes that start at 0.
fn at_most_error(what: &'static str, found: u32, codes: usize) -> TokenError {
    TokenError::Section { what, found: found.into(), rule: "at most", bound: codes as u64 - 1 }
}
