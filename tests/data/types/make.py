"""Blocks of every ggml type that the forge reads, and the floats they stand for.

    pip install numpy gguf==0.19.0 && python make.py

Blocks are random bytes with f16 scales of plausible and of extreme sizes; their floats are those
of the gguf package's `dequantize`. `blocks.bin` holds the blocks of all types, `floats.bin` their
values as f32, both in the order of TYPES, 512 values a type.
"""

from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

HERE = Path(__file__).parent
VALUES = 512
# Type, and where in a block f16 scales lie.
TYPES = {
    "F32": None,
    "F16": None,
    "BF16": None,
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
# Ordinary, negative, zero of both signs, subnormal, largest.
SCALES = np.array([0.01, -0.02, 1.5, -3.0, 0.0, -0.0, 2.0**-24, -(2.0**-20), 65504.0], "<f2")


def blocks(name, scales, random):
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    count = VALUES // elements
    if scales is None:
        values = (random.standard_normal(VALUES) * 10.0 ** random.randint(-6, 4, VALUES)).astype(
            "<f4"
        )
        values[:4] = 0.0, -0.0, 1.0, 2.0**-149
        if name == "F16":
            return np.clip(values, -65504, 65504).astype("<f2").tobytes()
        if name == "BF16":
            return (values.view("<u4") >> 16).astype("<u2").tobytes()
        return values.tobytes()
    out = random.randint(0, 256, (count, size)).astype(np.uint8)
    for at in scales:
        chosen = random.choice(SCALES[:4] if count < 4 else SCALES, count)
        out[:, at : at + 2] = chosen.astype("<f2").view(np.uint8).reshape(count, 2)
    return out.tobytes()


def main():
    random = np.random.RandomState(11)
    raw, floats = b"", b""
    for name, scales in TYPES.items():
        data = blocks(name, scales, random)
        kind = GGMLQuantizationType[name]
        values = dequantize(np.frombuffer(data, np.uint8), kind).astype("<f4")
        assert values.size == VALUES and np.isfinite(values).all(), name
        raw += data
        floats += values.tobytes()
    for file, data in {"blocks.bin": raw, "floats.bin": floats}.items():
        (HERE / file).write_bytes(data)
        print(f"{file}: {len(data)} bytes")


if __name__ == "__main__":
    main()
