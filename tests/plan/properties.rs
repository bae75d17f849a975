//! Properties of the planner over random models, devices and budgets.

use super::{MIB, inputs_of, is_sentence};
use ganglion::image::{ActivationFn, Biases, Shape, Types, WeightType};
use ganglion::plan::{Device, Inputs, KvType, Lock, Numerics, PlanError, RegionId, check, solve};
use proptest::prelude::*;

fn properties() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn weights() -> impl Strategy<Value = WeightType> {
    prop::sample::select(WeightType::ALL.to_vec())
}

fn shapes() -> impl Strategy<Value = Shape> {
    let widths = (1..=20u64, 1..=5000u64, 1..=8u64, 1..=8u64, 1..=16u64);
    let rest =
        (1..=40u64, 1..=16u64, 1..=3000u64, 1..=70_000u64, any::<[bool; 5]>(), 1..=5_000_000u64);
    (widths, rest).prop_map(|((layers, hidden, kv_heads, group, sixteens), rest)| {
        let (experts, used, ff, vocab, [tied, qkv, output, ffn_bias, silu], tokenizer_bytes) = rest;
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
            activation: if silu { ActivationFn::SiLu } else { ActivationFn::DRelu },
            tied,
            biases: Biases { qkv, output, ffn: ffn_bias && experts == 1 },
            window: 0,
            tokenizer_bytes,
        }
    })
}

fn numerics() -> impl Strategy<Value = Numerics> {
    let kv = prop::sample::select(KvType::ALL.to_vec());
    (weights(), weights(), weights(), weights(), weights(), kv).prop_map(
        |(records, down, resident, head, embedding, kv)| Numerics {
            types: Types { records, down, resident, head, embedding },
            kv,
        },
    )
}

fn devices() -> impl Strategy<Value = Device> {
    let pages = prop::sample::select(vec![4096, 16384, 65536]);
    let counts = (8..=64u64, 1..=16u64, 0..=8u32, 0..=8u32);
    (pages, 1 << 16..8_000_000u64, counts, [8..=100u64, 8..=1000], any::<[bool; 2]>()).prop_map(
        |(page_bytes, process_bytes, counts, [blocks, ring_blocks], [huge, pin])| {
            let (stack, readers, reads, ring) = counts;
            Device {
                page_bytes,
                process_bytes,
                stack_bytes: stack * 4096,
                readers,
                reads_in_flight: 1 << reads,
                read_bytes_max: blocks * 4096,
                ring_reads: 1 << ring,
                ring_read_bytes: ring_blocks * 4096,
                huge_pages: huge,
                pin,
            }
        },
    )
}

/// The width of a head that keys and values of this type can have.
fn whole_groups(head_dim: u64, kv: KvType) -> u64 {
    if kv == KvType::Byte { head_dim.next_multiple_of(32) } else { head_dim }
}

/// Inputs whose every number is within its limits, with a budget of one byte.
fn inputs() -> impl Strategy<Value = Inputs> {
    (shapes(), numerics(), devices(), 1..=8192u64, 1..=512u64, 1..=16u64).prop_map(
        |(shape, numerics, device, context_tokens, prefill_tokens, threads)| Inputs {
            name: "random",
            model: "random",
            device_name: "random",
            shape: Shape { head_dim: whole_groups(shape.head_dim, numerics.kv), ..shape },
            numerics,
            device,
            budget_bytes: 1,
            context_tokens,
            prefill_tokens,
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

/// Bytes of page tables that map `arena` bytes: three levels, each may start within a table.
fn tables(page: u64, arena: u64) -> u64 {
    let entries = page / 8;
    let first = arena.div_ceil(page * entries) + 1;
    let second = first.div_ceil(entries) + 1;
    (first + second + second.div_ceil(entries) + 1) * page
}

/// Bytes above the smallest budget, of every order of magnitude: most models stream.
fn extras() -> impl Strategy<Value = u64> {
    (0..35u32, any::<u64>()).prop_map(|(bits, random)| random % (1 << bits))
}

proptest! {
    #![proptest_config(properties())]

    #[test]
    fn a_solved_plan_holds(inputs in inputs(), extra in extras()) {
        let wanted = smallest(&inputs);
        let inputs = Inputs { budget_bytes: wanted + extra, ..inputs };
        let plan = solve(inputs).unwrap();
        prop_assert_eq!(check(&plan), Ok(()));
        prop_assert!(plan.total_bytes() <= inputs.budget_bytes);
        prop_assert_eq!(plan.total_bytes() + plan.unused_bytes, inputs.budget_bytes);
        let whole = plan.slot_count >= inputs.shape.neurons();
        // Slots are added one by one, or one to each layer where the others stream.
        let step = if inputs.shape.is_dense() { inputs.shape.layers } else { 1 };
        prop_assert_eq!(plan.streams, inputs.shape.is_dense() && !whole);
        prop_assert!(whole || plan.unused_bytes <= step * plan.slot_bytes + 2 * MIB);
        prop_assert!(plan.slot_count <= inputs.shape.neurons().max(64));
        prop_assert!(plan.arena_bytes.is_multiple_of(inputs.device.page_bytes));
        prop_assert_eq!(solve(inputs), Ok(plan), "the same inputs, another plan");
        // A slot more costs itself, its owner word, two alignments, and the pages they begin.
        let page = inputs.device.page_bytes;
        let slots = step * (plan.slot_bytes + 4);
        let arena = (plan.arena_bytes + slots + 64 + 4096).next_multiple_of(page);
        let more = arena + tables(page, arena) - plan.arena_bytes - plan.page_table_bytes;
        prop_assert!(whole || plan.unused_bytes < more, "{} bytes hold a slot", plan.unused_bytes);
    }

    #[test]
    fn a_bigger_budget_never_gives_fewer_slots(
        inputs in inputs(),
        extra in extras(),
        more in prop_oneof![0..10_000u64, 0..1u64 << 32],
    ) {
        let budget_bytes = smallest(&inputs) + extra;
        let small = solve(Inputs { budget_bytes, ..inputs }).unwrap();
        let large = solve(Inputs { budget_bytes: budget_bytes + more, ..inputs }).unwrap();
        prop_assert!(large.slot_count >= small.slot_count);
        let (few, many) = (large.reads_per_token_max, small.reads_per_token_max);
        prop_assert!(few == many || small.streams && few < many);
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

const FIELDS: usize = 22;

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
        ("ring_reads", &mut d.ring_reads),
        ("ring_read_bytes", &mut d.ring_read_bytes),
        ("context_tokens", &mut inputs.context_tokens),
        ("prefill_tokens", &mut inputs.prefill_tokens),
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
        (device(Device { ring_reads: 3, ..demo.device }), "ring_reads is 3", "power of two"),
        (device(Device { ring_read_bytes: 5000, ..demo.device }), "bytes is 5000", "of 4096"),
        (device(Device { read_bytes_max: 5000, ..demo.device }), "bytes_max is 5000", "of 4096"),
        (shape(Shape { kv_heads: 3, ..demo.shape }), "(a multiple of kv_heads) is 8", "of 3"),
        (shape(Shape { head_dim: 24, ..demo.shape }), "(a multiple of 16) is 24", "of 16"),
    ];
    for (text, what, rule) in table {
        assert!(text.contains(what) && text.contains(rule) && is_sentence(&text), "{text}");
    }
}
