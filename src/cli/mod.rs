//! The door: commands, arguments, boot order, errors and exit codes.
//!
//! `main.rs` calls [`enter`] with the arguments and leaves with its exit code. Text goes to
//! stdout, everything said about it to stderr. Invariant: a failure is one sentence and a
//! sysexits code.

mod argument_error;
mod arguments;
mod bench;
pub mod boot;
pub mod chat;
mod check;
mod entry;
mod fault;
pub mod generate;
mod help;
mod json;
mod progress;
mod prompt_error;
mod run;
mod summary;

pub use argument_error::ArgumentError;
pub use boot::{BootOptions, Session, boot};
pub use fault::Fault;
pub use prompt_error::PromptError;

use crate::baked::{IMAGE, PLAN};
use crate::plan::report;
use crate::sys::{Output, Stderr, catch_stop_signals, exit};
use arguments::{Command, Options, parse};

/// Runs the command of `arguments` (without the program's name); returns the exit code.
/// `bare` says that this is the engine alone, whose whole memory the plan has counted.
pub fn enter(arguments: &[&'static [u8]], bare: bool) -> u8 {
    catch_stop_signals();
    let result =
        parse(arguments, IMAGE).map_err(Fault::Argument).and_then(|(command, mut options)| {
            options.enforce_budget = bare;
            execute(command, &options)
        });
    match result {
        Ok(()) => exit::OK,
        Err(fault) => {
            Stderr::line(format_args!("ganglion: {fault}"));
            fault.exit_code()
        }
    }
}

fn execute(command: Command, options: &Options) -> Result<(), Fault> {
    if options.help {
        return help::print(command);
    }
    match command {
        Command::Help => help::print(command),
        Command::Version => version(),
        Command::Run => run::run(&PLAN, options),
        Command::Chat => chat::chat(&PLAN, options),
        Command::Bench => bench::bench(&PLAN, options),
        Command::Plan => print_plan(options),
        Command::Check => check::check(&PLAN, options),
    }
}

fn version() -> Result<(), Fault> {
    let mut out = Output::stdout();
    out.push(concat!("ganglion ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    out.flush().map_err(Fault::Output)
}

fn print_plan(options: &Options) -> Result<(), Fault> {
    let mut out = Output::stdout();
    let written = if options.json { json::plan(&PLAN, &mut out) } else { report(&PLAN, &mut out) };
    written.expect("an output takes any text");
    out.flush().map_err(Fault::Output)
}
