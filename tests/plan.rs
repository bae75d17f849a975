//! The planner: committed reports, properties over random models and devices, tampered plans,
//! plan files.
//!
//! A failing property prints its smallest counterexample; keep it as a plain test.
#![cfg(feature = "host")]

use ganglion::forge::emit::plan_source;
use ganglion::forge::inputs::{InputsError, byte_count, read};
use ganglion::image::{Activation, Shape, Types, WeightType};
use ganglion::plan::{
    Device, Inputs, KvType, Lock, Numerics, Plan, PlanError, RegionId, check, report, solve,
};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

const MODEL_47B: &str = "turbosparse-mixtral-47b";
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
    std::iter::once("demo".to_string()).chain(budgets).collect()
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
    for (folder, prefix) in [("", ""), (MODEL_47B, "turbosparse-mixtral-47b/")] {
        for (root, ending) in [(plans(), "toml"), (plans().join("expected"), "txt")] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|found| found == ending) {
                    files.push(format!("{prefix}{}", path.file_stem().unwrap().to_str().unwrap()));
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
    for name in plan_names().iter().filter(|name| name.as_str() != "demo") {
        let plan = solved(inputs_of(name));
        assert!(plan.arena_bytes * 100 >= plan.inputs.budget_bytes * 97, "{name}");
        assert!(plan.unused_bytes <= plan.slot_bytes + 2 * MIB, "{name}");
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
    assert_eq!(bytes(RegionId::Residual), 16_384);
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

// Properties.

fn properties() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn weights() -> impl Strategy<Value = WeightType> {
    prop::sample::select(WeightType::ALL.to_vec())
}

fn shapes() -> impl Strategy<Value = Shape> {
    let widths = (1..=20u64, 1..=5000u64, 1..=8u64, 1..=8u64, 1..=16u64);
    let rest = (1..=40u64, 1..=16u64, 1..=3000u64, 1..=70_000u64, any::<bool>(), 1..=5_000_000u64);
    (widths, rest).prop_map(|((layers, hidden, kv_heads, group, sixteens), rest)| {
        let (experts, used, ff, vocab, tied, tokenizer_bytes) = rest;
        Shape {
            layers,
            hidden,
            heads: kv_heads * group,
            kv_heads,
            head_dim: 16 * sixteens,
            experts,
            experts_used: used.min(experts),
            ff,
            vocab,
            activation: Activation::DRelu,
            tied,
            tokenizer_bytes,
        }
    })
}

fn numerics() -> impl Strategy<Value = Numerics> {
    let kv = prop::sample::select(vec![KvType::Half, KvType::Single]);
    (weights(), weights(), weights(), weights(), kv).prop_map(
        |(records, resident, head, embedding, kv)| Numerics {
            types: Types { records, resident, head, embedding },
            kv,
        },
    )
}

fn devices() -> impl Strategy<Value = Device> {
    let pages = prop::sample::select(vec![4096, 16384, 65536]);
    (pages, 1 << 16..8_000_000u64, 8..=64u64, 1..=16u64, 0..=8u32, 8..=100u64, any::<[bool; 2]>())
        .prop_map(|(page_bytes, process_bytes, stack, readers, reads, blocks, [huge, pin])| {
            Device {
                page_bytes,
                process_bytes,
                stack_bytes: stack * 4096,
                readers,
                reads_in_flight: 1 << reads,
                read_bytes_max: blocks * 4096,
                huge_pages: huge,
                pin,
            }
        })
}

/// Inputs whose every number is within its limits, with a budget of one byte.
fn inputs() -> impl Strategy<Value = Inputs> {
    (shapes(), numerics(), devices(), 1..=8192u64, 1..=16u64).prop_map(
        |(shape, numerics, device, context_tokens, threads)| Inputs {
            name: "random",
            model: "random",
            device_name: "random",
            shape,
            numerics,
            device,
            budget_bytes: 1,
            context_tokens,
            threads,
            lock: Lock::Off,
        },
    )
}

/// The smallest budget that plans, as the refusal of one byte tells it.
fn smallest(inputs: &Inputs) -> u64 {
    match solve(Inputs { budget_bytes: 1, ..*inputs }) {
        Err(PlanError::BudgetTooSmall { wanted_bytes, budget_bytes: 1, .. }) => wanted_bytes,
        other => panic!("one byte is too small a budget, and nothing else is wrong: {other:?}"),
    }
}

proptest! {
    #![proptest_config(properties())]

    #[test]
    fn a_solved_plan_holds(inputs in inputs(), extra in 0..1u64 << 34) {
        let wanted = smallest(&inputs);
        let inputs = Inputs { budget_bytes: wanted + extra, ..inputs };
        let plan = solve(inputs).unwrap();
        prop_assert_eq!(check(&plan), Ok(()));
        prop_assert!(plan.total_bytes() <= inputs.budget_bytes);
        prop_assert_eq!(plan.total_bytes() + plan.unused_bytes, inputs.budget_bytes);
        let whole = plan.slot_count >= inputs.shape.neurons();
        prop_assert!(whole || plan.unused_bytes <= plan.slot_bytes + 2 * MIB);
        prop_assert!(plan.slot_count <= inputs.shape.neurons().max(64));
        prop_assert!(plan.arena_bytes.is_multiple_of(inputs.device.page_bytes));
        prop_assert_eq!(solve(inputs), Ok(plan), "the same inputs, another plan");
    }

    #[test]
    fn a_bigger_budget_never_gives_fewer_slots(
        inputs in inputs(),
        extra in 0..1u64 << 32,
        more in prop_oneof![0..10_000u64, 0..1u64 << 32],
    ) {
        let budget_bytes = smallest(&inputs) + extra;
        let small = solve(Inputs { budget_bytes, ..inputs }).unwrap();
        let large = solve(Inputs { budget_bytes: budget_bytes + more, ..inputs }).unwrap();
        prop_assert!(large.slot_count >= small.slot_count);
        prop_assert!(large.reads_per_token_max == small.reads_per_token_max);
    }

    #[test]
    fn the_smallest_budget_is_the_smallest(inputs in inputs(), less in 1..1u64 << 20) {
        let wanted = smallest(&inputs);
        let plan = solve(Inputs { budget_bytes: wanted, ..inputs });
        prop_assert!(plan.is_ok(), "{} bytes are said to be enough: {:?}", wanted, plan);
        for budget_bytes in [wanted - 1, wanted.saturating_sub(less).max(1)] {
            let refused = solve(Inputs { budget_bytes, ..inputs }).unwrap_err();
            let PlanError::BudgetTooSmall { wanted_bytes, resident_bytes, kv_bytes, .. } = refused
            else { panic!("{refused}") };
            prop_assert_eq!(wanted_bytes, wanted);
            let plan = plan.unwrap();
            prop_assert_eq!(resident_bytes, plan.region(RegionId::Resident).bytes);
            prop_assert_eq!(kv_bytes, 2 * plan.region(RegionId::Keys).bytes);
            for number in [budget_bytes, wanted] {
                prop_assert!(refused.to_string().contains(&number.to_string()));
            }
        }
    }

    #[test]
    fn wild_inputs_are_planned_or_refused_in_one_sentence(
        inputs in inputs(),
        fields in prop::collection::vec((0..FIELDS, wild()), 1..4),
    ) {
        let mut inputs = Inputs { budget_bytes: 1 << 40, ..inputs };
        for (field, value) in fields {
            *field_of(&mut inputs, field).1 = value;
        }
        match solve(inputs) {
            Ok(plan) => prop_assert_eq!(check(&plan), Ok(())),
            Err(error) => prop_assert!(is_sentence(&error.to_string()), "{}", error),
        }
    }

    #[test]
    fn a_number_outside_its_limits_is_named(inputs in inputs(), field in 0..FIELDS) {
        let inputs = Inputs { budget_bytes: 1 << 40, ..inputs };
        for value in [0, u64::MAX] {
            let mut inputs = inputs;
            let (name, place) = field_of(&mut inputs, field);
            *place = value;
            let text = solve(inputs).unwrap_err().to_string();
            let told = format!("{name} is {value}, ");
            prop_assert!(text.contains(&told) && is_sentence(&text), "{name}: {text}");
        }
    }
}

fn wild() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..70_000u64, (0..64u32).prop_map(|bit| 1 << bit)]
}

fn is_sentence(text: &str) -> bool {
    let number = text.bytes().any(|byte| byte.is_ascii_digit());
    let words = text.split_whitespace().count() > 5 && !text.contains('\n');
    number && words && text.contains("; ") && !text.ends_with('.')
}

const FIELDS: usize = 19;

/// A number of the inputs, and the word a message must use for it.
fn field_of(inputs: &mut Inputs, field: usize) -> (&'static str, &mut u64) {
    let (s, d) = (&mut inputs.shape, &mut inputs.device);
    let fields: [(&str, &mut u64); FIELDS] = [
        ("layers", &mut s.layers),
        ("hidden", &mut s.hidden),
        ("heads", &mut s.heads),
        ("kv_heads", &mut s.kv_heads),
        ("head_dim", &mut s.head_dim),
        ("experts", &mut s.experts),
        ("experts_used", &mut s.experts_used),
        ("ff", &mut s.ff),
        ("vocab", &mut s.vocab),
        ("tokenizer_bytes", &mut s.tokenizer_bytes),
        ("page_bytes", &mut d.page_bytes),
        ("process_bytes", &mut d.process_bytes),
        ("stack_bytes", &mut d.stack_bytes),
        ("readers", &mut d.readers),
        ("reads_in_flight", &mut d.reads_in_flight),
        ("read_bytes_max", &mut d.read_bytes_max),
        ("context_tokens", &mut inputs.context_tokens),
        ("threads", &mut inputs.threads),
        ("budget", &mut inputs.budget_bytes),
    ];
    fields.into_iter().nth(field).expect("there are that many fields")
}

#[test]
fn a_number_that_is_no_multiple_is_told_so() {
    let demo = inputs_of("demo");
    let refusal = |inputs: Inputs| solve(inputs).unwrap_err().to_string();
    let device = |device| refusal(Inputs { device, ..demo });
    let shape = |shape| refusal(Inputs { shape, ..demo });
    let table = [
        (
            device(Device { page_bytes: 12288, ..demo.device }),
            "page_bytes is 12288",
            "power of two",
        ),
        (device(Device { reads_in_flight: 33, ..demo.device }), "flight is 33", "power of two"),
        (device(Device { stack_bytes: 65537, ..demo.device }), "stack_bytes is 65537", "of 4096"),
        (device(Device { read_bytes_max: 5000, ..demo.device }), "bytes_max is 5000", "of 4096"),
        (shape(Shape { kv_heads: 3, ..demo.shape }), "(a multiple of kv_heads) is 8", "of 3"),
        (shape(Shape { head_dim: 24, ..demo.shape }), "(a multiple of 16) is 24", "of 16"),
    ];
    for (text, what, rule) in table {
        assert!(text.contains(what) && text.contains(rule) && is_sentence(&text), "{text}");
    }
}

// Tampered plans.

/// A plan whose cache is bounded by the budget, so that every rule of `check` applies.
fn tight() -> Plan {
    let plan = solved(inputs_of("demo"));
    assert!(plan.slot_count < plan.inputs.shape.neurons());
    plan
}

fn region_refused(plan: &Plan, what: &str) {
    let refused = check(plan);
    assert!(matches!(refused, Err(PlanError::Region { .. })), "{what}: {refused:?}");
}

fn sum_refused(plan: &Plan, what: &str) {
    let refused = check(plan);
    assert!(matches!(refused, Err(PlanError::Sum { .. })), "{what}: {refused:?}");
}

#[test]
fn check_sees_every_tampered_region() {
    let plan = tight();
    for (index, region) in plan.regions.iter().enumerate() {
        let with = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan;
            change(&mut plan);
            plan
        };
        let name = region.id.name();
        for by in [1, region.align, 4096, plan.arena_bytes] {
            region_refused(&with(&|p| p.regions[index].offset += by), name);
        }
        if region.offset > 0 {
            region_refused(&with(&|p| p.regions[index].offset -= region.align), name);
        }
        region_refused(&with(&|p| p.regions[index].bytes = 0), name);
        region_refused(&with(&|p| p.regions[index].bytes += plan.arena_bytes), name);
        region_refused(&with(&|p| p.regions[index].align *= 2), name);
        for by in [1, 64, 4096] {
            let grown = with(&|p| p.regions[index].bytes += by);
            let shrunk = with(&|p| p.regions[index].bytes -= by.min(region.bytes / 2));
            if region.id == RegionId::Slots {
                assert!(check(&grown).is_err(), "slots grown by {by}");
                sum_refused(&shrunk, name); // the slots region holds slot_count slots
            } else {
                region_refused(&grown, name);
                region_refused(&shrunk, name);
            }
        }
        let next = (index + 1) % plan.regions.len();
        region_refused(&with(&|p| p.regions.swap(index, next)), name);
        region_refused(&with(&|p| p.regions[index].id = plan.regions[next].id), name);
        if plan.regions[next].offset != region.offset {
            region_refused(&with(&|p| p.regions[index].offset = plan.regions[next].offset), name);
        }
    }
}

#[test]
fn check_sees_every_tampered_sum() {
    let plan = tight();
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan;
        change(&mut plan);
        plan
    };
    type Field = fn(&mut Plan) -> &mut u64;
    let fields: [(&str, Field); 8] = [
        ("arena_bytes", |p| &mut p.arena_bytes),
        ("page_table_bytes", |p| &mut p.page_table_bytes),
        ("unused_bytes", |p| &mut p.unused_bytes),
        ("slot_bytes", |p| &mut p.slot_bytes),
        ("slot_count", |p| &mut p.slot_count),
        ("reads_per_token_max", |p| &mut p.reads_per_token_max),
        ("probes_per_token_max", |p| &mut p.probes_per_token_max),
        ("process_bytes", |p| &mut p.inputs.device.process_bytes),
    ];
    for (name, field) in fields {
        sum_refused(&with(&|p| *field(p) += 1), name);
        if name == "arena_bytes" {
            region_refused(&with(&|p| *field(p) = 4096), name);
        } else if *field(&mut plan.clone()) > 0 {
            sum_refused(&with(&|p| *field(p) -= 1), name);
        }
    }
    // Sums that still add up.
    let moved = with(&|p| {
        p.page_table_bytes -= 4096;
        p.unused_bytes += 4096;
    });
    sum_refused(&moved, "page tables hidden in unused");
    let moved = with(&|p| {
        p.arena_bytes += p.unused_bytes;
        p.unused_bytes = 0;
    });
    sum_refused(&moved, "unused hidden in the arena");
}

#[test]
fn check_sees_a_plan_that_wastes_its_budget() {
    let mut plan = tight();
    plan.inputs.budget_bytes += 3 * MIB;
    plan.unused_bytes += 3 * MIB;
    sum_refused(&plan, "a cache smaller than the budget allows");
    let mut plan = tight();
    plan.inputs.budget_bytes -= plan.unused_bytes + 4096;
    assert!(check(&plan).is_err(), "a budget below the plan");
}

#[test]
fn a_tampered_plan_is_told_in_one_sentence() {
    let mut plan = tight();
    plan.unused_bytes += 1;
    let text = check(&plan).unwrap_err().to_string();
    assert!(is_sentence(&text) && text.contains(&plan.inputs.budget_bytes.to_string()), "{text}");
    let mut plan = tight();
    plan.regions[RegionId::Keys as usize].offset += 64;
    let text = check(&plan).unwrap_err().to_string();
    assert!(text.starts_with("region ") && text.contains("solve the plan again"), "{text}");
}

// Plan files.

#[test]
fn byte_counts_have_units() {
    let table = [
        ("12GB", Some(12_000_000_000)), // 10^9, not 2^30
        ("7 GB", Some(7_000_000_000)),
        (" 7GB ", Some(7_000_000_000)),
        ("1.5GB", Some(1_500_000_000)),
        ("1.5GiB", Some(1_610_612_736)),
        ("1.5 KiB", Some(1536)),
        ("0.25MiB", Some(262_144)),
        ("0.1GiB", Some(107_374_182)), // 107,374,182.4
        ("14MB", Some(14_000_000)),
        ("64MiB", Some(67_108_864)),
        ("3kB", Some(3_000)),
        ("3KB", Some(3_000)),
        ("3KiB", Some(3_072)),
        ("0B", Some(0)),
        ("123", Some(123)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("18446744074GB", None),
        ("", None),
        ("GB", None),
        (".5GB", None),
        ("1.5.5GB", None),
        ("-1GB", None),
        ("+1GB", None),
        ("1e9", None),
        ("12gb", None),
        ("12Gb", None),
        ("12TB", None),
        ("12GBs", None),
        ("1 2GB", None),
        ("1,5GB", None),
        ("\u{661}GB", None),
    ];
    for (text, bytes) in table {
        assert_eq!(byte_count(text), bytes, "{text:?}");
    }
}

/// A `plans` folder of its own, removed with the value.
struct Folder(PathBuf);

const PLAN: &str = "model = \"m\"\ndevice = \"d\"\nbudget = \"64MB\"\ncontext_tokens = 64\n\
    threads = 2\nlock = \"off\"\n[numerics]\nrecords = \"q8\"\nresident = \"q4\"\nhead = \"f16\"\n\
    embedding = \"q8\"\nkv = \"f32\"\n";

impl Folder {
    fn new(test: &str) -> Folder {
        let name = format!("ganglion-plan-{}-{test}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        for (committed, name) in [
            ("devices/linux-x86_64.toml", "devices/d.toml"),
            ("models/ganglion-demo-14m.toml", "models/m.toml"),
        ] {
            let text = fs::read_to_string(plans().join(committed)).unwrap();
            folder.write(name, &text);
        }
        folder.write("mine/small.toml", PLAN);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Replaces `from` by `to` in a file; the text must be there.
    fn change(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        assert!(text.contains(from), "{name} has no {from:?}");
        self.write(name, &text.replace(from, to));
    }

    fn read(&self, budget: Option<&str>) -> Result<Inputs, InputsError> {
        read(&self.0.join("mine/small.toml"), budget).map(|source| source.inputs)
    }

    fn refusal(&self) -> String {
        self.read(None).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_plan_file_says_what_it_says() {
    let folder = Folder::new("reads");
    let inputs = folder.read(None).unwrap();
    assert_eq!((inputs.name, inputs.model, inputs.device_name), ("mine/small", "m", "d"));
    assert_eq!((inputs.budget_bytes, inputs.context_tokens, inputs.threads), (64_000_000, 64, 2));
    assert_eq!(inputs.lock, Lock::Off);
    let types = inputs.numerics.types;
    assert_eq!((types.records, types.resident), (WeightType::Q8, WeightType::Q4));
    assert_eq!((types.head, types.embedding), (WeightType::F16, WeightType::Q8));
    assert_eq!(inputs.numerics.kv, KvType::Single);
    assert_eq!(folder.read(Some("12GB")).unwrap().budget_bytes, 12_000_000_000);
    let source = read(&folder.0.join("mine/small.toml"), None).unwrap();
    assert_eq!((source.image, source.files.len()), (None, 3));
    folder.change("mine/small.toml", "threads", "image = \"here.image\"\nthreads");
    let source = read(&folder.0.join("mine/small.toml"), None).unwrap();
    assert_eq!(source.image.as_deref(), Some("here.image"));
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    for (file, table) in [
        ("mine/small.toml", "model ="),
        ("mine/small.toml", "records ="),
        ("devices/d.toml", "page_bytes ="),
        ("models/m.toml", "layers ="),
    ] {
        let folder = Folder::new("unknown");
        folder.change(file, table, &format!("colour = 7\n{table}"));
        let text = folder.refusal();
        assert!(text.contains("colour") && text.contains(file) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn a_missing_key_is_named() {
    for (file, key) in [
        ("mine/small.toml", "context_tokens"),
        ("mine/small.toml", "kv"),
        ("devices/d.toml", "readers"),
        ("models/m.toml", "head_dim"),
    ] {
        let folder = Folder::new("missing-key");
        folder.change(file, &format!("{key} ="), "# ");
        let text = folder.refusal();
        assert!(text.contains(key) && text.contains(file), "{text}");
    }
}

#[test]
fn a_missing_file_is_named() {
    for file in ["mine/small.toml", "devices/d.toml", "models/m.toml"] {
        let folder = Folder::new("missing-file");
        fs::remove_file(folder.0.join(file)).unwrap();
        let text = folder.refusal();
        assert!(text.contains(file) && text.contains("can't be read"), "{text}");
    }
}

#[test]
fn a_wrong_value_is_named_with_what_would_do() {
    let table = [
        ("mine/small.toml", "\"64MB\"", "\"64 bananas\"", "budget", "GB"),
        ("mine/small.toml", "\"off\"", "\"maybe\"", "lock", "demand, try or off"),
        ("mine/small.toml", "kv = \"f32\"", "kv = \"q8\"", "kv", "f16 or f32"),
        ("mine/small.toml", "records = \"q8\"", "records = \"q5\"", "records", "f16, q8 or q4"),
        ("mine/small.toml", "resident = \"q4\"", "resident = \"\"", "resident", "f16, q8 or q4"),
        ("mine/small.toml", "head = \"f16\"", "head = \"F16\"", "head", "f16, q8 or q4"),
        (
            "mine/small.toml",
            "embedding = \"q8\"",
            "embedding = \"f8\"",
            "embedding",
            "f16, q8 or q4",
        ),
        ("models/m.toml", "\"drelu\"", "\"silu\"", "activation", "drelu"),
    ];
    for (file, from, to, key, wanted) in table {
        let folder = Folder::new("wrong-value");
        folder.change(file, from, to);
        let text = folder.refusal();
        let found = to.split('"').nth(1).unwrap();
        for word in [file, key, found, wanted] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }
    for (from, to, word) in [
        ("threads = 2", "threads = \"two\"", "threads"),
        ("threads = 2", "threads = -2", "threads"),
        ("[numerics]", "[numerics", "small.toml"),
    ] {
        let folder = Folder::new("wrong-toml");
        folder.change("mine/small.toml", from, to);
        let text = folder.refusal();
        assert!(text.contains(word) && !text.contains('\n'), "{text}");
    }
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
