//! Times every kernel next to a probe of the machine's read bandwidth taken in the same run.
//!
//! `cargo bench --features host --bench kernels -- [--isa NAME] [--threads N] [--repeats N]
//! [--only TEXT] [--json]`. Cases run interleaved, round after round; a figure is the median of its
//! rounds. "DRAM" cases walk more memory than any cache holds; the others stay in the first level.
#![allow(unsafe_code)] // a part of the output for each thread

use common::{DRAM_BYTES, median, pages, share, time, weights};
use ganglion::image::ActivationFn;
use ganglion::image::geometry::{WeightType, padded_groups, padded_len};
use ganglion::kernel::{
    Accumulator, Activation, Batch, Columns, DownBatch, DownItem, Isa, Kernels, KvView, LINES,
    Q8Rows, Soon, accumulator_len, batch_code_stride, down_scratch_bytes, quantize_groups,
};
use ganglion::token::{Sampler, SamplerConfig};
use std::hint::black_box;

#[path = "common.rs"]
#[allow(dead_code)] // the comparing benches use the rest
mod common;
#[path = "ffn.rs"]
mod ffn;
#[path = "probe.rs"]
mod probe;

use ffn::Layer;

/// One thing to time. `run` does `units` of work on data of its own and is called by each thread
/// with its number; all threads share out `units`.
struct Case {
    name: String,
    /// What is counted: a row, a column, a head.
    unit: &'static str,
    /// Units of one run, of all threads together.
    units: usize,
    /// Weight bytes read a unit.
    bytes: usize,
    /// Multiply-accumulates a unit.
    macs: usize,
    /// Runs in the time of a round.
    run: Box<dyn Fn(usize, usize) + Sync>,
    nanoseconds: Vec<f64>,
}

fn floats(len: usize) -> &'static mut [f32] {
    let x: &mut [f32] = bytemuck::cast_slice_mut(pages(4 * len));
    x.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 37 % 101) as f32 - 50.0) / 25.0);
    x
}

/// Values in -1..1 in no order.
fn noise(len: usize) -> &'static mut [f32] {
    let x: &mut [f32] = bytemuck::cast_slice_mut(pages(4 * len));
    let mut state = 1u32;
    for x in x.iter_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
    }
    x
}

/// A quantised vector of `len` values.
fn operand(kernels: &Kernels, len: usize) -> Activation<'static> {
    let (padded, groups) = (padded_len(len as u64) as usize, padded_groups(len as u64) as usize);
    let values = floats(padded);
    let codes: &mut [i8] = bytemuck::cast_slice_mut(pages(padded));
    let scales: &mut [f32] = bytemuck::cast_slice_mut(pages(4 * groups));
    assert!(kernels.quantize(&values[..len], codes, scales));
    Activation::new(len, values, codes, scales)
}

/// Keys and values of a head, half floats and codes: name, bytes of both, view.
fn caches(dim: usize, keys: usize) -> [(&'static str, usize, KvView<'static>); 2] {
    let len = dim * keys;
    let (k, v) = bytemuck::cast_slice(weights(4 * len)).split_at(len);
    let rows = || {
        let codes: &mut [i8] = bytemuck::cast_slice_mut(pages(len));
        let scales: &mut [f32] = bytemuck::cast_slice_mut(pages(len / 8));
        quantize_groups(floats(len), codes, scales);
        Q8Rows { codes, scales }
    };
    [
        ("f16", 4 * len, KvView::F16 { keys: k, values: v }),
        ("q8", 2 * (len + len / 8), KvView::Q8 { keys: rows(), values: rows() }),
    ]
}

/// A slice for each thread to write to: `per` values each.
struct Outputs {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: each thread takes the part of its own number.
unsafe impl Sync for Outputs {}
// SAFETY: as above.
unsafe impl Send for Outputs {}

impl Outputs {
    fn new(threads: usize, bytes: usize) -> Outputs {
        let bytes = bytes.next_multiple_of(4096);
        Outputs { base: pages(threads * bytes).as_mut_ptr(), bytes }
    }

    #[allow(clippy::mut_from_ref)] // a part for each thread
    fn of<T: bytemuck::Pod>(&self, thread: usize) -> &mut [T] {
        // SAFETY: parts do not overlap, and a thread has one number.
        let part = unsafe {
            std::slice::from_raw_parts_mut(self.base.add(thread * self.bytes), self.bytes)
        };
        bytemuck::cast_slice_mut(part)
    }
}

struct Bench {
    kernels: &'static Kernels,
    threads: usize,
    only: String,
    cases: Vec<Case>,
}

impl Bench {
    fn add(
        &mut self,
        name: String,
        (unit, units): (&'static str, usize),
        (bytes, macs): (usize, usize),
        run: impl Fn(usize, usize) + Sync + 'static,
    ) {
        if name.contains(&self.only) || name == PROBE || name == PEAK {
            let run = Box::new(run);
            self.cases.push(Case { name, unit, units, bytes, macs, run, nanoseconds: vec![] });
        }
    }

    fn probe(&mut self) {
        let memory: &[u64] = bytemuck::cast_slice(weights(DRAM_BYTES));
        self.add(PROBE.into(), ("KiB", DRAM_BYTES >> 10), (1024, 0), move |thread, threads| {
            black_box(probe::read(&memory[share(memory.len(), thread, threads)]));
        });
        let rounds = 4_000_000;
        self.add(PEAK.into(), ("register", rounds), (0, 64), move |thread, threads| {
            black_box(probe::vnni(share(rounds, thread, threads).len()));
        });
    }

    fn rows(&mut self, ty: WeightType, len: usize) {
        let kernels = self.kernels;
        let x = operand(kernels, len);
        let stride = ty.row_bytes(len as u64) as usize;
        let macs = padded_len(len as u64) as usize;
        let many = DRAM_BYTES / stride;
        let memory = weights(many * stride);
        let out = Outputs::new(self.threads, 4 * many);
        let name = format!("matvec {} {len}", ty.name());
        self.add(format!("{name} DRAM"), ("row", many), (stride, macs), move |thread, threads| {
            let part = share(many, thread, threads);
            let out = &mut out.of(thread)[..part.len()];
            kernels.matvec(ty, &memory[part.start * stride..], stride, x, black_box(out));
        });
        // One row in seven, in no order: what a sparse layer reads.
        let (list, name) = (many / 7, format!("rows {} {len} DRAM", ty.name()));
        let out = Outputs::new(self.threads, 4 * list);
        self.add(name, ("row", list), (stride, macs), move |thread, threads| {
            let rows: Vec<&[u8]> = share(list, thread, threads)
                .map(|i| &memory[i * 7919 % list * 7 * stride..][..stride])
                .collect();
            let results = &mut out.of(thread)[..rows.len()];
            kernels.rows(ty, &rows, x, black_box(results));
        });
        let name = format!("matvec {} {len}", ty.name());
        // Half of a first-level cache: whole blocks of rows.
        let few = (24 << 10) / stride / 4 * 4;
        let (few, times) = if few == 0 { (4, 500) } else { (few, 500) };
        let out = Outputs::new(self.threads, 4 * few);
        self.add(name.clone(), ("row", few * times), (stride, macs), move |thread, threads| {
            for _ in share(times, thread, threads) {
                let out = &mut out.of(thread)[..few];
                kernels.matvec(ty, black_box(memory), stride, x, black_box(out));
            }
        });
        let name = format!("dot {} {len}", ty.name());
        self.add(name, ("row", 2000), (stride, macs), move |thread, threads| {
            for _ in share(2000, thread, threads) {
                black_box(kernels.dot(ty, black_box(&memory[..stride]), x));
            }
        });
    }

    /// Rows times a chunk of tokens.
    fn gemm(&mut self, ty: WeightType, len: usize) {
        const TOKENS: usize = 512;
        const ROWS: usize = 128;
        let kernels = self.kernels;
        let (padded, groups) =
            (padded_len(len as u64) as usize, padded_groups(len as u64) as usize);
        let (values, apart) = (&*floats(TOKENS * padded), batch_code_stride(len));
        let codes: &mut [i8] = bytemuck::cast_slice_mut(pages(TOKENS * apart));
        let scales: &mut [f32] = bytemuck::cast_slice_mut(pages(4 * TOKENS * groups));
        let vectors = values.chunks_exact(padded).zip(codes.chunks_exact_mut(apart));
        for ((values, codes), scales) in vectors.zip(scales.chunks_exact_mut(groups)) {
            assert!(kernels.quantize(&values[..len], &mut codes[..padded], scales));
        }
        let x = Batch::new(len, TOKENS, values, codes, scales);
        let stride = ty.row_bytes(len as u64) as usize;
        let rows = weights(2 * ROWS * stride);
        let out = Outputs::new(self.threads, 4 * 2 * ROWS * TOKENS);
        let name = format!("gemm {} {len} x {TOKENS}", ty.name());
        let units = 2 * ROWS * TOKENS;
        self.add(name, ("product", units), (0, len), move |thread, threads| {
            let part = share(2 * ROWS, thread, threads);
            let out = &mut out.of(thread)[..part.len() * TOKENS];
            let mut columns = Columns::of(out, part.len(), 0..part.len());
            kernels.gemm(ty, &rows[part.start * stride..], stride, x, &mut columns);
        });
    }

    /// Down columns of 256 neurons for a chunk of tokens.
    fn batch(&mut self, ty: WeightType, hidden: usize, split: bool) {
        const TOKENS: usize = 128;
        const NEURONS: usize = 256;
        let kernels = self.kernels;
        let bytes = ty.column_bytes(hidden as u64) as usize;
        let memory = weights(NEURONS * bytes);
        let n = accumulator_len(hidden);
        let sums = Outputs::new(self.threads, 8 * n * TOKENS);
        let scratch_bytes = down_scratch_bytes(hidden, TOKENS);
        let scratch = Outputs::new(self.threads, scratch_bytes);
        let activations = vec![if split { 20.0f32 } else { 0.05 }; NEURONS * TOKENS];
        let high = if split { "high" } else { "low" };
        let name = format!("down batch {} {hidden} {high}", ty.name());
        let units = NEURONS * TOKENS;
        self.add(name, ("column", units), (0, hidden), move |thread, threads| {
            let part = share(TOKENS, thread, threads);
            let columns: Vec<&[u8]> = memory.chunks_exact(bytes).collect();
            let activations = &activations[part.start * NEURONS..];
            let tokens = part.len();
            let batch =
                DownBatch { columns: &columns, activations, stride: NEURONS, at: &LINES[..tokens] };
            let sums = &mut sums.of(thread)[..n * tokens];
            let scratch = &mut scratch.of(thread)[..scratch_bytes];
            kernels
                .accumulate_batch(ty, -20, hidden, batch, scratch, black_box(sums))
                .expect("in range");
        });
    }

    /// Columns of `hidden` outputs; `split` gives multipliers whose high part is not zero.
    fn columns(&mut self, ty: WeightType, hidden: usize, split: bool) {
        let kernels = self.kernels;
        let (count, times) = (64, 25);
        let bytes = ty.column_bytes(hidden as u64) as usize;
        let memory = weights(count * bytes);
        let n = accumulator_len(hidden);
        let out = Outputs::new(self.threads, 16 * n);
        let activation = if split { 20.0 } else { 0.05 };
        let name = format!(
            "down {} {hidden}{}",
            ty.name(),
            if ty == WeightType::F16 {
                ""
            } else if split {
                " high"
            } else {
                " low"
            }
        );
        self.add(name, ("column", count * times), (bytes, hidden), move |thread, threads| {
            let (low, rest) = out.of::<u8>(thread).split_at_mut(4 * n);
            let (high, wide) = rest.split_at_mut(4 * n);
            let mut sums = Accumulator::new(
                hidden,
                bytemuck::cast_slice_mut(low),
                bytemuck::cast_slice_mut(high),
                bytemuck::cast_slice_mut(&mut wide[..8 * n]),
            );
            let items: Vec<DownItem<'_>> =
                memory.chunks_exact(bytes).map(|column| DownItem { activation, column }).collect();
            for _ in share(times, thread, threads) {
                kernels
                    .accumulate(ty, -20, black_box(&items), Soon::NOTHING, &mut sums)
                    .expect("in range");
            }
            black_box(sums.sums());
        });
    }

    /// A layer of `neurons`, all of them or 15 % given as active, in ascending order.
    fn layer(&mut self, ty: WeightType, hidden: usize, neurons: usize) {
        let x = operand(self.kernels, hidden);
        let layer = Layer::new(self.kernels, ty, hidden, neurons, x);
        let (all, list) = (layer.everything(), (0..neurons).filter(|i| i * 7919 % 100 < 15));
        let list: Vec<usize> = list.collect();
        let name = format!("ffn {} {hidden} x {neurons}", ty.name());
        let out = Outputs::new(self.threads, 16 * accumulator_len(hidden));
        let (bytes, listed) = (layer.neurons() * layer.slot_bytes(), list.len());
        let macs = 3 * hidden * neurons;
        self.add(format!("{name} dense"), ("layer", 1), (bytes, macs), move |thread, threads| {
            layer.run(&all, &out, thread, threads);
        });
        let out = Outputs::new(self.threads, 16 * accumulator_len(hidden));
        let work = (listed * layer.slot_bytes(), 3 * hidden * listed);
        self.add(format!("{name}, 15 %"), ("layer", 1), work, move |thread, threads| {
            layer.run(&list, &out, thread, threads);
        });
    }

    fn attend(&mut self, dim: usize, keys: usize) {
        let kernels = self.kernels;
        let q: &[f32] = floats(dim);
        let times = 200;
        for (kind, bytes, view) in caches(dim, keys) {
            let out = Outputs::new(self.threads, 4 * dim);
            let name = format!("attend {kind} {dim} x {keys}");
            let work = (bytes, 2 * dim * keys);
            self.add(name, ("head", times), work, move |thread, threads| {
                for _ in share(times, thread, threads) {
                    kernels.attend(q, view, 0, 0.1, black_box(&mut out.of(thread)[..dim]));
                }
            });
        }
    }

    /// 32 positions behind `keys` others, `group` heads each; decode where `positions` is 1.
    fn attend_block(&mut self, dim: usize, keys: usize, positions: usize, group: usize) {
        let kernels = self.kernels;
        let width = group * dim;
        let q: &[f32] = floats(positions * width);
        let times = 40;
        let units = times * positions * group;
        for (kind, bytes, view) in caches(dim, keys) {
            let out = Outputs::new(self.threads, 4 * positions * width);
            let name = format!("attend {kind} {dim} x {keys}, {positions} x {group}");
            let work = (bytes, 2 * dim * keys);
            self.add(name, ("head", units), work, move |thread, threads| {
                for _ in share(times, thread, threads) {
                    let out = &mut out.of(thread)[..positions * width];
                    let mut columns = Columns::of(out, width, 0..width);
                    kernels.attend_block(q, width, dim, view, 0.1, black_box(&mut columns));
                }
            });
        }
    }

    /// A key on its way into the cache.
    fn stored(&mut self, dim: usize) {
        let (x, times) = (&*floats(dim), 5000);
        let out = Outputs::new(self.threads, 8 * dim);
        self.add(
            format!("cached q8 {dim}"),
            ("row", times),
            (4 * dim, 0),
            move |thread, threads| {
                for _ in share(times, thread, threads) {
                    let (codes, scales) = out.of::<u8>(thread).split_at_mut(dim);
                    let scales = &mut bytemuck::cast_slice_mut(scales)[..dim / 32];
                    quantize_groups(black_box(x), bytemuck::cast_slice_mut(codes), scales);
                }
            },
        );
    }

    fn vectors(&mut self, len: usize) {
        let kernels = self.kernels;
        let times = 500;
        let out = Outputs::new(self.threads, 8 * len);
        let x: &[f32] = floats(len);
        let weight: &[f32] = floats(len);
        let size = (4 * len, 0);
        let (padded, groups) = (padded_len(len as u64), padded_groups(len as u64) as usize);
        self.add(format!("quantize {len}"), ("vector", times), size, move |thread, threads| {
            for _ in share(times, thread, threads) {
                let (codes, rest) = out.of::<u8>(thread).split_at_mut(padded as usize);
                let scales = &mut bytemuck::cast_slice_mut(rest)[..groups];
                black_box(kernels.quantize(black_box(x), bytemuck::cast_slice_mut(codes), scales));
            }
        });
        let out = Outputs::new(self.threads, 4 * len);
        self.add(format!("rms_norm {len}"), ("vector", times), size, move |thread, threads| {
            for _ in share(times, thread, threads) {
                kernels.rms_norm(black_box(x), weight, 1e-5, &mut out.of(thread)[..len]);
            }
        });
        let out = Outputs::new(self.threads, 4 * len);
        for activation in ActivationFn::ALL {
            let gates = Outputs::new(self.threads, 4 * len);
            let name = format!("{} {len}", activation.name());
            self.add(name, ("vector", times), size, move |thread, threads| {
                for _ in share(times, thread, threads) {
                    let out = &mut gates.of(thread)[..len];
                    out.copy_from_slice(x);
                    kernels.gate(activation, black_box(out), weight);
                }
            });
        }
        self.add(format!("exp {len}"), ("vector", times), size, move |thread, threads| {
            for _ in share(times, thread, threads) {
                let out = &mut out.of(thread)[..len];
                out.copy_from_slice(x);
                kernels.exp(black_box(out));
            }
        });
        self.add(format!("argmax {len}"), ("vector", times), size, move |thread, threads| {
            for _ in share(times, thread, threads) {
                black_box(kernels.argmax(black_box(x)));
            }
        });
        let record = weights(6912);
        self.add("crc32c 6912".into(), ("record", times), (6912, 0), move |thread, threads| {
            for _ in share(times, thread, threads) {
                black_box(kernels.crc32c(0, black_box(record)));
            }
        });
    }

    /// What picks values out: a layer's predicted neurons, and the next token of a vocabulary.
    fn picks(&mut self, neurons: usize, vocab: usize) {
        let kernels = self.kernels;
        let x: &[f32] = noise(vocab);
        let out = Outputs::new(self.threads, 4 * neurons);
        let name = format!("above {neurons}, 10 %");
        let times = 200;
        self.add(name, ("vector", times), (4 * neurons, 0), move |thread, threads| {
            for _ in share(times, thread, threads) {
                black_box(kernels.above(black_box(&x[..neurons]), 0.8, out.of(thread)));
            }
        });
        let times = 20;
        let out = Outputs::new(self.threads, 8 * vocab);
        let name = format!("top_k 40 of {vocab}");
        self.add(name, ("vector", times), (4 * vocab, 0), move |thread, threads| {
            for _ in share(times, thread, threads) {
                black_box(kernels.top_k(black_box(x), 40, out.of(thread)));
            }
        });
        let tokens: Vec<u32> = (0..64).map(|i| i * 1999).collect();
        for (what, temperature) in [("greedy", 0.0), ("top-k 40", 0.8)] {
            let config = SamplerConfig { temperature, top_k: 40, ..SamplerConfig::GREEDY };
            let config = SamplerConfig { repeat_penalty: 1.1, repeat_last: 64, ..config };
            let out = Outputs::new(self.threads, 8 * vocab);
            let (name, tokens) = (format!("sample {what} of {vocab}"), tokens.clone());
            self.add(name, ("token", times), (4 * vocab, 0), move |thread, threads| {
                let mut sampler = Sampler::new(config).expect("sound settings");
                for _ in share(times, thread, threads) {
                    let token = sampler.sample(black_box(x), &tokens, out.of(thread), kernels);
                    black_box(token.expect("finite logits"));
                }
            });
        }
    }

    /// One round of a case: nanoseconds a unit.
    fn time(case: &Case, threads: usize) -> f64 {
        time(threads, &*case.run).as_nanos() as f64 / case.units as f64
    }
}

const PROBE: &str = "read probe";
const PEAK: &str = "VNNI probe";

/// The value behind `name`.
fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn print(bench: &Bench, json: bool) {
    let find = |name| bench.cases.iter().find(|case| case.name == name);
    let per_byte = |case: &Case| case.bytes as f64 / median(&case.nanoseconds);
    let probe = find(PROBE).map_or(f64::NAN, per_byte);
    let peak = find(PEAK).map_or(f64::NAN, |case| case.macs as f64 / median(&case.nanoseconds));
    if !json {
        println!("isa {}, threads {}", bench.kernels.isa().name(), bench.threads);
        println!(
            "{:<28} {:>11} {:>8} {:>8} {:>8}",
            "case", "ns a unit", "GB/s", "of read", "GMAC/s"
        );
    }
    for case in &bench.cases {
        let (ns, speed) = (median(&case.nanoseconds), per_byte(case));
        let macs = case.macs as f64 / ns;
        let Case { name, unit, .. } = case;
        if json {
            println!(
                "{{\"isa\":\"{}\",\"threads\":{},\"case\":\"{name}\",\"unit\":\"{unit}\",\
                 \"ns\":{ns:.3},\"gb_s\":{speed:.3},\"of_read\":{:.4},\"gmac_s\":{macs:.3},\
                 \"of_peak\":{:.4}}}",
                bench.kernels.isa().name(),
                bench.threads,
                speed / probe,
                macs / peak
            );
        } else {
            let part = 100.0 * speed / probe;
            let fraction = 100.0 * macs / peak;
            print!("{name:<28} {ns:>11.1} {speed:>8.1} {part:>7.0}% {macs:>8.1} {fraction:>7.0}%");
            println!("  {unit}");
        }
    }
}

fn main() {
    let isa = option("--isa").map_or(Isa::best(), |name| Isa::parse(&name).expect("a table"));
    let number = |name, default| option(name).map_or(default, |n| n.parse().expect("a number"));
    let mut bench = Bench {
        kernels: Kernels::of(isa).expect("this machine can run the table"),
        threads: number("--threads", 1),
        only: option("--only").unwrap_or_default(),
        cases: vec![],
    };
    bench.probe();
    for ty in [WeightType::Q4, WeightType::Q8, WeightType::F16] {
        for len in [576, 1536, 4096] {
            bench.rows(ty, len);
        }
        bench.columns(ty, 4096, false);
        if ty != WeightType::F16 {
            bench.columns(ty, 4096, true);
        }
    }
    for ty in [WeightType::Q4, WeightType::Q8, WeightType::F16] {
        for len in [576, 1536, 4096] {
            bench.gemm(ty, len);
        }
    }
    for hidden in [576, 1536, 4096] {
        bench.batch(WeightType::Q4, hidden, false);
        bench.batch(WeightType::Q4, hidden, true);
        bench.batch(WeightType::Q8, hidden, true);
    }
    // SmolLM2-135M (all layers), Qwen2.5-1.5B (eight), Bamboo-7B (one).
    bench.layer(WeightType::Q4, 576, 30 * 1536);
    bench.layer(WeightType::Q4, 1536, 8 * 8960);
    bench.layer(WeightType::Q4, 4096, 14336);
    bench.attend(64, 512);
    bench.attend(128, 512);
    bench.attend(128, 65536);
    bench.stored(128);
    bench.attend_block(64, 512, 1, 3);
    bench.attend_block(128, 512, 1, 6);
    bench.attend_block(64, 512, 32, 3);
    bench.attend_block(128, 512, 32, 6);
    bench.vectors(4096);
    bench.picks(14336, 151_936);
    for _ in 0..number("--repeats", 9) {
        for case in &mut bench.cases {
            let ns = Bench::time(case, bench.threads);
            case.nanoseconds.push(ns);
        }
    }
    print(&bench, std::env::args().any(|argument| argument == "--json"));
}
