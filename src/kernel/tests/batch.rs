//! Batches of tokens: the same bits as one token at a time.

use super::*;
use crate::kernel::{
    Accumulator, Batch, Columns, DownBatch, DownItem, LINES, Overflow, Sheet, Soon,
    accumulator_len, batch_code_stride, down_scratch_bytes,
};

/// Vectors of several tokens, token after token.
struct Operands {
    len: usize,
    tokens: usize,
    values: Guarded<f32>,
    codes: Guarded<i8>,
    scales: Guarded<f32>,
}

impl Operands {
    fn new(rng: &mut Rng, len: usize, tokens: usize, pattern: Pattern) -> Operands {
        let all: Vec<Operand> =
            (0..tokens).map(|_| Operand::new(&floats(rng, len, pattern))).collect();
        let values: Vec<f32> = all.iter().flat_map(|x| x.values.iter().copied()).collect();
        let stride = batch_code_stride(len);
        let mut codes = vec![0x55i8; tokens * stride];
        for (codes, x) in codes.chunks_exact_mut(stride).zip(&all) {
            codes[..x.codes.len()].copy_from_slice(&x.codes);
        }
        let scales: Vec<f32> = all.iter().flat_map(|x| x.scales.iter().copied()).collect();
        let (values, codes) = (Guarded::of(&values), Guarded::of(&codes));
        Operands { len, tokens, values, codes, scales: Guarded::of(&scales) }
    }

    fn view(&self) -> Batch<'_> {
        Batch::new(self.len, self.tokens, &self.values, &self.codes, &self.scales)
    }
}

/// Tile edges of rows and tokens.
const SHAPES: [(usize, usize); 10] =
    [(1, 1), (1, 7), (2, 16), (3, 17), (5, 4), (16, 1), (17, 5), (31, 33), (33, 2), (40, 19)];

#[test]
fn gemm_gives_the_bits_of_dot() {
    for (seed, len) in (2000..).zip(LENGTHS) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            // The twin is slow: every shape at short lengths, two at long ones.
            for at in 0..if len < 600 { SHAPES.len() } else { 2 } {
                let (count, tokens) = SHAPES[(at * 3 + seed as usize) % SHAPES.len()];
                let pattern = PATTERNS[rng.below(PATTERNS.len())];
                let stride = ty.row_bytes(len as u64) as usize + 16 * (at % 2);
                let mut rows = Guarded::new(count * stride - 16 * (at % 2));
                for row in 0..count {
                    let bytes = Row::random(&mut rng, ty, len).bytes;
                    rows[row * stride..][..bytes.len()].copy_from_slice(&bytes);
                }
                let x = Operands::new(&mut rng, len, tokens, pattern);
                let lines: Vec<u32> = (0..tokens).map(|_| rng.below(tokens) as u32).collect();
                let batch = x.view().of(&lines);
                let mut expected = vec![0.0; count * tokens];
                for (token, out) in expected.chunks_exact_mut(count).enumerate() {
                    Kernels::twin().matvec(ty, &rows, stride, batch.token(token), out);
                }
                for kernels in fast_tables() {
                    let mut out = Guarded::new(count * tokens);
                    out.fill(f32::NAN);
                    let mut columns = Columns::of(&mut out, count, 0..count);
                    kernels.gemm(ty, &rows, stride, batch, &mut columns);
                    let what = format!("seed {seed} len {len} {ty:?} {count} x {tokens}");
                    assert_same(&expected, &out, &format!("{what} {}", kernels.isa().name()));
                }
            }
        }
    }
}

/// Sums at their largest, with every sign.
#[test]
fn saturated_batches_are_exact() {
    let (len, tokens) = (640, 5);
    let groups = padded_groups(len as u64) as usize;
    for (ty, byte, weight) in [
        (WeightType::Q8, 127i8 as u8, 127),
        (WeightType::Q8, -127i8 as u8, -127),
        (WeightType::Q4, 0xff, 7),
        (WeightType::Q4, 0x00, -8),
    ] {
        for code in [127i8, -127] {
            let codes = Guarded::of(&vec![code; tokens * groups * 32]);
            let scales = Guarded::of(&vec![1.0; tokens * groups]);
            let batch = Batch::new(len, tokens, &[], &codes, &scales);
            let mut row = Guarded::of(&vec![byte; ty.row_bytes(len as u64) as usize]);
            let code_bytes = if ty == WeightType::Q8 { 32 } else { 16 };
            for group in 0..groups {
                let width = 16.min(groups - group / 16 * 16);
                let band = group / 16 * 16 * (code_bytes + 2) + width * code_bytes;
                row[band + group % 16 * 2..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
            }
            let expected = (len as i32 * weight * i32::from(code)) as f32;
            for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                let mut out = [0.0; 5];
                let mut columns = Columns::of(&mut out, 1, 0..1);
                kernels.gemm(ty, &row, row.len(), batch, &mut columns);
                assert_eq!(out, [expected; 5], "{ty:?} {code}");
            }
        }
    }
}

#[test]
fn claimed_blocks_cover_a_sheet_once() {
    let (tokens, width) = (5, 10);
    let mut out = vec![0.0; tokens * width];
    let sheet = Sheet::new(&mut out, width, (2, 4));
    let claims: Vec<(usize, usize, usize, usize)> = std::thread::scope(|scope| {
        let member = || {
            let mut claims = vec![];
            while let Some(mut block) = sheet.claim() {
                let (token, first) = (block.first_token(), block.first());
                for line in 0..block.tokens() {
                    for (at, value) in block.token(line).iter_mut().enumerate() {
                        *value += ((token + line) * width + first + at) as f32;
                    }
                }
                claims.push((first, token, block.count(), block.tokens()));
            }
            claims
        };
        let members = [scope.spawn(member), scope.spawn(member)];
        members.into_iter().flat_map(|member| member.join().unwrap()).collect()
    });
    let mut sorted = claims;
    sorted.sort_unstable();
    let columns = [(0, 4), (4, 4), (8, 2)];
    let lines = [(0, 2), (2, 2), (4, 1)];
    let all: Vec<_> = columns
        .iter()
        .flat_map(|(first, count)| lines.map(|(token, tokens)| (*first, token, *count, tokens)))
        .collect();
    assert_eq!(sorted, all);
    assert!(out.iter().enumerate().all(|(at, value)| *value == at as f32));
}

#[test]
fn an_empty_sheet_has_no_blocks() {
    assert!(Sheet::new(&mut [], 3, (2, 2)).claim().is_none());
}

/// A column of random bytes with a scale of its own.
fn column(rng: &mut Rng, ty: WeightType, hidden: usize, scale: f16) -> Vec<u8> {
    let groups = hidden.div_ceil(32);
    let mut bytes: Vec<u8> = match ty {
        WeightType::F16 => (0..hidden.next_multiple_of(16))
            .flat_map(|_| f16::from_f32(0.01 * rng.unit()).to_le_bytes())
            .collect(),
        WeightType::Q8 => (0..groups * 32).map(|_| rng.code() as u8).collect(),
        WeightType::Q4 => {
            let nibbles = (0..groups * 16).map(|_| rng.below(256) as u8);
            let mut bytes: Vec<u8> = nibbles.collect();
            bytes.extend((0..groups).map(|_| (rng.below(31) as i8 - 15) as u8));
            bytes
        }
    };
    if ty != WeightType::F16 {
        bytes.extend(scale.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    assert_eq!(bytes.len() as u64, ty.column_bytes(hidden as u64));
    bytes
}

/// One token's sums by the twin of `accumulate`.
fn expected_sums(
    ty: WeightType,
    unit: i32,
    hidden: usize,
    items: &[DownItem<'_>],
) -> Result<Vec<i64>, Overflow> {
    let n = accumulator_len(hidden);
    let (mut low, mut high, mut wide) = (vec![0; n], vec![0; n], vec![0; n]);
    let mut sums = Accumulator::new(hidden, &mut low, &mut high, &mut wide);
    Kernels::twin().accumulate(ty, unit, items, Soon::NOTHING, &mut sums)?;
    Ok(sums.sums().to_vec())
}

#[test]
fn batched_columns_give_the_sums_of_single_ones() {
    const UNIT: i32 = -20;
    for (seed, hidden) in (2100..).zip([1, 32, 33, 64, 100, 160, 576]) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            for (neurons, tokens) in
                [(0, 2), (1, 1), (2, 7), (31, 6), (256, 5), (257, 13), (600, 2)]
            {
                let stride = neurons + rng.below(3);
                // Multipliers whose high parts are all zero, or not.
                let largest = if rng.below(2) == 0 { 0.01 } else { 100.0f32 };
                let activations: Vec<f32> = (0..(tokens - 1) * stride + neurons)
                    .map(|_| largest * rng.unit() * (rng.below(4) != 0) as u8 as f32)
                    .collect();
                let bytes: Vec<Guarded<u8>> = (0..neurons)
                    .map(|_| {
                        let scale = f16::from_f32(rng.unit());
                        Guarded::of(&column(&mut rng, ty, hidden, scale))
                    })
                    .collect();
                let columns: Vec<&[u8]> = bytes.iter().map(|column| &column[..]).collect();
                let activations = Guarded::of(&activations);
                let n = accumulator_len(hidden);
                let mut expected = vec![];
                for token in 0..tokens {
                    let items: Vec<DownItem> = columns
                        .iter()
                        .zip(&activations[token * stride..])
                        .map(|(column, a)| DownItem { activation: *a, column })
                        .collect();
                    expected.extend(expected_sums(ty, UNIT, hidden, &items).unwrap());
                }
                // Every second line of sums, from the last one on.
                let lines: Vec<u32> = (0..tokens).map(|t| 2 * (tokens - 1 - t) as u32).collect();
                let batch =
                    DownBatch { columns: &columns, activations: &activations, stride, at: &lines };
                for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                    // Sums go on from what is there.
                    let mut sums = Guarded::of(&vec![5i64; (2 * tokens - 1) * n]);
                    let mut scratch = Guarded::new(down_scratch_bytes(hidden, tokens));
                    scratch.fill(0xa5);
                    kernels
                        .accumulate_batch(ty, UNIT, hidden, batch, &mut scratch, &mut sums)
                        .unwrap();
                    let what = format!("seed {seed} {ty:?} {hidden}: {neurons} x {tokens}");
                    let name = kernels.isa().name();
                    for (line, sums) in sums.chunks_exact(n).enumerate() {
                        let token = tokens - 1 - line / 2;
                        for (at, sum) in sums.iter().enumerate() {
                            let new = if line % 2 == 0 { expected[token * n + at] } else { 0 };
                            assert_eq!(*sum, new + 5, "{what} {name} line {line} [{at}]");
                        }
                    }
                }
            }
        }
    }
}

/// 600 neurons of one sign at the largest multipliers of either part.
#[test]
fn batched_sums_stay_exact_at_saturation() {
    let (hidden, tokens, neurons) = (64, 2, 600);
    for ty in [WeightType::Q8, WeightType::Q4] {
        let mut bytes = vec![127u8; ty.column_bytes(hidden as u64) as usize];
        let mut weight = 127;
        if ty == WeightType::Q4 {
            bytes[..32].fill(0);
            bytes[32..34].fill(-15i8 as u8);
            weight = 120;
        }
        let at = if ty == WeightType::Q8 { 64 } else { 34 };
        bytes[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        for m in [134_217_720, 32767, 32768, -32768, -32769, -134_217_720i64] {
            let columns = vec![&bytes[..]; neurons];
            let activations = vec![m as f32 * 2f32.powi(-20); tokens * neurons];
            let at = &LINES[..tokens];
            let batch =
                DownBatch { columns: &columns, activations: &activations, stride: neurons, at };
            for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                let mut sums = vec![0; tokens * hidden];
                let mut scratch = vec![0; down_scratch_bytes(hidden, tokens)];
                kernels.accumulate_batch(ty, -20, hidden, batch, &mut scratch, &mut sums).unwrap();
                assert!(sums.iter().all(|sum| *sum == m * weight * neurons as i64), "{ty:?} {m}");
            }
        }
    }
}

#[test]
fn batched_products_beyond_the_range_are_errors() {
    let mut rng = Rng::new(2200);
    let (hidden, tokens, neurons) = (48, 3, 300);
    for ty in [WeightType::Q8, WeightType::Q4] {
        let bytes: Vec<Vec<u8>> =
            (0..neurons).map(|_| column(&mut rng, ty, hidden, f16::ONE)).collect();
        let columns: Vec<&[u8]> = bytes.iter().map(|column| &column[..]).collect();
        for (bad, item) in [(128.0, 0), (-128.0, 17), (f32::NAN, 255), (f32::INFINITY, 256)] {
            let mut activations = vec![0.5; tokens * neurons];
            activations[2 * neurons + item] = bad;
            let at = &LINES[..tokens];
            let batch =
                DownBatch { columns: &columns, activations: &activations, stride: neurons, at };
            for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                let mut sums = vec![0; tokens * accumulator_len(hidden)];
                let mut scratch = vec![0; down_scratch_bytes(hidden, tokens)];
                let found =
                    kernels.accumulate_batch(ty, -20, hidden, batch, &mut scratch, &mut sums);
                assert_eq!(found, Err(Overflow { item }), "{ty:?} {bad}");
            }
        }
    }
}
