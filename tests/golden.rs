//! Our logits against an independent PyTorch implementation, made from the same fp16 weights and
//! computed in fp32 (tests/data/demo/README.md says how).
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;

use engine::{budget_of_everything, demo, demo_json, numerics, plan_of, session};
use ganglion::cli::{Fault, Session};
use ganglion::cluster::Fired;
use ganglion::image::WeightType;
use ganglion::kernel::Isa;
use ganglion::plan::{KvType, Plan};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Gates this close to zero may fall on either side.
const GATE_EPSILON: f32 = 1e-4;

fn resident(weight: WeightType, kv: KvType) -> Plan {
    let numerics = numerics(weight, kv);
    plan_of(numerics, budget_of_everything(numerics)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Logits after each of `ids`.
fn logits(session: &mut Session<'_>, ids: &[u32]) -> Result<Vec<Vec<f32>>, Fault> {
    let mut all = Vec::new();
    for (position, &id) in ids.iter().enumerate() {
        session.model.forward(id, position)?;
        all.push(session.model.logits()?.to_vec());
    }
    Ok(all)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Index and lead over the second of the largest value.
fn best(values: &[f32]) -> (usize, f32) {
    let index = (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap();
    let others = values.iter().enumerate().filter(|&(i, _)| i != index);
    (index, values[index] - others.map(|(_, &v)| v).fold(f32::MIN, f32::max))
}

fn nll(logits: &[f32], target: u32) -> f64 {
    let highest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - highest).exp()).sum();
    highest + sum.ln() - f64::from(logits[target as usize])
}

/// The reference's margin exceeds twice the error: then the choice must be the same.
fn check_choice(ours: &[f32], reference: &[f32], what: &str) {
    let error = largest_difference(ours, reference);
    let (index, margin) = best(reference);
    assert!(margin <= 2.0 * error || best(ours).0 == index, "{what}: another token is likeliest");
}

fn story() -> (Vec<u32>, Vec<Vec<f32>>) {
    let mut npz = npyz::npz::NpzArchive::open(demo("ganglion-demo-14m.logits.npz")).unwrap();
    let ids: Vec<i32> = npz.by_name("ids").unwrap().unwrap().into_vec().unwrap();
    let flat: Vec<f32> = npz.by_name("logits").unwrap().unwrap().into_vec().unwrap();
    let rows = flat.chunks_exact(flat.len() / ids.len()).map(<[f32]>::to_vec).collect();
    (ids.into_iter().map(|id| id as u32).collect(), rows)
}

/// Largest difference over the story's 64 positions and the prompts' last ones.
fn worst_logit(weight: WeightType, kv: KvType) -> (f32, f32) {
    let plan = resident(weight, kv);
    let golden = demo_json("ganglion-demo-14m.golden.json");
    let (story_ids, story_logits) = story();
    session(&plan, 2, Isa::best(), |session| {
        let mut over_story = 0.0f32;
        for (ours, reference) in logits(session, &story_ids)?.iter().zip(&story_logits) {
            over_story = over_story.max(largest_difference(ours, reference));
            check_choice(ours, reference, "story");
        }
        let mut at_prompts = 0.0f32;
        for case in golden["cases"].as_array().unwrap() {
            let ours = logits(session, &ids(&case["ids"]))?.pop().unwrap();
            let reference = floats(&case["last_logits"]);
            at_prompts = at_prompts.max(largest_difference(&ours, &reference));
            check_choice(&ours, &reference, case["text"].as_str().unwrap());
        }
        Ok((over_story, at_prompts))
    })
}

#[test]
fn f16_logits_match_at_every_position() {
    let (story, prompts) = worst_logit(WeightType::F16, KvType::Single);
    println!("f16, kv f32: max |dlogit| story {story:.2e}, prompts {prompts:.2e}");
    assert!(story <= 2e-3 && prompts <= 2e-3, "{story} {prompts}");
    let (story, prompts) = worst_logit(WeightType::F16, KvType::Half);
    println!("f16, kv f16: max |dlogit| story {story:.2e}, prompts {prompts:.2e}");
    assert!(story <= 1e-2 && prompts <= 1e-2, "{story} {prompts}");
    let (story, prompts) = worst_logit(WeightType::F16, KvType::Byte);
    println!("f16, kv q8: max |dlogit| story {story:.2e}, prompts {prompts:.2e}");
    assert!(story <= 0.1 && prompts <= 0.1, "{story} {prompts}");
}

#[test]
fn quantised_logits_lose_no_more_than_twice_the_weights_alone() {
    // reference_types.json: the same weights rounded by the gguf package, f32 activations.
    let reference = demo_json("reference_types.json");
    for (weight, key) in [(WeightType::Q8, "q8_0"), (WeightType::Q4, "q4_0")] {
        let (story, prompts) = worst_logit(weight, KvType::Half);
        let theirs = &reference["types"][key];
        let their_prompts = max_of(&theirs["prompts"], "max_dlogit_last");
        let their_story = theirs["logits_npz"]["max_dlogit"].as_f64().unwrap();
        println!(
            "{}: max |dlogit| prompts {prompts:.3} (theirs {their_prompts:.3}), \
             story {story:.3} (theirs {their_story:.3})",
            weight.name()
        );
        assert!(f64::from(prompts) <= 2.0 * their_prompts, "{key}: {prompts}");
        assert!(f64::from(story) <= 2.0 * their_story, "{key}: {story}");
    }
}

fn max_of(list: &Value, key: &str) -> f64 {
    list.as_array().unwrap().iter().map(|case| case[key].as_f64().unwrap()).fold(0.0, f64::max)
}

/// Neurons that fire for the last token of each prompt: (layer, expert, neuron) in ours only, with
/// their gates, and in the reference only.
fn neuron_differences(weight: WeightType, kv: KvType) -> Vec<(Vec<f32>, usize)> {
    let plan = resident(weight, kv);
    let golden = demo_json("ganglion-demo-14m.golden.json");
    let fired: &'static Mutex<Vec<Fired>> = Box::leak(Box::default());
    let observer: &'static (dyn Fn(Fired) + Sync) =
        Box::leak(Box::new(|neuron| fired.lock().unwrap().push(neuron)));
    session(&plan, 1, Isa::best(), |session| {
        session.model.workshop.observer = Some(observer);
        let mut differences = Vec::new();
        for case in golden["cases"].as_array().unwrap() {
            let ids = ids(&case["ids"]);
            for (position, &id) in ids.iter().enumerate() {
                fired.lock().unwrap().clear();
                session.model.forward(id, position)?;
            }
            let ours = fired.lock().unwrap().clone();
            let mut theirs = BTreeSet::new();
            for (layer, experts) in
                case["last_token_experts"].as_array().unwrap().iter().enumerate()
            {
                for (expert, neurons) in experts.as_object().unwrap() {
                    let expert: u16 = expert.parse().unwrap();
                    theirs.extend(self::ids(neurons).iter().map(|&n| (layer as u16, expert, n)));
                }
            }
            let key = |n: &Fired| (n.layer, n.expert, n.neuron);
            let own: BTreeSet<_> = ours.iter().map(key).collect();
            assert_eq!(own.len(), ours.len(), "a neuron is computed once");
            let only_ours = ours.iter().filter(|n| !theirs.contains(&key(n))).map(|n| n.gate);
            differences.push((only_ours.collect(), theirs.difference(&own).count()));
        }
        Ok(differences)
    })
}

#[test]
fn the_same_neurons_fire() {
    for (only_ours, only_theirs) in neuron_differences(WeightType::F16, KvType::Single) {
        assert!(only_ours.iter().all(|gate| gate.abs() < GATE_EPSILON), "{only_ours:?}");
        assert_eq!(only_theirs, 0);
    }
    let reference = demo_json("reference_types.json");
    for (weight, key) in [(WeightType::Q8, "q8_0"), (WeightType::Q4, "q4_0")] {
        let theirs = max_of(&reference["types"][key]["prompts"], "neurons_differing");
        for (only_ours, only_theirs) in neuron_differences(weight, KvType::Half) {
            let all = only_ours.len() + only_theirs;
            println!("{}: {all} neurons differ (weights alone: up to {theirs})", weight.name());
            assert!(all as f64 <= 2.0 * theirs, "{key}: {all}");
        }
    }
}

#[test]
fn nll_of_512_tokens_matches() {
    let long = demo_json("ganglion-demo-14m.long.json");
    let (tokens, reference) = (ids(&long["ids"]), floats(&long["nll"]));
    let reference_types = demo_json("reference_types.json");
    let mean_difference = |weight, kv| {
        let plan = resident(weight, kv);
        session(&plan, 2, Isa::best(), |session| {
            let mut sum = 0.0;
            let mut worst = 0.0f64;
            for (position, pair) in tokens.windows(2).enumerate() {
                session.model.forward(pair[0], position)?;
                let ours = nll(session.model.logits()?, pair[1]);
                let difference = (ours - f64::from(reference[position])).abs();
                sum += difference;
                worst = worst.max(difference);
            }
            Ok((sum / reference.len() as f64, worst))
        })
    };
    let (mean, worst) = mean_difference(WeightType::F16, KvType::Single);
    println!("f16, kv f32: |dnll| mean {mean:.2e}, max {worst:.2e}");
    assert!(worst <= 1e-3, "{worst}");
    for (weight, key) in [(WeightType::Q8, "q8_0"), (WeightType::Q4, "q4_0")] {
        let (mean, worst) = mean_difference(weight, KvType::Half);
        let theirs = reference_types["types"][key]["long"]["mean_dnll"].as_f64().unwrap();
        println!("{}: |dnll| mean {mean:.4} (theirs {theirs:.4}), max {worst:.3}", weight.name());
        assert!(mean <= 2.0 * theirs, "{key}: {mean}");
    }
}

#[test]
fn held_out_perplexity() {
    let long = demo_json("ganglion-demo-14m.long.json");
    let tokens = ids(&long["held_out_ids"]);
    let reference = long["held_out_ppl"].as_f64().unwrap();
    println!("reference {reference:.4}");
    let rows = [
        (WeightType::F16, KvType::Single, 1.0005),
        (WeightType::F16, KvType::Half, 1.0005),
        (WeightType::F16, KvType::Byte, 1.002),
        (WeightType::Q8, KvType::Half, 1.005),
        (WeightType::Q4, KvType::Half, 1.02),
    ];
    for (weight, kv, bound) in rows {
        let plan = resident(weight, kv);
        let perplexity = session(&plan, 2, Isa::best(), |session| {
            let (mut sum, mut count) = (0.0, 0);
            for window in tokens.chunks_exact(512) {
                for (position, pair) in window.windows(2).enumerate() {
                    session.model.forward(pair[0], position)?;
                    sum += nll(session.model.logits()?, pair[1]);
                    count += 1;
                }
            }
            Ok((sum / f64::from(count)).exp())
        });
        let name = weight.name();
        println!("records {name}, kv {}: perplexity {perplexity:.4}", kv.name());
        assert!(perplexity <= reference * bound && perplexity >= reference / bound, "{name}");
    }
}

#[test]
fn greedy_text_is_the_reference_text() {
    let plan = resident(WeightType::F16, KvType::Single);
    let golden = demo_json("ganglion-demo-14m.golden.json");
    session(&plan, 2, Isa::best(), |session| {
        for case in golden["cases"].as_array().unwrap() {
            let mut tokens = ids(&case["ids"]);
            for (position, &token) in tokens.iter().enumerate() {
                session.model.forward(token, position)?;
            }
            for &wanted in &ids(&case["greedy"]) {
                let likeliest = best(session.model.logits()?).0 as u32;
                assert_eq!(likeliest, wanted, "{}", case["text"]);
                session.model.forward(likeliest, tokens.len())?;
                tokens.push(likeliest);
            }
        }
        Ok(())
    });
}
