"""Facts that are asked of one text: it is read once."""

import torch

from twophase import LLM
from twophase_labs.advanced.window_engine import surprises_at_fact


def test_a_text_that_is_shared_is_read_once_and_changes_nothing():
    llm = LLM(num_kv_blocks=33, max_num_batched_tokens=64, max_num_seqs=1)
    alone = torch.tensor([surprises_at_fact(llm, [distance])[0] for distance in (40, 90)])
    torch.testing.assert_close(torch.tensor(surprises_at_fact(llm, [40, 90])), alone, atol=1e-2, rtol=1e-3)
