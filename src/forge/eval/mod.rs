//! Scores a text: perplexity as llama.cpp's llama-perplexity defines it, on the engine itself.
//!
//! Called by `ganglion-forge eval` and by the suite that looks at real models. The text is cut into
//! chunks of as many tokens, the first of which is BOS where the model wants one; each is a
//! conversation of its own, and what stands in its second half is scored. The plan is solved at run
//! time: everything is resident, or what a budget leaves room for, with the same bits.

mod error;
mod reference;
mod report;
mod score;

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

pub use error::EvalError;
pub use reference::{Line, Reference};
pub use report::{evaluation_json, evaluation_text};
pub use score::{Agreement, Distribution, Mean};

use super::verify::open_image;
use crate::baked::PLAN;
use crate::cli::{BootOptions, Session, boot};
use crate::image::Header;
use crate::kernel::{Isa, Kernels};
use crate::plan::{Inputs, KvType, Lock, Numerics, Plan, THREADS_MAX, solve};
use crate::token::{EncodeOptions, EncodeScratch};

/// Tokens of a chunk, where nothing else is asked for.
pub const CONTEXT: u64 = 512;
/// Chunks, where nothing else is asked for.
pub const CHUNKS: u64 = 4;
/// Least tokens of a chunk: two of them are scored, so that there is an error.
pub const CONTEXT_MIN: u64 = 6;
/// Most tokens of a chunk: the plan's limit.
pub const CONTEXT_MAX: u64 = 1 << 20;
/// Most chunks: no text has more.
pub const CHUNKS_MAX: u64 = 1 << 24;
/// Tokens that go through the model together.
const PREFILL_TOKENS: u64 = 128;
/// Holds every model: the plan's limit.
const BUDGET_MAX: u64 = 1 << 45;

/// What to score, and how.
#[derive(Clone, Copy)]
pub struct Request<'r> {
    /// The image.
    pub image: &'r Path,
    /// The text, a file.
    pub text: &'r Path,
    /// Tokens of a chunk; else the reference's, else [`CONTEXT`].
    pub context: Option<u64>,
    /// Chunks from the text's start; else the reference's, else [`CHUNKS`].
    pub chunks: Option<u64>,
    /// Log-probabilities to compare with, see [`Reference`].
    pub reference: Option<&'r Path>,
    /// What the engine may use; else everything is resident.
    pub budget_bytes: Option<u64>,
    /// Compute threads; else one for each core.
    pub threads: Option<u64>,
}

/// What was found.
pub struct Evaluation {
    /// The model.
    pub model: String,
    /// What the numbers depend on.
    pub numerics: u32,
    /// Tokens of a chunk.
    pub context: usize,
    /// Negative log-likelihood of the scored tokens, after each chunk.
    pub chunks: Vec<Mean>,
    /// How near the reference is, where there is one.
    pub agreement: Option<Agreement>,
}

impl Evaluation {
    /// Negative log-likelihood of all scored tokens.
    #[must_use]
    pub fn likelihood(&self) -> Mean {
        self.chunks.last().copied().unwrap_or_default()
    }
}

/// Positions of a chunk whose next token is scored.
#[must_use]
pub const fn scored(context: usize) -> std::ops::Range<usize> {
    context / 2..context - 1
}

/// Scores a text; tells `progress` tokens done and tokens in all.
pub fn evaluate(
    request: &Request<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Evaluation, EvalError> {
    let reference = request.reference.map(Reference::open).transpose()?;
    let own = reference.as_ref().map(|reference| (reference.context, reference.chunks()));
    let (context, chunks) = own.unwrap_or((CONTEXT as usize, CHUNKS as usize));
    let context = request.context.map_or(context, |context| context as usize);
    let chunks = request.chunks.map_or(chunks, |chunks| chunks as usize);
    if let Some(reference) = &reference {
        reference.check_size(context, chunks)?;
    }
    let text = read_text(request.text)?;
    let (_, header) = open_image(request.image)?;
    let plan = plan(request, &header, context as u64)?;
    let name = request.image.as_os_str().to_string_lossy().into_owned();
    let options = BootOptions {
        image: name.leak().as_bytes(),
        threads: plan.inputs.threads as usize,
        kernels: Kernels::of(Isa::best()).expect("the best kernels are available"),
        prove_seal: false,
        enforce_budget: false,
        refuse_memory_backed: false,
    };
    boot(&plan, &options, |session| {
        let tokens = encode(session, &text)?;
        let wanted = chunks * context;
        if tokens.len() < wanted {
            let (path, found) = (request.text.display().to_string(), tokens.len());
            return Ok(Err(EvalError::TooShort { path, found, wanted, chunks, context }));
        }
        let job = Job { context, tokens: &tokens[..wanted], reference };
        let scored = job.run(session, progress);
        Ok(scored.map(|(chunks, agreement)| Evaluation {
            model: header.name().into(),
            numerics: plan.inputs.numerics.hash(&plan.inputs.shape),
            context,
            chunks,
            agreement,
        }))
    })?
}

/// The text, without the newline that ends its last line: the reference leaves it out too.
fn read_text(path: &Path) -> Result<String, EvalError> {
    let name = path.display().to_string();
    let bytes = fs::read(path).map_err(|source| EvalError::Read {
        what: "text",
        path: name.clone(),
        source,
    })?;
    let mut text = String::from_utf8(bytes)
        .map_err(|error| EvalError::NotUtf8 { path: name, at: error.utf8_error().valid_up_to() })?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

fn plan(request: &Request<'_>, header: &Header, context: u64) -> Result<Plan, EvalError> {
    let path = request.image.display().to_string();
    let wrong = |error| EvalError::Header { path: path.clone(), error };
    let (shape, types) = (header.shape().map_err(wrong)?, header.types().map_err(wrong)?);
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
    solve(Inputs {
        name: "eval",
        model: String::from(header.name()).leak(),
        shape,
        numerics: Numerics { types, kv: KvType::Half },
        budget_bytes: request.budget_bytes.unwrap_or(BUDGET_MAX),
        context_tokens: context,
        prefill_tokens: context.min(PREFILL_TOKENS),
        threads: request.threads.unwrap_or(cores.min(THREADS_MAX)),
        lock: Lock::Off,
        ..PLAN.inputs
    })
    .map_err(EvalError::Plan)
}

/// All tokens of `text`.
fn encode(session: &Session<'_>, text: &str) -> Result<Vec<u32>, crate::cli::Fault> {
    // A text may be one piece, with a space before it.
    let mut words = vec![0; EncodeScratch::words(text.len() + 1)];
    let mut tokens = vec![0; text.len() + 2]; // one a byte, BOS and that space
    let options = EncodeOptions { bos: session.tokenizer.adds_bos(), parse_special: false };
    let mut scratch = EncodeScratch::new(&mut words);
    let count = session.tokenizer.encode(text, options, &mut scratch, &mut tokens)?;
    tokens.truncate(count);
    Ok(tokens)
}

struct Job<'t> {
    /// Tokens of a chunk.
    context: usize,
    /// Whole chunks.
    tokens: &'t [u32],
    reference: Option<Reference>,
}

impl Job<'_> {
    /// The likelihood after each chunk, and the agreement of all.
    fn run(
        mut self,
        session: &mut Session<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Vec<Mean>, Option<Agreement>), EvalError> {
        if let Some(reference) = &self.reference {
            reference.check_text(session.model.vocab(), self.tokens)?;
        }
        let all = self.tokens.len() as u64;
        let mut agreement = self.reference.as_ref().map(|_| Agreement::default());
        let (mut likelihood, mut after) = (Mean::default(), Vec::new());
        progress(0, all);
        for (index, text) in self.tokens.chunks_exact(self.context).enumerate() {
            let mut given = text.to_vec();
            if let Some(bos) = session.tokenizer.bos().filter(|_| session.tokenizer.adds_bos()) {
                given[0] = bos;
            }
            for first in (0..self.context).step_by(session.chunk) {
                let end = self.context.min(first + session.chunk);
                session.model.prefill_every(&given[first..end], first)?;
                for position in (first..end).filter(|at| scored(self.context).contains(at)) {
                    let ours = Distribution::new(session.model.logits_of(position - first)?);
                    let next = text[position + 1] as usize;
                    likelihood.add(-ours.log_probability(next));
                    if let (Some(agreement), Some(reference)) =
                        (&mut agreement, &mut self.reference)
                    {
                        agreement.add(&ours, &reference.next_line()?, next);
                    }
                }
                progress((index * self.context + end) as u64, all);
            }
            after.push(likelihood);
        }
        Ok((after, agreement))
    }
}
