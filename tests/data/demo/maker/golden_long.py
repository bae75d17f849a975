"""Writes the long reference vectors, from the weights rounded to fp16, in fp32.

OUT_DIR/NAME.logits.npz: ids int32 [64] and logits float32 [64, vocab] of a held-out story, at every
position. OUT_DIR/NAME.long.json: 512 held-out ids, the nll of ids 1 to 511, 4,096 held-out ids and
their perplexity over 8 windows of 512.
"""

import argparse
import json
import math

import numpy as np
import torch
import torch.nn.functional as F

from export import load_model
from train import read_ids

POSITIONS = 64
WINDOW = 512
WINDOWS = 8


def window_nll(model, ids):
    """The nll of each id but the first."""
    return F.cross_entropy(model(ids[None])[0][:-1], ids[1:], reduction="none")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", help="folder of train.py")
    parser.add_argument("data_dir", help="folder of prep.py")
    parser.add_argument("out_dir")
    parser.add_argument("name")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    _, _, model = load_model(args.run_dir)
    held_out = read_ids(f"{args.data_dir}/val.bin")
    out = f"{args.out_dir}/{args.name}"

    ids = held_out[:POSITIONS]
    logits = model(ids[None])[0].numpy()
    np.savez_compressed(f"{out}.logits.npz", ids=ids.numpy().astype(np.int32), logits=logits)

    total = 0.0
    for window in held_out[: WINDOWS * WINDOW].split(WINDOW):
        total += window_nll(model, window).sum().item()
    perplexity = math.exp(total / (WINDOWS * (WINDOW - 1)))
    long = {
        "ids": held_out[:WINDOW].tolist(),
        "nll": [round(x, 5) for x in window_nll(model, held_out[:WINDOW]).tolist()],
        "windows_of_512": WINDOWS,
        "held_out_ppl": round(perplexity, 4),
        "held_out_ids": held_out[: WINDOWS * WINDOW].tolist(),
    }
    with open(f"{out}.long.json", "w", encoding="utf-8") as file:
        json.dump(long, file)
    print("ppl", perplexity)


if __name__ == "__main__":
    main()
