"""The forward pass in NumPy from a GGUF file alone, all positions at once, in float32.

Independent of PyTorch and of model.py: a second opinion on the references.
"""

import numpy as np
from gguf import GGUFReader, dequantize


def softmax(x):
    """Over the last axis."""
    exp = np.exp(x - x.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def next_nll(logits, ids):
    """The nll of ids[1:] under logits [len(ids), vocab]."""
    logits = logits[:-1].astype(np.float64)
    top = logits.max(-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    return log_sum - logits[np.arange(len(logits)), ids[1:]]


class NumpyModel:
    """A dReLU mixture of experts of the llama architecture."""

    def __init__(self, path):
        reader = GGUFReader(path)

        def value(key):
            return reader.fields[key].contents()

        self.tensors = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }
        self.layers = value("llama.block_count")
        self.heads = value("llama.attention.head_count")
        self.kv_heads = value("llama.attention.head_count_kv")
        self.head_dim = value("llama.embedding_length") // self.heads
        self.eps = np.float32(value("llama.attention.layer_norm_rms_epsilon"))
        self.theta = value("llama.rope.freq_base")
        self.experts_used = value("llama.expert_used_count")
        activation = value("powerinfer.ffn_activation")
        if activation != "drelu":
            raise ValueError(f"{path}: the FFN activation is {activation}, wanted drelu")

    def weight(self, layer, name):
        """A matrix or vector of a layer."""
        return self.tensors[f"blk.{layer}.{name}.weight"]

    def norm(self, x, weight):
        """RMSNorm."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rope(self, x):
        """Turns the pairs (2i, 2i + 1) of x [positions, heads, head_dim]."""
        frequencies = self.theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angles = np.outer(np.arange(len(x)), frequencies)[:, None]
        cos, sin = np.cos(angles), np.sin(angles)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = np.empty_like(x)
        turned[..., 0::2] = even * cos - odd * sin
        turned[..., 1::2] = even * sin + odd * cos
        return turned

    def attention(self, layer, x):
        """Causal grouped-query attention of x [positions, width]."""
        positions = len(x)

        def project(name, heads):
            return (x @ self.weight(layer, name).T).reshape(positions, heads, self.head_dim)

        query = self.rope(project("attn_q", self.heads))
        key = self.rope(project("attn_k", self.kv_heads))
        value = project("attn_v", self.kv_heads)
        future = np.triu(np.full((positions, positions), -np.inf, np.float32), 1)
        mixed = np.empty_like(query)
        for head in range(self.heads):
            kv_head = head * self.kv_heads // self.heads
            scores = query[:, head] @ key[:, kv_head].T / np.float32(np.sqrt(self.head_dim))
            mixed[:, head] = softmax(scores + future) @ value[:, kv_head]
        return mixed.reshape(positions, -1) @ self.weight(layer, "attn_output").T

    def experts(self, layer, x):
        """Output of the chosen experts, and the active neurons of the last position by expert."""
        scores = x @ self.weight(layer, "ffn_gate_inp").T
        chosen = np.argsort(-scores, -1)[:, : self.experts_used]
        shares = softmax(np.take_along_axis(scores, chosen, -1))
        gate = self.weight(layer, "ffn_gate_exps")
        up = self.weight(layer, "ffn_up_exps")
        down = self.weight(layer, "ffn_down_exps")
        out = np.zeros_like(x)
        last = {}
        for expert in np.unique(chosen):
            rows, ranks = np.nonzero(chosen == expert)
            inputs = x[rows]
            neurons = np.maximum(inputs @ gate[expert].T, 0) * np.maximum(inputs @ up[expert].T, 0)
            out[rows] += shares[rows, ranks, None] * (neurons @ down[expert].T)
            if rows[-1] == len(x) - 1:
                last[str(expert)] = np.flatnonzero(neurons[-1]).tolist()
        return out, last

    def forward(self, ids):
        """Logits [len(ids), vocab], and per layer the neurons the last position made fire."""
        x = self.tensors["token_embd.weight"][ids]
        used = []
        for layer in range(self.layers):
            x = x + self.attention(layer, self.norm(x, self.weight(layer, "attn_norm")))
            out, last = self.experts(layer, self.norm(x, self.weight(layer, "ffn_norm")))
            x = x + out
            used.append(last)
        x = self.norm(x, self.tensors["output_norm.weight"])
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return x @ head.T, used


def compare_case(model, case):
    """Differences of one golden prompt: logits and neurons at its last token, nll of all."""
    ids = np.array(case["ids"])
    logits, used = model.forward(ids)
    reference = np.array(case["last_logits"])
    golden = case["last_token_experts"]
    return {
        "max_dlogit_last": float(np.abs(logits[-1] - reference).max()),
        "mean_dnll": float(np.abs(next_nll(logits, ids) - case["nll_per_token"]).mean()),
        "argmax_equal": bool(logits[-1].argmax() == reference.argmax()),
        "experts_equal": all(set(ours) == set(wanted) for ours, wanted in zip(used, golden)),
        "neurons_differing": sum(
            len(set(ours[expert]) ^ set(wanted[expert]))
            for ours, wanted in zip(used, golden)
            for expert in ours.keys() & wanted.keys()
        ),
    }
