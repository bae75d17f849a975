"""Makes vectors.json, pre.json and spm.json: strings and their token ids, by reference packages.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    python make_vectors.py ../demo/ganglion-demo-14m.tokenizer.json

vectors.json: the demo's tokenizer. Each case is [text, ids, ids with the names of special tokens
read as those tokens or null where they are the same]. No BOS.

pre.json: the demo's vocabulary under other expressions, [text, ids of smollm, of qwen2, of
llama-bpe]; for the last one every fifth merge is left out, so that some tokens are found as whole
pieces only.

spm.json: a SentencePiece vocabulary of the demo's tokens that are whole characters. Token i has the
score -(i // 4), so that many are equal. Cases are [text, ids], by `sentencepiece`.
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

# What the expressions of qwen2 and llama-bpe and SentencePiece treat in ways of their own.
MORE = [
    "I'Ll WE'VE 'TIS 'S'T'RE'VE'M'LL'D", "'\u017fun x'\u017f", "(we) [a] \"b\" _c_ -d",
    "!x ?x\tx\u00a0x", "1234567 1 12 123 1234 a12 12a", "\u0663\u0664\u0665\u0666 \u00bd\u00be",
    "!\n\n?\r\n...\n x", "a \n\n  b", "  \n\t\n  ", "\n  x\n   y\n", "\r\r\n",
    "x = {\n    'a': 1,\n}\n", "\u2581", "a\u2581b \u2581 c", "\u2581\u2581 \u2581", "<s>",
    "</s> <unk>", "<0x41>", "aaaaaaa", "lalalalalal ininin", "the  the   the",
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


def reference_vectors(path, count):
    tokenizer = Tokenizer.from_file(path)
    rng = random.Random(1)
    for text in HAND + [one(rng) for _ in range(count)]:
        tokenizer.encode_special_tokens = True  # as text
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        special = tokenizer.encode(text, add_special_tokens=False).ids
        yield [text, plain, special if special != plain else None]


def write(name, head, cases, tail):
    with open(name, "w", encoding="ascii") as file:
        file.write(head + ",\n".join(json.dumps(case) for case in cases) + tail)


def main():
    import reference

    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        model = json.load(file)["model"]
    write("vectors.json", "[\n", reference_vectors(path, 220), "\n]\n")

    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(merge) for merge in model["merges"]]
    types = [reference.CONTROL] + [reference.NORMAL] * (len(tokens) - 1)
    lists = {"smollm": merges, "qwen2": merges, "llama-bpe": reference.thinned(merges)}
    byte_level = [reference.bpe(tokens, types, lists[pre], pre) for pre in lists]
    rng = random.Random(4)
    texts = HAND + MORE + [one(rng) for _ in range(60)]
    ids_of = lambda text: [reference.ids_of(each, text, False) for each in byte_level]
    write("pre.json", "[\n", ([text, *ids_of(text)] for text in texts), "\n]\n")

    demo = Tokenizer.from_file(path)
    spoken = [demo.decode([id]) for id in range(1, len(tokens))]
    spoken = [text.replace(" ", "\u2581") for text in spoken]
    spoken = [text for text in spoken if "\ufffd" not in text and text != "\0"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + spoken
    types = [reference.UNKNOWN] + [reference.CONTROL] * 2 + [reference.BYTE] * 256
    types += [reference.NORMAL] * len(spoken)
    pieces = reference.sentencepiece(tokens, types, [-(i // 4) for i in range(len(tokens))])
    head = '{"tokens": ' + json.dumps(tokens) + ',\n"cases": [\n'
    write("spm.json", head, ([text, pieces.encode(text)] for text in texts), "\n]}\n")


if __name__ == "__main__":
    main()
