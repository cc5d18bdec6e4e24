"""What a token leaves behind: bytes of K and V."""

from typing import Any

from twophase_labs.machine.checks import Draw, compare, reject, unchanged
from twophase_labs.machine.exercise import exercise

KV_BYTES = exercise("1.9", "Bytes per token", "kv_bytes_per_token", points=3, minutes=4, lines=2, time_limit_s=5)
KV_BYTES.objective = "compute what a token's keys and values take, from a model's configuration"
KV_BYTES.hints = (
    "Work out Llama-3-8B on paper: 32 layers, 8 key/value heads of 128 elements, 2 bytes each.",
    "Two tensors per layer, K and V; their rows belong to the key/value heads, not to the query heads.",
    "`config.get(name, default)` covers what a file may leave out. The product has five factors.",
)

CONFIGS: dict[str, dict[str, int]] = {
    "grouped": {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 256},
    "one KV head": {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 120},
    "SmolLM2": {
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "head_dim": 64,
    },
    "Llama-3-8B": {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
}


def measured_bytes(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """What the tensors of one token take, by asking tensors."""
    import torch

    dtype = {1: torch.int8, 2: torch.float16, 4: torch.float32}[bytes_per_value]
    k, v = (torch.zeros(num_layers, num_kv_heads, head_dim, dtype=dtype) for _ in range(2))
    return k.nbytes + v.nbytes


def random_config(draw: Draw) -> dict[str, int]:
    kv_heads, group = draw.integer(1, 9), draw.integer(2, 7)
    return {
        "num_hidden_layers": draw.integer(2, 99),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "hidden_size": kv_heads * group * 8 * draw.integer(1, 25),
        "vocab_size": draw.integer(100, 1000),
    }


@KV_BYTES.check(
    "counts keys and values of all layers", model=("grouped", "one KV head", "SmolLM2", "Llama-3-8B", "random")
)
def counts_keys_and_values(answer: Any, draw: Draw, model: str) -> None:
    """Per layer: one K and one V, a row of head_dim values for each key/value head."""
    config = CONFIGS.get(model) or random_config(draw)
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    expected = measured_bytes(config["num_hidden_layers"], config["num_key_value_heads"], head_dim, 2)
    got = answer.kv_bytes_per_token(dict(config), 2)
    if isinstance(got, float) and got == int(got):
        reject(f"the number of bytes is the float {got!r}", "Bytes are counted: `//` where you divide.")
    compare(got, expected, what=f"the number of bytes of {config}")


@KV_BYTES.check("follows the width of a value", bytes_per_value=(1, 4))
def scales_with_width(answer: Any, draw: Draw, bytes_per_value: int) -> None:
    """fp32 has 4 bytes, fp16 and bf16 have 2, int8 has 1: the second argument says which."""
    config = CONFIGS["grouped"]
    got = answer.kv_bytes_per_token(dict(config), bytes_per_value)
    compare(got, measured_bytes(3, 2, 32, bytes_per_value), what="the number of bytes")


@KV_BYTES.check("believes a head_dim that the file states", is_larger=(True, False))
def believes_the_head_dim(answer: Any, draw: Draw, is_larger: bool) -> None:
    """In some models (Qwen3, Mistral Nemo) heads * head_dim is not hidden_size; then the file says so."""
    head_dim = 8 * (draw.integer(9, 20) if is_larger else draw.integer(2, 8))  # not 1024 / 16
    kv_heads = draw.choice((1, 2, 4, 8))
    config = {
        "num_hidden_layers": draw.integer(1, 5),
        "num_attention_heads": 16,
        "num_key_value_heads": kv_heads,
        "hidden_size": 1024,
        "head_dim": head_dim,
    }
    expected = measured_bytes(config["num_hidden_layers"], kv_heads, head_dim, 2)
    with unchanged(config=config):
        compare(answer.kv_bytes_per_token(config, 2), expected, what="the number of bytes")


@KV_BYTES.check("reads files without num_key_value_heads", head_dim=(16, 16, 24, 8), max_heads=(5, 10, 40, 20))
def knows_older_files(answer: Any, draw: Draw, head_dim: int, max_heads: int) -> None:
    """Without the entry every attention head has its own keys and values. A head_dim may be stated all the same."""
    # `head_dim` 16 follows from the width, and is not stated. No number of heads suits all cases.
    num_heads = draw.integer(max_heads // 2 + 1, max_heads + 1)
    config = {"num_hidden_layers": 2, "num_attention_heads": num_heads, "hidden_size": 16 * num_heads}
    if head_dim != 16:
        config["head_dim"] = head_dim
    try:
        with unchanged(config=config):
            got = answer.kv_bytes_per_token(config, 2)
    except KeyError as error:
        reject(f"a config.json without {error} is refused", "Files older than grouped-query attention lack it.")
    compare(got, measured_bytes(2, num_heads, head_dim, 2), what="the number of bytes")
