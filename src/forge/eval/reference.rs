//! Reads the log-probabilities that llama.cpp's llama-perplexity saves with `--save-all-logits`.
//!
//! Called by `forge::eval`. All numbers are little-endian:
//!
//! ```text
//! "_logits_"  context i32  vocab i32  chunks i32  tokens i32[chunks][context]
//! then for each chunk, for each scored position:
//!     scale f32  least f32  codes u16[vocab, rounded up to even]
//! ```
//!
//! The log-probability of a token is scale * code + least. Positions context/2 to context - 2 of a
//! chunk are scored.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::error::EvalError;
use super::score::first_largest;
use super::{CHUNKS_MAX, CONTEXT_MAX, CONTEXT_MIN, scored};

const MAGIC: &[u8; 8] = b"_logits_";
const HEADER_BYTES: u64 = 20;
/// As many as an image may have.
const VOCAB_MAX: u64 = 1 << 22;

/// An open file of log-probabilities.
pub struct Reference {
    path: String,
    file: BufReader<File>,
    /// Tokens of a chunk.
    pub context: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens of the text, chunk after chunk.
    pub tokens: Vec<u32>,
    line: Vec<u16>,
}

/// What the reference holds likely next.
pub struct Line<'l> {
    /// Nats of a code's unit.
    pub scale: f32,
    /// Log-probability of code 0.
    pub least: f32,
    /// A code for each token.
    pub codes: &'l [u16],
}

impl Line<'_> {
    /// Log of the probability of token `id`.
    #[must_use]
    pub fn log_probability(&self, id: usize) -> f64 {
        f64::from(self.scale) * f64::from(self.codes[id]) + f64::from(self.least)
    }

    /// The likeliest token, the first of equals.
    #[must_use]
    pub fn best(&self) -> usize {
        first_largest(self.codes.iter().copied())
    }
}

impl Reference {
    /// Opens `path`; its length must be what its header says.
    pub fn open(path: &Path) -> Result<Reference, EvalError> {
        let name = path.display().to_string();
        let fail = |source| EvalError::Read { what: "reference", path: name.clone(), source };
        let wrong = |reason: String| EvalError::Format { path: name.clone(), reason };
        let about = fs::metadata(path).map_err(fail)?;
        // Asked before opening: opening a pipe would wait for a writer.
        if !about.is_file() {
            return Err(fail(io::Error::other("it is not a regular file")));
        }
        let mut file = BufReader::new(File::open(path).map_err(fail)?);
        let mut header = [0; HEADER_BYTES as usize];
        if about.len() < HEADER_BYTES {
            return Err(wrong(format!(
                "it has {} bytes, a header has {HEADER_BYTES}",
                about.len()
            )));
        }
        file.read_exact(&mut header).map_err(fail)?;
        let (magic, fields) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(wrong("it does not begin with \"_logits_\"".into()));
        }
        let fields: [[u8; 4]; 3] = bytemuck::cast_slice(fields).try_into().expect("12 bytes");
        let [context, vocab, chunks] = fields.map(|field| u64::from(u32::from_le_bytes(field)));
        for (name, found, min, max) in [
            ("context", context, CONTEXT_MIN, CONTEXT_MAX),
            ("vocabulary", vocab, 1, VOCAB_MAX),
            ("number of chunks", chunks, 1, CHUNKS_MAX),
        ] {
            if !(min..=max).contains(&found) {
                return Err(wrong(format!("its {name} is {found}, wanted {min} to {max}")));
            }
        }
        let line_bytes = 8 + 2 * vocab.next_multiple_of(2);
        let scored = scored(context as usize).len() as u64;
        let wanted = HEADER_BYTES + chunks * (4 * context + scored * line_bytes);
        if wanted != about.len() {
            let found = about.len();
            return Err(wrong(format!("it has {found} bytes, its header asks for {wanted}")));
        }
        let mut tokens = vec![0u32; (chunks * context) as usize];
        file.read_exact(bytemuck::cast_slice_mut(&mut tokens)).map_err(fail)?;
        tokens.iter_mut().for_each(|token| *token = u32::from_le(*token));
        let (context, vocab) = (context as usize, vocab as usize);
        let line = vec![0; line_bytes as usize / 2];
        Ok(Reference { path: name, file, context, vocab, tokens, line })
    }

    /// Chunks it holds.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// Whether it holds `chunks` chunks of `context` tokens.
    pub fn check_size(&self, context: usize, chunks: usize) -> Result<(), EvalError> {
        if context != self.context {
            let found = self.context;
            let reason = format!("its chunks have {found} tokens, --context says {context}");
            return Err(self.mismatch(reason));
        }
        if chunks > self.chunks() {
            let found = self.chunks();
            return Err(self.mismatch(format!("it has {found} chunks, --chunks says {chunks}")));
        }
        Ok(())
    }

    /// Whether it is of a model with `vocab` tokens and of the text that begins with `tokens`.
    pub fn check_text(&self, vocab: usize, tokens: &[u32]) -> Result<(), EvalError> {
        if vocab != self.vocab {
            let found = self.vocab;
            return Err(self.mismatch(format!(
                "it is of another model: its vocabulary has {found} tokens, the image's {vocab}"
            )));
        }
        let mut pairs = tokens.iter().zip(&self.tokens).enumerate();
        match pairs.find(|(_, (ours, theirs))| ours != theirs) {
            None => Ok(()),
            Some((at, (ours, theirs))) => Err(self.mismatch(format!(
                "it is of another text or tokenizer: token {at} is {theirs}, the text's is {ours}"
            ))),
        }
    }

    fn mismatch(&self, reason: String) -> EvalError {
        EvalError::Mismatch { path: self.path.clone(), reason }
    }

    /// The next scored position.
    pub fn next_line(&mut self) -> Result<Line<'_>, EvalError> {
        let read = self.file.read_exact(bytemuck::cast_slice_mut(&mut self.line));
        read.map_err(|source| EvalError::Read {
            what: "reference",
            path: self.path.clone(),
            source,
        })?;
        self.line.iter_mut().for_each(|word| *word = u16::from_le(*word));
        let (head, codes) = self.line.split_at(4);
        let float = |low: u16, high: u16| f32::from_bits(u32::from(high) << 16 | u32::from(low));
        Ok(Line {
            scale: float(head[0], head[1]),
            least: float(head[2], head[3]),
            codes: &codes[..self.vocab],
        })
    }
}
