"""A small mixture of experts with random weights: 16 experts in each of 4 layers, 2 for each token."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twophase import LLM, SamplingParams
from twophase_features.experts.load import ExpertLoad
from twophase_labs.many_machines.two_processes import said_by_rank_0, why_not

NUM_LAYERS, NUM_EXPERTS, NUM_CHOSEN, HIDDEN = 4, 16, 2, 64
OPTIONS: dict[str, Any] = {"device": "cpu", "num_kv_blocks": 256, "skip_tokenizer_init": True}
_folders: list[tempfile.TemporaryDirectory[str]] = []  # kept until the process ends


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars: they would be recorded in the notebook."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


@cache
def folder() -> Path:
    """Made by transformers, with a seed; deleted when this process ends."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=4096, hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=NUM_CHOSEN, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, dtype="float32",
        sliding_window=None,
    )  # fmt: skip
    torch.manual_seed(7)
    made = tempfile.TemporaryDirectory(prefix="twophase_moe_")
    _folders.append(made)
    model = MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.normal_(std=0.3)  # at the initial 0.02 all logits are nearly equal
    with quiet():
        model.save_pretrained(made.name)
    return Path(made.name)


@cache
def engine() -> LLM:
    """All experts in this process."""
    return LLM(str(folder()), **OPTIONS)


def prompts(count: int, length: int = 24, seed: int = 0) -> list[dict[str, list[int]]]:
    """Random token ids, the same in each run; those of another seed share no prefix with them."""
    generator = torch.Generator().manual_seed(1000 * seed + count)
    return [{"prompt_token_ids": torch.randint(3, 4096, (length,), generator=generator).tolist()} for _ in range(count)]


def answers(llm: LLM, count: int = 4, num_new: int = 16, seed: int = 0) -> list[list[int]]:
    """Greedy tokens of some prompts, all at once."""
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts(count, seed=seed), params, use_tqdm=False)]


@cache
def touched(num_sequences: int) -> float:
    """Experts of a layer that a decode step reads, on average over layers and steps."""
    with ExpertLoad(engine().model) as load:
        answers(engine(), num_sequences, num_new=25)
    return float(load.num_active_experts[1:].double().mean())  # the first step reads the prompts


@cache
def prompt_load(num_sequences: int) -> Tensor:
    """Rows of each expert [L, E] when the prompts of so many sequences are computed in one step. No other function asks
    for these prompts: what the prefix cache holds would not be computed."""
    with ExpertLoad(engine().model) as load:
        answers(engine(), num_sequences, num_new=1, seed=1)
    return load.tokens_per_expert[0]


@dataclass(frozen=True)
class Layer:
    """One layer's mixture as plain tensors and functions: router [E, N], an MLP for each expert, inputs x [T, N]."""

    router: Tensor
    experts: Sequence[Any]
    x: Tensor
    expected: Tensor


@torch.no_grad()
def a_layer(index: int = 1, num_tokens: int = 48) -> Layer:
    """What goes into a layer's experts when transformers reads a prompt, and what it makes of it."""
    from transformers import MixtralForCausalLM

    path = folder()
    with quiet():
        model = MixtralForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    seen: dict[str, Tensor] = {}

    def note(module: Any, inputs: Any, output: Any) -> None:
        seen["x"] = inputs[0].flatten(0, 1).clone()
        seen["y"] = (output[0] if isinstance(output, tuple) else output).flatten(0, 1).clone()

    handle = model.model.layers[index].mlp.register_forward_hook(note)
    model(torch.tensor([prompts(1, num_tokens)[0]["prompt_token_ids"]]))
    handle.remove()
    sparse: Any = engine().model.weights.layers[index].mlp

    def expert(number: int) -> Any:
        def compute(rows: Tensor) -> Tensor:
            gate, up = sparse.gate_up.layers[number](rows).chunk(2, dim=-1)
            result: Tensor = sparse.down.layers[number](torch.nn.functional.silu(gate) * up)
            return result

        return compute

    router: Tensor = model.model.layers[index].mlp.gate.weight.detach()
    return Layer(router, [expert(number) for number in range(NUM_EXPERTS)], seen["x"], seen["y"])


@dataclass(frozen=True)
class Shared:
    """The same prompts on one process and on two with half of the experts each. `num_calls`: collectives by name."""

    alone: list[list[int]]
    shared: list[list[int]] | None
    num_calls: Mapping[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    num_steps: int = 0
    why_not: str = ""


@cache
def in_two_processes() -> Shared:
    """Two ranks; `shared` is None where there cannot be two."""
    alone = answers(engine())
    if why_not():
        return Shared(alone, None, why_not=why_not())
    said = said_by_rank_0("twophase_labs.many_machines.small_moe", str(folder()))
    return Shared(alone, **said)


def main(path: str) -> None:
    """What each of two ranks runs."""
    torch.set_num_threads(1)
    with LLM(path, **OPTIONS, tensor_parallel_size=2, enable_expert_parallel=True) as llm:
        runner: Any = llm.runner
        if runner is None:
            return
        found = answers(llm)
        names = {"all_to_all": "all-to-alls", "all_gather": "all-gathers"}
        num_calls = {shown: runner.traffic[name].num_calls for name, shown in names.items()}
        said = {"shared": found, "num_calls": num_calls, "num_bytes": runner.traffic["all_to_all"].num_bytes}
        print(json.dumps(said | {"num_steps": len(llm.engine.trace)}))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
