"""Small tokenizers of the kinds that exist: byte-level BPE (GPT-2, SmolLM2), BPE with byte fallback (Llama 2), words."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.model.tiny import make_folder

TEXT = "The quick brown fox jumps over the lazy dog, doesn't it? Ünïcödé, 日本語, emoji 😀👍🏽, naïve café.\n\n  indented\t1234 "
END = "<|end|>"


class Decoder:
    """The engine's view of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.end_id = tokenizer.token_to_id(END)

    def encode(self, text: str, *, max_model_len: int | None = None) -> list[int]:
        return self.tokenizer.encode(text).ids

    def byte_id(self, *values: int) -> int:
        """The token that is these bytes."""
        characters = byte_level_characters()
        names = "".join(f"<0x{value:02X}>" for value in values), "".join(characters[value] for value in values)
        return next(token_id for name in names if (token_id := self.tokenizer.token_to_id(name)) is not None)

    def decode(self, ids, skip_special_tokens=True) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)


@cache
def byte_level() -> Decoder:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return Decoder(tokenizer)


@cache
def byte_fallback() -> Decoder:
    """Words start with '▁'; what has no token of its own is written as bytes '<0xE6>'; the text's first space is stripped."""
    pieces = [END, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += sorted(set("Thequickbrownfxjmpsvlazydgit'?,.é"))
    merges = [("▁", "t"), ("▁", "f"), ("▁", "o"), ("h", "e"), ("▁t", "he"), ("▁f", "o"), ("▁", "▁")]
    pieces += ["".join(merge) for merge in merges]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([END])
    return Decoder(tokenizer)


@cache
def glued_bytes() -> Decoder:
    """Byte-level, and each token is one to three bytes cut anyhow: a character and half of the next, two halves ..."""
    alphabet = dict(zip(range(256), byte_level_characters(), strict=True))
    text = "日本語👍🏽é\ufffda b".encode()
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += sorted({text[i : i + n] for n in (2, 3, 4, 5) for i in range(len(text) - n)})
    vocab = {END: 0} | {"".join(alphabet[byte] for byte in piece): i for i, piece in enumerate(pieces, 1)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return Decoder(tokenizer)


def byte_level_characters() -> list[str]:
    """How GPT-2 writes the bytes: printable ones as they are, the others from U+0100 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


@cache
def words() -> Decoder:
    """Word pieces (BERT): a decoder that puts spaces between tokens."""
    vocab = {END: 0, "[UNK]": 1} | {
        piece: i for i, piece in enumerate(["the", "fox", "##es", "##y", "dog", "日", "!"], 2)
    }
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens([END])
    return Decoder(tokenizer)


ALL = {"byte-level": byte_level, "byte fallback": byte_fallback, "glued bytes": glued_bytes, "words": words}
KINDS = {"byte-level": byte_level, "byte fallback": byte_fallback}


def make_text_folder(folder: Path, codec: Decoder | None = None, family: str = "llama", **changes):
    """A random model with the vocabulary of a tokenizer, which is saved beside it; as `make_folder` returns it."""
    codec = codec or byte_level()
    made = make_folder(family, folder, **{"vocab_size": codec.vocab_size, "eos_token_id": codec.end_id} | changes)
    codec.tokenizer.save(str(folder / "tokenizer.json"))
    return made
