//! What can be wrong with a command line.

use crate::image::tokenizer::ChatTemplate;
use crate::kernel::Isa;
use crate::sys::path_text;
use core::fmt;

/// Why a command line can't be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentError {
    /// No such command.
    UnknownCommand {
        /// What was given.
        found: &'static [u8],
    },
    /// No such flag.
    UnknownFlag {
        /// What was given.
        found: &'static [u8],
    },
    /// A flag at the end of the line.
    NoValue {
        /// The flag.
        flag: &'static [u8],
    },
    /// A value that the flag doesn't take.
    BadValue {
        /// The flag.
        flag: &'static [u8],
        /// Its value.
        found: &'static [u8],
        /// What it takes.
        wanted: &'static str,
    },
    /// A value where none is taken.
    UnwantedValue {
        /// The flag.
        flag: &'static [u8],
    },
    /// A second prompt.
    TwoPrompts {
        /// The second one.
        second: &'static [u8],
    },
    /// A text beside a prompt that is made.
    PromptOfBothKinds {
        /// The text.
        found: &'static [u8],
    },
    /// An instruction set that this machine or build does not have.
    UnknownIsa {
        /// What was given.
        found: &'static [u8],
    },
    /// No such chat template.
    UnknownTemplate {
        /// What was given.
        found: &'static [u8],
    },
    /// The image names no chat template, and neither does the command line.
    NoTemplate,
    /// A flag of `chat` beside another command.
    OnlyChat {
        /// The flag.
        flag: &'static str,
    },
    /// More arguments than are looked at.
    TooMany,
    /// A thread count outside the plan.
    Threads {
        /// What was given.
        found: u32,
        /// The plan's.
        max: u64,
    },
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = path_text;
        match *self {
            ArgumentError::UnknownCommand { found } => write!(
                f,
                "there is no command {:?}; use run, chat, bench, plan, check or help",
                text(found)
            ),
            ArgumentError::UnknownFlag { found } => {
                write!(f, "there is no flag {:?}; `ganglion help` lists the flags", text(found))
            }
            ArgumentError::NoValue { flag } => write!(f, "{} needs a value behind it", text(flag)),
            ArgumentError::BadValue { flag, found, wanted } => {
                write!(f, "{} takes {wanted}, found {:?}", text(flag), text(found))
            }
            ArgumentError::UnwantedValue { flag } => write!(f, "{} takes no value", text(flag)),
            ArgumentError::TwoPrompts { second } => {
                write!(f, "a second prompt {:?}; put the whole prompt in quotes", text(second))
            }
            ArgumentError::PromptOfBothKinds { found } => {
                write!(f, "--prompt-tokens makes the prompt; leave out it or {:?}", text(found))
            }
            ArgumentError::UnknownIsa { found } => {
                write!(
                    f,
                    "this machine or build has no kernels for {:?}; use one of",
                    text(found)
                )?;
                let usable = Isa::ALL.iter().filter(|isa| isa.available());
                usable.into_iter().try_for_each(|isa| write!(f, " {}", isa.name()))
            }
            ArgumentError::UnknownTemplate { found } => write!(
                f,
                "there is no chat template {:?}; use {}",
                text(found),
                ChatTemplate::NAMES
            ),
            ArgumentError::NoTemplate => write!(
                f,
                "the image names no chat template that this version knows; choose one with \
                 --template: {}",
                ChatTemplate::NAMES
            ),
            ArgumentError::OnlyChat { flag } => {
                write!(f, "{flag} belongs to `ganglion chat`; leave it out")
            }
            ArgumentError::TooMany => write!(
                f,
                "more than {} arguments; put the prompt in quotes",
                crate::sys::start::ARGUMENTS_MAX
            ),
            ArgumentError::Threads { found, max } => write!(
                f,
                "--threads is {found}, this plan has memory for 1 to {max}; raise `threads` in the \
                 plan and build again"
            ),
        }
    }
}
