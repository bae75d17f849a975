//! Real models in the folder that `GANGLION_MODELS` names: the likeliest tokens are those of an
//! independent engine, and the text goes on as a reader would expect.

use super::engine::session_on;
use super::models::{self, model_file};
use super::refusal::Folder;
use super::{numerics, plan_of};
use ganglion::cli::{Fault, Session};
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::image::WeightType;
use ganglion::kernel::Isa;
use ganglion::plan::KvType;

/// A model, "The capital of France is" as its tokens, and what llama.cpp as in llama-cpp-python
/// 0.3.36 holds likeliest next, from the same file with keys and values as f32.
struct Real {
    file: &'static str,
    prompt: [u32; 5],
    likeliest: [(u32, f32); 10],
}

const SMOLLM2: Real = Real {
    file: models::SMOLLM2,
    prompt: [504, 3575, 282, 4649, 314],
    likeliest: [
        (7042, 17.374),
        (260, 14.952),
        (4528, 13.313),
        (2250, 13.194),
        (1315, 13.156),
        (5145, 12.941),
        (216, 12.923),
        (3692, 12.718),
        (441, 12.426),
        (3575, 12.143),
    ],
};

const QWEN: Real = Real {
    file: models::QWEN,
    prompt: [785, 6722, 315, 9625, 374],
    likeliest: [
        (12095, 15.169),
        (32671, 13.516),
        (1304, 13.085),
        (65892, 12.73),
        (510, 12.506),
        (30743, 12.292),
        (320, 12.273),
        (7407, 11.944),
        (2130, 11.531),
        (264, 11.468),
    ],
};

/// The ids of the `count` largest logits, largest first.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    ids.truncate(count);
    ids
}

impl Real {
    fn check(&self, weight: WeightType) {
        let Some(source) = model_file(self.file) else { return };
        let folder = Folder::new(&format!("real-{}-{}", self.file, weight.name()));
        let model = ModelFile::open(&source).unwrap_or_else(|error| panic!("{error}"));
        let (image, numerics) = (folder.file("image"), numerics(weight, weight, KvType::Single));
        pack(&model, &numerics.types, &image, &mut |_, _| {}).unwrap();
        let plan = plan_of(&model, numerics, 64);
        let image = image.to_str().unwrap().to_string().leak().as_bytes();
        let text = session_on(image, &plan, 2, Isa::best(), |session| self.compare(session));
        println!("{} {}: {text:?}", self.file, weight.name());
        assert!(text.starts_with(" Paris."), "{}: {text:?}", self.file);
    }

    /// Compares the logits behind the prompt; the text that follows.
    fn compare(&self, session: &mut Session<'_>) -> Result<String, Fault> {
        session.model.prefill(&self.prompt, 0)?;
        let logits = session.model.logits()?;
        let (ours, theirs) = (best(logits, 10), self.likeliest.map(|(id, _)| id));
        let shared = ours.iter().filter(|id| theirs.contains(id)).count();
        let far = |(id, logit): &(u32, f32)| (logits[*id as usize] - logit).abs();
        let farthest = self.likeliest.iter().map(far).fold(0.0, f32::max);
        println!("{}: {shared} of the 10 likeliest, max |dlogit| {farthest:.2}", self.file);
        assert!(ours[0] == theirs[0] && shared >= 8 && farthest < 0.7, "{ours:?} {farthest}");
        let mut text = Vec::new();
        let mut id = ours[0];
        for position in self.prompt.len()..self.prompt.len() + 6 {
            text.extend_from_slice(session.tokenizer.token_bytes(id));
            session.model.forward(id, position)?;
            id = best(session.model.logits()?, 1)[0];
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[test]
fn smollm2_goes_on_as_expected() {
    SMOLLM2.check(WeightType::F16);
}

#[test]
fn qwen_goes_on_as_expected() {
    QWEN.check(WeightType::Q8);
}
