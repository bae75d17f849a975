//! The planner from inside: lifetimes, overlaid scratch, hashes, numbers for people.

use super::region::Stage;
use super::*;
use crate::image::{ActivationFn, Shape, Types, WeightType};

fn inputs() -> Inputs {
    crate::baked::PLAN.inputs
}

/// The smallest budget of `inputs`, as the planner tells it.
fn smallest(inputs: Inputs) -> u64 {
    match solve(Inputs { budget_bytes: 1, ..inputs }) {
        Err(PlanError::BudgetTooSmall { wanted_bytes, .. }) => wanted_bytes,
        other => panic!("one byte plans nothing: {other:?}"),
    }
}

/// Inputs whose scratch regions differ in size from model to model.
fn models() -> Vec<Plan> {
    let shape = inputs().shape;
    let shapes = [
        shape,
        Shape { hidden: 33, head_dim: 16, heads: 6, kv_heads: 3, ff: 77, vocab: 5, ..shape },
        Shape { hidden: 4096, head_dim: 128, heads: 32, vocab: 57_024, ..shape },
        Shape { hidden: 16, head_dim: 1024, heads: 64, experts: 1000, vocab: 3, ..shape },
    ];
    let mut plans = Vec::new();
    for shape in shapes {
        for (threads, context_tokens) in [(1, 1), (2, 512), (16, 100_000)] {
            let inputs = Inputs { shape, threads, context_tokens, ..inputs() };
            plans.push(solve(Inputs { budget_bytes: smallest(inputs), ..inputs }).unwrap());
        }
    }
    plans
}

fn scratch(plan: &Plan) -> Vec<Region> {
    let lives_always = |region: &Region| region.id.life() == Life::Always;
    plan.regions.iter().filter(|region| !lives_always(region)).copied().collect()
}

#[test]
fn scratch_that_lives_at_the_same_time_never_shares_a_byte() {
    for plan in models() {
        let scratch = scratch(&plan);
        assert!(scratch.len() >= 10, "most of a token's vectors are scratch");
        for a in &scratch {
            for b in &scratch {
                let apart = a.end() <= b.offset || b.end() <= a.offset;
                assert!(a.id == b.id || apart || !a.id.life().meets(b.id.life()), "{a:?} {b:?}");
            }
        }
    }
}

#[test]
fn scratch_lies_over_scratch_of_other_stages() {
    for plan in models() {
        let scratch = scratch(&plan);
        let sum: u64 = scratch.iter().map(|region| region.bytes).sum();
        let first = scratch.iter().map(|region| region.offset).min();
        let end = scratch.iter().map(|region| region.end()).max();
        let taken = end.unwrap() - first.unwrap();
        assert!(taken < sum, "{taken} bytes for {sum} save nothing");
        let (encode, residual) = (plan.region(RegionId::Encode), plan.region(RegionId::Residual));
        assert_eq!(first, Some(encode.offset), "nothing else lives while a prompt is cut");
        assert_eq!(first, Some(residual.offset), "and the residual stream lies over it");
    }
}

#[test]
fn regions_that_stay_lie_below_all_scratch() {
    for plan in models() {
        let first = scratch(&plan).iter().map(|region| region.offset).min().unwrap();
        for region in plan.regions {
            assert_eq!(region.id.life() == Life::Always, region.end() <= first, "{region:?}");
        }
    }
}

#[test]
fn every_region_is_found_under_its_number() {
    for (index, id) in RegionId::ALL.into_iter().enumerate() {
        assert_eq!(id as usize, index, "{}", id.name());
        assert_eq!(crate::baked::PLAN.region(id).id, id);
    }
}

#[test]
fn lives_meet_where_they_share_a_stage() {
    use Stage::*;
    let all = [Encode, Attention, Ffn, Head, Sample];
    assert!(Life::Always.meets(Life::Always));
    for a in all {
        for b in all {
            let (one, other) = (Life::During(a, a), Life::During(b, b));
            assert_eq!(one.meets(other), a == b, "{a:?} {b:?}");
            assert!(one.meets(Life::Always) && Life::Always.meets(one));
        }
    }
    let table = [
        (Life::During(Attention, Head), Life::During(Ffn, Ffn), true),
        (Life::During(Attention, Head), Life::During(Head, Sample), true),
        (Life::During(Attention, Ffn), Life::During(Head, Sample), false),
        (Life::During(Encode, Encode), Life::During(Attention, Sample), false),
        (Life::During(Encode, Sample), Life::During(Ffn, Head), true),
    ];
    for (a, b, meets) in table {
        assert_eq!(a.meets(b), meets, "{a:?} {b:?}");
        assert_eq!(b.meets(a), meets, "{b:?} {a:?}");
    }
}

#[test]
fn page_tables_by_hand() {
    // Tables of 4 KiB map 2 MiB, 1 GiB and 512 GiB; each level may start within a table.
    let tables = |page_bytes, budget_bytes| {
        let device = Device { page_bytes, ..inputs().device };
        let plan = solve(Inputs { device, budget_bytes, ..inputs() }).unwrap();
        (plan.arena_bytes, plan.page_table_bytes / page_bytes)
    };
    let (arena, found) = tables(4096, smallest(inputs()));
    assert!(arena > 1 << 20 && arena < 1 << 30);
    assert_eq!(found, (arena.div_ceil(2 << 20) + 1) + 2 + 2);
    let (arena, found) = tables(16384, 1 << 26); // 32 MiB, 64 GiB, 128 TiB
    assert_eq!(found, (arena.div_ceil(32 << 20) + 1) + 2 + 2);
    // 19 GB: more than one table at the second level.
    let shape = Shape { layers: 512, ..inputs().shape };
    let context_tokens = 1 << 20;
    let plan = solve(Inputs { shape, context_tokens, budget_bytes: 1 << 42, ..inputs() }).unwrap();
    let first = plan.arena_bytes.div_ceil(2 << 20) + 1;
    let second = first.div_ceil(512) + 1;
    assert!(second > 100, "{second}");
    assert_eq!(plan.page_table_bytes / 4096, first + second + 2);
}

#[test]
fn byte_counts_for_people() {
    let table = [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (1_949, "1.9 kB"),
        (1_950, "2.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (14_000_000, "14.0 MB"),
        (999_949_999, "999.9 MB"),
        (999_950_000, "1.0 GB"),
        (7_000_000_000, "7.0 GB"),
        (1_234_567_890_123, "1234.6 GB"),
        (u64::MAX, "18446744073.7 GB"),
    ];
    for (count, text) in table {
        assert_eq!(bytes(count).to_string(), text, "{count}");
    }
}

#[test]
fn the_numerics_hash_sees_every_field() {
    let (numerics, shape) = (inputs().numerics, inputs().shape);
    let types = numerics.types;
    let other = |weight| WeightType::ALL.into_iter().filter(move |&known| known != weight);
    let with = |types| Numerics { types, ..numerics };
    let mut hashes = vec![numerics.hash(&shape)];
    for records in other(types.records) {
        hashes.push(with(Types { records, ..types }).hash(&shape));
    }
    for down in other(types.down) {
        hashes.push(with(Types { down, ..types }).hash(&shape));
    }
    for resident in other(types.resident) {
        hashes.push(with(Types { resident, ..types }).hash(&shape));
    }
    for head in other(types.head) {
        hashes.push(with(Types { head, ..types }).hash(&shape));
    }
    for embedding in other(types.embedding) {
        hashes.push(with(Types { embedding, ..types }).hash(&shape));
    }
    for kv in KvType::ALL.into_iter().filter(|kv| *kv != numerics.kv) {
        hashes.push(Numerics { kv, ..numerics }.hash(&shape));
    }
    for experts_used in [1, 3, 8] {
        hashes.push(numerics.hash(&Shape { experts_used, ..shape }));
    }
    let count = hashes.len();
    assert_eq!(count, 1 + 5 * 2 + 2 + 3);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), count, "two numerics share a hash");
}

#[test]
fn keys_and_values_take_what_their_type_says() {
    // The demo: 4 layers, 2 heads of 32 values; by hand for 100 tokens.
    let with = |kv, head_dim| {
        let shape = Shape { head_dim, ..inputs().shape };
        let numerics = Numerics { kv, ..inputs().numerics };
        solve(Inputs { shape, numerics, context_tokens: 100, ..inputs() })
    };
    for (kv, bytes) in [(KvType::Half, 51_200), (KvType::Single, 102_400), (KvType::Byte, 28_800)] {
        let plan = with(kv, 32).unwrap();
        for id in [RegionId::Keys, RegionId::Values] {
            assert_eq!(plan.region(id).bytes, bytes, "{}", kv.name());
        }
    }
    let refused = with(KvType::Byte, 48).unwrap_err();
    assert_eq!(refused, PlanError::KvGroups { found: 48 });
    let text = refused.to_string();
    assert!(text.contains("head_dim is 48") && text.contains("multiple of 32"), "{text}");
    assert!(with(KvType::Half, 48).is_ok());
}

#[test]
fn the_numerics_hash_is_fnv_1a() {
    // Computed apart from this code: FNV-1a of eight little-endian words 1, 1, 1, 1, 0, 2, 1, 2
    // (arithmetic 1; q8, q8, q8, f16; 2 bytes a key; dReLU; two experts).
    let types = Types {
        records: WeightType::Q8,
        down: WeightType::Q8,
        resident: WeightType::Q8,
        head: WeightType::Q8,
        embedding: WeightType::F16,
    };
    let shape = Shape { activation: ActivationFn::DRelu, experts_used: 2, ..inputs().shape };
    assert_eq!(Numerics { types, kv: KvType::Half }.hash(&shape), 0x52a4_ed44);
}

#[test]
fn budget_threads_and_context_leave_the_hash_alone() {
    let hash = |plan: Plan| plan.inputs.numerics.hash(&plan.inputs.shape);
    let wanted = hash(crate::baked::PLAN);
    for (budget_bytes, threads, context_tokens) in [(64_000_000, 1, 64), (20_000_000, 5, 500)] {
        let inputs = Inputs { budget_bytes, threads, context_tokens, ..inputs() };
        assert_eq!(hash(solve(inputs).unwrap()), wanted);
    }
}

#[test]
fn the_report_names_every_region_and_every_sum() {
    let mut text = String::new();
    let plan = crate::baked::PLAN;
    report(&plan, &mut text).unwrap();
    for region in plan.regions {
        let line = text.lines().find(|line| line.split(' ').next() == Some(region.id.name()));
        let line = line.unwrap_or_else(|| panic!("no line of {}", region.id.name()));
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[1..3], [region.offset.to_string(), region.bytes.to_string()]);
    }
    let sums = [plan.arena_bytes, plan.page_table_bytes, plan.unused_bytes, plan.slot_count];
    for number in sums.into_iter().chain([plan.inputs.budget_bytes, plan.slot_bytes]) {
        assert!(text.split_whitespace().any(|word| word == number.to_string()), "{number}");
    }
}
