"""Makes tiny random models of every family and the logits of an independent forward pass.

    pip install numpy
    python make.py

Writes NAME.gguf for every row of MODELS and logits.npz beside itself, the same bytes each time.
Weights are made, and the forward pass is written, as the families' PyTorch sources have them: heads
are turned by halves, MoE gates are a softmax over all experts. Files are then what the usual
converters make of such weights. Everything is float64 over weights rounded to fp16. Nothing is
shared with the engine or its packer: if they disagree with this script, they are wrong.
"""

import struct
import zipfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LAYERS, HEAD_DIM, FF, VOCAB = 2, 16, 20, 40
CONTEXT, POSITIONS = 512, 44


@dataclass
class Model:
    """What distinguishes a model from a plain Llama."""

    architecture: str = "llama"
    hidden: int = 24
    heads: int = 4
    kv_heads: int = 2
    tied: bool = True
    eps: float = 1e-5
    base: float = 10_000.0
    biases: tuple = ()  # of "qkv", "output", "ffn"
    experts: int = 1
    used: int = 1
    activation: str = "silu"
    window: int = 0
    turned: int = HEAD_DIM
    scaling: dict = field(default_factory=dict)
    factors: bool = False  # llama3 frequencies as the tensor rope_freqs, as converters write them

    @property
    def query(self):
        return self.heads * HEAD_DIM

    @property
    def kv(self):
        return self.kv_heads * HEAD_DIM


# Over these contexts some frequencies are kept, some scaled and some mixed.
LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_context_length": 32,
}
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 256}
QWEN2 = ("qwen2", 32, 2, 1)
MODELS = {
    "llama": Model(),
    "llama-linear": Model(tied=False, scaling={"type": "linear", "factor": 4.0}),
    "llama3-factors": Model(base=50_000.0, scaling=LLAMA3, factors=True),
    "llama3-keys": Model(base=50_000.0, scaling=LLAMA3),
    "llama-biases": Model(biases=("qkv", "output", "ffn")),
    "mistral-window": Model(tied=False, window=7),
    "mixtral": Model(tied=False, experts=3, used=2, base=1e6),
    "mixtral-drelu": Model(tied=False, experts=3, used=2, activation="drelu"),
    "qwen2": Model(*QWEN2, eps=1e-6, base=1e6, biases=("qkv",)),
    "qwen2-yarn": Model(*QWEN2, tied=False, eps=1e-6, biases=("qkv",), scaling=YARN),
    "qwen2-partial": Model(*QWEN2, biases=("qkv",), turned=12),
}


# Weights, by their names in the files. RandomState's stream never changes.


def weights(model, seed):
    hidden = model.hidden
    random = np.random.RandomState(seed)

    def matrix(*dims):
        values = random.standard_normal(dims) / np.sqrt(dims[-1])
        return values.astype(np.float16).astype(np.float64)

    def vector(mean, *dims):
        values = mean + 0.3 * random.standard_normal(dims)
        return values.astype(np.float32).astype(np.float64)

    tensors = {"token_embd.weight": matrix(VOCAB, hidden) * 4}
    experts, suffix = ((model.experts,), "_exps") if model.experts > 1 else ((), "")
    for layer in range(LAYERS):
        parts = {
            "attn_norm.weight": vector(1, hidden),
            "attn_q.weight": matrix(model.query, hidden) * 2,
            "attn_k.weight": matrix(model.kv, hidden) * 2,
            "attn_v.weight": matrix(model.kv, hidden),
            "attn_output.weight": matrix(hidden, model.query),
            "ffn_norm.weight": vector(1, hidden),
            f"ffn_gate{suffix}.weight": matrix(*experts, FF, hidden),
            f"ffn_up{suffix}.weight": matrix(*experts, FF, hidden),
            f"ffn_down{suffix}.weight": matrix(*experts, hidden, FF),
        }
        if experts:
            parts["ffn_gate_inp.weight"] = vector(0, model.experts, hidden)
        if "qkv" in model.biases:
            parts["attn_q.bias"] = vector(0, model.query)
            parts["attn_k.bias"] = vector(0, model.kv)
            parts["attn_v.bias"] = vector(0, model.kv)
        if "output" in model.biases:
            parts["attn_output.bias"] = vector(0, hidden)
        if "ffn" in model.biases:
            parts["ffn_gate.bias"] = vector(0, FF)
            parts["ffn_up.bias"] = vector(0, FF)
            parts["ffn_down.bias"] = vector(0, hidden)
        tensors.update({f"blk.{layer}.{name}": part for name, part in parts.items()})
    tensors["output_norm.weight"] = vector(1, hidden)
    if not model.tied:
        tensors["output.weight"] = matrix(VOCAB, hidden)
    return tensors


# Rotary positions.


def frequencies(model):
    """Angles from one position to the next, and what cos and sin are multiplied by."""
    half, scaling = model.turned // 2, model.scaling
    plain = model.base ** -(np.arange(half) * 2.0 / model.turned)
    kind, factor = scaling.get("type"), scaling.get("factor", 1.0)
    original = scaling.get("original_context_length")
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        return np.array([llama3(frequency, factor, original) for frequency in plain]), 1.0
    if kind == "yarn":
        return yarn(plain, model.base, factor, original), 0.1 * np.log(factor) + 1.0
    return plain, 1.0


def llama3(frequency, factor, original):
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    wavelength = 2 * np.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def yarn(plain, base, factor, original, fast=32, slow=1):
    dim = 2 * len(plain)

    def dimension(rotations):
        return dim * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base))

    low, high = max(np.floor(dimension(fast)), 0), min(np.ceil(dimension(slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def turn(x, model):
    """Rotates x [positions, heads, head_dim]: value i with value i + half of the turned ones."""
    angles, factor = frequencies(model)
    angles = np.outer(np.arange(len(x)), angles)[:, None]
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    half = model.turned // 2
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return np.concatenate(turned, axis=-1)


# The forward pass of all positions at once.


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


class Forward:
    """A layer's parts over tensors by name; a bias that is not there is zero."""

    def __init__(self, model, tensors):
        self.model, self.tensors, self.layer = model, tensors, 0

    def norm(self, x, name):
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self.model.eps))
        return x / scale * self.tensors[name]

    def part(self, name):
        return self.tensors[f"blk.{self.layer}.{name}"]

    def linear(self, x, role):
        bias = self.tensors.get(f"blk.{self.layer}.{role}.bias", 0.0)
        return x @ self.part(f"{role}.weight").T + bias

    def attention(self, x):
        count, heads, kv_heads = len(x), self.model.heads, self.model.kv_heads
        query = self.linear(x, "attn_q").reshape(count, heads, HEAD_DIM)
        key = self.linear(x, "attn_k").reshape(count, kv_heads, HEAD_DIM)
        value = self.linear(x, "attn_v").reshape(count, kv_heads, HEAD_DIM)
        query, key = turn(query, self.model), turn(key, self.model)
        key, value = (part.repeat(heads // kv_heads, axis=1) for part in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(HEAD_DIM)
        distance = np.arange(count)[:, None] - np.arange(count)
        seen = distance >= 0
        if self.model.window:
            seen &= distance < self.model.window
        scores = np.where(seen, scores, -np.inf)
        mixed = np.einsum("hqk,khd->qhd", softmax(scores), value)
        return self.linear(mixed.reshape(count, -1), "attn_output")

    def act(self, gate, up):
        if self.model.activation == "drelu":
            return np.maximum(gate, 0) * np.maximum(up, 0)
        return silu(gate) * up

    def network(self, x):
        if self.model.experts == 1:
            neurons = self.act(self.linear(x, "ffn_gate"), self.linear(x, "ffn_up"))
            return self.linear(neurons, "ffn_down")
        shares = softmax(x @ self.part("ffn_gate_inp.weight").T)
        gates, ups, downs = (self.part(f"ffn_{n}_exps.weight") for n in ("gate", "up", "down"))
        out = np.zeros_like(x)
        for line, share in enumerate(shares):
            best = np.argsort(-share, kind="stable")[: self.model.used]
            for expert in best:
                neurons = self.act(gates[expert] @ x[line], ups[expert] @ x[line])
                out[line] += share[expert] / share[best].sum() * (downs[expert] @ neurons)
        return out

    def logits(self, ids):
        x = self.tensors["token_embd.weight"][ids]
        for self.layer in range(LAYERS):
            x = x + self.attention(self.norm(x, f"blk.{self.layer}.attn_norm.weight"))
            x = x + self.network(self.norm(x, f"blk.{self.layer}.ffn_norm.weight"))
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ head.T


# The file.


def file_tensors(model, tensors):
    """Tensors as converters store them: Llama's q and k by pairs, Qwen2's as they are."""
    stored = dict(tensors)
    if model.architecture == "llama":
        for name, values in tensors.items():
            if ".attn_q." in name or ".attn_k." in name:
                pairs = values.reshape(-1, 2, HEAD_DIM // 2, *values.shape[1:])
                stored[name] = pairs.swapaxes(1, 2).reshape(values.shape)
    if model.factors:
        plain = model.base ** -(np.arange(HEAD_DIM // 2) * 2.0 / HEAD_DIM)
        stored["rope_freqs.weight"] = plain / frequencies(model)[0]
    return stored


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(content):
    """A GGUF value with its type."""
    if isinstance(content, str):
        return struct.pack("<I", 8) + string(content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, list):
        return struct.pack("<IIQ", 9, 8, len(content)) + b"".join(map(string, content))
    return struct.pack("<II", 4, content)


def keys(name, model):
    prefix = model.architecture
    letters = map(chr, [*range(0x61, 0x7B), *range(0x41, 0x41 + VOCAB - 28)])
    tokens = ["<|endoftext|>", *letters, "ab"]
    found = {
        "general.architecture": prefix,
        "general.name": name,
        f"{prefix}.block_count": LAYERS,
        f"{prefix}.context_length": CONTEXT,
        f"{prefix}.embedding_length": model.hidden,
        f"{prefix}.feed_forward_length": FF,
        f"{prefix}.attention.head_count": model.heads,
        f"{prefix}.attention.head_count_kv": model.kv_heads,
        f"{prefix}.attention.key_length": HEAD_DIM,
        f"{prefix}.attention.value_length": HEAD_DIM,
        f"{prefix}.attention.layer_norm_rms_epsilon": model.eps,
        f"{prefix}.rope.freq_base": model.base,
        f"{prefix}.rope.dimension_count": model.turned,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    if model.window:
        found[f"{prefix}.attention.sliding_window"] = model.window
    if model.experts > 1:
        found[f"{prefix}.expert_count"] = model.experts
        found[f"{prefix}.expert_used_count"] = model.used
    if model.activation != "silu":
        found["powerinfer.ffn_activation"] = model.activation
    if not model.factors:
        found.update({f"{prefix}.rope.scaling.{key}": v for key, v in model.scaling.items()})
    return found


def gguf(name, model, tensors):
    def padded(data):
        return data + bytes(-len(data) % 32)

    found = keys(name, model)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(found))
    head += b"".join(string(key) + value(content) for key, content in found.items())
    data = b""
    for tensor, values in tensors.items():
        plain = values.ndim == 1 or "gate_inp" in tensor
        count = values.ndim
        head += string(tensor) + struct.pack(f"<I{count}Q", count, *values.shape[::-1])
        head += struct.pack("<IQ", 0 if plain else 1, len(data))
        data += padded(values.astype("<f4" if plain else "<f2").tobytes())
    return padded(head) + data


def archive(arrays):
    """An npz whose bytes do not depend on the time."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        for name, array in arrays.items():
            member = BytesIO()
            np.save(member, array)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return out.getvalue()


def main():
    ids = np.random.RandomState(99).randint(0, VOCAB, POSITIONS)
    arrays = {"ids": ids.astype(np.int32)}
    for seed, (name, model) in enumerate(MODELS.items()):
        # Both ways to write llama3 frequencies are of one model.
        tensors = weights(model, seed - (name == "llama3-keys"))
        arrays[name] = Forward(model, tensors).logits(ids).astype(np.float32)
        data = gguf(name, model, file_tensors(model, tensors))
        (HERE / f"{name}.gguf").write_bytes(data)
        print(f"{name}: {len(data)} bytes, logits to {np.abs(arrays[name]).max():.2f}")
    (HERE / "logits.npz").write_bytes(archive(arrays))


if __name__ == "__main__":
    main()
