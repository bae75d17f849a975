//! `run`: continue a prompt, then say in one line how it went.

use super::argument_error::ArgumentError;
use super::arguments::Options;
use super::boot::{BootOptions, boot};
use super::fault::Fault;
use super::generate::{Limits, decode, encode, prefill};
use super::prompt_error::PromptError;
use super::{json, summary};
use crate::image::tag::crc32c;
use crate::kernel::Kernels;
use crate::plan::Plan;
use crate::sys::Output;
use crate::token::{Sampler, Utf8Stream};
use core::fmt::Write;

/// Runs the prompt of `options`.
pub fn run(plan: &Plan, options: &Options) -> Result<(), Fault> {
    let prompt = prompt(options)?;
    let mut sampler = Sampler::new(options.sampler)?;
    let boot_options = boot_options(plan, options)?;
    boot(plan, &boot_options, |session| {
        session.shows_progress = true;
        let count = encode(session, prompt)?;
        // The progress of a long prompt has the terminal's line for itself.
        let mut measured = prefill(session, count)?;
        let mut out = Output::stdout();
        if options.json {
            out.push(b"{\"prompt\":");
            json::string(prompt, &mut out);
            out.push(b",\"text\":\"");
        } else {
            out.push(prompt.as_bytes());
            out.flush().map_err(Fault::Output)?;
        }
        let mut stream = Utf8Stream::new();
        let limits =
            Limits { tokens: options.tokens.unwrap_or(u32::MAX), ignore_end: options.ignore_end };
        decode(session, count, &mut sampler, limits, &mut measured, |bytes| {
            stream.push(bytes, |text| print(options, text, &mut out));
            out.flush().map_err(Fault::Output)
        })?;
        stream.finish(|text| print(options, text, &mut out));
        if options.json {
            out.push(b"\",");
            let logits = session.model.logits()?;
            let behind = crc32c(0, bytemuck::cast_slice(logits));
            write!(out, "\"logits\":\"{behind:08x}\",").expect("an output takes any text");
            summary::json_fields(plan, session, &measured, &mut out)
                .expect("an output takes any text");
            out.push(b"}\n");
        } else {
            out.push(b"\n");
        }
        out.flush().map_err(Fault::Output)?;
        if !options.json {
            summary::line(plan, &measured);
        }
        Ok(())
    })
}

/// The prompt as text; empty where none is given.
pub fn prompt(options: &Options) -> Result<&'static str, Fault> {
    core::str::from_utf8(options.prompt.unwrap_or(b""))
        .map_err(|error| PromptError::NotUtf8 { at: error.valid_up_to() }.into())
}

/// What `options` ask of the boot.
pub fn boot_options(plan: &Plan, options: &Options) -> Result<BootOptions, Fault> {
    let max = plan.inputs.threads;
    let threads = options.threads.unwrap_or(max as u32);
    if threads == 0 || u64::from(threads) > max {
        return Err(ArgumentError::Threads { found: threads, max }.into());
    }
    Ok(BootOptions {
        image: options.image,
        threads: threads as usize,
        kernels: Kernels::of(options.isa).expect("the arguments allow only available ones"),
        prove_seal: options.prove_seal,
        enforce_budget: options.enforce_budget,
        refuse_memory_backed: false,
    })
}

/// A part of the text, in JSON as part of a string.
pub fn print(options: &Options, text: &str, out: &mut Output) {
    if options.json {
        json::escape(text, out);
    } else {
        out.write_str(text).expect("an output takes any text");
    }
}
