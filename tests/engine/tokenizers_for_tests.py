"""Two small tokenizers of the kinds that exist: byte-level BPE (GPT-2, SmolLM2) and BPE with byte fallback (Llama 2)."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = "The quick brown fox jumps over the lazy dog, doesn't it? Ünïcödé, 日本語, emoji 😀👍🏽, naïve café.\n\n  indented\t1234 "
END = "<|end|>"


class Decoder:
    """The engine's view of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.end_id = tokenizer.token_to_id(END)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

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


KINDS = {"byte-level": byte_level, "byte fallback": byte_fallback}
