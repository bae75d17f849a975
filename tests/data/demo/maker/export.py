"""Exports a trained checkpoint: safetensors, GGUF files, activation statistics, golden vectors.

Every number comes from the weights rounded to fp16. Writes into OUT_DIR: NAME.f16.safetensors,
NAME.{f16,q8_0,q4_0}.gguf, NAME.tokenizer.json, NAME.stats.json, NAME.neuron_freq.npz and
NAME.golden.json. The statistics use 40,960 held-out tokens, or STAT_TOKENS of the environment.
"""

import argparse
import json
import math
import os
import shutil

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import Config, Model
from train import read_ids

QuantType = gguf.GGMLQuantizationType
FILE_TYPES = {QuantType.F16: 1, QuantType.Q8_0: 7, QuantType.Q4_0: 2}
ATTENTION = {"wq": "attn_q", "wk": "attn_k", "wv": "attn_v", "wo": "attn_output"}
EXPERTS = {"w_gate": "ffn_gate_exps", "w_up": "ffn_up_exps", "w_down": "ffn_down_exps"}
DESCRIPTION = (
    "dReLU (relu(gate)*relu(up)) mixture-of-experts test model; "
    "not SiLU: a stock llama graph gives wrong results"
)
PROMPTS = (
    "Once upon a time",
    "One day, Tim and his dog",
    "Lily was sad because",
    "The big red ball",
)
GREEDY_TOKENS = 48


def load_model(run_dir):
    """The checkpoint of train.py: its config, its fp16 weights, and a model made of them."""
    checkpoint = torch.load(f"{run_dir}/ckpt.pt")
    config = Config(**checkpoint["config"])
    weights = {name: tensor.half() for name, tensor in checkpoint["model"].items()}
    model = Model(config)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    model.eval()
    return config, weights, model


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(value, path, indent=None):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent)


def write_safetensors(config, weights, path):
    """The fp16 weights with their shape as metadata."""
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, path, metadata={"config": json.dumps(vars(config)), "ffn_act": "drelu"})


class GgufFile:
    """Writes one GGUF file whose matrices have a given type.

    Vectors and routers stay F32. Embeddings of a quantised file are Q8_0: they are the head too.
    """

    def __init__(self, path, name, kind):
        self.name = name
        self.kind = kind
        self.writer = gguf.GGUFWriter(path, "llama")

    def shape(self, config):
        """The keys that describe the model."""
        writer = self.writer
        writer.add_name(self.name)
        writer.add_description(DESCRIPTION)
        writer.add_block_count(config.layers)
        writer.add_context_length(config.ctx)
        writer.add_embedding_length(config.d)
        writer.add_feed_forward_length(config.ff)
        writer.add_head_count(config.heads)
        writer.add_head_count_kv(config.kv_heads)
        writer.add_layer_norm_rms_eps(config.eps)
        writer.add_rope_freq_base(config.theta)
        writer.add_rope_dimension_count(config.d // config.heads)
        writer.add_vocab_size(config.vocab)
        writer.add_expert_count(config.experts)
        writer.add_expert_used_count(config.topk)
        writer.add_file_type(FILE_TYPES[self.kind])
        writer.add_string("powerinfer.ffn_activation", "drelu")

    def tokenizer(self, config, description):
        """The keys of the tokenizer, from its Hugging Face form."""
        tokens = [None] * config.vocab
        for token, index in description["model"]["vocab"].items():
            tokens[index] = token
        types = [gguf.TokenType.NORMAL] * config.vocab
        for added in description["added_tokens"]:
            types[added["id"]] = gguf.TokenType.CONTROL
        merges = [
            " ".join(merge) if isinstance(merge, list) else merge
            for merge in description["model"]["merges"]
        ]
        writer = self.writer
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        writer.add_add_bos_token(True)

    def tensor(self, name, values, kind=None):
        """One tensor, by default of the type of the file."""
        values = values.float().numpy()
        kind = kind or self.kind
        if values.ndim == 1 or name.endswith("ffn_gate_inp.weight"):
            self.writer.add_tensor(name, values.astype(np.float32))
        elif kind == QuantType.F16:
            self.writer.add_tensor(name, values.astype(np.float16))
        else:
            blocks = gguf.quants.quantize(values.astype(np.float32), kind)
            self.writer.add_tensor(name, blocks, raw_dtype=kind)

    def layer(self, config, weights, layer):
        """The tensors of one layer; the experts of a matrix are stacked."""
        source = f"blocks.{layer}."
        target = f"blk.{layer}."
        self.tensor(f"{target}attn_norm.weight", weights[f"{source}n1.weight"])
        self.tensor(f"{target}ffn_norm.weight", weights[f"{source}n2.weight"])
        for ours, theirs in ATTENTION.items():
            self.tensor(f"{target}{theirs}.weight", weights[f"{source}attn.{ours}.weight"])
        self.tensor(f"{target}ffn_gate_inp.weight", weights[f"{source}moe.router.weight"])
        for ours, theirs in EXPERTS.items():
            experts = [
                weights[f"{source}moe.experts.{expert}.{ours}.weight"]
                for expert in range(config.experts)
            ]
            self.tensor(f"{target}{theirs}.weight", torch.stack(experts))

    def tensors(self, config, weights):
        """All tensors."""
        embedding_kind = QuantType.F16 if self.kind == QuantType.F16 else QuantType.Q8_0
        self.tensor("token_embd.weight", weights["emb.weight"], embedding_kind)
        self.tensor("output_norm.weight", weights["norm.weight"])
        for layer in range(config.layers):
            self.layer(config, weights, layer)

    def close(self):
        """Writes the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def watch(model, callback):
    """Calls callback(layer, expert, tokens, neurons) for each expert used; none stops it."""

    def watcher(layer):
        return lambda expert, tokens, _ranks, neurons: callback(layer, expert, tokens, neurons)

    for layer, block in enumerate(model.blocks):
        block.moe.stats = watcher(layer) if callback else None


class Statistics:
    """Counts over held-out windows: which neurons fire, how strongly, and which fire again."""

    def __init__(self, config):
        self.config = config
        self.fired = np.zeros((config.layers, config.experts, config.ff))
        self.magnitude = np.zeros_like(self.fired)
        self.used = np.zeros((config.layers, config.experts))
        self.expert_reuse = [[0, 0] for _ in range(config.layers)]
        self.neuron_reuse = [[0, 0] for _ in range(config.layers)]
        self.window = {}
        self.nll = 0.0
        self.tokens = 0

    def add(self, layer, expert, tokens, neurons):
        """One expert's activations in the current window."""
        active = neurons > 0
        self.fired[layer, expert] += active.sum(0).numpy()
        self.magnitude[layer, expert] += neurons.sum(0).numpy()
        self.used[layer, expert] += len(tokens)
        self.window.setdefault(layer, []).append((expert, tokens.clone(), active))

    def end_window(self):
        """Counts what the next token uses again."""
        config = self.config
        for layer, parts in self.window.items():
            neurons = torch.zeros(config.experts, config.ctx, config.ff, dtype=torch.bool)
            experts = torch.zeros(config.experts, config.ctx, dtype=torch.bool)
            for expert, tokens, active in parts:
                neurons[expert, tokens] = active
                experts[expert, tokens] = True
            for counts, used in (
                (self.expert_reuse[layer], experts),
                (self.neuron_reuse[layer], neurons),
            ):
                counts[0] += (used[:, 1:] & used[:, :-1]).sum().item()
                counts[1] += used[:, 1:].sum().item()
        self.window.clear()

    def measure(self, model, held_out, limit):
        """Runs windows of the context length over at most `limit` held-out tokens."""
        context = self.config.ctx
        watch(model, self.add)
        for start in range(0, min(limit, len(held_out)) - context - 1, context):
            window = held_out[None, start : start + context + 1]
            logits = model(window[:, :-1])[0]
            self.nll += F.cross_entropy(logits, window[0, 1:], reduction="sum").item()
            self.tokens += context
            self.end_window()
        watch(model, None)

    def layer_summary(self, layer):
        """The figures of one layer."""
        fired, used = self.fired[layer], self.used[layer]
        neurons = fired.size
        descending = np.sort(fired.ravel())[::-1]
        covered = descending.cumsum() / descending.sum()
        per_token = fired.sum() / self.tokens
        frequency = fired / used[:, None]
        in_chosen = fired.sum() / (used.sum() * self.config.ff)
        expert_again, expert_all = self.expert_reuse[layer]
        neuron_again, neuron_all = self.neuron_reuse[layer]
        return {
            "sparsity_within_chosen_experts": round(1 - in_chosen, 4),
            "active_neurons_per_token": round(per_token, 1),
            "of_total": neurons,
            "sparsity_over_all_experts": round(1 - per_token / neurons, 4),
            "expert_share": [round(share, 3) for share in (used / used.sum()).tolist()],
            "neurons_covering_80pct_of_activations": round(
                float((covered < 0.8).sum() + 1) / neurons, 3
            ),
            "dead_neurons": int((fired == 0).sum()),
            "always_on_gt90pct": int((frequency > 0.9).sum()),
            "expert_reuse_next_token": round(expert_again / expert_all, 3),
            "neuron_reuse_next_token": round(neuron_again / neuron_all, 3),
        }

    def summary(self, meta):
        """All figures; `meta` is the file of prep.py."""
        nll = self.nll / self.tokens
        bits_per_byte = nll / math.log(2) * meta["val_tokens"] / meta["val_bytes"]
        return {
            "val_nll": nll,
            "val_ppl": math.exp(nll),
            "val_bits_per_byte": bits_per_byte,
            "tokens": self.tokens,
            "layers": [self.layer_summary(layer) for layer in range(self.config.layers)],
        }

    def save_frequencies(self, path):
        """How often each neuron fires, and its mean activation, when its expert is chosen."""
        used = np.maximum(self.used[:, :, None], 1)
        frequency = (self.fired / used).astype(np.float16)
        magnitude = (self.magnitude / used).astype(np.float16)
        np.savez_compressed(path, freq=frequency, mean_mag=magnitude)


def greedy(model, config, ids):
    """The most likely next tokens, one by one."""
    ids = list(ids)
    prompt_length = len(ids)
    for _ in range(GREEDY_TOKENS):
        logits = model(torch.tensor([ids[-config.ctx :]]))
        ids.append(int(logits[0, -1].argmax()))
    return ids[prompt_length:]


def golden_case(model, config, tokenizer, text):
    """One prompt: ids, logits, nll, greedy text, experts and neurons of its last token."""
    ids = [0] + tokenizer.encode(text).ids
    last = len(ids) - 1
    experts = [{} for _ in range(config.layers)]

    def record(layer, expert, tokens, neurons):
        for row in (tokens == last).nonzero().ravel().tolist():
            experts[layer][expert] = (neurons[row] > 0).nonzero().ravel().tolist()

    watch(model, record)
    logits = model(torch.tensor([ids]))[0]
    watch(model, None)
    nll = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
    continuation = greedy(model, config, ids)
    return {
        "text": text,
        "ids": ids,
        "last_logits": [round(x, 5) for x in logits[-1].tolist()],
        "nll_per_token": [round(x, 5) for x in nll.tolist()],
        "greedy": continuation,
        "greedy_text": tokenizer.decode(continuation),
        "last_token_experts": [
            {str(expert): active for expert, active in sorted(layer.items())} for layer in experts
        ],
    }


def parse_args():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", help="folder of train.py")
    parser.add_argument("data_dir", help="folder of prep.py")
    parser.add_argument("out_dir")
    parser.add_argument("name")
    return parser.parse_args()


def main():
    args = parse_args()
    os.makedirs(args.out_dir, exist_ok=True)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    out = f"{args.out_dir}/{args.name}"
    config, weights, model = load_model(args.run_dir)
    tokenizer_path = f"{args.run_dir}/tokenizer.json"

    write_safetensors(config, weights, f"{out}.f16.safetensors")
    shutil.copy(tokenizer_path, f"{out}.tokenizer.json")
    for kind in FILE_TYPES:
        file = GgufFile(f"{out}.{kind.name.lower()}.gguf", args.name, kind)
        file.shape(config)
        file.tokenizer(config, read_json(tokenizer_path))
        file.tensors(config, weights)
        file.close()

    statistics = Statistics(config)
    limit = int(os.environ.get("STAT_TOKENS", 40960))
    statistics.measure(model, read_ids(f"{args.data_dir}/val.bin"), limit)
    summary = statistics.summary(read_json(f"{args.data_dir}/meta.json"))
    write_json(summary, f"{out}.stats.json", indent=1)
    statistics.save_frequencies(f"{out}.neuron_freq.npz")

    tokenizer = Tokenizer.from_file(tokenizer_path)
    cases = [golden_case(model, config, tokenizer, text) for text in PROMPTS]
    golden = {"weights": "fp16-rounded, computed in fp32", "cases": cases}
    write_json(golden, f"{out}.golden.json")

    print(json.dumps(summary, indent=1))
    for case in cases:
        print(repr(case["text"]), "->", repr(case["greedy_text"]))
    for file in sorted(os.scandir(args.out_dir), key=lambda file: file.name):
        print(file.stat().st_size, file.name)


if __name__ == "__main__":
    main()
