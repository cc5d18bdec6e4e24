"""All engines of a notebook share one copy of the weights, which is read once."""

import torch

from twophase import assembly
from twophase_labs.advanced.one_copy import open_llm
from twophase_labs.advanced.prefix_service import first_token, shared_engine
from twophase_labs.advanced.window_engine import surprises_at_fact


def test_an_engine_reads_no_weights_of_its_own(monkeypatch):
    shared, read = shared_engine(), []
    load = assembly.load_weights
    monkeypatch.setattr(assembly, "load_weights", lambda *args: read.append(args) or load(*args))
    llm = open_llm(num_kv_blocks=16)
    assert llm.model.weights is shared.model.weights
    assert not read
    assert llm.kv_cache is not shared.kv_cache
    assert first_token(llm, range(100, 140)).num_cached_tokens == 0


def test_a_text_that_is_shared_is_read_once_and_changes_nothing():
    llm = open_llm(num_kv_blocks=33, max_num_batched_tokens=64, max_num_seqs=1)
    alone = torch.tensor([surprises_at_fact(llm, [distance])[0] for distance in (40, 90)])
    torch.testing.assert_close(torch.tensor(surprises_at_fact(llm, [40, 90])), alone, atol=1e-2, rtol=1e-3)
