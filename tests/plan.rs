//! The planner: committed reports, figures by hand, properties over random models and devices,
//! tampered plans, plan files.
//!
//! A failing property prints its smallest counterexample; keep it as a plain test.
#![cfg(feature = "host")]

#[path = "plan/files.rs"]
mod files;
#[path = "plan/properties.rs"]
mod properties;
#[path = "plan/tampered.rs"]
mod tampered;

use ganglion::forge::emit::plan_source;
use ganglion::forge::inputs::read;
use ganglion::image::WeightType;
use ganglion::plan::{Device, Inputs, Plan, RegionId, check, report, solve};
use std::fs;
use std::path::{Path, PathBuf};

const MODEL_47B: &str = "turbosparse-mixtral-47b";
const MODEL_QWEN: &str = "qwen2.5-coder-1.5b-instruct";
const MIB: u64 = 1 << 20;

fn plans() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans")
}

/// The inputs of `plans/<name>.toml`.
fn inputs_of(name: &str) -> Inputs {
    match read(&plans().join(format!("{name}.toml")), None) {
        Ok(source) => source.inputs,
        Err(error) => panic!("{error}"),
    }
}

fn solved(inputs: Inputs) -> Plan {
    let plan = solve(inputs).unwrap_or_else(|error| panic!("{}: {error}", inputs.name));
    check(&plan).unwrap_or_else(|error| panic!("{}: {error}", inputs.name));
    plan
}

/// Every committed plan, by its name below `plans/`.
fn plan_names() -> Vec<String> {
    let budgets = (7..=19).map(|gigabytes| format!("{MODEL_47B}/{gigabytes:02}gb"));
    let qwen = ["400mb", "500mb", "700mb", "resident"].map(|name| format!("{MODEL_QWEN}/{name}"));
    let single = ["demo", "qwen2.5-1.5b-shape", "smollm2-135m-instruct", "smollm2-135m-shape"];
    single.map(String::from).into_iter().chain(qwen).chain(budgets).collect()
}

// Committed reports.

#[test]
fn committed_plans_solve_to_their_committed_reports() {
    let renew = std::env::var_os("GANGLION_RENEW").is_some();
    let mut differing = Vec::new();
    for name in plan_names() {
        let mut text = String::new();
        report(&solved(inputs_of(&name)), &mut text).unwrap();
        let expected = plans().join("expected").join(format!("{name}.txt"));
        if fs::read_to_string(&expected).ok().as_deref() == Some(text.as_str()) {
            continue;
        }
        if renew {
            fs::create_dir_all(expected.parent().unwrap()).unwrap();
            fs::write(&expected, text).unwrap();
        }
        differing.push(name);
    }
    assert!(!renew, "rewritten: {differing:?}; look at the diff, then run without GANGLION_RENEW");
    assert!(
        differing.is_empty(),
        "these plans do not solve to what plans/expected holds: {differing:?}; if that is meant, \
         renew it with `GANGLION_RENEW=1 cargo test --features host --test plan committed` (which \
         rewrites the files and fails once) and commit the diff"
    );
}

#[test]
fn every_plan_file_has_a_report_and_the_reverse() {
    let mut files: Vec<String> = Vec::new();
    for folder in ["", MODEL_47B, MODEL_QWEN] {
        for (root, ending) in [(plans(), "toml"), (plans().join("expected"), "txt")] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|found| found == ending) {
                    let name = Path::new(folder).join(path.file_stem().unwrap());
                    files.push(name.to_str().unwrap().to_string());
                }
            }
        }
    }
    files.sort();
    let mut wanted: Vec<String> = plan_names().into_iter().flat_map(|n| [n.clone(), n]).collect();
    wanted.sort();
    assert_eq!(files, wanted);
}

#[test]
fn every_device_runs_every_model() {
    let (demo, big) = (inputs_of("demo"), inputs_of(&format!("{MODEL_47B}/07gb")));
    let with = |inputs: Inputs, other: Inputs| Inputs {
        device: other.device,
        device_name: other.device_name,
        ..inputs
    };
    solved(Inputs { budget_bytes: 64_000_000, ..with(demo, big) }); // 16.8 MB of staging
    for gigabytes in 7..=19 {
        let budget_bytes = gigabytes * 1_000_000_000;
        solved(Inputs { budget_bytes, ..with(big, demo) });
        for page_bytes in [16384, 65536] {
            let device = Device { page_bytes, ..big.device };
            solved(Inputs { budget_bytes, device, ..big });
        }
    }
    let devices = fs::read_dir(plans().join("devices")).unwrap().count();
    assert_eq!(devices, 2, "a new device file belongs into this test");
}

#[test]
fn a_plan_uses_97_percent_of_its_budget() {
    for name in plan_names() {
        let plan = solved(inputs_of(&name));
        if plan.inputs.budget_bytes < 256 * MIB {
            continue; // the process itself is more than 3 % of a small budget
        }
        assert!(plan.arena_bytes * 100 >= plan.inputs.budget_bytes * 97, "{name}");
        let step = if plan.streams { plan.inputs.shape.layers } else { 1 };
        assert!(plan.unused_bytes <= step * plan.slot_bytes + 2 * MIB, "{name}");
    }
}

// Figures worked out by hand from the published dimensions of TurboSparse-Mixtral-47B: 32 layers,
// hidden 4096, 8 key-value heads of 128, 8 experts of 14,336 neurons, q4 records.

#[test]
fn the_47b_record_by_hand() {
    assert_eq!(WeightType::Q4.row_bytes(4096), 2304); // 128 groups of 16 bytes and a scale
    assert_eq!(WeightType::Q4.column_bytes(4096), 2192); // 128 of 16 and a sub-scale; 2; to 16
    let inputs = inputs_of(&format!("{MODEL_47B}/07gb"));
    let record = inputs.numerics.types.record(&inputs.shape);
    assert_eq!(record.raw_bytes(), 6832); // 2 * 2304 + 2192 + two tags of 16
    assert_eq!((record.unit_bytes, record.per_block), (8192, 1));
    assert_eq!(record.slot_bytes(), 6848); // 6800, to 64
    assert_eq!(inputs.numerics.types.expert_bytes(&inputs.shape), 14336 * 8192);
}

#[test]
fn the_7_gb_plan_by_hand() {
    let plan = solved(inputs_of(&format!("{MODEL_47B}/07gb")));
    let bytes = |id| plan.region(id).bytes;
    let neurons = 32 * 8 * 14336;
    assert_eq!(neurons, 3_670_016);
    assert_eq!(plan.inputs.shape.neurons(), neurons);
    assert_eq!(bytes(RegionId::Table), neurons * 4);
    assert_eq!(bytes(RegionId::Keys), 32 * 8 * 128 * 4096 * 2); // f16, 4,096 tokens
    assert_eq!(bytes(RegionId::Values), 268_435_456);
    assert_eq!(bytes(RegionId::Rope), 4096 * 128 * 4); // cos and sin of 64 pairs
    assert_eq!(bytes(RegionId::Residual), 256 * 16_384); // a chunk of 256 tokens
    assert_eq!(bytes(RegionId::BatchSums), 256 * 32_768); // in i64
    assert_eq!(bytes(RegionId::Choices), 256 * 2 * 8);
    assert_eq!(bytes(RegionId::Logits), 57_024 * 4);
    assert_eq!(bytes(RegionId::Staging), 64 * 262_144);
    assert_eq!(bytes(RegionId::Stacks), 7 * 65_536); // four readers, three workers
    assert_eq!(plan.slot_bytes, 6848);
    assert_eq!(bytes(RegionId::Slots), plan.slot_count * 6848);
    // Attention: q and o 4096 rows, k and v 1024, of 2304 bytes; two norms and the router in f32.
    let layer = 10_240 * 2304 + 2 * 16_384 + 8 * 16_384;
    let head = 57_024 * 2304;
    // Units of 32 layers take 128 bytes, frequencies 64 f64, the last norm 16,384.
    let resident = 128 + 512 + 32 * layer + 16_384 + head;
    assert_eq!(bytes(RegionId::Resident), u64::div_ceil(resident, 4096) * 4096);
    assert!(plan.slot_count * 100 >= neurons * 15, "{} slots are too few", plan.slot_count);
    // Two experts a layer, all of their neurons; one read each and the embedding row.
    assert_eq!(plan.probes_per_token_max, 32 * 2 * 14336);
    assert_eq!(plan.reads_per_token_max, 32 * 2 * 14336 + 1);
}

#[test]
fn the_demo_by_hand() {
    let plan = solved(inputs_of("demo"));
    let shape = &plan.inputs.shape;
    assert_eq!(shape.neurons(), 4 * 8 * 512);
    let record = plan.inputs.numerics.types.record(shape);
    // q8: 8 groups of 32 bytes and a scale; 256 codes, a scale, to 16.
    assert_eq!((record.row_bytes, record.column_bytes), (272, 272));
    assert_eq!((record.raw_bytes(), record.per_block, record.unit_bytes), (848, 4, 4096));
    assert_eq!(plan.slot_bytes, 832); // 816, to 64
    assert_eq!(plan.region(RegionId::Keys).bytes, 4 * 2 * 32 * plan.inputs.context_tokens * 2);
    assert_eq!(plan.reads_per_token_max, 4 * 2 * 512 / 4 + 1);
    let share = plan.slot_count * 100 / shape.neurons();
    assert!((10..90).contains(&share), "the demo streams: {share} % of its neurons have slots");
}

#[test]
fn the_emitted_source_holds_every_number() {
    // That it compiles and passes `check` again is proved by src/baked.rs at each build.
    let plan = tight();
    let text = plan_source(&plan, "some \"where\".image");
    assert!(text.contains("pub const PLAN: Plan = Plan {"));
    assert!(text.contains(r#"pub const IMAGE: &str = "some \"where\".image";"#));
    let words: Vec<&str> = text.split_whitespace().collect();
    let has = |name: &str, number: u64| {
        let pair = [format!("{name}:"), format!("{number},")];
        words.windows(2).any(|found| found == pair)
    };
    for region in plan.regions {
        assert!(has("offset", region.offset) && has("bytes", region.bytes), "{region:?}");
        assert!(text.contains(&format!("id: {:?},", region.id)));
    }
    for (name, number) in [
        ("arena_bytes", plan.arena_bytes),
        ("page_table_bytes", plan.page_table_bytes),
        ("unused_bytes", plan.unused_bytes),
        ("slot_bytes", plan.slot_bytes),
        ("slot_count", plan.slot_count),
        ("budget_bytes", plan.inputs.budget_bytes),
        ("process_bytes", plan.inputs.device.process_bytes),
        ("hidden", plan.inputs.shape.hidden),
        ("reads_per_token_max", plan.reads_per_token_max),
    ] {
        assert!(has(name, number), "{name} {number}");
    }
}

/// A plan whose cache is bounded by the budget, so that every rule of `check` applies.
fn tight() -> Plan {
    let plan = solved(inputs_of("demo"));
    assert!(plan.slot_count < plan.inputs.shape.neurons());
    plan
}

/// One line that names a number and says what to do.
fn is_sentence(text: &str) -> bool {
    let number = text.bytes().any(|byte| byte.is_ascii_digit());
    let words = text.split_whitespace().count() > 5 && !text.contains('\n');
    number && words && text.contains("; ") && !text.ends_with('.')
}
