"""Trains the demo model for a given time and keeps a log and a checkpoint.

The committed model: --minutes 62 --threads 2 --bf16 1 --batch 8 --seq 512 --lr 2.5e-3 --l1 0.06
--aux 0.03. Neurons become sparse by an L1 term on their activations, which ramps in after 15 % of
the time.
"""

import argparse
import json
import math
import os
import time
from dataclasses import asdict

import numpy as np
import torch

from model import Config, Model

WARMUP_STEPS = 60
LOG_STEPS = 20
EVALUATE_STEPS = 100
SAVE_STEPS = 400
EVALUATE_BATCH = 8


def parse_args():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data", help="folder written by prep.py")
    parser.add_argument("--out", default="out", help="folder for ckpt.pt and train_log.jsonl")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", type=int, default=1, help="1: matrix products in bfloat16")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--aux", type=float, default=0.01, help="weight of the load balance")
    parser.add_argument("--l1", type=float, default=0.0, help="weight of the activations")
    parser.add_argument("--max_steps", type=int, default=0, help="0: until the time is over")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--init", default="", help="checkpoint to start from")
    return parser.parse_args()


def read_ids(path):
    """A token stream of prep.py."""
    return torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int64))


def make_optimizer(model, lr):
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


class Trainer:
    """The model, its data and the state of the run."""

    def __init__(self, args):
        self.args = args
        self.train_ids = read_ids(f"{args.data}/train.bin")
        self.held_out_ids = read_ids(f"{args.data}/val.bin")
        with open(f"{args.data}/meta.json", encoding="utf-8") as file:
            meta = json.load(file)
        self.bytes_per_token = meta["val_bytes"] / meta["val_tokens"]
        self.config = Config(vocab=meta["vocab"], ctx=args.seq, layers=args.layers)
        self.model = Model(self.config)
        if args.init:
            self.model.load_state_dict(torch.load(args.init)["model"])
        self.optimizer = make_optimizer(self.model, args.lr)
        self.generator = torch.Generator().manual_seed(args.seed)
        self.step = 0
        self.tokens = 0
        self.start = time.time()
        self.log = open(f"{args.out}/train_log.jsonl", "a", encoding="utf-8")

    def describe(self):
        """One line with the shape and the arguments."""
        params = sum(p.numel() for p in self.model.parameters())
        line = {"config": asdict(self.config), "params": params, "args": vars(self.args)}
        print(json.dumps(line), flush=True)

    def record(self, line):
        """Prints a line and adds it to the log."""
        text = json.dumps(line)
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()

    def save(self):
        """Writes the checkpoint."""
        state = {
            "model": self.model.state_dict(),
            "config": asdict(self.config),
            "step": self.step,
            "tokens": self.tokens,
        }
        torch.save(state, f"{self.args.out}/ckpt.pt")

    def autocast(self):
        """bfloat16 when asked for."""
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(self.args.bf16))

    def batch(self):
        """Random windows of the training stream: inputs and targets [batch, seq]."""
        seq = self.args.seq
        limit = len(self.train_ids) - seq - 1
        starts = torch.randint(limit, (self.args.batch,), generator=self.generator)
        windows = torch.stack([self.train_ids[start : start + seq + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    @torch.no_grad()
    def evaluate(self, windows=24):
        """Held-out loss a token, and the share of zero neurons in the chosen experts by layer."""
        seq = self.args.seq
        counts = [[0, 0] for _ in self.model.blocks]

        def counter(layer):
            def count(_expert, _tokens, _ranks, neurons):
                counts[layer][0] += (neurons > 0).sum().item()
                counts[layer][1] += neurons.numel()

            return count

        self.model.eval()
        for layer, block in enumerate(self.model.blocks):
            block.moe.stats = counter(layer)
        starts = torch.linspace(0, len(self.held_out_ids) - seq - 2, windows).long()
        total = 0.0
        seen = 0
        for first in range(0, windows, EVALUATE_BATCH):
            part = starts[first : first + EVALUATE_BATCH]
            ids = torch.stack([self.held_out_ids[start : start + seq + 1] for start in part])
            with self.autocast():
                loss, _, _ = self.model(ids[:, :-1], ids[:, 1:])
            total += loss.item() * len(ids)
            seen += len(ids)
        for block in self.model.blocks:
            block.moe.stats = None
        self.model.train()
        return total / seen, [round(1 - active / all_, 4) for active, all_ in counts]

    def held_out(self, windows=24):
        """The held-out figures of a log line."""
        loss, sparsity = self.evaluate(windows)
        bits_per_byte = loss / math.log(2) / self.bytes_per_token
        return loss, {"val": round(loss, 4), "val_bpb": round(bits_per_byte, 4)}, sparsity

    def minutes(self):
        """Minutes since the start."""
        return (time.time() - self.start) / 60

    def learning_rate(self, fraction):
        """A linear warm-up, then half a cosine down to 5 %."""
        warmup = min(1, (self.step + 1) / WARMUP_STEPS)
        return self.args.lr * warmup * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * fraction)))

    def l1_weight(self, fraction):
        """0 until 15 % of the time, all of it from 65 %."""
        return self.args.l1 * min(1.0, max(0.0, (fraction - 0.15) / 0.5))

    def update(self, learning_rate, l1_weight):
        """One optimizer step: its losses and gradient norm."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        inputs, targets = self.batch()
        with self.autocast():
            loss, balance, activation = self.model(inputs, targets)
        (loss + self.args.aux * balance + l1_weight * activation).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += inputs.numel()
        return loss.item(), balance.item(), activation.item(), norm.item()

    def run(self):
        """Trains until the time or the steps are over."""
        last = self.start
        while True:
            fraction = self.minutes() / self.args.minutes
            if fraction >= 1 or (self.args.max_steps and self.step >= self.args.max_steps):
                break
            learning_rate = self.learning_rate(fraction)
            l1_weight = self.l1_weight(fraction)
            loss, balance, activation, norm = self.update(learning_rate, l1_weight)
            if self.step % LOG_STEPS == 0:
                now = time.time()
                line = {
                    "step": self.step,
                    "tokens": self.tokens,
                    "loss": round(loss, 4),
                    "aux": round(balance, 3),
                    "l1": round(activation, 5),
                    "lam": round(l1_weight, 4),
                    "lr": round(learning_rate, 6),
                    "gnorm": round(norm, 2),
                    "tok_s": round(LOG_STEPS * self.args.batch * self.args.seq / (now - last)),
                    "min": round(self.minutes(), 2),
                }
                last = now
                if self.step % EVALUATE_STEPS == 0:
                    _, figures, sparsity = self.held_out()
                    line |= figures | {"sparsity": sparsity}
                    last = time.time()
                if self.step % SAVE_STEPS == 0:
                    self.save()
                self.record(line)
        self.finish()

    def finish(self):
        """The last line of the log, and the checkpoint."""
        loss, figures, sparsity = self.held_out(windows=96)
        line = {"final": True, "step": self.step, "tokens": self.tokens}
        line |= figures
        line |= {"val_ppl": round(math.exp(loss), 2), "sparsity": sparsity}
        line |= {"min": round(self.minutes(), 2)}
        self.record(line)
        self.save()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    os.makedirs(args.out, exist_ok=True)
    trainer = Trainer(args)
    trainer.describe()
    trainer.run()


if __name__ == "__main__":
    main()
