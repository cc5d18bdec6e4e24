"""A draft model beside the engine: what it says, how it is trained, and that its drafts leave the tokens as they are."""

import numpy as np
import pytest
import torch

from twophase import SamplingParams
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_labs.advanced.capstone import Asked, open_engine, serve
from twophase_labs.advanced.draft_chance import Chance
from twophase_labs.advanced.draft_pair import ModelDrafter, SmallModel
from twophase_labs.advanced.guided_machine import trie_of
from twophase_labs.advanced.own_engine import VerifyingRunner
from twophase_labs.advanced.train_draft import Batch, DraftNetwork, Example, Listener, batches_of, train
from twophase_labs.decode.tiny_llama import NUM_LAYERS, VOCAB, tiny_llama
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

OPTIONS = {"skip_tokenizer_init": True, "block_size": 4, "max_num_batched_tokens": 32, "num_blocks": 40}


@pytest.fixture(scope="module")
def solved():
    return run_reference(Workbook.find().lab("05"))


def network(num_layers: int, types=None) -> DraftNetwork:
    _, large = tiny_llama()
    types = torch.arange(VOCAB) if types is None else torch.tensor(types)
    return DraftNetwork(large, types, num_layers).eval().requires_grad_(False)


def example(large, prompt, answer) -> Example:
    with torch.no_grad():
        logits = large(torch.tensor([[*prompt, *answer]])).logits[0]
    return Example(prompt, answer, logits[len(prompt) - 1 : -1])


def test_all_layers_and_all_rows_are_the_large_model():
    _, large = tiny_llama()
    small = SmallModel(network(NUM_LAYERS))
    text = [5, 9, 80, 3]
    with torch.no_grad():
        expected = large(torch.tensor([text])).logits[0, -1].double()
    assert np.allclose(small.next_probs(0.7)(text), (expected / 0.7).softmax(-1).numpy(), atol=1e-5)
    greedy = small.next_probs(0)(text)
    assert greedy[int(expected.argmax())] == 1
    assert greedy.sum() == 1


def test_a_text_that_goes_back_is_read_anew():
    small = SmallModel(network(1))
    for text in ([7, 8], [7, 8, 9], [7, 8, 30, 31], [7], [50, 51], [50, 51]):
        fresh = SmallModel(network(1)).next_probs(1)(text)
        assert np.allclose(small.next_probs(1)(text), fresh, atol=1e-6), text


def test_tokens_without_a_row_have_no_chance():
    row = SmallModel(network(1, [4, 9, 77])).next_probs(1)([5, 6])
    assert set(np.flatnonzero(row)) == {4, 9, 77}
    assert row.sum() == pytest.approx(1)


def test_the_large_model_is_left_as_it_is():
    _, large = tiny_llama()
    before = {name: value.clone() for name, value in large.state_dict().items()}
    examples = [example(large, [3, 4, 5], [6, 7, 8, 9]), example(large, [10, 11], [6, 7, 8])]
    student = DraftNetwork(large, torch.tensor([6, 7, 8, 9]), 1)
    train(student, batches_of(examples, student.types), num_epochs=3)
    assert all(torch.equal(value, before[name]) for name, value in large.state_dict().items())


def test_targets_are_the_large_models_probabilities_at_the_answer():
    _, large = tiny_llama()
    types = torch.tensor([6, 7, 8, 9])
    (batch,) = batches_of([example(large, [3, 4, 5], [6, 7]), example(large, [10], [8, 9, 6])], types)
    assert isinstance(batch, Batch)
    assert batch.is_asked.tolist() == [[False, False, True, True, False], [True, True, True, False, False]]
    with torch.no_grad():
        logits = large(torch.tensor([[3, 4, 5, 6]])).logits[0, 2:][:, types]
    assert torch.allclose(batch.probs[:2], logits.softmax(-1), atol=1e-5)


def test_what_is_listened_to_is_what_each_token_was_chosen_from():
    folder, _ = tiny_llama()
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    requests = [Asked({"prompt_token_ids": [5 + i, 9, *range(70, 70 + 9 * i)]}, params) for i in range(4)]
    llm = open_engine(model=folder, **OPTIONS)
    llm.engine._runner = listener = Listener(llm.engine._runner)
    served = serve(llm, requests)
    heard = [[int(row.argmax()) for row in rows] for _, rows in sorted(listener.rows.items())]
    assert heard == [list(tokens) for tokens in served.token_ids]


def test_what_is_stored_makes_the_same_network():
    trained = network(1, [4, 9, 77])
    again = network(1, [4, 9, 77])
    for parameter in again.head.parameters():
        parameter.zero_()
    missing, unexpected = again.load_state_dict(trained.own_state(), strict=False)
    assert not unexpected
    assert all("embed_tokens" in name for name in missing)
    assert np.array_equal(SmallModel(again).next_probs(1)([5]), SmallModel(trained).next_probs(1)([5]))


@pytest.mark.parametrize("num_layers", [1, NUM_LAYERS])
def test_drafts_of_a_model_leave_greedy_tokens_as_they_are(solved, num_layers):
    folder, _ = tiny_llama()
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    requests = [Asked({"prompt_token_ids": [5 + i, 9, 70 + i]}, params) for i in range(4)]
    plain = serve(open_engine(model=folder, **OPTIONS), requests)
    llm = open_engine(model=folder, **OPTIONS)
    drafter = ModelDrafter(SmallModel(network(num_layers)), 0, Chance(0))
    llm.engine.speculator = GatedSpeculator(drafter, 3, None)
    llm.engine._runner = VerifyingRunner(
        llm.engine._runner, solved["verify"], lambda _: 0.0, Chance(1), rows_of=drafter.rows_of
    )
    served = serve(llm, requests)
    assert served.token_ids == plain.token_ids
    assert served.num_drafts > 0
    if num_layers == NUM_LAYERS:
        assert served.num_accepted == served.num_drafts
    assert drafter._latest == {}


def test_a_trie_has_every_token_once():
    texts = ["a", "ab", "", "abc", "ab", "é"]
    found = []
    to_visit = [("", trie_of(texts))]
    while to_visit:
        text, node = to_visit.pop()
        found += [(one, text) for one in node.token_ids]
        to_visit += [(text + char, child) for char, child in node.children.items()]
    assert sorted(found) == [(i, text) for i, text in enumerate(texts) if text]
