//! `bench`: the figures of one run, greedy, past the end of the text.

use super::arguments::Options;
use super::boot::{BootOptions, Session, boot};
use super::fault::Fault;
use super::generate::{Limits, Measured, encode, generate};
use super::prompt_error::PromptError;
use super::run::{boot_options, prompt};
use super::summary;
use crate::image::tokenizer::TokenType;
use crate::plan::{Plan, bytes};
use crate::sys::{Output, footprint};
use crate::token::Sampler;
use core::fmt::{self, Write};

/// Prompt where none is given.
const PROMPT: &str = "Once upon a time, there was a little girl named Lily. She loved to play \
                      outside in the park. One day, she saw a big, red ball.";
/// New tokens where no number is given.
const TOKENS: u32 = 256;

/// Measures `plan`.
pub fn bench(plan: &Plan, options: &Options) -> Result<(), Fault> {
    let prompt = if options.prompt.is_some() { prompt(options)? } else { PROMPT };
    let mut sampler = Sampler::new(options.sampler)?;
    let boot_options = BootOptions { refuse_memory_backed: true, ..boot_options(plan, options)? };
    boot(plan, &boot_options, |session| {
        let count = match options.prompt_tokens {
            Some(count) => make_prompt(session, count as usize)?,
            None => encode(session, prompt)?,
        };
        let limits = Limits { tokens: options.tokens.unwrap_or(TOKENS), ignore_end: true };
        let measured = generate(session, count, &mut sampler, limits, |_| Ok(()))?;
        let mut out = Output::stdout();
        let written = if options.json {
            out.push(b"{");
            let written = summary::json_fields(plan, session, &measured, &mut out);
            out.push(b"}\n");
            written
        } else {
            table(plan, session, &measured, &mut out)
        };
        written.expect("an output takes any text");
        out.flush().map_err(Fault::Output)
    })
}

/// Puts `count` ordinary tokens from all over the vocabulary into the session, always the same:
/// their embedding rows lie apart, as a text's do. Returns `count`.
fn make_prompt(session: &mut Session<'_>, count: usize) -> Result<usize, Fault> {
    let context = session.tokens.len();
    // One place is kept for the answer.
    let room = session.tokens[..context - 1].get_mut(..count);
    let Some(tokens) = room else {
        return Err(PromptError::TooLong { tokens: count, context }.into());
    };
    let tokenizer = &session.tokenizer;
    let ordinary = |&id: &u32| tokenizer.token_type(id) == Some(TokenType::Normal);
    for (index, token) in tokens.iter_mut().enumerate() {
        let start = spread(index as u32, tokenizer.token_count());
        let cyclic = (start..tokenizer.token_count()).chain(0..start);
        *token = cyclic.into_iter().find(ordinary).ok_or(PromptError::Absent)?;
    }
    if count == 0 { Err(PromptError::Absent.into()) } else { Ok(count) }
}

/// The `index`-th of numbers that fill `0..below` evenly, however many are taken: steps of
/// the golden ratio of the range.
fn spread(index: u32, below: u32) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b9;
    let fraction = u64::from(index.wrapping_mul(GOLDEN));
    ((fraction * u64::from(below)) >> 32) as u32
}

fn table(plan: &Plan, session: &Session<'_>, measured: &Measured, out: &mut Output) -> fmt::Result {
    let ms = |ns: u64| ns as f64 / 1e6;
    let latency = &measured.latency;
    let memory = footprint();
    let tokens = measured.tokens.max(1);
    let inputs = &plan.inputs;
    let isa = session.model.kernels().isa().name();
    writeln!(out, "boot             {:>10.1} ms", ms(session.boot_ns))?;
    writeln!(
        out,
        "first token      {:>10.1} ms   {} tokens of prompt, {:.1} tok/s",
        ms(measured.first_token_ns),
        measured.prompt_tokens,
        measured.prompt_tokens as f64 * 1e9 / measured.first_token_ns.max(1) as f64
    )?;
    writeln!(
        out,
        "decode           {:>10.1} tok/s   {} tokens, {} threads' plan, {isa}",
        measured.tokens_per_second(),
        measured.tokens,
        inputs.threads
    )?;
    writeln!(
        out,
        "a token          {:>10.3} ms mean, {:.3} p50, {:.3} p99, {:.3} max",
        ms(latency.mean()),
        ms(latency.quantile(500)),
        ms(latency.quantile(990)),
        ms(latency.max())
    )?;
    writeln!(
        out,
        "misses           {:>10.1} %   first 16 tokens {:.1} %",
        measured.decode.miss_rate() * 100.0,
        measured.first.miss_rate() * 100.0
    )?;
    writeln!(
        out,
        "read a token     {:>10}   {} reads",
        bytes(measured.decode.bytes / tokens),
        measured.decode.reads / tokens
    )?;
    writeln!(
        out,
        "memory           {:>10}   of {} (peak {} + page tables {})",
        bytes(memory.total()),
        bytes(inputs.budget_bytes),
        bytes(memory.peak_bytes),
        bytes(memory.page_table_bytes)
    )?;
    writeln!(
        out,
        "faults           {:>10} minor, {} major; {} involuntary switches",
        measured.faults.minor, measured.faults.major, measured.faults.involuntary_switches
    )?;
    writeln!(out, "numerics           {:08x}", inputs.numerics.hash(&inputs.shape))
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn spread_numbers_fill_the_range_evenly() {
        const BELOW: u32 = 50_000;
        const PARTS: usize = 16;
        for count in [PARTS, 512] {
            let mut parts = [0; PARTS];
            for index in 0..count as u32 {
                let number = spread(index, BELOW);
                assert!(number < BELOW);
                parts[(number as usize * PARTS) / BELOW as usize] += 1;
            }
            let even = count / PARTS;
            assert!(parts.iter().all(|&part| even.abs_diff(part) <= 2), "{parts:?}");
        }
        assert_eq!(spread(0, 1), 0);
        assert_eq!(spread(u32::MAX, 1), 0);
    }
}
