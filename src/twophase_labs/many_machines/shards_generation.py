"""One generation, watched: in this process, or as rank 0 of several.

run_local("twophase_labs.many_machines.shards_generation", 2)      prints a line of JSON on rank 0
"""

import json
import os
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch

from twophase import LLM, SamplingParams
from twophase_labs.many_machines.one_process import OPTIONS

PROMPT = tuple(range(500, 524))
LONG_PROMPT = tuple(range(600, 856))
NUM_NEW = 20


@dataclass(frozen=True)
class Generation:
    """What came out, and what it took.

    Attributes:
        logprobs: Of the tokens chosen.
        decode_s: Median seconds of a decode step; `prefill_s` of a step that computes 256 tokens.
        kv_bytes_per_token: In this process.
        num_all_reduces, all_reduce_bytes, all_reduce_s: Of generating `token_ids`; 0 for one process.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    decode_s: float
    prefill_s: float
    kv_bytes_per_token: int
    num_all_reduces: int = 0
    all_reduce_bytes: int = 0
    all_reduce_s: float = 0.0


def generation(llm: LLM) -> Generation:
    """Greedy tokens of `PROMPT`, then a step of `LONG_PROMPT`."""
    warm_up = SamplingParams(temperature=0, max_tokens=2)
    llm.generate({"prompt_token_ids": list(PROMPT)}, warm_up, use_tqdm=False)
    before = _all_reduces(llm)
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True, logprobs=1)
    num_steps = len(llm.engine.trace)
    output = llm.generate({"prompt_token_ids": list(PROMPT)}, params, use_tqdm=False)[0].outputs[0]
    counted = [after - earlier for after, earlier in zip(_all_reduces(llm), before, strict=True)]
    decode_s = statistics.median(step.run_s for step in llm.engine.trace[num_steps + 1 :])
    llm.generate({"prompt_token_ids": list(LONG_PROMPT)}, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert output.logprobs is not None
    return Generation(
        output.token_ids,
        tuple(each.logprob for each in output.logprobs),
        decode_s,
        llm.engine.trace[-1].run_s,
        llm.kv_cache.spec.bytes_per_token,
        int(counted[0]),
        int(counted[1]),
        counted[2],
    )


def _all_reduces(llm: LLM) -> tuple[float, ...]:
    """Calls, bytes and seconds so far."""
    traffic: Any = getattr(llm.runner, "traffic", None)
    if traffic is None:
        return 0, 0, 0.0
    so_far = traffic["all_reduce"]
    return so_far.num_calls, so_far.num_bytes, so_far.elapsed_s


def main() -> None:
    torch.set_num_threads(1)
    size = int(os.environ["WORLD_SIZE"])
    with LLM(**OPTIONS, tensor_parallel_size=size) as llm:
        print(json.dumps(asdict(generation(llm))))


if __name__ == "__main__":
    main()
