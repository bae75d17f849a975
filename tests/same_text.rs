//! Invariant 3: same numerics, prompt and seed give the same text, bit for bit, at any budget,
//! thread count and instruction set.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;

use engine::{Run, budget_of_everything, continued, numerics, plan_of, session, smallest_budget};
use ganglion::cli::generate::encode;
use ganglion::image::WeightType;
use ganglion::kernel::Isa;
use ganglion::plan::{Inputs, KvType, Numerics, Plan, PlanError, solve};
use ganglion::token::SamplerConfig;

const PROMPT: &str = "Once upon a time";
const LONG_PROMPT: &str = "\
    Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
    One day, she saw a big, red ball. She wanted to play with it, but it was too high. Lily asked \
    her mom to help her, and her mom said that they could get it down together with a long stick.";
const TOKENS: u32 = 256;

const SEEDED: SamplerConfig = SamplerConfig {
    temperature: 0.9,
    top_k: 50,
    top_p: 0.95,
    min_p: 0.02,
    repeat_penalty: 1.1,
    repeat_last: 64,
    seed: 20_261_130,
};

fn run(
    numerics: Numerics,
    budget: u64,
    threads: usize,
    isa: Isa,
    config: SamplerConfig,
    tokens: u32,
) -> Run {
    let plan = plan_of(numerics, budget).unwrap();
    session(&plan, threads, isa, |session| continued(session, PROMPT, config, tokens))
}

fn budgets(numerics: Numerics) -> [u64; 5] {
    let (least, most) = (smallest_budget(numerics), budget_of_everything(numerics));
    [0, 10, 25, 50, 100].map(|percent| least + (most - least) * percent / 100)
}

#[test]
fn any_budget_and_thread_count_gives_the_same_text() {
    let numerics = numerics(WeightType::Q8, KvType::Half);
    for config in [SamplerConfig::GREEDY, SEEDED] {
        let mut reference: Option<Run> = None;
        let mut misses = Vec::new();
        for budget in budgets(numerics) {
            for threads in [1, 2] {
                let run = run(numerics, budget, threads, Isa::best(), config, TOKENS);
                misses.push(run.misses);
                let reference = reference.get_or_insert_with(|| run.clone());
                assert_eq!(run.tokens, reference.tokens, "budget {budget}, {threads} threads");
                assert_eq!(run.logits, reference.logits, "budget {budget}, {threads} threads");
            }
        }
        println!("misses by budget: {misses:?}");
        assert!(misses[0] > 100_000, "the smallest budget streams nearly everything");
        assert_eq!(*misses.last().unwrap(), 0, "the largest holds everything");
    }
}

#[test]
fn every_instruction_set_gives_the_twins_text() {
    let with_half = WeightType::ALL.map(|weight| (weight, KvType::Half));
    for (weight, kv) in with_half.into_iter().chain([(WeightType::Q4, KvType::Byte)]) {
        let numerics = numerics(weight, kv);
        let tokens = if weight == WeightType::Q8 { TOKENS } else { 48 };
        let budget = budgets(numerics)[2];
        for config in [SamplerConfig::GREEDY, SEEDED] {
            let twin = run(numerics, budget, 2, Isa::Twin, config, tokens);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                let run = run(numerics, budget, 1, isa, config, tokens);
                assert_eq!(run.tokens, twin.tokens, "{} {}", weight.name(), isa.name());
                assert_eq!(run.logits, twin.logits, "{} {}", weight.name(), isa.name());
            }
        }
    }
}

/// Every bit of the logits after a prompt, and of those after the token that follows.
fn logits_after(plan: &Plan, threads: usize, isa: Isa) -> Vec<u32> {
    session(plan, threads, isa, |session| {
        let prompt = encode(session, LONG_PROMPT)?;
        assert!(prompt > 70, "the prompt is more than a chunk or two: {prompt}");
        for first in (0..prompt).step_by(session.chunk) {
            let end = prompt.min(first + session.chunk);
            session.model.prefill(&session.tokens[first..end], first)?;
        }
        let mut bits: Vec<u32> = session.model.logits()?.iter().map(|x| x.to_bits()).collect();
        session.model.forward(session.tokens[3], prompt)?;
        bits.extend(session.model.logits()?.iter().map(|x| x.to_bits()));
        assert!(session.model.workshop.is_consistent());
        Ok(bits)
    })
}

#[test]
fn any_prefill_chunk_gives_the_same_logits() {
    let with_half = WeightType::ALL.map(|weight| (weight, KvType::Half));
    for (weight, kv) in with_half.into_iter().chain([(WeightType::Q8, KvType::Byte)]) {
        let numerics = numerics(weight, kv);
        let reference = logits_after(&chunked(numerics, 1, false), 1, Isa::best());
        for (chunk, threads, least) in
            [(2, 2, true), (5, 1, false), (16, 2, false), (33, 2, true), (512, 1, true)]
        {
            let found = logits_after(&chunked(numerics, chunk, least), threads, Isa::best());
            let what = format!("{}, kv {}", weight.name(), kv.name());
            assert!(found == reference, "{what}, chunks of {chunk}, {threads} threads");
        }
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let found = logits_after(&chunked(numerics, 24, true), 2, isa);
            assert!(found == reference, "{} kv {} {}", weight.name(), kv.name(), isa.name());
        }
    }
}

/// A plan with prefill chunks of its own, at its smallest budget or with every neuron in a slot.
fn chunked(numerics: Numerics, prefill_tokens: u64, least: bool) -> Plan {
    let inputs = Inputs { prefill_tokens, ..plan_of(numerics, 1 << 30).unwrap().inputs };
    let budget_bytes = match solve(Inputs { budget_bytes: 1, ..inputs }) {
        Err(PlanError::BudgetTooSmall { wanted_bytes, .. }) if least => wanted_bytes,
        _ => 1 << 30,
    };
    solve(Inputs { budget_bytes, ..inputs }).unwrap()
}

#[test]
fn another_seed_gives_another_text() {
    let numerics = numerics(WeightType::Q8, KvType::Half);
    let budget = budget_of_everything(numerics);
    let other = SamplerConfig { seed: SEEDED.seed + 1, ..SEEDED };
    let first = run(numerics, budget, 2, Isa::best(), SEEDED, 64);
    assert_ne!(first.tokens, run(numerics, budget, 2, Isa::best(), other, 64).tokens);
}
