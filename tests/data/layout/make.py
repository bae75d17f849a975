"""Makes the golden files of image layout 1: a tiny model, its images, and rows of odd lengths.

    pip install numpy
    python make.py

Writes tiny.gguf and dense.gguf, their images, rows.f32 and rows.codes beside itself, the same bytes
each time. It follows what src/image and src/forge say of the format and shares no code with them.
Layout 1 is frozen: if this script and `ganglion-forge pack` disagree, the packer is wrong.
"""

import struct
from decimal import Decimal, getcontext
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
F32, F16 = np.float32, np.float16
NONE = 0xFFFFFFFF

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 2, 33, 2, 1, 16
VOCAB = 25
QUERY, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
RMS_EPS, CONTEXT, ROPE_BASE = 1e-5, 64, 10_000

# By image: types of records, resident matrices, head, embedding rows and, if not as the records',
# of down columns. Each role meets each type.
TYPE_CODE = {"f16": 0, "q8": 1, "q4": 2}
IMAGES = {
    "q4": ("q4", "q8", "f16", "q8"),
    "q8": ("q8", "f16", "q4", "f16"),
    "f16": ("f16", "q4", "q8", "q4"),
    "q4-q8": ("q4", "q8", "f16", "q8", "q8"),
}
DENSE_IMAGES = {"q8": ("q8", "q8", "q8", "f16"), "q4-f16": ("q4", "q8", "q8", "f16", "f16")}


class Model:
    """A routed model with dReLU, or a dense one with SiLU and biases: its records are packed tight,
    and behind those of its neurons are those of four outliers."""

    def __init__(self, is_dense):
        self.is_dense = is_dense
        self.name = "dense" if is_dense else "tiny"
        self.experts, self.ff = (1, 13) if is_dense else (2, 11)
        self.activation, self.activation_code = ("silu", 2) if is_dense else ("drelu", 1)
        self.outliers = 4 if is_dense else 0
        self.stored_ff = self.ff + self.outliers
        self.biases = 0b101 if is_dense else 0  # of q, k and v; of the feed-forward network
        self.tensors = dense_tensors(self) if is_dense else routed_tensors(self)

    def ffn(self, layer, name):
        suffix = "" if self.is_dense else "_exps"
        return self.tensors[f"blk.{layer}.ffn_{name}{suffix}.weight"]

    def down(self, layer, expert):
        """Down columns in image order, and the neuron of the file of each."""
        columns = list(self.ffn(layer, "down").values.reshape(self.experts, HIDDEN, -1)[expert].T)
        sizes = [np.max(np.abs(column)) for column in columns]
        chosen = sorted(sorted(range(self.ff), key=lambda neuron: -sizes[neuron])[: self.outliers])
        for neuron in chosen:
            # The four largest weights, of equal ones the first.
            order = sorted(range(HIDDEN), key=lambda at: -abs(columns[neuron][at]))
            is_taken = np.isin(np.arange(HIDDEN), order[:4])
            columns.append(np.where(is_taken, columns[neuron], F32(0)))
            columns[neuron] = np.where(is_taken, F32(0), columns[neuron])
        return columns, [*range(self.ff), *chosen]


def up(value, to):
    return -(-value // to) * to


def padded(data, to):
    return data + bytes(up(len(data), to) - len(data))


# Checksums and tags.


def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = crc_table()


def crc32c(data):
    crc = NONE
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ NONE


assert crc32c(b"123456789") == 0xE3069283  # the published check value

GATE, REST, EMBEDDING = 0, 1, 2


def tagged(data, part, neuron, layer=0, expert=0):
    """The bytes, then who they are and the checksum of both."""
    who = struct.pack("<IHHI", neuron, layer, expert, part)
    return data + who + struct.pack("<I", crc32c(who + data))


# Codes.


def half_away(values):
    """To the nearest integer, halves away from zero. f64 holds an f32 plus a half exactly."""
    wide = np.asarray(values, np.float64)
    return np.copysign(np.floor(np.abs(wide) + 0.5), wide)


def codes_of(values, step, low, high):
    """Codes of f32 values by f32 steps; a step of zero has only zeros."""
    values, step = np.broadcast_arrays(F32(values), F32(step))
    quotient = np.divide(values, step, out=np.zeros(values.shape, F32), where=step != 0)
    return np.clip(half_away(quotient), low, high).astype(np.int32)


def groups_of(values):
    """Groups of 32, the last one filled with zeros, and how many there are."""
    filled = np.zeros(up(len(values), 32), F32)
    filled[: len(values)] = values
    return filled.reshape(-1, 32)


def row_codes(values, kind):
    """Codes [groups, 32] and f16 scales [groups]. The first of several largest weights counts."""
    groups = groups_of(values)
    extreme = groups[np.arange(len(groups)), np.argmax(np.abs(groups), axis=1)]
    if kind == "q8":
        scales = (np.abs(extreme) / F32(127)).astype(F16)
        return codes_of(groups, scales.astype(F32)[:, None], -127, 127), scales
    scales = (extreme / F32(-8)).astype(F16)
    return codes_of(groups, scales.astype(F32)[:, None], -8, 7), scales


def banded(codes, scales, kind):
    """Bands of up to 16 groups: codes by [step, group, 4], then the scales."""
    count = up(len(codes), 4)
    codes = np.concatenate([codes, np.zeros((count - len(codes), 32), np.int32)])
    scales = np.concatenate([scales, np.zeros(count - len(scales), F16)])
    out = b""
    for start in range(0, count, 16):
        band = codes[start : start + 16]
        if kind == "q4":
            band = (band[:, :16] + 8) | (band[:, 16:] + 8) << 4
        steps = band.reshape(len(band), -1, 4).transpose(1, 0, 2)
        out += (steps & 255).astype(np.uint8).tobytes()
        out += scales[start : start + 16].astype("<f2").tobytes()
    return padded(out, 16)


def halves(values):
    return padded(F32(values).astype("<f2").tobytes(), 32)


def row(values, kind):
    return halves(values) if kind == "f16" else banded(*row_codes(values, kind), kind)


def column_step(values, kind):
    """The f16 scale of a column's codes, or its largest weight."""
    largest = np.max(np.abs(F32(values)))
    return {"f16": largest, "q8": F16(largest / F32(127)), "q4": F16(largest / F32(120))}[kind]


def sub_scale(group, scale):
    """Of the candidates, the first with the smallest squared error, summed in order in f32."""
    largest = np.max(np.abs(group))
    tight = largest / (F32(8) * scale) if scale > 0 else F32(0)
    nearest = int(min(half_away(tight), 15))
    sizes = range(max(nearest - 2, 0), min(nearest + 2, 15) + 1)
    candidates = np.array([sub for size in sizes for sub in (size, -size)], F32)
    steps = (scale * candidates)[:, None]
    off = group - steps * codes_of(group, steps, -8, 7).astype(F32)
    total = np.zeros(len(candidates), F32)
    for square in (off * off).T:
        total = total + square
    return int(candidates[np.argmin(total)])


def column(values, kind):
    if kind == "f16":
        return halves(values)
    scale = column_step(values, kind)
    groups = groups_of(values)
    if kind == "q8":
        codes = codes_of(groups, F32(scale), -127, 127).astype(np.int8).tobytes()
        return padded(codes + scale.astype("<f2").tobytes(), 16)
    subs = [sub_scale(group, F32(scale)) for group in groups]
    stored = codes_of(groups, F32(scale) * F32(subs)[:, None], -8, 7) + 8
    nibbles = (stored[:, :16] | stored[:, 16:] << 4).astype(np.uint8)
    out = nibbles.tobytes() + np.array(subs, np.int8).tobytes()
    return padded(out + scale.astype("<f2").tobytes(), 16)


# The model.


class Tensor:
    """Values [..., row length] as they are in the file, and as f32."""

    def __init__(self, values, kind):
        self.kind, self.dims = kind, list(values.shape[::-1])
        self.blocks = None  # codes [rows, blocks, 32] and scales of Q8_0 and Q4_0
        if kind in ("q8", "q4"):
            rows = [row_codes(row, kind) for row in values]
            codes = np.array([codes for codes, _ in rows])
            scales = np.array([scales for _, scales in rows])
            self.blocks = codes, scales
            self.settle()
        else:
            stored = values.astype("<f4" if kind == "f32" else "<f2")
            self.values, self.data = stored.astype(F32), stored.tobytes()

    def settle(self):
        """Bytes and values of the blocks."""
        codes, scales = self.blocks
        self.values = codes.astype(F32) * scales.astype(F32)[..., None]
        self.values = self.values.reshape(len(codes), -1)
        stored = codes
        if self.kind == "q4":
            stored = (codes[..., :16] + 8) | (codes[..., 16:] + 8) << 4
        parts = [scales.astype("<f2")[..., None].view(np.uint8), (stored & 255).astype(np.uint8)]
        self.data = np.concatenate(parts, axis=-1).tobytes()

    def row(self, index, kind):
        """A row of an image: the file's own codes where it has them. -128 is no code of ours."""
        if self.kind == kind and self.blocks:
            codes, scales = self.blocks
            return banded(np.maximum(codes[index], -127), scales[index], kind)
        return row(self.values.reshape(-1, self.dims[0])[index], kind)

    def matrix(self, kind):
        rows = self.values.size // self.dims[0]
        return b"".join(self.row(index, kind) for index in range(rows))


def routed_tensors(model):
    """Tensors by name, from a fixed seed. RandomState's stream never changes."""
    experts, ff = model.experts, model.ff
    random = np.random.RandomState(20_240_611)

    def normal(*dims, scale=0.1):
        return (scale * random.standard_normal(dims)).astype(F32)

    tensors = {"token_embd.weight": Tensor(normal(VOCAB, HIDDEN), "f16")}
    for layer in range(LAYERS):
        gate, down = normal(experts, ff, HIDDEN), normal(experts, HIDDEN, ff, scale=0.3**layer)
        gate[0, 0] = 0  # a row of zeros
        gate[0, 1] *= F32(2.0**-10)  # scales that are subnormal as f16
        gate[0, 2] *= F32(2.0**-40)  # scales that are zero as f16
        down[1, :, 3] = 0
        output = Tensor(normal(HIDDEN, QUERY), "q8" if layer else "q4")
        if layer:
            output.blocks[0][5, 0, 7] = -128
            output.settle()
        parts = {
            "attn_norm": Tensor(1 + normal(HIDDEN), "f32"),
            "attn_q": Tensor(normal(QUERY, HIDDEN), "f16"),
            "attn_k": Tensor(normal(KV, HIDDEN), "f16"),
            "attn_v": Tensor(normal(KV, HIDDEN), "f16"),
            "attn_output": output,
            "ffn_norm": Tensor(1 + normal(HIDDEN), "f32"),
            "ffn_gate_inp": Tensor(normal(experts, HIDDEN), "f32"),
            "ffn_gate_exps": Tensor(gate, "f32"),
            "ffn_up_exps": Tensor(normal(experts, ff, HIDDEN), "f16"),
            "ffn_down_exps": Tensor(down, "f32"),
        }
        tensors.update({f"blk.{layer}.{name}.weight": part for name, part in parts.items()})
    tensors["output_norm.weight"] = Tensor(1 + normal(HIDDEN), "f32")
    tensors["output.weight"] = Tensor(normal(VOCAB, HIDDEN), "f16")
    return tensors


def dense_tensors(model):
    """Likewise. Of the down columns, several have a weight far larger than the others."""
    random = np.random.RandomState(20_261_201)

    def normal(*dims, scale=0.1):
        return (scale * random.standard_normal(dims)).astype(F32)

    tensors = {"token_embd.weight": Tensor(normal(VOCAB, HIDDEN), "f16")}
    for layer in range(LAYERS):
        down = normal(HIDDEN, model.ff)
        down[7, 5], down[8, 5], down[20, 11], down[30, 2] = 5.75, 5.75, -3.5, 1.25
        weights = {
            "attn_norm": Tensor(1 + normal(HIDDEN), "f32"),
            "attn_q": Tensor(normal(QUERY, HIDDEN), "f16"),
            "attn_k": Tensor(normal(KV, HIDDEN), "f16"),
            "attn_v": Tensor(normal(KV, HIDDEN), "f16"),
            "attn_output": Tensor(normal(HIDDEN, QUERY), "f16"),
            "ffn_norm": Tensor(1 + normal(HIDDEN), "f32"),
            "ffn_gate": Tensor(normal(model.ff, HIDDEN), "f16"),
            "ffn_up": Tensor(normal(model.ff, HIDDEN), "f16"),
            "ffn_down": Tensor(down, "f32"),
        }
        widths = {"attn_q": QUERY, "attn_k": KV, "attn_v": KV}
        widths |= {"ffn_gate": model.ff, "ffn_up": model.ff, "ffn_down": HIDDEN}
        biases = {name: Tensor(normal(width), "f32") for name, width in widths.items()}
        tensors.update({f"blk.{layer}.{name}.weight": part for name, part in weights.items()})
        tensors.update({f"blk.{layer}.{name}.bias": part for name, part in biases.items()})
    tensors["output_norm.weight"] = Tensor(1 + normal(HIDDEN), "f32")
    tensors["output.weight"] = Tensor(normal(VOCAB, HIDDEN), "f16")
    return tensors


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# In the byte-level alphabet: U+0120 is a blank, U+010A a line feed, U+0100 the byte 0. One row of
# the embedding is left without a token.
TOKENS = [
    ("<|endoftext|>", CONTROL), ("<unk>", UNKNOWN), ("<end>", CONTROL), ("[x]", USER),
    ("\u0100", BYTE), ("\u0120", NORMAL), ("\u010a", NORMAL), ("a", NORMAL), ("b", NORMAL),
    ("t", NORMAL), ("h", NORMAL), ("e", NORMAL), ("\u00c3", NORMAL), ("\u00a9", NORMAL),
    ("\u0120a", NORMAL), ("ab", NORMAL), ("th", NORMAL), ("the", NORMAL), ("\u0120t", NORMAL),
    ("\u0120the", NORMAL), ("\u00c3\u00a9", NORMAL),
    ("\u4f60", NORMAL),  # outside the alphabet: its own UTF-8
    ("<old>", UNUSED),
    ("a", NORMAL),  # said twice: the later one counts
]
MERGES = ["t h", "\u0120 a", "th e", "a b", "\u0120 t", "\u0120 the", "\u00c3 \u00a9"]
BOS, EOS = 0, 2


def gguf(model):
    tensors = model.tensors

    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def u32(value):
        return struct.pack("<II", 4, value)

    def f32(value):
        return struct.pack("<If", 6, value)

    def text(value):
        return struct.pack("<I", 8) + string(value)

    def texts(values):
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string, values))

    types = [kind for _, kind in TOKENS]
    keys = {
        "general.architecture": text("llama"),
        "general.name": text(model.name),
        "llama.block_count": u32(LAYERS),
        "llama.context_length": u32(CONTEXT),
        "llama.embedding_length": u32(HIDDEN),
        "llama.feed_forward_length": u32(model.ff),
        "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(KV_HEADS),
        "llama.attention.key_length": u32(HEAD_DIM),
        "llama.attention.layer_norm_rms_epsilon": f32(RMS_EPS),
        "llama.rope.dimension_count": u32(HEAD_DIM),
        "llama.rope.freq_base": f32(ROPE_BASE),
        "llama.expert_count": u32(model.experts),
        "llama.expert_used_count": u32(1),
        "powerinfer.ffn_activation": text(model.activation),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("gpt-2"),
        "tokenizer.ggml.tokens": texts([token for token, _ in TOKENS]),
        "tokenizer.ggml.token_type": struct.pack(f"<IIQ{len(types)}i", 9, 5, len(types), *types),
        "tokenizer.ggml.merges": texts(MERGES),
        "tokenizer.ggml.bos_token_id": u32(BOS),
        "tokenizer.ggml.eos_token_id": u32(EOS),
        "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 1),
    }
    if model.is_dense:
        del keys["llama.expert_count"], keys["llama.expert_used_count"]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(string(key) + value for key, value in keys.items())
    data, ids = b"", {"f32": 0, "f16": 1, "q4": 2, "q8": 8}
    for name, tensor in tensors.items():
        count = len(tensor.dims)
        head += string(name) + struct.pack(f"<I{count}Q", count, *tensor.dims)
        head += struct.pack("<IQ", ids[tensor.kind], len(data))
        data += padded(tensor.data, 32)
    return padded(head, 32) + data


# The image.


def token_bytes():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    byte_of.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    for token, kind in TOKENS:
        coded = kind in (NORMAL, BYTE) and all(sign in byte_of for sign in token)
        yield bytes(byte_of[sign] for sign in token) if coded else token.encode()


def merge_table():
    """Slots (left, right, rank, merged), and the most a look-up visits."""
    id_of = {token: index for index, (token, _) in enumerate(TOKENS)}
    count = len(MERGES) + len(MERGES) // 2 + 1
    slots, longest = [(NONE,) * 4] * count, 0
    for rank, merge in enumerate(MERGES):
        left, right = merge.split(" ")
        mixed = (id_of[left] << 32 | id_of[right]) * 0x9E3779B97F4A7C15 % 2**64
        mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 % 2**64
        home = (mixed >> 32) * count >> 32
        tries = [(home + step) % count for step in range(count)]
        visits = next(at for at, slot in enumerate(tries) if slots[slot][0] == NONE)
        slots[tries[visits]] = (id_of[left], id_of[right], rank, id_of[left + right])
        longest = max(longest, visits + 1)
    return slots, longest


def tokenizer():
    texts, types = list(token_bytes()), [kind for _, kind in TOKENS]
    slots, longest = merge_table()
    byte_ids = [NONE] * 256
    for index, (text, kind) in enumerate(zip(texts, types)):
        if len(text) == 1 and kind in (NORMAL, BYTE):
            byte_ids[text[0]] = index
    special = [index for index, kind in enumerate(types) if kind in (UNKNOWN, CONTROL, USER)]
    special.sort(key=lambda index: (texts[index][0], -len(texts[index]), index))
    first = [sum(texts[index][0] < byte for index in special) for byte in range(257)]
    ends = np.cumsum([0, *map(len, texts)])
    tables = [
        struct.pack(f"<{4 * len(slots)}I", *(word for slot in slots for word in slot)),
        ends.astype("<u4").tobytes(),
        np.array(byte_ids, "<u4").tobytes(),
        np.array(first, "<u4").tobytes(),
        np.array(special, "<u4").tobytes(),
        bytes(types),
        b"".join(texts),
    ]
    body = b"".join(padded(table, 16) for table in tables)
    model, pre, add_bos = 0, 0, 1
    fields = [64 + len(body), model, pre, add_bos, BOS, EOS, len(texts), max(map(len, texts))]
    fields += [ends[-1], len(MERGES), len(slots), longest, len(special), 0]
    return b"GNGLTOK1" + struct.pack("<14I", *fields) + body


def down_unit(model, layer, kind):
    """Smallest u with step * 2^held <= 2^27 * 2^u for every column's step, within -60 to 0."""
    held = 10 if kind == "f16" and not model.is_dense else 13
    columns = [column for expert in range(model.experts) for column in model.down(layer, expert)[0]]
    step = max(float(column_step(column, kind)) for column in columns)
    mantissa, exponent = np.frexp(step)
    exponent = int(exponent) - (mantissa == 0.5) if step > 0 else 0
    return min(max(exponent + held - 27, -60), 0)


def resident(model, down, weight, head):
    def layer_tensor(layer, name, kind="weight"):
        return model.tensors[f"blk.{layer}.{name}.{kind}"]

    getcontext().prec = 60
    powers = [Decimal(-2 * index) / HEAD_DIM for index in range(HEAD_DIM // 2)]
    rope = [float(Decimal(ROPE_BASE) ** power) for power in powers]
    parts = [
        struct.pack(f"<{LAYERS}i", *(down_unit(model, layer, down) for layer in range(LAYERS))),
        struct.pack(f"<{len(rope)}d", *rope),
    ]
    for layer in range(LAYERS):
        names = [f"attn_{name}" for name in "qkv"]
        parts += [
            layer_tensor(layer, "attn_norm").data,
            b"".join(layer_tensor(layer, name).matrix(weight) for name in names),
        ]
        if model.is_dense:
            parts.append(b"".join(layer_tensor(layer, name, "bias").data for name in names))
        parts += [
            layer_tensor(layer, "attn_output").matrix(weight),
            layer_tensor(layer, "ffn_norm").data,
        ]
        if model.is_dense:
            order = model.down(layer, 0)[1]
            parts += [
                layer_tensor(layer, "ffn_gate", "bias").values[order].tobytes(),
                layer_tensor(layer, "ffn_up", "bias").values[order].tobytes(),
                layer_tensor(layer, "ffn_down", "bias").data,
            ]
        else:
            parts.append(layer_tensor(layer, "ffn_gate_inp").data)
    tensors = model.tensors
    parts += [tensors["output_norm.weight"].data, tensors["output.weight"].matrix(head)]
    return b"".join(padded(part, 64) for part in parts)


def expert_records(model, layer, expert, kind, down_kind):
    """Aligned: whole records share a block of 4 KiB; none is larger than that. Tight: all share all
    blocks."""
    gate, up_ = model.ffn(layer, "gate"), model.ffn(layer, "up")
    blocks = [b""]
    for neuron, (values, source) in enumerate(zip(*model.down(layer, expert))):
        index = expert * model.ff + source
        record = tagged(gate.row(index, kind), GATE, neuron, layer, expert)
        rest = up_.row(index, kind) + column(values, down_kind)
        record += tagged(rest, REST, neuron, layer, expert)
        if len(blocks[-1]) + len(record) > 4096 and not model.is_dense:
            blocks.append(b"")
        blocks[-1] += record
    return b"".join(padded(block, 4096) for block in blocks)


def image(model, records, weight, head, embedding, down=None):
    own, down = down, down or records
    embed = model.tensors["token_embd.weight"]
    rows = [tagged(embed.row(token, embedding), EMBEDDING, token) for token in range(VOCAB)]
    experts = [(layer, expert) for layer in range(LAYERS) for expert in range(model.experts)]
    words = tokenizer()
    sections = [
        resident(model, down, weight, head),
        words,
        b"".join(np.array(model.down(*expert)[1], "<u4").tobytes() for expert in experts),
        b"".join(rows),
        b"".join(expert_records(model, *expert, records, down) for expert in experts),
    ]
    table, body = b"", b""
    for index, section in enumerate(sections):
        section = padded(section, 4096)
        crc = crc32c(section) if index < 3 else 0  # parts of the others carry tags
        table += struct.pack("<QQII", 4096 + len(body), len(section), crc, 0)
        body += section
    shape = [LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, model.experts, 1, model.stored_ff, VOCAB]
    tied, window, attention_factor, packing = 0, 0, 0, int(model.is_dense)
    types = [TYPE_CODE[kind] for kind in (records, weight, head, embedding)]
    types[0] |= 0 if own is None else 256 * (1 + TYPE_CODE[own])
    fields = struct.pack("<IQ64s", model.activation_code, 4096 + len(body), model.name.encode())
    fields += struct.pack("<15I", *shape, tied, len(words), *types)
    fields += struct.pack("<fII", RMS_EPS, CONTEXT, model.biases) + table
    fields += struct.pack("<IfI", window, attention_factor, packing)

    def header(crc):
        version, layout = 1, 1
        return padded(b"GANGLION" + struct.pack("<III", version, layout, crc) + fields, 4096)

    return header(crc32c(header(0))) + body


# Rows and columns longer than the model's, where bands are whole and roundings tie.

LENGTHS = [1, 31, 300, 1100, 96]


def odd_rows():
    random = np.random.RandomState(7)
    rows = [(0.2 * random.standard_normal(length)).astype(F32) for length in LENGTHS]
    # A q4 column whose step d is 2^-7. By groups: the largest weight (120 d); sub-scales of 1, 2
    # and 3, of either sign, without error; -1 and 2 without error; codes of a q4 row that end in a
    # half, and two largest weights; the same for q8; zeros; a search around 12.5 that reaches 15;
    # s and -s whose errors differ only by the order of their sum.
    step, long = 2.0**-7, rows[3]
    np.clip(long, -0.9, 0.9, out=long)
    long[5] = -120 * step
    long[32:64] = 6 * step * np.where(np.arange(32) % 3, 1, -1)
    long[64:96] = 8 * step
    long[96:128] = step * (np.arange(32) % 16 - 7.5)
    long[100], long[104] = 8 * step, -8 * step
    long[128:160] = step / 2 * (np.arange(32) - 16.5)
    long[130] = step / 2 * 127
    long[160:192] = 0
    long[192:224] = 15 * step * (np.arange(32) % 13 - 6)
    long[195] = 100 * step
    half = np.random.RandomState(9).standard_normal(16)
    long[224:240], long[240:256] = F32(0.2 * half), F32(-0.2 * half)
    # A q8 column whose step is 2^-7, with codes that end in a half.
    rows[4][:] = step * (np.arange(96) - 47.5)
    rows[4][40] = 127 * step
    return rows


def main():
    files = {}
    for model, images in [(Model(is_dense=False), IMAGES), (Model(is_dense=True), DENSE_IMAGES)]:
        files[f"{model.name}.gguf"] = gguf(model)
        for name, types in images.items():
            files[f"{model.name}.{name}.image"] = image(model, *types)
    rows = odd_rows()
    files["rows.f32"] = b"".join(row.astype("<f4").tobytes() for row in rows)
    files["rows.codes"] = b"".join(
        row(values, kind) + column(values, kind) for values in rows for kind in TYPE_CODE
    )
    for name, data in files.items():
        (HERE / name).write_bytes(data)
        print(f"{name}: {len(data)} bytes, CRC-32C {crc32c(data):08x}")


if __name__ == "__main__":
    main()
