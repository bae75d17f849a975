//! Dense models larger than their budget: what streams in order through the ring gives the bits of
//! what lies in memory, whatever the sizes of ring, budget, chunks and team.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;

use engine::session_on;
use ganglion::cli::{Fault, Session};

use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::forge::synth::{SynthType, synth};
use ganglion::image::{ActivationFn, Biases, Header, SectionKind, Shape, Types, WeightType};
use ganglion::kernel::Isa;
use ganglion::metrics::FetchCounters;
use ganglion::plan::{Device, Inputs, KvType, Lock, Numerics, Plan, PlanError, solve};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const TOKENS: [u32; 24] = [
    1, 17, 300, 42, 255, 0, 99, 311, 5, 5, 280, 64, 7, 8, 9, 10, 200, 201, 202, 11, 12, 13, 14, 15,
];
const SHAPE: Shape = Shape {
    layers: 3,
    hidden: 96,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    experts: 1,
    experts_used: 1,
    ff: 333,
    vocab: 320,
    activation: ActivationFn::SiLu,
    tied: true,
    biases: Biases { qkv: true, output: false, ffn: true },
    window: 0,
    tokenizer_bytes: 1,
};

/// A packed model of random weights, and its plans' inputs.
struct Desk {
    image: PathBuf,
    inputs: Inputs,
}

impl Desk {
    fn new(name: &str, weight: WeightType) -> Desk {
        let path = |end: &str| {
            let name = format!("streaming.{}.{name}.{end}", std::process::id());
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
        };
        let (source, image) = (path("gguf"), path("image"));
        synth(name, &SHAPE, SynthType::F16, 7, &source, &mut |_, _| {}).unwrap();
        let model = ModelFile::open(&source).unwrap();
        let types = Types {
            records: weight,
            down: weight,
            resident: weight,
            head: weight,
            embedding: WeightType::F16,
        };
        pack(&model, &types, &image, &mut |_, _| {}).unwrap();
        std::fs::remove_file(source).unwrap();
        let baked = ganglion::baked::PLAN.inputs;
        let inputs = Inputs {
            shape: model.shape,
            numerics: Numerics { types, kv: KvType::Single },
            context_tokens: 64,
            lock: Lock::Off,
            device: Device { ring_reads: 4, ring_read_bytes: 16384, ..baked.device },
            ..baked
        };
        Desk { image, inputs }
    }

    /// A plan whose slots hold `held` neurons of each layer.
    fn plan(&self, held: u64, device: Device) -> Plan {
        let inputs = Inputs { device, budget_bytes: 1, ..self.inputs };
        let Err(PlanError::BudgetTooSmall { wanted_bytes, .. }) = solve(inputs) else {
            panic!("one byte is too small");
        };
        let (layers, ff) = (inputs.shape.layers, inputs.shape.ff);
        let budgets = (0..).map(|kilobytes| wanted_bytes + kilobytes * 1024);
        let mut plans =
            budgets.map(|budget_bytes| solve(Inputs { budget_bytes, ..inputs }).unwrap());
        let plan = plans.find(|plan| plan.slot_count >= held * layers).unwrap();
        assert_eq!(plan.streams, plan.slot_count < layers * ff);
        plan
    }

    fn with<R>(
        &self,
        plan: &Plan,
        threads: usize,
        then: impl FnOnce(&mut Session<'_>) -> Result<R, Fault>,
    ) -> R {
        let image = self.image.to_str().unwrap().to_string().leak().as_bytes();
        session_on(image, plan, threads, Isa::best(), then)
    }

    /// First byte of a neuron's record.
    fn record(&self, layer: u64, neuron: u64) -> u64 {
        let (types, shape) = (self.inputs.numerics.types, self.inputs.shape);
        let file = std::fs::File::open(&self.image).unwrap();
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let length = file.metadata().unwrap().len();
        let header = Header::read(&bytes, length).unwrap();
        let start = header.section(SectionKind::Records).offset;
        start + layer * types.expert_bytes(&shape) + types.record(&shape).offset(neuron)
    }

    fn flip(&self, at: u64) {
        let file = OpenOptions::new().read(true).write(true).open(&self.image).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.image); // the test's own outcome is the one to tell
    }
}

fn bits(session: &mut Session<'_>) -> Result<Vec<u32>, Fault> {
    Ok(session.model.logits()?.iter().map(|x| x.to_bits()).collect())
}

/// Half of the tokens in chunks of `chunk`, then one by one: the bits of all logits on the way.
fn walk(session: &mut Session<'_>, chunk: usize) -> Result<Vec<Vec<u32>>, Fault> {
    let (prompt, rest) = TOKENS.split_at(TOKENS.len() / 2);
    for (index, tokens) in prompt.chunks(chunk).enumerate() {
        session.model.prefill(tokens, index * chunk)?;
    }
    let mut all = vec![bits(session)?];
    for (index, &token) in rest.iter().enumerate() {
        session.model.forward(token, prompt.len() + index)?;
        all.push(bits(session)?);
    }
    Ok(all)
}

#[test]
fn streamed_neurons_give_the_bits_of_resident_ones() {
    for weight in WeightType::ALL {
        let desk = Desk::new(&format!("same-{}", weight.name()), weight);
        let device = desk.inputs.device;
        let wanted = desk.with(&desk.plan(SHAPE.ff, device), 1, |session| walk(session, 12));
        let mut way = 0;
        for held in [1, 64, 200, SHAPE.ff - 1, SHAPE.ff] {
            for (ring_reads, kilobytes) in [(1, 12), (2, 16), (8, 64)] {
                let ring_read_bytes = kilobytes * 1024;
                let readers = 1 + way % 4;
                let device = Device { ring_reads, ring_read_bytes, readers, ..device };
                let (threads, chunk) = (1 + way as usize % 2, [12, 5, 1][way as usize % 3]);
                let plan = desk.plan(held, device);
                let found = desk.with(&plan, threads, |session| walk(session, chunk));
                let name = weight.name();
                assert!(found == wanted, "{name}: {held} held, {threads} threads, {device:?}");
                way += 1;
            }
        }
    }
}

#[test]
fn each_token_reads_what_has_no_slot_once() {
    let desk = Desk::new("counts", WeightType::Q8);
    let plan = desk.plan(100, desk.inputs.device);
    let held = plan.slot_count / SHAPE.layers;
    let streamed = SHAPE.layers * (SHAPE.ff - held);
    let record = desk.inputs.numerics.types.record(&desk.inputs.shape);
    let counted = desk.with(&plan, 2, |session| {
        let mut counted = Vec::new();
        for (position, &token) in TOKENS.iter().enumerate() {
            session.model.workshop.counters = FetchCounters::default();
            session.model.forward(token, position)?;
            counted.push(session.model.workshop.counters);
        }
        session.model.workshop.counters = FetchCounters::default();
        session.model.prefill(&TOKENS, 0)?;
        counted.push(session.model.workshop.counters);
        Ok(counted)
    });
    for counters in counted {
        assert_eq!(counters.hits, SHAPE.layers * held);
        assert_eq!(counters.misses, streamed);
        assert_eq!(counters.reads, plan.reads_per_token_max - 1);
        let (least, slack) = (streamed * record.unit_bytes, counters.reads * record.read_slack());
        assert!((least..=least + slack).contains(&counters.bytes), "{}", counters.bytes);
    }
}

/// The cycle stands in the middle of a pass, then: what was read for the rest of it is let go.
#[test]
fn a_prompt_that_is_stopped_leaves_nothing_behind() {
    let desk = Desk::new("stopped", WeightType::Q4);
    let plan = desk.plan(20, desk.inputs.device);
    let wanted = desk.with(&plan, 2, |session| walk(session, 12));
    for layers in 1..SHAPE.layers as usize {
        let found = desk.with(&plan, 2, |session| {
            let went_on = session.model.prefill_while(&TOKENS, 0, |done| done < layers)?;
            assert!(!went_on, "stopped behind layer {layers}");
            walk(session, 12)
        });
        assert!(found == wanted, "stopped behind layer {layers}");
    }
}

#[test]
fn a_damaged_record_is_told_and_nothing_hangs() {
    let desk = Desk::new("damaged", WeightType::Q4);
    let plan = desk.plan(20, desk.inputs.device);
    for (layer, neuron) in [(0, 100), (1, SHAPE.ff - 1), (2, 21)] {
        let at = desk.record(layer, neuron) + 3;
        desk.flip(at);
        for threads in [1, 2] {
            let told = desk.with(&plan, threads, |session| {
                let fault = session.model.forward(1, 0).expect_err("its tag can't hold");
                Ok(fault.to_string())
            });
            let says = format!("neuron {neuron} of layer {layer}, expert 0 is damaged");
            assert!(told.contains(&says), "{told}");
            let told = desk.with(&plan, threads, |session| {
                let fault = session.model.prefill(&TOKENS, 0).expect_err("its tag can't hold");
                Ok(fault.to_string())
            });
            assert!(told.contains(&says), "{told}");
        }
        desk.flip(at);
    }
}

/// Readers that wait for a free buffer leave too; boot ends only when all have left.
#[test]
fn an_engine_ends_wherever_its_cycle_stands() {
    let desk = Desk::new("ends", WeightType::Q4);
    for ring_reads in [1, 2, 16] {
        let device = Device { ring_reads, readers: 8, ..desk.inputs.device };
        let plan = desk.plan(1, device);
        for tokens in 0..20 {
            desk.with(&plan, 2, |session| {
                for (position, &token) in TOKENS[..tokens].iter().enumerate() {
                    session.model.forward(token, position)?;
                }
                Ok(())
            });
        }
    }
}
