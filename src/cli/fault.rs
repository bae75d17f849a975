//! Everything that can stop a command: one sentence each, and its exit code.

use super::argument_error::ArgumentError;
use super::prompt_error::PromptError;
use crate::image::HeaderError;
use crate::kernel::accumulator::UNIT_EXPONENTS;
use crate::model::ModelError;
use crate::plan::PlanError;
use crate::sys::{LockError, OpenError, ReadError, SysError, exit, path_text};
use crate::token::TokenError;
use core::fmt;

/// Why a command ended without doing what it was asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The command line is wrong.
    Argument(ArgumentError),
    /// The prompt, or a message, can't be answered.
    Prompt(PromptError),
    /// The tokenizer or sampler refused.
    Token(TokenError),
    /// The image's name can't be a path.
    ImageName,
    /// The image can't be opened.
    ImageOpen {
        /// Its path.
        path: &'static [u8],
        /// Why.
        error: OpenError,
    },
    /// The image can't be read.
    ImageRead {
        /// Its path.
        path: &'static [u8],
        /// Why.
        error: ReadError,
    },
    /// The image is not one this binary can use.
    Image {
        /// Its path.
        path: &'static [u8],
        /// Why.
        error: HeaderError,
    },
    /// A section of the image fails its checksum.
    ImageSection {
        /// Its path.
        path: &'static [u8],
        /// The section.
        section: &'static str,
    },
    /// A layer's down unit that the arithmetic can't hold.
    DownUnit {
        /// The image.
        path: &'static [u8],
        /// The layer.
        layer: usize,
        /// Its power of two.
        found: i32,
    },
    /// A benchmark on memory.
    MemoryBacked {
        /// The image.
        path: &'static [u8],
    },
    /// The plan does not pass its check.
    Plan(PlanError),
    /// The plan is for other pages.
    PageBytes {
        /// The plan's.
        wanted: u64,
        /// The system's.
        found: u64,
    },
    /// There is less memory free than the arena takes.
    NoRoom {
        /// Bytes of the arena.
        wanted: u64,
        /// Bytes the system says are free.
        available: u64,
    },
    /// The arena can't be had.
    Arena {
        /// What the kernel answered.
        error: SysError,
        /// Bytes of the arena.
        bytes: u64,
        /// Bytes the system says are free, 0 where it doesn't say.
        available: u64,
    },
    /// A thread can't be started.
    Thread(SysError),
    /// Memory can't be locked, and the plan demands it.
    Lock(LockError),
    /// The filter that proves the seal can't be set.
    Seal(SysError),
    /// The process uses more than the plan says.
    OverBudget {
        /// Bytes it uses.
        used: u64,
        /// The budget.
        budget: u64,
    },
    /// A token could not be computed.
    Model(ModelError),
    /// Standard input can't be read, or not be waited for.
    Input(SysError),
    /// Standard output can't be written.
    Output(SysError),
}

impl Fault {
    /// The sysexits code of this fault.
    pub fn exit_code(&self) -> u8 {
        match self {
            Fault::Argument(_)
            | Fault::Prompt(PromptError::Absent)
            | Fault::Token(TokenError::Setting { .. }) => exit::USAGE,
            Fault::Prompt(_)
            | Fault::Token(_)
            | Fault::Image { .. }
            | Fault::ImageSection { .. }
            | Fault::DownUnit { .. } => exit::DATA,
            Fault::ImageName | Fault::ImageOpen { .. } => exit::NO_INPUT,
            Fault::MemoryBacked { .. } | Fault::Plan(_) | Fault::PageBytes { .. } => exit::CONFIG,
            Fault::NoRoom { .. } => exit::RETRY,
            Fault::Arena { .. }
            | Fault::Thread(_)
            | Fault::Lock(_)
            | Fault::Seal(_)
            | Fault::OverBudget { .. } => exit::OS,
            Fault::Model(error) => model_exit_code(error),
            Fault::ImageRead { .. } | Fault::Input(_) | Fault::Output(_) => exit::IO,
        }
    }
}

/// Damaged bytes are data, a refused read is I/O.
fn model_exit_code(error: &ModelError) -> u8 {
    use crate::cluster::ClusterError;
    use crate::storage::StorageError;
    match error {
        ModelError::Storage(StorageError::Read { .. })
        | ModelError::Cluster(ClusterError::Storage(StorageError::Read { .. })) => exit::IO,
        _ => exit::DATA,
    }
}

impl From<ArgumentError> for Fault {
    fn from(error: ArgumentError) -> Fault {
        Fault::Argument(error)
    }
}

impl From<PromptError> for Fault {
    fn from(error: PromptError) -> Fault {
        Fault::Prompt(error)
    }
}

impl From<TokenError> for Fault {
    fn from(error: TokenError) -> Fault {
        Fault::Token(error)
    }
}

impl From<ModelError> for Fault {
    fn from(error: ModelError) -> Fault {
        Fault::Model(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = path_text;
        match *self {
            Fault::Argument(error) => error.fmt(f),
            Fault::Prompt(error) => error.fmt(f),
            Fault::Token(error) => error.fmt(f),
            Fault::ImageName => {
                write!(f, "the image's name is empty or too long; name it with --image PATH")
            }
            Fault::ImageOpen { path, error } => {
                write!(f, "image {} can't be opened: {error}; ", text(path))?;
                write!(f, "make it with `ganglion-forge pack` or name it with --image")
            }
            Fault::ImageRead { path, error } => {
                write!(f, "image {} can't be read: {error}; ", text(path))?;
                write!(f, "check the disk, copy or pack it again")
            }
            Fault::Image { path, error } => {
                write!(f, "image {} can't be used: {error}", text(path))
            }
            Fault::ImageSection { path, section } => write!(
                f,
                "image {}: section {section} fails its checksum; copy or pack it again",
                text(path)
            ),
            Fault::DownUnit { path, layer, found } => write!(
                f,
                "image {}: the down unit of layer {layer} is 2^{found}, outside 2^{} to 2^{}; \
                 pack it again",
                text(path),
                UNIT_EXPONENTS.start(),
                UNIT_EXPONENTS.end()
            ),
            Fault::MemoryBacked { path } => write!(
                f,
                "image {} lies in memory (tmpfs), so its reads measure no flash; \
                 copy it to a disk to measure",
                text(path)
            ),
            Fault::Plan(error) => write!(f, "the plan does not hold: {error}"),
            Fault::PageBytes { wanted, found } => write!(
                f,
                "the plan is for pages of {wanted} bytes, this system has {found}; set page_bytes \
                 in the device file and build again"
            ),
            Fault::Arena { error, bytes, available } => write!(
                f,
                "the arena of {bytes} bytes can't be mapped: {error}, {available} bytes are \
                 available; free some memory or build a smaller budget"
            ),
            Fault::NoRoom { wanted, available } => write!(
                f,
                "the arena needs {wanted} bytes, {available} are available; end something or build \
                 a smaller budget"
            ),
            Fault::Thread(error) => write!(f, "a thread can't be started: {error}"),
            Fault::Lock(error) => {
                write!(f, "the plan demands locked memory, but {error}, or set lock = \"try\"")
            }
            Fault::Seal(error) => {
                write!(f, "the seal can't be proven here: {error}; leave out --prove-seal")
            }
            Fault::OverBudget { used, budget } => write!(
                f,
                "the process uses {used} bytes, over its budget of {budget}; raise process_bytes \
                 in the device file and build again"
            ),
            Fault::Model(error) => error.fmt(f),
            Fault::Input(error) => {
                write!(f, "standard input can't be read: {error}; give it a terminal or a pipe")
            }
            Fault::Output(error) => write!(f, "the text can't be written to stdout: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a test machine can't be brought to: the others are in tests/bad_input.rs.
    #[test]
    fn faults_of_the_system_have_sentence_and_code() {
        let error = SysError { call: "seccomp", errno: libc::EINVAL };
        let rows = [
            (Fault::NoRoom { wanted: 9, available: 5 }, exit::RETRY, "needs 9 bytes, 5 are"),
            (Fault::OverBudget { used: 9, budget: 5 }, exit::OS, "over its budget of 5"),
            (Fault::PageBytes { wanted: 4096, found: 16384 }, exit::CONFIG, "has 16384"),
            (Fault::Seal(error), exit::OS, "leave out --prove-seal"),
            (Fault::Thread(error), exit::OS, "a thread can't be started: seccomp failed"),
            (Fault::Arena { error, bytes: 9, available: 5 }, exit::OS, "9 bytes can't be mapped"),
        ];
        for (fault, code, says) in rows {
            let said = fault.to_string();
            assert_eq!(fault.exit_code(), code, "{said}");
            assert!(said.contains(says) && !said.contains('\n'), "{said}");
        }
    }
}
