"""vLLM's recorded steps, and this course's engine on the same requests."""

import pytest

from twophase import LLM
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_labs.your_engine import beside_vllm
from twophase_labs.your_engine.beside_vllm import LIMITS, PLACES, table, through, vllm_steps


@pytest.fixture(autouse=True)
def recorded(monkeypatch, tmp_path):
    """What was recorded, whether or not there is a vLLM here."""
    monkeypatch.setattr(beside_vllm, "python", lambda: tmp_path / "none")
    vllm_steps.cache_clear()
    yield
    vllm_steps.cache_clear()


def test_the_engine_takes_the_steps_that_vllm_took():
    theirs = vllm_steps()
    llm = LLM(DEFAULT_MODEL, device="cpu", dtype="float32", num_kv_blocks=64, max_trace_steps=None, **LIMITS)
    ours = through(llm, "ours")
    assert (ours.steps, ours.hits, ours.tokens) == (theirs.steps, theirs.hits, theirs.tokens)
    assert table(ours).splitlines()[2:4] == [
        "   0      64     .     .     .",
        "   1      36    28     .     .",
    ]


def test_each_part_has_its_place_in_vllm():
    places = vllm_steps().places
    assert list(places) == list(PLACES)
    assert all(line > 0 for _, line in places.values())
