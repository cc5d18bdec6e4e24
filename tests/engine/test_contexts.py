"""What a caller has switched on in PyTorch changes neither tokens nor pages, and is there afterwards as it was."""

import contextlib

import pytest
import torch

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from twophase import LLM, SamplingParams
from twophase.attention import interface
from twophase.engine.model_run import plain_context

PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2),
    SamplingParams(seed=3, top_p=0.9, top_k=20, min_p=0.01, repetition_penalty=1.2, n=2, prompt_logprobs=2),
    SamplingParams(temperature=0, frequency_penalty=1.0, max_tokens=6),
]
TEXTS = ["The quick brown fox " * 20, "naïve café", "日本"]  # the first is long enough for keys in several parts


@contextlib.contextmanager
def switched(switch, value, back):
    switch(value)
    try:
        yield
    finally:
        switch(back)


CONTEXTS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "default device": lambda: switched(torch.set_default_device, "meta", None),
    "double": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: switched(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
}


def state():
    """Of the context: what can be asked of it, and what an operation does in it."""
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), product.dtype, product.device


def generated(folder, loading, running):
    """Outputs and pages of an LLM that was loaded in one context and runs in another."""
    interface._root.cache_clear()  # it is made in the first run of a process
    with loading:
        before = state()
        llm = LLM(folder, num_kv_blocks=512, block_size=4, device="cpu")
        assert state() == before
    assert not llm.model.weights.final_norm.is_inference()
    with running:
        before = state()
        outputs = llm.generate(TEXTS, PARAMS, use_tqdm=False)
        assert state() == before
    found = [(output.outputs, output.prompt_logprobs) for output in outputs]
    return found, llm.kv_cache.storage


@pytest.fixture(scope="module")
def plain(tiny_folder):  # noqa: F811
    return generated(tiny_folder, contextlib.nullcontext(), contextlib.nullcontext())


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("when", ["loading", "running"])
def test_tokens_and_pages_are_the_same(tiny_folder, plain, context, when):  # noqa: F811
    contexts = {"loading": contextlib.nullcontext(), "running": contextlib.nullcontext(), when: context()}
    outputs, pages = generated(tiny_folder, **contexts)
    assert outputs == plain[0]
    assert all(map(torch.equal, pages, plain[1]))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_autocast_comes_back_after_an_exception(kind):
    with switched(lambda on: torch.set_autocast_enabled(kind, on), True, False):
        with contextlib.suppress(KeyError), plain_context():
            assert not torch.is_autocast_enabled(kind)
            raise KeyError
        assert torch.is_autocast_enabled(kind)
