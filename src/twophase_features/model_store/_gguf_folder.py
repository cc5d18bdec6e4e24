"""Turn a quantised Llama GGUF file into the files of a plain Hugging Face folder.

Supports only the default model's format: architecture `llama`, tied embeddings, a byte-level BPE vocabulary.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from twophase.core.errors import ModelFolderError
from twophase_features.quantization.gguf_file import GGUFWeights, field_of, hugging_face_name, open_gguf
from twophase_features.quantization.weight import QuantizedWeight

WEIGHTS_FILE = "model.safetensors"

CONTROL_TOKEN = 3  # gguf's TokenType.CONTROL


class GGUFModel:
    """A GGUF file opened for conversion. Immutable after construction; tensors are read from disk when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = open_gguf(path)
        architecture = self.field("general.architecture")
        if architecture != "llama" or self.field("tokenizer.ggml.pre") != "smollm":
            raise ModelFolderError(f"{path}: only SmolLM GGUF files can be converted, this one is {architecture!r}.")

    def field(self, name: str) -> Any:
        return field_of(self._reader, name)

    @property
    def weight_bytes(self) -> int:
        """Size of all weights in bf16."""
        return 2 * sum(int(tensor.n_elements) for tensor in self._reader.tensors)

    def config(self) -> dict[str, Any]:
        hidden_size, num_heads = self.field("llama.embedding_length"), self.field("llama.attention.head_count")
        return {
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "head_dim": hidden_size // num_heads,
            "hidden_act": "silu",
            "hidden_size": hidden_size,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "max_position_embeddings": self.field("llama.context_length"),
            "model_type": "llama",
            "num_attention_heads": num_heads,
            "num_hidden_layers": self.field("llama.block_count"),
            "num_key_value_heads": self.field("llama.attention.head_count_kv"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            # The file holds float32: 9.99999974e-06 was written as 1e-05.
            "rms_norm_eps": float(f"{self.field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": self.field("llama.rope.freq_base"),
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": self.field("llama.vocab_size"),
        }

    def special_tokens(self) -> dict[str, str]:
        tokens = self.field("tokenizer.ggml.tokens")
        roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        return {role: tokens[self.field(f"tokenizer.ggml.{name}_token_id")] for role, name in roles.items()}

    def tokenizer_config(self) -> dict[str, Any]:
        return {
            **self.special_tokens(),
            "add_prefix_space": False,
            "chat_template": self.field("tokenizer.chat_template"),
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.field("llama.context_length"),
            # Not GPT2Tokenizer: transformers 5 rebuilds that class from vocabulary and merges alone, and so loses the
            # digit splitting of tokenizer.json.
            "tokenizer_class": "PreTrainedTokenizerFast",
        }

    def generation_config(self) -> dict[str, Any]:
        return {key: self.config()[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}

    def tokenizer_json(self) -> str:
        """Byte-level BPE (GPT-2) after splitting off every single digit, as SmolLM was trained."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self.field("tokenizer.ggml.token_type")
        control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
        return tokenizer.to_str(pretty=True)

    def weights(self, on_progress: Callable[[int], object]) -> bytes:
        """All tensors in bf16 as the bytes of a safetensors file; reports bytes dequantised as it goes."""
        shapes = {hugging_face_name(each.name): tuple(map(int, each.shape[::-1])) for each in self._reader.tensors}
        stored, tensors = GGUFWeights(self.path, shapes), {}
        for name in shapes:
            values = stored.read(name)
            plain = values.dequantize() if isinstance(values, QuantizedWeight) else values
            tensors[name] = plain.to(torch.bfloat16).contiguous()
            on_progress(tensors[name].nbytes)
        return save(tensors, metadata={"format": "pt"})

    def files(self, as_stored: bool, on_progress: Callable[[int], object]) -> dict[str, Callable[[], bytes]]:
        """File name -> how to make its bytes. The weights come first: in bf16, or the GGUF file itself."""
        contents = {
            "config.json": self.config,
            "tokenizer_config.json": self.tokenizer_config,
            "special_tokens_map.json": self.special_tokens,
            "generation_config.json": self.generation_config,
        }
        weights = self.path.read_bytes if as_stored else partial(self.weights, on_progress)
        return {
            self.path.name if as_stored else WEIGHTS_FILE: weights,
            "tokenizer.json": lambda: self.tokenizer_json().encode(),
            **{name: partial(_json_bytes, content) for name, content in contents.items()},
        }


def _json_bytes(content: Callable[[], Mapping[str, Any]]) -> bytes:
    return (json.dumps(content(), indent=2) + "\n").encode()
