//! How a run went: one line for people, fields for machines.

use super::boot::Session;
use super::generate::Measured;
use crate::plan::{Plan, bytes};
use crate::sys::{Output, Stderr, footprint};
use core::fmt::{self, Write};

/// The summary line, on stderr.
pub fn line(plan: &Plan, measured: &Measured) {
    let inputs = &plan.inputs;
    let memory = footprint();
    Stderr::line(format_args!(
        "[{} tokens, {:.1} tok/s, first token {:.1} ms, misses {:.1} %, read {}, \
         memory {} of {}, numerics {:08x}]",
        measured.tokens,
        measured.tokens_per_second(),
        measured.first_token_ns as f64 / 1e6,
        measured.total().miss_rate() * 100.0,
        bytes(measured.total().bytes),
        bytes(memory.total()),
        bytes(inputs.budget_bytes),
        inputs.numerics.hash(&inputs.shape),
    ));
}

/// Every figure, as the fields of a JSON object.
pub fn json_fields(
    plan: &Plan,
    session: &Session<'_>,
    measured: &Measured,
    out: &mut Output,
) -> fmt::Result {
    let inputs = &plan.inputs;
    let memory = footprint();
    let (prefill, decode) = (&measured.prefill, &measured.decode);
    write!(
        out,
        "\"stop\":\"{}\",\"prompt_tokens\":{},\"tokens\":{},\"boot_ms\":{:.3},\
         \"first_token_ms\":{:.3},\"prefill_tok_s\":{:.3},\"decode_tok_s\":{:.3},",
        measured.stop.name(),
        measured.prompt_tokens,
        measured.tokens,
        session.boot_ns as f64 / 1e6,
        measured.first_token_ns as f64 / 1e6,
        measured.prompt_tokens as f64 * 1e9 / measured.first_token_ns.max(1) as f64,
        measured.tokens_per_second(),
    )?;
    let latency = &measured.latency;
    write!(
        out,
        "\"token_mean_ms\":{:.3},\"token_p50_ms\":{:.3},\"token_p99_ms\":{:.3},\
         \"token_max_ms\":{:.3},",
        latency.mean() as f64 / 1e6,
        latency.quantile(500) as f64 / 1e6,
        latency.quantile(990) as f64 / 1e6,
        latency.max() as f64 / 1e6,
    )?;
    write!(
        out,
        "\"hits\":{},\"misses\":{},\"miss_rate\":{:.4},\"first_16_miss_rate\":{:.4},\
         \"prefill_bytes\":{},\"prefill_reads\":{},\"decode_bytes\":{},\"decode_reads\":{},\
         \"embedding_reads\":{},",
        decode.hits,
        decode.misses,
        decode.miss_rate(),
        measured.first.miss_rate(),
        prefill.bytes,
        prefill.reads,
        decode.bytes,
        decode.reads,
        measured.embedding_reads,
    )?;
    write!(
        out,
        "\"peak_bytes\":{},\"page_table_bytes\":{},\"locked_bytes\":{},\"memory_bytes\":{},\
         \"budget_bytes\":{},\"minor_faults\":{},\"major_faults\":{},\
         \"involuntary_switches\":{},\"isa\":\"{}\",\"numerics\":\"{:08x}\"",
        memory.peak_bytes,
        memory.page_table_bytes,
        memory.locked_bytes,
        memory.total(),
        inputs.budget_bytes,
        measured.faults.minor,
        measured.faults.major,
        measured.faults.involuntary_switches,
        session.model.kernels().isa().name(),
        inputs.numerics.hash(&inputs.shape),
    )
}
