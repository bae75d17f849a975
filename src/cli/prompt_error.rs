//! Why a prompt, or a message of a chat, can't be answered.

use crate::sys::TERMINAL_LINE_BYTES_MAX;
use core::fmt;

/// What is wrong with a prompt or message. A conversation is as it was before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptError {
    /// There is none.
    Absent,
    /// It is not text.
    NotUtf8 {
        /// First byte that is not.
        at: usize,
    },
    /// The context does not hold it.
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// What the conversation leaves of the context does not hold it.
    ContextFull {
        /// Tokens of its turn.
        tokens: usize,
        /// Tokens there is room for.
        room: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// It has more text than a turn has memory.
    TooMuchText {
        /// Bytes of its turn.
        bytes: usize,
        /// Bytes of memory.
        max: usize,
    },
    /// One of its lines is as long as a terminal's line can be.
    Cut,
}

impl fmt::Display for PromptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PromptError::Absent => {
                write!(f, "there is no prompt; `ganglion run \"Once upon a time\"`")
            }
            PromptError::NotUtf8 { at } => write!(
                f,
                "the prompt is not UTF-8 from byte {at} on; check the terminal's encoding"
            ),
            PromptError::TooLong { tokens, context } => write!(
                f,
                "the prompt has {tokens} tokens, the context holds {context} and needs one more \
                 for the answer; shorten it, or raise `context_tokens` in the plan and build again"
            ),
            PromptError::ContextFull { tokens, room, context } => write!(
                f,
                "the message has {tokens} tokens with its marks, {room} of the context's {context} \
                 are left for it; /reset begins a new conversation, a shorter message may fit"
            ),
            PromptError::TooMuchText { bytes, max } => write!(
                f,
                "the message has {bytes} bytes with its marks, there is room for {max}; shorten \
                 it, or raise `context_tokens` in the plan and build again"
            ),
            PromptError::Cut => write!(
                f,
                "a terminal drops what a line has over {TERMINAL_LINE_BYTES_MAX} bytes, and this \
                 one is full; break it: a line that ends with \\ goes on"
            ),
        }
    }
}
