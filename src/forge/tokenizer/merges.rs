//! The merge table of a vocabulary: which neighbours become which token, and in what order.
//!
//! Called by `forge::tokenizer`. A byte-level vocabulary lists its merges. A SentencePiece one has
//! scores instead: two neighbours merge where together they are a token, the highest score first.
//! That is a list too, of every way to cut every token into two tokens, ranked by the score of the
//! whole; ways to the same score share a rank, so that the leftmost goes first, as it must. Llama
//! 2's 32,000 tokens have 61,249 such ways: with the characters 1.5 MB hashed, less than the 3.6
//! MB of Qwen2's listed merges, and the engine needs one algorithm, and no look-up by text.

use std::collections::{HashMap, HashSet};

use super::{TokenizerError, TokenizerSource, Vocabulary, count};
use crate::image::tokenizer::{
    CHARACTER, Merge, PreTokenizer, SPACE, TokenType, TokenizerModel, WHOLE, piece_key,
};

/// Bytes of the longest token that is cut in every way: the work grows with the square.
const CUT_BYTES_MAX: usize = 1024;

/// The merges of a vocabulary, hashed.
pub struct MergeTable {
    /// The slots, empty ones too.
    pub slots: Vec<Merge>,
    /// Slots that are not empty.
    pub count: u32,
    /// Slots a look-up visits at most.
    pub probe_max: u32,
}

impl MergeTable {
    /// The table of `source`, with what else the engine looks up in it.
    pub fn build(
        source: &TokenizerSource,
        vocabulary: &Vocabulary,
        pre: PreTokenizer,
    ) -> Result<MergeTable, TokenizerError> {
        let is_scored = vocabulary.model == TokenizerModel::Llama && source.merges.is_empty();
        let mut entries = if is_scored { scored(source, vocabulary)? } else { listed(source)? };
        if vocabulary.model == TokenizerModel::Llama {
            entries.extend(characters(source, vocabulary)?);
        }
        let table = MergeTable::of(source, &entries)?;
        if !pre.takes_whole_pieces() {
            return Ok(table);
        }
        let mut keys = HashSet::new();
        for (id, text) in table.unreached(vocabulary)? {
            let mut right = piece_key(text);
            while !keys.insert(right) {
                right = right.wrapping_add(1);
            }
            entries.push(Merge { left: WHOLE, right, rank: 0, merged: id });
        }
        MergeTable::of(source, &entries)
    }

    fn of(source: &TokenizerSource, entries: &[Merge]) -> Result<MergeTable, TokenizerError> {
        let count_of_slots = Merge::slots(count("merges", entries.len())?);
        let slots = vec![Merge::EMPTY; count("merge slots", count_of_slots as usize)? as usize];
        let mut table = MergeTable { slots, count: entries.len() as u32, probe_max: 0 };
        for &entry in entries {
            // Only a list can hold a pair twice; its ranks are its places.
            table.insert(entry).map_err(|first| TokenizerError::Repeated {
                rank: entry.rank as usize,
                first,
                merge: source.merges.get(entry.rank as usize).cloned().unwrap_or_default(),
            })?;
        }
        Ok(table)
    }

    /// Puts `entry` into the first empty slot from its home on, or returns the rank its pair has.
    fn insert(&mut self, entry: Merge) -> Result<(), u32> {
        let slots = self.slots.len();
        let home = Merge::home(entry.left, entry.right, slots as u32) as usize;
        for probe in 0..slots {
            let slot = &mut self.slots[(home + probe) % slots];
            if *slot == Merge::EMPTY {
                *slot = entry;
                self.probe_max = self.probe_max.max(probe as u32 + 1);
                return Ok(());
            }
            if (slot.left, slot.right) == (entry.left, entry.right) {
                return Err(slot.rank);
            }
        }
        unreachable!("the table has more slots than merges");
    }

    fn find(&self, left: u32, right: u32) -> Option<&Merge> {
        let slots = self.slots.len();
        let home = Merge::home(left, right, slots as u32) as usize;
        let probes = (0..slots).map(|probe| &self.slots[(home + probe) % slots]);
        let mut found = probes.take_while(|slot| **slot != Merge::EMPTY);
        found.find(|slot| (slot.left, slot.right) == (left, right))
    }

    /// Normal tokens whose own text merges to something else.
    fn unreached<'a>(
        &self,
        vocabulary: &'a Vocabulary,
    ) -> Result<Vec<(u32, &'a [u8])>, TokenizerError> {
        let mut unreached = Vec::new();
        for (id, text) in vocabulary.texts.iter().enumerate() {
            if vocabulary.types[id] != TokenType::Normal || text.is_empty() {
                continue;
            }
            check_cut_bytes(text.len())?;
            let bytes = text.iter().map(|&byte| vocabulary.byte_ids[usize::from(byte)]);
            if self.merged(bytes.collect()) != [id as u32] {
                unreached.push((id as u32, text.as_slice()));
            }
        }
        Ok(unreached)
    }

    /// What `ids` become: the pair of lowest rank first, the leftmost of equals.
    fn merged(&self, mut ids: Vec<u32>) -> Vec<u32> {
        loop {
            let pairs = ids.windows(2).enumerate();
            let ranked = pairs.filter_map(|(at, pair)| Some((self.find(pair[0], pair[1])?, at)));
            let Some((merge, at)) = ranked.min_by_key(|(merge, at)| (merge.rank, *at)) else {
                return ids;
            };
            ids[at] = merge.merged;
            ids.remove(at + 1);
        }
    }
}

fn check_cut_bytes(found: usize) -> Result<(), TokenizerError> {
    if found <= CUT_BYTES_MAX {
        return Ok(());
    }
    let (found, max) = (found as u64, CUT_BYTES_MAX as u64);
    Err(TokenizerError::TooMany { what: "bytes in one token", found, max })
}

/// The merges that `source` lists, ranked by their place.
fn listed(source: &TokenizerSource) -> Result<Vec<Merge>, TokenizerError> {
    let mut id_of = HashMap::with_capacity(source.tokens.len());
    id_of.extend(source.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id as u32)));
    let ranked = source.merges.iter().enumerate();
    let entry = |(rank, merge): (usize, &String)| {
        let (left, right) = merge
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty())
            .ok_or_else(|| TokenizerError::NotAPair { rank, merge: merge.clone() })?;
        let find = |token: &str| {
            id_of.get(token).copied().ok_or_else(|| TokenizerError::MissingToken {
                rank,
                merge: merge.clone(),
                missing: token.to_string(),
            })
        };
        let (left_id, right_id) = (find(left)?, find(right)?);
        let merged = find(&format!("{left}{right}"))?;
        Ok(Merge { left: left_id, right: right_id, rank: rank as u32, merged })
    };
    ranked.map(entry).collect()
}

/// Tokens that are text, by their text. Control, unknown and byte tokens never come from merges,
/// or a text from outside could spell them; unused ones are not to be produced at all.
fn mergeable<'a>(source: &'a TokenizerSource, vocabulary: &Vocabulary) -> HashMap<&'a str, u32> {
    let typed = source.tokens.iter().zip(&vocabulary.types).enumerate();
    typed
        .filter(|(_, (_, ty))| matches!(ty, TokenType::Normal | TokenType::UserDefined))
        .map(|(id, (token, _))| (token.as_str(), id as u32))
        .collect()
}

/// Every way to cut every token into two, ranked by the score of the whole.
fn scored(source: &TokenizerSource, vocabulary: &Vocabulary) -> Result<Vec<Merge>, TokenizerError> {
    let (tokens, found) = (source.tokens.len(), source.scores.len());
    if found != tokens {
        return Err(TokenizerError::NotOneEach { what: "score", tokens, found });
    }
    if let Some(id) = source.scores.iter().position(|score| score.is_nan()) {
        return Err(TokenizerError::BadScore { id, token: source.tokens[id].clone() });
    }
    let id_of = mergeable(source, vocabulary);
    let score = |id: u32| source.scores[id as usize];
    let mut ids: Vec<u32> = id_of.values().copied().collect();
    ids.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    let mut entries = Vec::new();
    let (mut rank, mut last) = (0, None);
    for id in ids {
        let token = source.tokens[id as usize].as_str();
        check_cut_bytes(token.len())?;
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let pairs = cuts.filter_map(|(left, right)| Some((*id_of.get(left)?, *id_of.get(right)?)));
        let mut pairs = pairs.peekable();
        if pairs.peek().is_some() {
            rank += u32::from(last.is_some_and(|last| last != score(id)));
            last = Some(score(id));
        }
        entries.extend(pairs.map(|(left, right)| Merge { left, right, rank, merged: id }));
    }
    Ok(entries)
}

/// The token of each character that is one.
fn characters(
    source: &TokenizerSource,
    vocabulary: &Vocabulary,
) -> Result<Vec<Merge>, TokenizerError> {
    let id_of = mergeable(source, vocabulary);
    let mut entries = Vec::new();
    for (token, &id) in &id_of {
        let mut characters = token.chars();
        if let (Some(c), None) = (characters.next(), characters.next()) {
            entries.push(Merge { left: CHARACTER, right: c.into(), rank: 0, merged: id });
        }
    }
    // A map has no order of its own, an image has one.
    entries.sort_unstable_by_key(|entry| entry.right);
    match id_of.contains_key(SPACE.encode_utf8(&mut [0; 4]) as &str) {
        true => Ok(entries),
        false => Err(TokenizerError::NoSpace),
    }
}
