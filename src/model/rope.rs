//! Rotary positions: a table of cos and sin for every position of the context, made at boot.

use crate::kernel::math::sin_cos;

/// Fills `table`, f32[context][frequencies][2] of (cos, sin), with position times frequency, both
/// times `factor`.
pub fn fill_rope_table(frequencies: &[f64], factor: f32, table: &mut [f32]) {
    for (position, row) in table.chunks_exact_mut(2 * frequencies.len()).enumerate() {
        for (pair, frequency) in row.chunks_exact_mut(2).zip(frequencies) {
            let (sin, cos) = sin_cos(position as f64 * frequency);
            pair.copy_from_slice(&[cos * factor, sin * factor]);
        }
    }
}
