//! The plan as text: `ganglion plan` prints it, `plans/expected/` holds it.

use super::inputs::Lock;
use super::region::Life;
use super::solve::Plan;
use core::fmt::{self, Write};

/// Writes the table of `plan`.
pub fn report(plan: &Plan, out: &mut dyn Write) -> fmt::Result {
    let inputs = &plan.inputs;
    let (s, n) = (&inputs.shape, &inputs.numerics);
    writeln!(out, "plan      {}", inputs.name)?;
    writeln!(out, "model     {}", inputs.model)?;
    writeln!(
        out,
        "          {} layers, hidden {}, {} heads / {} kv of {}, {} experts (top {}) of {} \
         neurons, vocab {}{}",
        s.layers,
        s.hidden,
        s.heads,
        s.kv_heads,
        s.head_dim,
        s.experts,
        s.experts_used,
        s.ff,
        s.vocab,
        Window(s.window)
    )?;
    writeln!(
        out,
        "device    {}, {} threads, {} readers, {} reads of {} in flight, lock {}",
        inputs.device_name,
        inputs.threads,
        inputs.device.readers,
        plan.reads().0,
        plan.reads().1,
        match inputs.lock {
            Lock::Demand => "demanded",
            Lock::Try => "tried",
            Lock::Off => "off",
        }
    )?;
    writeln!(
        out,
        "numerics  {:08x}: records {}{}{}, resident {}, head {}, embedding {}, kv {}, {}, \
         predictor none",
        n.hash(s),
        n.types.records.name(),
        if n.types.down == n.types.records { "" } else { ", down " },
        if n.types.down == n.types.records { "" } else { n.types.down.name() },
        n.types.resident.name(),
        n.types.head.name(),
        n.types.embedding.name(),
        n.kv.name(),
        s.activation.name()
    )?;
    writeln!(
        out,
        "context   {} tokens, prefill in chunks of {}",
        inputs.context_tokens, inputs.prefill_tokens
    )?;
    writeln!(out)?;
    regions(plan, out)?;
    sums(plan, out)
}

/// The keys that a position sees, where that is not all of them.
struct Window(u64);

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            keys => write!(f, ", a window of {keys} keys (those before it stay in memory)"),
        }
    }
}

fn regions(plan: &Plan, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "{:<15}{:>15}{:>15}  lives", "region", "offset", "bytes")?;
    for region in &plan.regions {
        write!(out, "{:<15}{:>15}{:>15}  ", region.id.name(), region.offset, region.bytes)?;
        match region.id.life() {
            Life::Always => writeln!(out, "always")?,
            Life::During(a, b) if a as u32 == b as u32 => writeln!(out, "{}", a.name())?,
            Life::During(a, b) => writeln!(out, "{} to {}", a.name(), b.name())?,
        }
    }
    Ok(())
}

fn sums(plan: &Plan, out: &mut dyn Write) -> fmt::Result {
    let inputs = &plan.inputs;
    let neurons = inputs.shape.neurons();
    let row = |out: &mut dyn Write, name: &str, bytes: u64| {
        writeln!(out, "{name:<15}{:>15}{bytes:>15}", "")
    };
    row(out, "arena", plan.arena_bytes)?;
    row(out, "page tables", plan.page_table_bytes)?;
    row(out, "process", inputs.device.process_bytes)?;
    row(out, "unused", plan.unused_bytes)?;
    row(out, "budget", inputs.budget_bytes)?;
    writeln!(out)?;
    writeln!(
        out,
        "cache     {} slots of {} bytes hold {}.{} % of {neurons} neurons{}",
        plan.slot_count,
        plan.slot_bytes,
        plan.slot_count * 100 / neurons,
        plan.slot_count * 1000 / neurons % 10,
        if plan.streams { ", always the same ones; the others stream in order" } else { "" },
    )?;
    writeln!(
        out,
        "a token   at most {} reads, {} cache look-ups",
        plan.reads_per_token_max, plan.probes_per_token_max
    )?;
    Ok(())
}

/// A byte count for people: one decimal place and a decimal unit.
pub fn bytes(count: u64) -> impl fmt::Display {
    HumanBytes(count)
}

struct HumanBytes(u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => return write!(f, "{} B", self.0),
            // What would round to 1000.0 has the next unit.
            1_000..999_950 => (1_000, "kB"),
            999_950..999_950_000 => (1_000_000, "MB"),
            _ => (1_000_000_000, "GB"),
        };
        let tenths = self.0.saturating_add(unit / 20) / (unit / 10);
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    }
}
