//! JSON out, without a heap.

use crate::plan::Plan;
use crate::sys::Output;
use core::fmt::{self, Write};

/// `text` as a JSON string.
pub fn string(text: &str, out: &mut Output) {
    out.push(b"\"");
    escape(text, out);
    out.push(b"\"");
}

/// `text` as the inside of a JSON string.
pub fn escape(text: &str, out: &mut Output) {
    for c in text.chars() {
        let result = match c {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if c < ' ' => write!(out, "\\u{:04x}", c as u32),
            c => out.write_char(c),
        };
        result.expect("an output takes any text");
    }
}

/// The plan as a JSON object.
pub fn plan(plan: &Plan, out: &mut Output) -> fmt::Result {
    let inputs = &plan.inputs;
    out.push(b"{\"plan\":");
    string(inputs.name, out);
    out.push(b",\"model\":");
    string(inputs.model, out);
    out.push(b",\"device\":");
    string(inputs.device_name, out);
    write!(
        out,
        ",\"budget_bytes\":{},\"arena_bytes\":{},\"page_table_bytes\":{},\"process_bytes\":{},\
         \"unused_bytes\":{},\"slots\":{},\"slot_bytes\":{},\"neurons\":{},\"context_tokens\":{},\
         \"threads\":{},\"numerics\":\"{:08x}\",\"regions\":[",
        inputs.budget_bytes,
        plan.arena_bytes,
        plan.page_table_bytes,
        inputs.device.process_bytes,
        plan.unused_bytes,
        plan.slot_count,
        plan.slot_bytes,
        inputs.shape.neurons(),
        inputs.context_tokens,
        inputs.threads,
        inputs.numerics.hash(&inputs.shape),
    )?;
    for (index, region) in plan.regions.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(
            out,
            "{comma}{{\"name\":\"{}\",\"offset\":{},\"bytes\":{}}}",
            region.id.name(),
            region.offset,
            region.bytes
        )?;
    }
    writeln!(out, "]}}")
}
