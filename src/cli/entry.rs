//! What a user enters in a chat: messages of one or more lines, and commands.

use super::fault::Fault;
use crate::sys::{
    Input, Line, Stderr, TERMINAL_LINE_BYTES_MAX, stderr_is_terminal, stdin_is_terminal,
};

/// Between the first line and the last of a message of several lines.
const PASTE: &[u8] = b"/paste";
const PASTE_END: &[u8] = b"/end";

/// What was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A message of so many bytes, perhaps more than there was room for.
    Message(usize),
    /// A message with a line that the terminal may have cut.
    Cut,
    /// Forget the conversation.
    Reset,
    /// Say how it goes.
    Stats,
    /// List the commands.
    Help,
    /// INT or TERM came in the middle of a message.
    Cancelled,
    /// Leave, or the input ended, or INT or TERM came.
    Leave,
    /// A command that isn't there, of so many bytes.
    Unknown(usize),
}

/// Reads entries from standard input.
pub struct Reader {
    input: Input,
    /// Most bytes of a line; a longer one may have been cut.
    line_bytes_max: usize,
    /// Whether a sign is shown before each line.
    shows_sign: bool,
}

impl Reader {
    /// Of standard input, with a sign before each line where that and stderr are a terminal.
    pub fn new() -> Reader {
        let is_terminal = stdin_is_terminal();
        Reader {
            input: Input::stdin(),
            line_bytes_max: if is_terminal { TERMINAL_LINE_BYTES_MAX - 1 } else { usize::MAX },
            shows_sign: is_terminal && stderr_is_terminal(),
        }
    }

    /// Whether somebody types.
    pub fn is_terminal(&self) -> bool {
        self.line_bytes_max != usize::MAX
    }

    /// Reads the next entry; its text is at the front of `text`.
    pub fn entry(&mut self, text: &mut [u8]) -> Result<Entry, Fault> {
        let mut bytes = match self.line(text, "> ")? {
            Line::Bytes(bytes) => bytes,
            Line::End | Line::Stopped => return Ok(Entry::Leave),
        };
        let first = &text[..bytes.min(text.len())];
        match first.trim_ascii_end() {
            PASTE => return self.paste(text),
            b"/reset" => return Ok(Entry::Reset),
            b"/stats" => return Ok(Entry::Stats),
            b"/help" => return Ok(Entry::Help),
            b"/exit" => return Ok(Entry::Leave),
            [b'/', ..] => return Ok(Entry::Unknown(first.len())),
            _ => {}
        }
        let mut is_cut = bytes > self.line_bytes_max;
        while bytes <= text.len() && text[..bytes].ends_with(b"\\") {
            text[bytes - 1] = b'\n';
            match self.line(&mut text[bytes..], ". ")? {
                Line::Bytes(more) => {
                    bytes += more;
                    is_cut |= more > self.line_bytes_max;
                }
                Line::End => break,
                Line::Stopped => return Ok(Entry::Cancelled),
            }
        }
        Ok(if is_cut { Entry::Cut } else { Entry::Message(bytes) })
    }

    /// Reads lines up to the one that ends the paste. Once there is no room for that one, lines lie
    /// over each other: the message is lost, but its end must be seen.
    fn paste(&mut self, text: &mut [u8]) -> Result<Entry, Fault> {
        let max = text.len() - PASTE_END.len();
        let (mut bytes, mut is_cut) = (0, false);
        loop {
            let at = if bytes <= max { bytes } else { 0 };
            match self.line(&mut text[at..], ". ")? {
                Line::Bytes(more) => {
                    let end = text.len().min(at + more);
                    if text[at..end].trim_ascii_end() == PASTE_END {
                        break;
                    }
                    if let Some(behind) = text.get_mut(end) {
                        *behind = b'\n';
                    }
                    bytes += more + 1;
                    is_cut |= more > self.line_bytes_max;
                }
                Line::End => break,
                Line::Stopped => return Ok(Entry::Cancelled),
            }
        }
        Ok(match bytes {
            _ if is_cut => Entry::Cut,
            _ if bytes > max => Entry::Message(bytes.max(text.len() + 1)),
            _ => Entry::Message(bytes.saturating_sub(1)),
        })
    }

    fn line(&mut self, room: &mut [u8], sign: &str) -> Result<Line, Fault> {
        if self.shows_sign {
            Stderr::part(format_args!("{sign}"));
        }
        let line = self.input.line(room).map_err(Fault::Input)?;
        if self.shows_sign && !matches!(line, Line::Bytes(_)) {
            Stderr::line(format_args!("")); // what comes next has a line of its own
        }
        Ok(line)
    }
}
