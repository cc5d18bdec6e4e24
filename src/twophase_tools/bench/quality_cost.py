"""What fewer bits are for: bytes of the weights, and the time of a decode step."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.turns import in_turns

DECODE_BATCH, DECODE_CONTEXT, DECODE_STEPS, DECODE_ROUNDS = 8, 256, 6, 4


def weight_memory_bytes(weights: object) -> int:
    """Bytes of all tensors in a record of weights, with the plain copies that a CPU keeps for steps of many rows.

    Memory that several of them share counts once: a kernel may read oneDNN's own memory.
    """
    sizes: dict[object, int] = {}
    for tensor in _tensors(weights):
        if tensor.is_mkldnn:  # in oneDNN's own layout, without a storage to be asked
            key, num_bytes = (torch.ops.mkldnn.data_ptr(tensor), tensor.device), tensor.numel() * tensor.itemsize
        else:
            storage = tensor.untyped_storage()
            key, num_bytes = (storage.data_ptr(), tensor.device), storage.nbytes()
        sizes[key] = min(num_bytes, sizes.get(key, num_bytes))
    return sum(sizes.values())


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def decode_step_times(before: LLM, after: LLM, token_ids: Sequence[int]) -> tuple[float, float]:
    """Median seconds of a decode step of `DECODE_BATCH` sequences, the two in turns."""
    prompts = [{"prompt_token_ids": list(token_ids[i : i + DECODE_CONTEXT])} for i in range(DECODE_BATCH)]
    params = SamplingParams(temperature=0, max_tokens=DECODE_STEPS + 1, ignore_eos=True)

    def step_times(llm: LLM) -> list[float]:
        # The warm-up leaves the prompts in the prefix cache: from then on all sequences decode together.
        llm.generate(prompts, params, use_tqdm=False)
        steps = llm.engine.trace[-DECODE_STEPS:]
        return [step.run_s for step in steps if step.num_decodes == len(step.chunks) == DECODE_BATCH]

    ways = {"before": lambda _: step_times(before), "after": lambda _: step_times(after)}
    # A model so broken that its requests end with errors decodes nothing.
    times_s = [
        [step_s for steps_s in rounds for step_s in steps_s] for rounds in in_turns(ways, DECODE_ROUNDS).values()
    ]
    before_s, after_s = (statistics.median(of_llm) if of_llm else math.inf for of_llm in times_s)
    return before_s, after_s
