"""Turns a file of stories into the tokenizer and the token streams for train.py.

Stories are separated by a line `<|end|>`. A byte-level BPE of 2,048 entries (with the split pattern
of GPT-2) is trained on all but the last 2 % of them, which are held out. Each story starts with
id 0, `<|endoftext|>`, which is both BOS and EOS.
"""

import argparse
import json
import os
import re

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 2048
STORY_CHARS_MIN = 201
TRAIN_SHARE = 0.98


def read_stories(path):
    """The stories of a file, in printable ASCII, without the short ones."""
    with open(path, encoding="utf-8", errors="replace") as file:
        parts = file.read().split("<|end|>")
    stories = [re.sub(r"[^\x20-\x7e\n]", "", part).strip() for part in parts]
    return [story for story in stories if len(story) >= STORY_CHARS_MIN]


def train_tokenizer(stories):
    """A byte-level BPE whose id 0 is `<|endoftext|>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(stories, trainer)
    return tokenizer


def encode(tokenizer, stories):
    """One stream of ids: 0, story, 0, story, and so on."""
    ids = []
    for encoding in tokenizer.encode_batch(stories):
        ids.append(0)
        ids += encoding.ids
    return np.array(ids, dtype=np.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stories")
    parser.add_argument("out_dir")
    args = parser.parse_args()
    os.makedirs(args.out_dir, exist_ok=True)

    stories = read_stories(args.stories)
    split = int(len(stories) * TRAIN_SHARE)
    train_stories, held_out = stories[:split], stories[split:]
    tokenizer = train_tokenizer(train_stories)
    tokenizer.save(f"{args.out_dir}/tokenizer.json")
    train_ids = encode(tokenizer, train_stories)
    held_out_ids = encode(tokenizer, held_out)
    train_ids.tofile(f"{args.out_dir}/train.bin")
    held_out_ids.tofile(f"{args.out_dir}/val.bin")
    meta = {
        "train_tokens": len(train_ids),
        "val_tokens": len(held_out_ids),
        "val_bytes": sum(len(story.encode()) for story in held_out),
        "vocab": tokenizer.get_vocab_size(),
    }
    with open(f"{args.out_dir}/meta.json", "w", encoding="utf-8") as file:
        json.dump(meta, file)
    bytes_per_token = sum(len(story) for story in held_out) / len(held_out_ids)
    print(len(train_stories), "stories; train tokens", len(train_ids), end=" ")
    print("val", len(held_out_ids), "bytes/token", bytes_per_token)


if __name__ == "__main__":
    main()
