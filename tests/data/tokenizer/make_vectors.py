"""Makes vectors.json: strings and their token ids, by the reference package `tokenizers`.

    pip install tokenizers==0.23.3
    python make_vectors.py ../demo/ganglion-demo-14m.tokenizer.json vectors.json [random strings]

Each case is [text, ids, ids with the names of special tokens read as those tokens or null where
they are the same]. No BOS.
"""

import json
import random
import sys

from tokenizers import Tokenizer

HAND = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\t \t", "a", " a", "a ", "a  ",
    "Once upon a time, there was a little girl named Lily.",
    "I'll, we've, they're, it's, don't, I'm, he'd", "I'LL WE'VE IT'S", "'s't're've'm'll'd",
    "''s", " 's", "'sun", "'", "' s", "don''t", "x'lx'l", "'r", "'re", "'v e", "\u2019s it\u2019s",
    "12345", "1 2 3", "x12y34", "3.14159", "1,000,000", "a1b2c3", " 42", "  42",
    "\u00bd \u2167 \u0663\u0664 \u0967\u0968 \u4e09 \u2460 \U0001d7d8",
    "hello\u00a0world", "\u00a0", "\u00a0\u00a0x", "\u2003em", "\u3000\u3000", "a\u2028b",
    "a\u0085b",
    "\u200b zero width \u200d", "\ufeffbom", "\u180e", "\x00", "\x01\x1f\x7f", "a\x0bb\x0cc\x1cd",
    "e\u0301 o\u0308", "\u0301", " \u0301\u0301", "nai\u0308ve", "\u0e01\u0e33",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f",
    "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\U0001f642", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f!", " \U0001f680\U0001f680",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ",
    "<|endoftext|", "<<|endoftext|>>",
    "fn main() { println!(\"{}\", 1 << 3); }", "https://example.org/?q=a%20b&c=d#e", "____----====",
    "...!?!?",
    "#" * 40, " " * 33 + "x", "\n" * 17 + "x", "\t" * 5 + "\n" * 5 + " y", "x" + " " * 20,
    "a" * 100, "ab" * 60, "the" * 50, "aeiou" * 30, "\U0001f642" * 20, "\u0301" * 30,
    "thethethe andandand",
    "Lily" * 12, "supercalifragilisticexpialidocious" * 3, "\U0010ffff\U000e0001\ue000\uffff",
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ      ",
    "etaoinshr ' ,.",
    "0123456789 .,-+",
    " \t\n\r\u00a0\u2003\u3000\u0085\u2028x",
    "'stremvld ",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ a1",
    "\u00e9\u00fc\u00df\u00f1\u00e7 e\u0301\u0308\u0323",
    "\u0660\u0661\u06f5\u0967\u0e51\u2155\u2167\u2460\u3007\u4e00\U0001d7d8 1x",
    "\U0001f600\U0001f680\u2764\ufe0f\u200d\U0001f3fd x",
    "\u4f60\u597d\u4e16\u754c\uff0c\u3002\u30ab\u3099\uac00\u1100\u1161",
    "".join(map(chr, range(0x00, 0x20))) + "\x7f\u0080\u009f\u00ad",
]
WORDS = ("the a little girl named Lily was so happy to see big red ball and said yes let's play "
         "park mom dog Once upon time <|endoftext|> <| |> can't we'll 3 years 12th").split()


def one(rng):
    kind = rng.randrange(8)
    if kind == 0:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 20)))
    if kind == 1:
        gaps = ["", " ", "  ", ", ", "\n"]
        count = rng.randrange(1, 12)
        return "".join(rng.choice(WORDS) + rng.choice(gaps) for _ in range(count))
    if kind == 2:  # any scalar value
        span = rng.choice([0x80, 0x250, 0x3000, 0x10000, 0x110000])
        points = (rng.randrange(span) for _ in range(rng.randrange(1, 30)))
        return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)
    if kind == 3:  # one long piece
        letters = rng.choice(["ab", "the", "etaoin", "aA", "lo", "=-", "0123"])
        return "".join(rng.choice(letters) for _ in range(rng.randrange(20, 200)))
    if kind == 4:  # a mix
        letters = "".join(rng.choice(ALPHABETS) for _ in range(3))
        return "".join(rng.choice(letters) for _ in range(rng.randrange(1, 60)))
    letters = rng.choice(ALPHABETS)
    return "".join(rng.choice(letters) for _ in range(rng.randrange(1, 40)))


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 220
    rng = random.Random(1)
    cases = []
    for text in HAND + [one(rng) for _ in range(count)]:
        tokenizer.encode_special_tokens = True  # as text
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        special = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append([text, plain, special if special != plain else None])
    with open(sys.argv[2], "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
