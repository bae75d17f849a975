//! What `--help` says: what a command does, its flags, an example.

use super::arguments::Command;
use super::fault::Fault;
use crate::sys::{Output, Stderr};

const COMMANDS: &str = "\
Runs a language model larger than the memory it may use.

  ganglion run PROMPT    continue a prompt
  ganglion chat          talk with the model
  ganglion bench         measure this plan on this machine
  ganglion plan          print where every byte of memory lies
  ganglion check         prove the plan and verify the whole image
  ganglion help          this; `ganglion COMMAND --help` for a command's flags

Example:
  ganglion run \"Once upon a time\"
";

const RUN: &str = "\
ganglion run [FLAGS] PROMPT: continues PROMPT on stdout, then one line about it on stderr.

  -n, --tokens N         at most N new tokens (else to the model's end or a full context)
      --temp T           0 takes the likeliest token (default); 0.8 is lively
      --top-k N          draw from the N likeliest; 0 for all (default)
      --top-p P          draw from the likeliest that make up P; 1 for all (default)
      --min-p P          drop tokens below P times the likeliest; 0 for none (default)
      --repeat-penalty R divide the odds of recent tokens; 1 for no penalty (default)
      --repeat-last N    how many tokens are recent (default 64)
  -s, --seed N           same numerics, prompt and seed give the same text, bit for bit
  -t, --threads N        at most the plan's
      --image PATH       another place of the image
      --isa NAME         force kernels: twin (plain Rust), avx2, avx512, neon,
                         dotprod, i8mm; so does GANGLION_ISA
      --ignore-end       go on where the model would end its text
      --prove-seal       kill the process where it asks for memory after the seal
      --json             text and figures as one JSON object

Example:
  ganglion run --temp 0.8 --seed 7 -n 200 \"One day, Tim and his dog\"
";

const CHAT: &str = "\
ganglion chat [FLAGS] [MESSAGE]: a conversation: a line is a message, the answer goes to stdout.

      --system TEXT      what the system says (else what the model's own template says)
      --template NAME    how the conversation is written as text (else as the image names it):
                         chatml, llama-2, llama-3, llama-3.1, mistral, mistral-v1, mistral-v3,
                         mistral-v7
  -n, --tokens N         at most N tokens an answer
      --temp, --top-k, --top-p, --min-p, --repeat-penalty, --repeat-last, --seed,
      --threads, --image, --isa, --ignore-end, --prove-seal: as in `ganglion run --help`
      --json             each turn as a JSON object on a line of its own

A line that ends with \\ goes on in the next one. Ctrl-C stops an answer, and what was said of it
stays in the conversation; it gives up a message of several lines; else it leaves. Lines that begin
with / are commands:

";

const CHAT_COMMANDS: &str = "\
  /paste                 every line up to /end is one message
  /reset                 forget the conversation
  /stats                 how full the context is, and how fast the last answer was
  /help                  this list
  /exit                  leave, as Ctrl-D does
";

const CHAT_EXAMPLE: &str = "
Example:
  ganglion chat --system \"Answer in one sentence.\" \"What is the capital of France?\"
";

const BENCH: &str = "\
ganglion bench [FLAGS] [PROMPT]: boot, first token, speed, latency, misses, bytes, memory, faults.

  -n, --tokens N         new tokens (default 256)
      --prompt-tokens N  instead of PROMPT, N ordinary tokens from all over the vocabulary
  -t, --threads N        at most the plan's
      --image PATH       another place of the image; one in memory is refused
      --isa NAME         force kernels: twin, avx2, avx512, neon, dotprod,
                         i8mm
      --prove-seal       kill the process where it asks for memory after the seal
      --json             the same figures as one JSON object

Example:
  ganglion bench -n 500 --json
";

const PLAN: &str = "\
ganglion plan [--json]: every region of the arena with offset, bytes and lifetime, and the sums.

Example:
  ganglion plan
";

const CHECK: &str = "\
ganglion check [FLAGS]: proves the plan again and reads the whole image, every checksum of it.

      --image PATH       another place of the image
      --json             the result as a JSON object

Example:
  ganglion check --image model.image
";

/// Prints the help of `command`.
pub fn print(command: Command) -> Result<(), Fault> {
    let text = match command {
        Command::Run => RUN,
        Command::Chat => CHAT,
        Command::Bench => BENCH,
        Command::Plan => PLAN,
        Command::Check => CHECK,
        Command::Help | Command::Version => COMMANDS,
    };
    let mut out = Output::stdout();
    out.push(text.as_bytes());
    if command == Command::Chat {
        out.push(CHAT_COMMANDS.as_bytes());
        out.push(CHAT_EXAMPLE.as_bytes());
    }
    out.flush().map_err(Fault::Output)
}

/// Lists the commands of a chat on stderr: stdout has the answers alone.
pub fn chat_commands() {
    Stderr::part(format_args!("{CHAT_COMMANDS}"));
}
