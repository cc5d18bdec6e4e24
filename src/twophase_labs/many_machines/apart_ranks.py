"""Prompts computed in one process, decoded in another; what it took, as a line of JSON.

run_local("twophase_labs.many_machines.apart_ranks", 2)       rank 0 decodes, rank 1 computes prompts
"""

import json
from collections.abc import Sequence
from typing import Any

import torch

from twophase import LLM, SamplingParams
from twophase_labs.many_machines.one_process import OPTIONS

PROMPTS = tuple(tuple(range(start, start + length)) for start, length in ((700, 40), (800, 128), (1000, 250)))
WATCHED = 2  # the prompt whose transfer is measured
NUM_NEW = 12


def answers(llm: LLM, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[list[int]]:
    """Greedy tokens, all prompts at once."""
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return [list(each.outputs[0].token_ids) for each in llm.generate(inputs, params, use_tqdm=False)]


def watch_transfer(llm: LLM) -> dict[str, float]:
    """The longest prompt alone, four times: the best of each time in its record, for other programs only ever add."""
    engine: Any = llm.engine  # a DecodeEngine
    engine.take_transfers()
    records, prefills = [], []
    for _ in range(4):
        prompt = {"prompt_token_ids": list(PROMPTS[WATCHED])}
        llm.generate(prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
        sent, done = engine.take_transfers()
        records.append(sent[0])
        prefills.append(done[0])
    names = ("num_bytes", "pack_s", "send_s", "late_s")
    found = {name: min(float(getattr(record, name)) for record in records) for name in names}
    return found | {"prefill_s": min(done.prefill_s for done in prefills)}


def main() -> None:
    from twophase_features.parallel.disaggregation import disaggregated  # which only ranks need

    torch.set_num_threads(1)
    with disaggregated(**OPTIONS, step_timeout_s=120, startup_timeout_s=300) as llm:
        if llm is not None:
            print(json.dumps({"token_ids": answers(llm), "transfer": watch_transfer(llm)}))


if __name__ == "__main__":
    main()
