//! The token loop: prompt, then one token after the other, measured.

use super::boot::Session;
use super::fault::Fault;
use super::progress::Progress;
use super::prompt_error::PromptError;
use crate::metrics::{FetchCounters, Histogram};
use crate::sys::{Faults, faults, now, stop_requested};
use crate::token::{EncodeOptions, EncodeScratch, Sampler, TokenError};

/// Tokens whose miss rate is told apart: the cache has not yet seen this text.
const FIRST_TOKENS: u64 = 16;

/// Why the text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model ended it.
    End,
    /// As many tokens as asked for.
    Tokens,
    /// The context is full.
    Context,
    /// INT or TERM.
    Signal,
}

impl Stop {
    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Stop::End => "end",
            Stop::Tokens => "tokens",
            Stop::Context => "context",
            Stop::Signal => "signal",
        }
    }
}

/// What was measured.
pub struct Measured {
    /// Why the text ended.
    pub stop: Stop,
    /// Tokens of the prompt, without those the model had been given before.
    pub prompt_tokens: u64,
    /// Nanoseconds of the prompt, the first token's choice included.
    pub first_token_ns: u64,
    /// New tokens.
    pub tokens: u64,
    /// Nanoseconds from the first new token to the last.
    pub decode_ns: u64,
    /// Nanoseconds a new token, the first left out.
    pub latency: Histogram,
    /// Look-ups and reads of the prompt.
    pub prefill: FetchCounters,
    /// Look-ups and reads of the first tokens after the prompt.
    pub first: FetchCounters,
    /// Look-ups and reads of all new tokens.
    pub decode: FetchCounters,
    /// Embedding rows read.
    pub embedding_reads: u64,
    /// Faults and switches of the token loop.
    pub faults: Faults,
    /// When the last token was chosen, or the prompt began.
    last_ns: u64,
    /// Faults and switches before the prompt.
    faults_before: Faults,
}

impl Measured {
    fn new(prompt_tokens: u64) -> Measured {
        Measured {
            stop: Stop::Tokens,
            prompt_tokens,
            first_token_ns: 0,
            tokens: 0,
            decode_ns: 0,
            latency: Histogram::new(),
            prefill: FetchCounters::default(),
            first: FetchCounters::default(),
            decode: FetchCounters::default(),
            embedding_reads: 0,
            faults: Faults::default(),
            last_ns: now(),
            faults_before: faults(),
        }
    }

    /// A token was chosen now.
    fn time(&mut self) {
        let time = now();
        let took = time - core::mem::replace(&mut self.last_ns, time);
        if self.tokens == 0 {
            self.first_token_ns = took;
        } else {
            self.latency.record(took);
            self.decode_ns += took;
        }
    }

    /// New tokens a second, the first left out.
    pub fn tokens_per_second(&self) -> f64 {
        let timed = self.latency.count();
        timed as f64 * 1e9 / self.decode_ns.max(1) as f64
    }

    /// Look-ups and reads of prompt and new tokens.
    pub fn total(&self) -> FetchCounters {
        self.prefill.plus(&self.decode)
    }
}

/// When to end.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most new tokens.
    pub tokens: u32,
    /// Go on where the model would end its text.
    pub ignore_end: bool,
}

/// Begins a conversation with `prompt`: encodes it into the session's tokens; returns how many.
pub fn encode(session: &mut Session<'_>, prompt: &str) -> Result<usize, Fault> {
    let context = session.tokens.len();
    let bos = session.tokenizer.adds_bos();
    let mut scratch = EncodeScratch::new(session.model.encoding());
    let options = EncodeOptions { bos, parse_special: false };
    session.cached = 0;
    // One place is kept for the answer.
    let room = &mut session.tokens[..context - 1];
    match session.tokenizer.encode(prompt, options, &mut scratch, room) {
        Ok(0) => Err(PromptError::Absent.into()),
        Ok(count) => Ok(count),
        Err(TokenError::TooManyTokens { total, .. }) => {
            Err(PromptError::TooLong { tokens: total, context }.into())
        }
        Err(error) => Err(Fault::Token(error)),
    }
}

/// Continues the first `end` tokens of the session; `emit` takes each new token's text, in order.
pub fn generate(
    session: &mut Session<'_>,
    end: usize,
    sampler: &mut Sampler,
    limits: Limits,
    emit: impl FnMut(&[u8]) -> Result<(), Fault>,
) -> Result<Measured, Fault> {
    let mut measured = prefill(session, end)?;
    decode(session, end, sampler, limits, &mut measured, emit)?;
    Ok(measured)
}

/// Gives the model those of the first `end` tokens of the session that it has not been given, at
/// least one. INT and TERM end it; then it has been given what it had before.
pub fn prefill(session: &mut Session<'_>, end: usize) -> Result<Measured, Fault> {
    let (start, layers) = (session.cached, session.model.layers());
    let mut measured = Measured::new((end - start) as u64);
    let counters = session.model.workshop.counters;
    let mut progress = Progress::new(end - start, session.shows_progress);
    let mut all = true;
    for first in (start..end).step_by(session.chunk) {
        let chunk = &session.tokens[first..end.min(first + session.chunk)];
        let watch = |layer| {
            progress.show(first - start + chunk.len() * layer / layers);
            !stop_requested()
        };
        all = session.model.prefill_while(chunk, first, watch)? && !stop_requested();
        if !all {
            break;
        }
    }
    progress.clear();
    session.cached = if all { end } else { start };
    measured.embedding_reads = measured.prompt_tokens * u64::from(session.model.reads_embeddings());
    measured.prefill = session.model.workshop.counters.since(&counters);
    Ok(measured)
}

/// Continues the first `end` tokens of the session, all of which the model has been given, unless
/// INT or TERM came; adds what it measures to what was measured of the prompt.
pub fn decode(
    session: &mut Session<'_>,
    mut end: usize,
    sampler: &mut Sampler,
    limits: Limits,
    measured: &mut Measured,
    mut emit: impl FnMut(&[u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let prefilled = session.model.workshop.counters;
    let row_reads = u64::from(session.model.reads_embeddings());
    measured.stop = loop {
        if stop_requested() {
            break Stop::Signal;
        }
        if measured.tokens == u64::from(limits.tokens) {
            break Stop::Tokens;
        }
        session.model.logits()?;
        let token = choose(session, sampler, end)?;
        measured.time();
        if session.tokenizer.is_end(token) && !limits.ignore_end {
            break Stop::End;
        }
        measured.tokens += 1;
        emit(session.tokenizer.text_bytes(token))?;
        if end == session.tokens.len() {
            break Stop::Context;
        }
        session.tokens[end] = token;
        session.model.forward(token, end)?;
        end += 1;
        session.cached = end;
        measured.embedding_reads += row_reads;
        if measured.tokens == FIRST_TOKENS {
            measured.first = session.model.workshop.counters.since(&prefilled);
        }
    };
    measured.decode = session.model.workshop.counters.since(&prefilled);
    if measured.tokens < FIRST_TOKENS {
        measured.first = measured.decode;
    }
    measured.faults = faults().since(&measured.faults_before);
    Ok(())
}

fn choose(session: &mut Session<'_>, sampler: &mut Sampler, end: usize) -> Result<u32, Fault> {
    let recent = &session.tokens[..end];
    let kernels = session.model.kernels();
    let (logits, candidates) = session.model.sampling();
    Ok(sampler.sample(logits, recent, bytemuck::cast_slice_mut(candidates), kernels)?)
}
