//! Where each code, scale and record lies.

use super::column;
use ganglion::image::WeightType::{self, F16, Q4, Q8};
use ganglion::image::geometry::{
    BLOCK_BYTES, GROUP, Record, TAG_BYTES, activation_byte, padded_groups, padded_len,
    q4_row_nibble, q8_row_byte, row_scale_byte,
};
use half::f16;

#[test]
fn every_code_and_scale_of_a_row_has_bytes_of_its_own() {
    for k in 1..=5000 {
        let (groups, len) = (padded_groups(k), padded_len(k));
        assert!(len >= k && len < k + 4 * GROUP && groups * GROUP == len);
        for (weight, code_bytes) in [(Q8, 32), (Q4, 16)] {
            // Half-bytes taken, from codes of all padded weights and both bytes of each scale.
            let mut taken = vec![false; 2 * weight.row_bytes(k) as usize];
            let mut take = |half: u64| {
                let place = &mut taken[half as usize];
                assert!(!std::mem::replace(place, true), "{weight:?}, {k}: half-byte {half} twice");
            };
            for index in 0..len {
                if weight == Q8 {
                    (0..2).for_each(|half| take(2 * q8_row_byte(groups, index) + half));
                } else {
                    let (byte, high) = q4_row_nibble(groups, index);
                    take(2 * byte + u64::from(high));
                }
            }
            for group in 0..groups {
                let at = row_scale_byte(groups, group, code_bytes);
                (0..4).for_each(|half| take(2 * at + half));
            }
            let used = 2 * groups * (code_bytes + 2);
            assert!(taken[..used as usize].iter().all(|&taken| taken), "{weight:?}, {k}: a gap");
        }
        assert!(F16.row_bytes(k) >= 2 * k && F16.row_bytes(k) < 2 * k + 32);
    }
}

#[test]
fn activations_are_permuted() {
    for k in 1..=5000 {
        let (groups, len) = (padded_groups(k), padded_len(k));
        let mut taken = vec![false; len as usize];
        for index in 0..len {
            let byte = activation_byte(groups, index) as usize;
            assert!(!std::mem::replace(&mut taken[byte], true), "{k}: byte {byte} twice");
        }
    }
}

#[test]
fn an_activation_stands_where_the_weight_it_meets_does() {
    // Within a band both use the same interleave: a lane multiplies byte by byte.
    for k in [1, 31, 256, 480, 512, 544, 4096, 4097] {
        let groups = padded_groups(k);
        for index in 0..padded_len(k) {
            let band = index / (16 * GROUP);
            let scales = band * 16 * 2;
            assert_eq!(activation_byte(groups, index) + scales, q8_row_byte(groups, index));
        }
    }
}

#[test]
fn places_by_hand() {
    // 32 weights: one band of 4 groups. Weight 4 is step 1, and 4 lanes of 4 bytes lie before it.
    assert_eq!([0, 1, 4, 5, 31].map(|i| q8_row_byte(4, i)), [0, 1, 16, 17, 7 * 16 + 3]);
    assert_eq!(row_scale_byte(4, 0, 32), 128);
    assert_eq!(Q8.row_bytes(32), 144); // 136, to 16
    let nibbles = [0, 16, 4, 20, 15, 31].map(|i| q4_row_nibble(4, i));
    let wanted = [(0, false), (0, true), (16, false), (16, true), (51, false), (51, true)];
    assert_eq!(nibbles, wanted);
    assert_eq!((row_scale_byte(4, 0, 16), Q4.row_bytes(32)), (64, 80));
    // 4096 weights: 8 bands of 16. Weight 544 is the first of group 17: band 1, lane 1.
    assert_eq!(q8_row_byte(128, 544), 16 * 34 + 4);
    assert_eq!(q4_row_nibble(128, 544), (16 * 18 + 4, false));
    assert_eq!(row_scale_byte(128, 17, 32), 16 * 34 + 512 + 2);
    // 640 weights: 20 groups, a band of 16 and one of 4. Group 17 is lane 1 of the short one.
    assert_eq!(q8_row_byte(20, 544 + 4), 16 * 34 + (4 + 1) * 4);
    assert_eq!(row_scale_byte(20, 17, 32), 16 * 34 + 128 + 2);
}

#[test]
fn columns_by_hand() {
    // One weight in each group that stands at a known byte.
    let mut values = vec![0.0; 64];
    values[0] = 127.0;
    values[33] = -5.0;
    let bytes = column(Q8, &values);
    assert_eq!((bytes[0], bytes[33] as i8), (127, -5));
    assert_eq!(bytes[64..66], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(bytes.len(), 80);

    values[0] = -120.0; // -8 at sub-scale 15 of d = 1
    values[33] = 0.0;
    values[32 + 17] = 16.0; // -8 at sub-scale -2
    let bytes = column(Q4, &values);
    assert_eq!(bytes[0], 0x80, "weight 0 is -8, weight 16 is 0");
    assert_eq!(bytes[16 + 1], 0x08, "weight 33 is 0, weight 49 is -8");
    assert_eq!((bytes[32] as i8, bytes[33] as i8), (15, -2));
    assert_eq!(bytes[34..36], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(bytes.len(), 48);

    let bytes = column(F16, &[1.5, -2.0]);
    assert_eq!(
        bytes[..4],
        [f16::from_f32(1.5), f16::from_f32(-2.0)].map(f16::to_le_bytes).concat()
    );
    assert_eq!(bytes[4..], [0; 28]);
}

#[test]
fn records_never_overlap_nor_cross_a_block_they_share() {
    let types = |rows| WeightType::ALL.map(|down| (rows, down));
    for (rows, down) in WeightType::ALL.into_iter().flat_map(types) {
        for hidden in (1..600).chain([1024, 2048, 4095, 4096, 8192, 65536]) {
            let record = Record::aligned(rows, down, hidden);
            let raw = record.raw_bytes();
            assert_eq!(raw, 2 * record.row_bytes + record.column_bytes + 2 * TAG_BYTES);
            assert!(record.unit_bytes.is_multiple_of(BLOCK_BYTES));
            assert!(record.per_block == 1 || record.unit_bytes == BLOCK_BYTES);
            let mut end = 0;
            for neuron in 0..100 {
                let offset = record.offset(neuron);
                assert!(offset >= end, "{record:?}: neuron {neuron} starts within the one before");
                end = offset + raw;
                let unit = offset / record.unit_bytes;
                assert_eq!(unit, (end - 1) / record.unit_bytes, "{record:?}: {neuron} crosses");
                assert_eq!(unit + 1, record.units(neuron + 1));
            }
            // What is left of a block would not hold another.
            let used = record.per_block * raw;
            assert!(record.unit_bytes - used < raw.min(BLOCK_BYTES), "{record:?} wastes");
            let parts = [record.gate_tag(), record.up(), record.down(), record.tail_tag(), raw];
            let sizes = [TAG_BYTES, record.row_bytes, record.column_bytes, TAG_BYTES];
            assert_eq!(parts[0], record.row_bytes);
            for (index, size) in sizes.into_iter().enumerate() {
                assert_eq!(parts[index] + size, parts[index + 1]);
            }
            let slot = record.slot_bytes();
            assert!(slot.is_multiple_of(64) && slot >= raw - 2 * TAG_BYTES && slot < raw + 64);
        }
    }
}
