//! What the machine can do at best: bytes read a second, vector multiply-accumulates a second.
#![allow(unsafe_code)] // an instruction that not every machine has

/// Sum of `words`, read in order.
#[inline(never)]
pub fn read(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for words in words.chunks_exact(16) {
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
}

/// `count` 64-byte dot product instructions on registers; nothing on a machine without them.
#[cfg(target_arch = "x86_64")]
pub fn vnni(count: usize) -> i32 {
    if !is_x86_feature_detected!("avx512vnni") {
        return 0;
    }
    // SAFETY: the processor has the instruction.
    unsafe { vnni_on_registers(count) }
}

/// `count` 64-byte dot product instructions on registers; nothing on a machine without them.
#[cfg(not(target_arch = "x86_64"))]
pub fn vnni(_count: usize) -> i32 {
    0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn vnni_on_registers(count: usize) -> i32 {
    use std::arch::x86_64::{_mm512_dpbusd_epi32, _mm512_reduce_add_epi32, _mm512_set1_epi32};
    const CHAINS: usize = 16;
    let x = std::hint::black_box(_mm512_set1_epi32(0x0102_0304));
    // Chains that start alike would be one to the compiler.
    let mut sums: [_; CHAINS] = std::array::from_fn(|i| _mm512_set1_epi32(i as i32));
    for _ in 0..count / CHAINS {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, x);
        }
    }
    sums.into_iter().fold(0, |total, sum| total ^ _mm512_reduce_add_epi32(sum))
}
