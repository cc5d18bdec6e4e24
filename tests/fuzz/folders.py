"""Model folders with something odd in them: each opens and generates, or is refused by name."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from tests.engine.tokenizers_for_tests import byte_level
from tests.fuzz.rule import FindingError, refusing_clearly, require_clear
from tests.model.tiny import FAMILIES, make_folder
from twophase import LLM, SamplingParams
from twophase.core.errors import TwophaseError

ODD_JSON = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e-300, 1e300, 10**9, 10**30, "", "x", "auto", "yarn", "gptq", "../x",
    "/etc/hostname", [], [1], ["x"], [["x"]], [None], {}, {"x": 1}, {"rope_type": "yarn"}, {"rope_theta": "x"},
)  # fmt: skip
ODD_BYTES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"a": NaN}',
    b"[" * 100_000,
    b"0" * 5000,
    b"\0" * 64,
)
CONFIG_KEYS = (
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
    "rope_theta", "rope_scaling", "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "hidden_act", "eos_token_id", "dtype", "torch_dtype",
    "quantization_config", "auto_map", "num_local_experts",
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step",
    "mlp_only_layers",
)  # fmt: skip
OPTIONS = {"max_model_len": None, "num_kv_blocks": 64, "max_num_seqs": 2, "block_size": 4}


class Folders:
    """Copies of small folders, each changed in one to three places."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tally: Counter[str] = (
            Counter()
        )  # of folders: opened, refused, and those that opened and generated nonsense

    @cached_property
    def _originals(self) -> list[Path]:
        made = []
        for family in FAMILIES:
            folder = self._folder / "originals" / family
            make_folder(family, folder, vocab_size=byte_level().vocab_size)
            made.append(folder)
        sharded = self._folder / "originals" / "sharded"
        _, model = make_folder("llama", sharded, vocab_size=byte_level().vocab_size)
        (sharded / "model.safetensors").unlink()
        model.save_pretrained(sharded, max_shard_size="40KB")
        for folder in (*made, sharded):
            byte_level().tokenizer.save(str(folder / "tokenizer.json"))
            template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
            (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return [*made, *[sharded] * 4]

    def try_one(self, random: Random) -> None:
        """Change a folder, open it, generate.

        Raises:
            FindingError: Anything but a clear refusal or an output.
        """
        folder = self._folder / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(random.choice(self._originals), folder)
        changes = [random.choice(CHANGES)(random, folder) for _ in range(random.choice((1, 1, 2, 3)))]
        what = f"{', '.join(changes)}"
        try:
            with refusing_clearly(what), LLM(folder, **OPTIONS) as llm:
                params = SamplingParams(max_tokens=3, temperature=0)
                (output,) = llm.generate({"prompt_token_ids": [3, 4, 5]}, params, use_tqdm=False)
                if llm.tokenizer is not None:
                    llm.chat([{"role": "user", "content": "hi"}], params, use_tqdm=False)
        except TwophaseError:
            self.tally["refused"] += 1
            return
        self.tally["opened"] += 1
        (completion,) = output.outputs
        if completion.finish_reason == "error":  # weights may be nonsense; what is said of it may not
            require_clear(str(completion.error), what)
        elif not completion.token_ids:
            raise FindingError(f"{what}: generated nothing")


def _change_config(random: Random, folder: Path) -> str:
    path = folder / "config.json"
    config = _read(path)
    key = random.choice(CONFIG_KEYS)
    value = config[key] = random.choice(ODD_JSON)
    _write(path, config)
    return f"config.json {key} = {value!r}"


def _drop_from_config(random: Random, folder: Path) -> str:
    path = folder / "config.json"
    config = _read(path)
    key = random.choice(sorted(config)) if config else ""
    config.pop(key, None)
    _write(path, config)
    return f"config.json without {key}"


def _change_other_json(random: Random, folder: Path) -> str:
    name, key = random.choice(
        (
            ("generation_config.json", "eos_token_id"),
            ("tokenizer_config.json", "chat_template"),
            ("tokenizer_config.json", "eos_token"),
            ("tokenizer_config.json", "added_tokens_decoder"),
            ("tokenizer.json", "model"),
            ("tokenizer.json", "decoder"),
            ("tokenizer.json", "added_tokens"),
            ("model.safetensors.index.json", "weight_map"),
        )
    )
    content = _read(folder / name)
    value = content[key] = random.choice((*ODD_JSON, [{"name": "default"}], [{"template": "x"}]))
    _write(folder / name, content)
    return f"{name} {key} = {value!r}"


def _change_index(random: Random, folder: Path) -> str:
    path = folder / "model.safetensors.index.json"
    index = _read(path)
    weights = index.get("weight_map") if isinstance(index.get("weight_map"), dict) else {}
    if not weights:
        weights = {"lm_head.weight": "model.safetensors"}
    key = random.choice(sorted(weights))
    outside = str(folder.parent / "originals" / "llama" / "model.safetensors")
    value = weights[key] = random.choice(
        (None, 3, "", ".", "missing.safetensors", outside, "../originals/llama/model.safetensors")
    )
    _write(path, {"weight_map": weights})
    return f"index {key} -> {value!r}"


def _change_bytes(random: Random, folder: Path) -> str:
    path = random.choice(sorted(folder.iterdir()))
    if not path.is_file():
        return "nothing"
    data = path.read_bytes()
    kind = random.choice(("replaced", "cut", "flipped", "removed", "a folder"))
    path.unlink()
    if kind == "replaced":
        path.write_bytes(random.choice(ODD_BYTES))
    elif kind == "cut":
        path.write_bytes(data[: random.randrange(len(data) + 1)])
    elif kind == "flipped" and data:
        changed = bytearray(data)
        for _ in range(8):
            changed[random.randrange(min(len(changed), 2000))] = random.randrange(256)
        path.write_bytes(bytes(changed))
    elif kind == "a folder":
        path.mkdir()
    return f"{path.name} {kind}"


CHANGES: tuple[Callable[[Random, Path], str], ...] = (
    _change_config, _change_config, _change_config, _drop_from_config, _change_other_json, _change_index, _change_bytes,
)  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    """What an earlier change may have broken counts as empty."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    if path.is_dir():
        path.rmdir()
    path.write_text(json.dumps(content))
