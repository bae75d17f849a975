//! Chat templates: a turn of a conversation as the text the model was trained on, and as tokens.
//!
//! Called by `chat`, turn by turn: what is written here one turn after the other is what the
//! model's own template makes of the whole conversation. Invariant: the names of control tokens
//! count in the template's marks only. In what the system or the user says they are text, which
//! can neither end a turn nor begin one.

use super::{EncodeScratch, Start, TokenError, Tokenizer};
use crate::image::tokenizer::ChatTemplate;
use core::ops::Range;

/// What stands around the messages of a conversation.
struct Marks {
    /// Before everything.
    begin: &'static str,
    /// Around the system's words.
    system: [&'static str; 2],
    /// Whether these are part of the user's first turn, between its first mark and the message.
    system_in_turn: bool,
    /// Whether the system speaks even where it has nothing to say.
    system_always: bool,
    /// Around the user's message; the answer follows.
    user: [&'static str; 2],
    /// Behind the answer.
    end: &'static str,
    /// Whether white space around messages is dropped.
    trims: bool,
}

const CHAT_ML: Marks = Marks {
    begin: "",
    system: ["<|im_start|>system\n", "<|im_end|>\n"],
    system_in_turn: false,
    system_always: false,
    user: ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"],
    end: "<|im_end|>\n",
    trims: false,
};

const LLAMA_2: Marks = Marks {
    begin: "",
    system: ["<<SYS>>\n", "\n<</SYS>>\n\n"],
    system_in_turn: true,
    system_always: false,
    user: ["<s>[INST] ", " [/INST]"],
    end: " </s>",
    trims: true,
};

const LLAMA_3: Marks = Marks {
    begin: "<|begin_of_text|>",
    system: ["<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"],
    system_in_turn: false,
    system_always: false,
    user: [
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ],
    end: "<|eot_id|>",
    trims: true,
};

/// The second date is the one the template falls back on: the same text on any day.
const LLAMA_3_1: Marks = Marks {
    system: [
        "<|start_header_id|>system<|end_header_id|>\n\n\
         Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
        "<|eot_id|>",
    ],
    system_always: true,
    ..LLAMA_3
};

const MISTRAL: Marks = Marks {
    begin: "<s>",
    system: ["", "\n\n"],
    system_in_turn: true,
    system_always: false,
    user: ["[INST] ", " [/INST]"],
    end: "</s>",
    trims: false,
};

const MISTRAL_V1: Marks = Marks { user: [" [INST] ", " [/INST]"], ..MISTRAL };

const MISTRAL_V3: Marks = Marks { user: ["[INST] ", "[/INST]"], ..MISTRAL };

const MISTRAL_V7: Marks =
    Marks { system: ["[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"], system_in_turn: false, ..MISTRAL_V3 };

const fn marks(template: ChatTemplate) -> &'static Marks {
    match template {
        ChatTemplate::ChatMl => &CHAT_ML,
        ChatTemplate::Llama2 => &LLAMA_2,
        ChatTemplate::Llama3 => &LLAMA_3,
        ChatTemplate::Llama31 => &LLAMA_3_1,
        ChatTemplate::Mistral => &MISTRAL,
        ChatTemplate::MistralV1 => &MISTRAL_V1,
        ChatTemplate::MistralV3 => &MISTRAL_V3,
        ChatTemplate::MistralV7 => &MISTRAL_V7,
    }
}

/// Where a turn stands in its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'s> {
    /// At the start, with what the system says, if it says something.
    First {
        /// The system's words.
        system: Option<&'s str>,
    },
    /// Behind an answer.
    Next,
}

/// A turn as text: what was said, and the marks around it.
#[derive(Debug)]
pub struct Turn<'t> {
    /// The whole text.
    pub text: &'t str,
    /// Bytes of the system's words, which may be none, and of the user's.
    pub said: [Range<usize>; 2],
    /// Whether it stands behind an answer.
    pub goes_on: bool,
}

/// Writes the turn of the message in the first `bytes` bytes of `memory`, over it. Where there is
/// no room, the bytes that are needed.
pub fn write_turn<'t>(
    template: ChatTemplate,
    place: Place<'_>,
    memory: &'t mut [u8],
    bytes: usize,
) -> Result<Turn<'t>, usize> {
    let marks = marks(template);
    let [first, open, close] = match place {
        Place::Next => [marks.end, "", ""],
        Place::First { system: None } if !marks.system_always => [marks.begin, "", ""],
        Place::First { .. } => [marks.begin, marks.system[0], marks.system[1]],
    };
    let system = match place {
        Place::First { system: Some(system) } => system,
        _ => "",
    };
    let in_turn = marks.system_in_turn && !close.is_empty();
    let trim = |text: &str| if marks.trims { trimmed(text) } else { 0..text.len() };
    // In a turn they share, the system's words and the message are trimmed as one.
    let words = if in_turn { system } else { &system[trim(system)] };
    let message = core::str::from_utf8(&memory[..bytes]).expect("the caller has looked");
    let kept = trim(message);
    let kept = if in_turn { 0..kept.end } else { kept };

    let [before, after] = if in_turn { [marks.user[0], ""] } else { ["", marks.user[0]] };
    let parts = [first, before, open, words, close, after];
    let start: usize = parts.iter().map(|part| part.len()).sum();
    let end = start + kept.len();
    let whole = end + marks.user[1].len();
    if whole > memory.len() {
        return Err(whole);
    }
    memory.copy_within(kept, start);
    let mut at = 0;
    for part in parts {
        memory[at..at + part.len()].copy_from_slice(part.as_bytes());
        at += part.len();
    }
    memory[end..whole].copy_from_slice(marks.user[1].as_bytes());
    let text = core::str::from_utf8(&memory[..whole]).expect("texts joined at their ends");
    let words_end = start - close.len() - after.len();
    let said = [words_end - words.len()..words_end, start..end];
    Ok(Turn { text, said, goes_on: place == Place::Next })
}

/// The bytes of `text` without white space at its ends.
fn trimmed(text: &str) -> Range<usize> {
    let start = text.len() - text.trim_start().len();
    start..text.trim_end().len().max(start)
}

impl ChatTemplate {
    /// Whether white space at the end of an answer is not part of it.
    pub fn trims_answers(self) -> bool {
        marks(self).trims
    }
}

impl Tokenizer<'_> {
    /// Whether the vocabulary has the token that `template` ends an answer with: the model knows
    /// where a turn ends.
    pub fn knows(&self, template: ChatTemplate) -> bool {
        self.find_special(marks(template).end, 0, &|_| true).is_some()
    }

    /// Writes the tokens of `turn` to `out` and returns their number: those of the whole text, with
    /// the names of control tokens read as such in the marks alone. A first turn gets BOS where the
    /// model expects it, unless its marks begin with it.
    pub fn encode_turn(
        &self,
        turn: &Turn<'_>,
        scratch: &mut EncodeScratch<'_>,
        out: &mut [u32],
    ) -> Result<usize, TokenError> {
        let is_mark = |bytes: Range<usize>| {
            turn.said.iter().all(|said| bytes.end <= said.start || said.end <= bytes.start)
        };
        let has_bos = self
            .find_special(turn.text, 0, &is_mark)
            .is_some_and(|special| special.start == 0 && Some(special.id) == self.bos());
        let start = if turn.goes_on {
            Start::Within
        } else if self.adds_bos() && !has_bos {
            Start::Bos
        } else {
            Start::Text
        };
        self.encode_marked(turn.text, start, is_mark, scratch, out)
    }
}
