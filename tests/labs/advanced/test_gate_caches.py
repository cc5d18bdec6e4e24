"""The gate's caches: a text that is read on."""

from itertools import permutations

import pytest
import torch

from twophase_labs.advanced import gate_caches


@pytest.mark.parametrize("lengths", list(permutations([33, 49, 70])))
def test_readings_of_any_length_in_any_order(lengths, monkeypatch):
    num_read = 0

    def step_logits(llm, token_ids, salt):
        nonlocal num_read
        num_found = min(num_read, len(token_ids) - 1) // 16 * 16
        num_read = max(num_read, len(token_ids))
        yield torch.tensor(token_ids[num_found:]).float()[:, None]

    monkeypatch.setattr(gate_caches, "READ", {})
    monkeypatch.setattr(gate_caches, "open_cache", lambda name: None)
    monkeypatch.setattr(gate_caches, "text_ids", lambda: list(range(100)))
    monkeypatch.setattr(gate_caches, "step_logits", step_logits)
    for num_tokens in (*lengths, lengths[0]):
        assert gate_caches.logits_with("int8", num_tokens)[:, 0].tolist() == list(range(num_tokens - 1))
