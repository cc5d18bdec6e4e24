"""Drafts from hidden states: which state a token was drawn from, what a head says, and that its drafts leave the tokens
as they are."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from twophase import SamplingParams
from twophase.core.plan import ScheduledChunk
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_labs.advanced.capstone import Asked, open_engine, serve
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.feature_drafts import FeatureRunner, Head
from twophase_labs.advanced.head_drafter import HeadDrafter
from twophase_labs.advanced.own_engine import VerifyingRunner
from twophase_labs.decode.tiny_llama import VOCAB, tiny_llama
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

OPTIONS = {"skip_tokenizer_init": True, "block_size": 4, "max_num_batched_tokens": 32, "num_blocks": 40}
TYPES = (4, 9, 77)


def head(types=range(VOCAB)) -> Head:
    """One that thinks that the hidden state stays what it is."""
    _, large = tiny_llama()
    width = large.config.hidden_size
    return Head(torch.eye(2 * width, width), torch.zeros(width), torch.tensor(types), large)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_probabilities_are_the_large_models_among_the_types(temperature):
    _, large = tiny_llama()
    with torch.no_grad():
        out = large(torch.tensor([[5, 9, 80, 3]]), output_hidden_states=True)
    hidden, logits = out.hidden_states[-1][0, -1], out.logits[0, -1].double()
    row, few = head().probs(hidden, temperature), head(TYPES).probs(hidden, temperature)
    if temperature:
        assert np.allclose(row, (logits / temperature).softmax(-1).numpy(), atol=1e-5)
    else:
        assert row[int(logits.argmax())] == 1
    assert row.sum() == pytest.approx(1)
    assert few.sum() == pytest.approx(1)
    assert set(np.flatnonzero(few)) <= set(TYPES)


class OneBuffer:
    """A runner whose steps write their hidden states to the same memory, as graphs do."""

    def __init__(self):
        self.model, self.hidden = SimpleNamespace(logits=torch.clone), torch.zeros(1, 4)

    def run(self, chunks, score):
        self.hidden.fill_(chunks[0].start)
        return self.model.logits(self.hidden)


def test_kept_states_are_copies():
    features = FeatureRunner(OneBuffer())
    for start in (6, 7):
        features.run([ScheduledChunk(0, (5,), start, (1,), num_samples=1)])
    assert {i: state.tolist() for i, state in features.states[0].items()} == {7: [6.0] * 4, 8: [7.0] * 4}


@pytest.mark.parametrize("temperature", [0, 1])
def test_drafts_of_a_head_leave_greedy_tokens_as_they_are(temperature):
    folder, large = tiny_llama()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    requests = [Asked({"prompt_token_ids": [5 + i, 9, *range(70, 70 + 9 * i)]}, params) for i in range(4)]
    plain = serve(open_engine(model=folder, **OPTIONS), requests)
    llm = open_engine(model=folder, **OPTIONS)
    features = FeatureRunner(llm.engine._runner)
    drafter = HeadDrafter(head(), features.states, temperature, Chance(0))
    llm.engine.speculator = GatedSpeculator(drafter, 3, None)
    verify = run_reference(Workbook.find().lab("05"))["verify"]
    llm.engine._runner = VerifyingRunner(features, verify, lambda _: 0.0, Chance(1), rows_of=drafter.rows.__getitem__)
    served = serve(llm, requests)
    assert served.token_ids == plain.token_ids
    assert served.num_drafts > 0
    assert drafter.rows == {}
    weight = large.lm_head.weight
    for (_, states), asked, tokens in zip(
        sorted(features.states.items()), requests, plain.token_ids, strict=True
    ):  # also behind rejected drafts
        start = len(asked.prompt["prompt_token_ids"])
        assert [int((states[start + i] @ weight.T).argmax()) for i in range(len(tokens))] == list(tokens)
