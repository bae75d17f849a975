//! A chat of turns says what the whole conversation, given at once, is continued with.

use super::{engine, number, process, turns};
use engine::{budget_of_everything, numerics, plan_of, session, smallest_budget};
use ganglion::cli::Session;
use ganglion::cli::generate::{Limits, decode, prefill};
use ganglion::image::WeightType;
use ganglion::image::tokenizer::ChatTemplate;
use ganglion::kernel::Isa;
use ganglion::plan::KvType;
use ganglion::token::{EncodeScratch, Place, Sampler, SamplerConfig, write_turn};

const MESSAGES: [&str; 3] = ["One day, Tim saw a big dog.", "What did the dog say?", "The end?"];

#[test]
fn run_of_the_whole_text_gives_each_answer() {
    let said = turns(&["-n", "24"], &MESSAGES.map(|text| format!("{text}\n")).concat());
    let mut whole = String::new();
    for turn in &said {
        if !whole.is_empty() {
            whole.push_str("<|im_end|>\n");
        }
        let prompt = turn["prompt"].as_str().unwrap();
        whole.push_str("<|im_start|>user\n");
        whole.push_str(prompt);
        whole.push_str("<|im_end|>\n<|im_start|>assistant\n");
        for threads in ["1", "2"] {
            let arguments = ["run", "-n", "24", "--json", "-t", threads, &whole];
            let ended = process::run(process::engine().args(arguments));
            let run: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
            assert_eq!(run["text"], turn["text"]);
            let tokens = number(&run, "prompt_tokens") + number(&run, "tokens");
            assert_eq!(tokens, number(turn, "context_tokens"));
        }
        whole.push_str(turn["text"].as_str().unwrap());
    }
}

/// Every bit of the logits behind each answer, and the conversation's tokens.
type Heard = (Vec<Vec<u32>>, Vec<u32>);

fn logits(session: &mut Session<'_>) -> Vec<u32> {
    session.model.logits().unwrap().iter().map(|x| x.to_bits()).collect()
}

fn converse(session: &mut Session<'_>) -> Heard {
    let mut sampler = Sampler::new(SamplerConfig::GREEDY).unwrap();
    let mut heard = Vec::new();
    for (index, text) in MESSAGES.into_iter().enumerate() {
        let system = Some("Tell stories.");
        let place = if index == 0 { Place::First { system } } else { Place::Next };
        let (memory, words) = session.model.turn();
        memory[..text.len()].copy_from_slice(text.as_bytes());
        let turn = write_turn(ChatTemplate::Llama3, place, memory, text.len()).unwrap();
        let mut scratch = EncodeScratch::new(words);
        let room = &mut session.tokens[session.cached..];
        let count = session.tokenizer.encode_turn(&turn, &mut scratch, room).unwrap();
        let end = session.cached + count;
        let limits = Limits { tokens: 16, ignore_end: true };
        let mut measured = prefill(session, end).unwrap();
        assert_eq!(measured.prompt_tokens, count as u64);
        decode(session, end, &mut sampler, limits, &mut measured, |_| Ok(())).unwrap();
        assert_eq!(session.cached, end + 16);
        heard.push(logits(session));
    }
    (heard, session.tokens[..session.cached].to_vec())
}

#[test]
fn turns_have_the_bits_of_the_whole_at_any_budget_and_thread_count() {
    let numerics = numerics(WeightType::Q8, KvType::Half);
    let (least, most) = (smallest_budget(numerics), budget_of_everything(numerics));
    let mut reference: Option<Heard> = None;
    for budget in [least, least + (most - least) / 3, most] {
        for threads in [1, 2] {
            let plan = plan_of(numerics, budget).unwrap();
            let (heard, whole) = session(&plan, threads, Isa::best(), |session| {
                let heard = converse(session);
                // The same tokens, given at once in an empty conversation.
                session.cached = 0;
                prefill(session, heard.1.len())?;
                let whole = logits(session);
                assert!(session.model.workshop.is_consistent());
                Ok((heard, whole))
            });
            assert_eq!(heard.0.last(), Some(&whole), "budget {budget}, {threads} threads");
            let reference = reference.get_or_insert_with(|| heard.clone());
            assert!(heard == *reference, "budget {budget}, {threads} threads");
        }
    }
}
