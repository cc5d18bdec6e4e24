"""How often a step's sampling waits for the device, and sends to it: counted on a CPU, where each of them is a call."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.engine.test_sampler import VOCAB_SIZE, logits_of, row
from twophase.core.request import SamplingParams
from twophase.engine import runner, sampler
from twophase_features import score_edits, truncation

pytest.importorskip("triton", reason="not run here: no triton")

# On a GPU each of these waits until all that was queued is computed; or copies from memory that is not pinned, and waits.
WAITS = {
    torch.Tensor.tolist: "tolist", torch.Tensor.item: "item", torch.Tensor.nonzero: "nonzero", torch.Tensor.cpu: "cpu",
    torch.Tensor.numpy: "numpy", torch.Tensor.__bool__: "bool", torch.Tensor.__int__: "int", torch.Tensor.__len__: "",
}  # fmt: skip
LISTS = (list, tuple, np.ndarray)


class Counting(TorchFunctionMode):
    """Counts what would wait, by name. An index that is a list travels, too."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if name := WAITS.get(function):
            self.counts[name] += 1
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.counts["list as index"] += any(isinstance(each, list | np.ndarray) for each in index)
        if function in (torch.tensor, torch.as_tensor, torch.Tensor.to, torch.Tensor.new_tensor):
            self.counts["copy"] += 1
        return function(*args, **(kwargs or {}))


def uncounted(function, counts, name):
    """`function`, counted as one under its name, whatever it does."""

    def call(*args, **options):
        counts[name] += 1
        with torch._C.DisableTorchFunction():
            return function(*args, **options)

    return call


SEEN = [3, 5, 5, 7]
CASES = {
    "greedy": {"temperature": 0},
    "temperature": {},
    "truncated": {"top_p": 0.9, "top_k": 50, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.1, "top_p": 0.9},
    "log-probabilities": {"logprobs": 5},
    "all": {"repetition_penalty": 1.2, "top_p": 0.9, "logprobs": 3, "logit_bias": {4: 1.0}},
}


@pytest.mark.parametrize("case", [*CASES, "each beside the others"])
def test_one_transfer_and_one_wait(case, monkeypatch):
    chosen = CASES.values() if case not in CASES else [CASES[case]] * 3
    edits = {"banned": frozenset({9}), "allowed": np.full(9, 0xFFFF_FFFF, np.uint32)} if case == "all" else {}
    rows = [
        row(SamplingParams(**options), seed=i, position=2, token_ids=SEEN, **edits) for i, options in enumerate(chosen)
    ]
    logits = logits_of(1, len(rows), vocab_size=VOCAB_SIZE)
    expected = sampler.sample(logits, rows)
    counting = Counting()
    of = uncounted(runner.Parcel.of, counting.counts, "transfer")
    monkeypatch.setattr(runner.Parcel, "of", of)
    monkeypatch.setattr(sampler, "read", uncounted(sampler.read, counting.counts, "wait"))
    monkeypatch.setattr(score_edits, "unpack", uncounted(score_edits.unpack, Counter(), ""))  # by NumPy on a CPU
    for module in (sampler, truncation):
        monkeypatch.setattr(module, "prefers_kernels", lambda device: True)
    monkeypatch.setattr(truncation, "draw", uncounted(truncation.draw_by_kernels, Counter(), ""))
    with counting:
        found = sampler.sample(logits, rows)
    assert found == expected
    assert {name: count for name, count in counting.counts.items() if count} == {"transfer": 1, "wait": 1}
