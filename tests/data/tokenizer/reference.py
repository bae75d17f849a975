"""Reference tokenizers built from a GGUF's vocabulary; prints strings and their ids.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf gguf
    python reference.py [--pre NAME] [--llama LLAMA_TOKENIZE] MODEL.gguf COUNT

A line of JSON for each string: [text, ids, ids with the names of special tokens read as those
tokens, text decoded from the ids]. No BOS. Half as many lines [null, ids, null, text] are of normal
tokens picked at random, decoded. The suite `tokenizer` runs this and compares. Byte-level
vocabularies go through the package `tokenizers`, SentencePiece ones through `sentencepiece` (which
reads no names of special tokens: these ids are from `tokenizers` there). With --llama the ids with
special tokens are those of llama.cpp's llama-tokenize. With --pre a byte-level vocabulary is cut by
another expression, and every fifth merge is left out. Strings have no character that the
tables of Python's `unicodedata` do not know: what it is depends on the version of Unicode.
"""

import argparse
import json
import random
import subprocess
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import make_vectors

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(pre):
    """How the models' own tokenizer.json files cut a text."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "gpt-2":
        return gpt2
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    words = Regex(WORDS % {"qwen2": "", "llama-bpe": "{1,3}"}[pre])
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(words, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def bpe(tokens, types, merges, pre):
    """A byte-level tokenizer of the package `tokenizers`."""
    vocab = {token: id for id, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    model = models.BPE(vocab, pairs, ignore_merges=pre == "llama-bpe")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = byte_level(pre)
    tokenizer.decoder = decoders.ByteLevel()
    add(tokenizer, tokens, types)
    return tokenizer


def thinned(merges):
    """Leaves tokens that only a whole piece can be."""
    return [merge for rank, merge in enumerate(merges) if rank % 5 != 4]


def write_vocabulary(path, tokens, types, merges, pre):
    """A GGUF without tensors, as llama-tokenize takes it."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    control = types.index(CONTROL)
    writer.add_bos_token_id(control)
    writer.add_eos_token_id(control)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def spm_merges(vocab, scores):
    """Every way to cut every token into two, the highest score first."""
    found = []
    for token, id in vocab.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        local = [(vocab[l], vocab[r], l, r) for l, r in cuts if l in vocab and r in vocab]
        found += [(-scores[id], l, r) for _, _, l, r in sorted(local)]
    found.sort(key=lambda entry: entry[0])
    return [(l, r) for _, l, r in found]


def spm_as_bpe(tokens, types, scores):
    """A SentencePiece vocabulary in the package `tokenizers`, as Llama 2's own file has it."""
    vocab = {token: id for id, token in enumerate(tokens)}
    text = {t: id for t, id in vocab.items() if types[id] in (NORMAL, USER_DEFINED)}
    unknown = tokens[types.index(UNKNOWN)]
    model = models.BPE(vocab, spm_merges(text, scores), unk_token=unknown, fuse_unk=True,
                       byte_fallback=True)
    tokenizer = Tokenizer(model)
    space = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    add(tokenizer, tokens, types)
    return tokenizer


def add(tokenizer, tokens, types):
    kinds = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
    added = [(token, kinds[ty]) for token, ty in zip(tokens, types) if ty in kinds]
    make = lambda token, special: AddedToken(token, special=special, normalized=False)
    tokenizer.add_special_tokens([make(token, True) for token, special in added if special])
    tokenizer.add_tokens([make(token, False) for token, special in added if not special])


def sentencepiece(tokens, types, scores):
    """The same vocabulary in SentencePiece's own library."""
    from sentencepiece import SentencePieceProcessor
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model = ModelProto()
    kinds = {NORMAL: 1, UNKNOWN: 2, CONTROL: 3, USER_DEFINED: 4, UNUSED: 5, BYTE: 6}
    for token, ty, score in zip(tokens, types, scores):
        model.pieces.add(piece=token, score=score, type=kinds[ty])
    model.trainer_spec.model_type = 2  # BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(tokens)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    return SentencePieceProcessor(model_proto=model.SerializeToString())


def ids_of(tokenizer, text, special):
    tokenizer.encode_special_tokens = not special
    return tokenizer.encode(text, add_special_tokens=False).ids


def llama_tokenize(tool, path, texts, separator, separator_id):
    """Ids of llama.cpp, many texts a call: a control token between two keeps them apart."""
    found = []
    for first in range(0, len(texts), 1000):
        part = texts[first:first + 1000]
        with tempfile.NamedTemporaryFile("wb", suffix=".txt") as file:
            file.write(separator.join(part).encode())
            file.flush()
            out = subprocess.run(
                [tool, "-m", path, "-f", file.name, "--ids", "--no-bos", "--no-escape",
                 "--log-disable"], capture_output=True, check=True).stdout
        ids = json.loads(out[out.rindex(b"["):])
        lists = [[]]
        for id in ids:
            if id == separator_id:
                lists.append([])
            else:
                lists[-1].append(id)
        assert len(lists) == len(part), (len(lists), len(part))
        found += lists
    return found


def strings(count, names):
    rng = random.Random(2)
    known = lambda text: all(unicodedata.category(c) != "Cn" for c in text)
    texts = [text for text in make_vectors.HAND if known(text)]
    while len(texts) < count:
        text = make_vectors.one(rng)
        if rng.randrange(6) == 0 and names:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(names) + text[at:]
        if known(text):
            texts.append(text)
    return texts


def main():
    from gguf import GGUFReader

    parser = argparse.ArgumentParser()
    parser.add_argument("--pre")
    parser.add_argument("--llama")
    parser.add_argument("model")
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    fields = GGUFReader(given.model).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    rng = random.Random(3)
    tokens, types = get("tokens"), get("token_type")
    names = [token for token, ty in zip(tokens, types) if ty in (CONTROL, UNKNOWN, USER_DEFINED)]
    texts = strings(given.count, names)
    is_scored = get("model") == "llama"
    if is_scored:
        scores = get("scores")
        tokenizer = spm_as_bpe(tokens, types, scores)
        pieces = sentencepiece(tokens, types, scores)
        plain = pieces.encode(texts)
        decode = pieces.decode
    else:
        merges = thinned(get("merges")) if given.pre else get("merges")
        tokenizer = bpe(tokens, types, merges, given.pre or get("pre"))
        plain = [ids_of(tokenizer, text, False) for text in texts]
        decode = tokenizer.decode
    special = [ids_of(tokenizer, text, True) for text in texts]
    if given.llama:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            model = given.model
            if given.pre:
                model = file.name
                write_vocabulary(model, tokens, types, merges, given.pre)
            separator = next(t for t, ty in zip(tokens, types) if ty == CONTROL)
            # A byte the vocabulary lacks is no token, but llama.cpp lets no merge go over it.
            said = lambda index: is_scored or decode(plain[index]) == texts[index]
            kept = [index for index, text in enumerate(texts)
                    if text and separator not in text and said(index)]
            kept_texts = [texts[index] for index in kept]
            separator_id = tokens.index(separator)
            theirs = llama_tokenize(given.llama, model, kept_texts, separator, separator_id)
        special = [None] * len(texts)
        for index, ids in zip(kept, theirs):
            special[index] = ids
    for text, ids, special_ids in zip(texts, plain, special):
        print(json.dumps([text, ids, special_ids, decode(ids)]))
    normal = [id for id, ty in enumerate(types) if ty == NORMAL]
    for _ in range(given.count // 2):
        ids = [rng.choice(normal) for _ in range(rng.randrange(1, 20))]
        print(json.dumps([None, ids, None, decode(ids)]))


if __name__ == "__main__":
    main()
