"""Measures what rounding the weights to Q8_0 and Q4_0 costs, with nothing else changed.

The weights of the f16 file are rounded as export.py rounds them (matrices by type, embeddings at
Q8_0, vectors and routers untouched), put back to float32 and run by the forward pass in NumPy, in
float32. What an engine loses on such records beyond these numbers is its own.

Reads NAME.{f16.gguf,golden.json,logits.npz,long.json} from DIR, writes DIR/reference_types.json.
"""

import argparse
import copy
import json
import math

import numpy as np
from gguf import GGMLQuantizationType as QuantType
from gguf import quants

from numpy_model import NumpyModel, compare_case, next_nll

WINDOW = 512
DIGITS = 3


def rounded(model, kind):
    """A copy of the model with its weights rounded to `kind`."""
    if kind == QuantType.F16:
        return model
    out = copy.copy(model)
    out.tensors = {}
    for name, values in model.tensors.items():
        if values.ndim > 1 and not name.endswith("ffn_gate_inp.weight"):
            to = QuantType.Q8_0 if name == "token_embd.weight" else kind
            values = quants.dequantize(quants.quantize(values, to), to).astype(np.float32)
        out.tensors[name] = values
    return out


def short(value):
    """A float of a few significant digits."""
    return float(f"{value:.{DIGITS}g}")


def compare_logits(model, reference):
    """Differences over every position of logits.npz."""
    logits, _ = model.forward(reference["ids"])
    wanted = reference["logits"]
    return {
        "positions": len(wanted),
        "max_dlogit": short(np.abs(logits - wanted).max()),
        "mean_dlogit": short(np.abs(logits - wanted).mean()),
        "argmax_equal": int((logits.argmax(-1) == wanted.argmax(-1)).sum()),
    }


def compare_long(model, long):
    """Differences over long.json, and held-out perplexity by windows."""
    ids = np.array(long["ids"])
    logits, _ = model.forward(ids)
    difference = np.abs(next_nll(logits, ids) - long["nll"])
    windows = np.array(long["held_out_ids"]).reshape(-1, WINDOW)
    total = sum(next_nll(model.forward(window)[0], window).sum() for window in windows)
    perplexity = math.exp(total / (len(windows) * (WINDOW - 1)))
    return {
        "mean_dnll": short(difference.mean()),
        "max_dnll": short(difference.max()),
        "held_out_ppl": round(perplexity, 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir")
    parser.add_argument("name", nargs="?", default="ganglion-demo-14m")
    args = parser.parse_args()
    prefix = f"{args.dir}/{args.name}"
    with open(f"{prefix}.golden.json", encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    with open(f"{prefix}.long.json", encoding="utf-8") as file:
        long = json.load(file)
    logits = np.load(f"{prefix}.logits.npz")

    original = NumpyModel(f"{prefix}.f16.gguf")
    result = {"weights_only": True, "reference_held_out_ppl": long["held_out_ppl"], "types": {}}
    for kind in (QuantType.F16, QuantType.Q8_0, QuantType.Q4_0):
        model = rounded(original, kind)
        prompts = []
        for case in cases:
            compared = compare_case(model, case)
            compared["max_dlogit_last"] = short(compared["max_dlogit_last"])
            compared["mean_dnll"] = short(compared["mean_dnll"])
            prompts.append({"text": case["text"]} | compared)
        result["types"][kind.name.lower()] = {
            "prompts": prompts,
            "logits_npz": compare_logits(model, logits),
            "long": compare_long(model, long),
        }
    text = json.dumps(result, indent=1)
    with open(f"{args.dir}/reference_types.json", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
