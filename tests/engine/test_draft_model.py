"""A draft model beside what changes its pages: sliding windows, and prompts computed elsewhere."""

import logging

import pytest

import tests.engine.speculating as speculating_module
from tests.engine.engines import check_idle, finish, make_engine, prompt_of, tokens_of
from tests.engine.speculating import drafting_with, speculating
from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from twophase import LLM, SamplingParams, SpeculativeConfig
from twophase_features.parallel.pages import pack_layer
from twophase_features.parallel.remote_tier import RemoteTier
from twophase_features.speculation import opening
from twophase_features.windows.sliding_window import FREED

WINDOW, NUM_SINKS, BLOCK_SIZE = 16, 3, 4
PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((1, 9, 30, 57, 90))]
OPTIONS = {
    "block_size": BLOCK_SIZE,
    "skip_tokenizer_init": True,
    "device": "cpu",
    "attention_backend": "torch",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 48,
    "num_kv_blocks": 60,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder("llama", tmp_path_factory.mktemp("windowed"), eos_token_id=None)[0]


def windowed(folder, window: int = WINDOW, **options) -> LLM:
    return LLM(folder, **(OPTIONS | {"sliding_window": window, "num_attention_sinks": NUM_SINKS} | options))


def guessing(folder, **options) -> LLM:
    """The model guesses for itself; what its draft cache was never given is NaN."""
    config = SpeculativeConfig(
        method="draft_model", model=str(folder), num_speculative_tokens=3, disable_when_losing=False
    )
    llm = windowed(folder, speculative_config=config, **options)
    for tensor in llm.engine.speculator.drafter._runner.kv_cache.storage:
        tensor.fill_(float("nan"))
    return llm


def chunks_that_see_gone_blocks(llm: LLM) -> list:
    """Filled while the draft model runs: what it computes where a query sees a block that was given back."""
    drafter, found = llm.engine.speculator.drafter, []
    run = drafter._runner.run

    def spy(chunks):
        for chunk in chunks:
            unseen = drafter._window.freed_blocks(chunk.start, BLOCK_SIZE)
            found.extend(chunk for i, block in enumerate(chunk.block_ids) if block == FREED and i not in unseen)
        return run(chunks)

    drafter._runner.run = spy
    return found


def generate(llm: LLM, prompts=PROMPTS, params=PARAMS) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    check_idle(llm.engine)
    return [tokens_of(output) for output in outputs]


@pytest.fixture(scope="module")
def expected(folder):
    return generate(windowed(folder))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 11},
        {"num_kv_blocks": 14, "preemption_mode": "swap"},
    ],
    ids=str,
)
def test_it_goes_on_guessing_through_a_window(folder, expected, caplog, options):
    llm = guessing(folder, **options)
    with caplog.at_level(logging.WARNING):
        assert generate(llm) == expected
        assert generate(llm) == expected, "with whatever the prefix cache still has"
    assert "drafting failed" not in caplog.text
    stats = llm.engine.stats()
    assert stats.num_draft_tokens > 100
    assert stats.num_accepted_tokens > 30


def test_a_short_prompt_is_never_cut_and_long_texts_stay_cheap(folder):
    """One sequence of 9 + 160 tokens: about one step for four tokens, and each is read once."""
    llm = guessing(folder)
    run, num_read = llm.engine.speculator.drafter._runner.run, []
    llm.engine.speculator.drafter._runner.run = lambda chunks: (
        num_read.extend(len(chunk.token_ids) for chunk in chunks),
        run(chunks),
    )[1]
    params = SamplingParams(temperature=0, max_tokens=160, ignore_eos=True)
    assert generate(llm, [PROMPTS[1]], params) == generate(windowed(folder), [PROMPTS[1]], params)
    assert llm.engine.stats().num_steps < 100
    assert max(num_read) == 9 + 1, "the prompt, and never so much again"


def test_guesses_are_what_the_model_says_after_the_cut_text(folder):
    """Against the same model on that text alone, in an engine without drafts and with the draft model's own window."""
    llm = guessing(folder, max_num_batched_tokens=64)
    drafter, seen = llm.engine.speculator.drafter, []
    propose = drafter.propose

    def spy(requests):
        drafts = propose(requests)
        for request, tokens in zip(requests, drafts, strict=True):
            block_ids = list(request.chunk.block_ids)
            first_kept = block_ids[1 + block_ids.count(FREED)]
            seen.append((list(request.token_ids), drafter._num_cut[first_kept], tokens))
        return drafts

    drafter.propose = spy
    generate(llm, [PROMPTS[3]])
    alone = windowed(folder, window=drafter._window.window)
    assert drafter._window.window == 14
    assert seen[0][1] == (57 + 1 - WINDOW) // BLOCK_SIZE - 1
    for token_ids, num_cut, drafts in seen:
        text = token_ids[:BLOCK_SIZE] + token_ids[BLOCK_SIZE * (1 + num_cut) :]
        params = SamplingParams(temperature=0, max_tokens=max(1, len(drafts)), ignore_eos=True)
        assert generate(alone, [{"prompt_token_ids": text}], params) == [drafts] or not drafts
    assert len({num_cut for _, num_cut, _ in seen}) == 1, "it kept up, and had to cut once"


@pytest.mark.parametrize("on_again", [8, 12, 20])
def test_after_a_time_without_guesses_it_cuts_again(folder, expected, on_again):
    class Off:
        is_drafting = True

        def note_step(self, elapsed_s, num_tokens):
            self.num_steps = getattr(self, "num_steps", 0) + 1
            self.is_drafting = not 3 <= self.num_steps < on_again

    llm = guessing(folder)
    llm.engine.speculator.gate = Off()
    found = chunks_that_see_gone_blocks(llm)
    assert generate(llm) == expected
    assert not found
    drafted = [step.num_draft_tokens for step in llm.engine.trace if step.num_decodes + step.num_verifying]
    assert 0 in drafted
    assert drafted[-2] > 0


def test_pages_that_came_from_elsewhere_are_not_taken_for_its_own(tiny_model):
    """Blocks of a prompt that it has read are filled with another prompt's pages: it reads that one, and is right."""
    long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    other, prompt = prompt_of(1, 24), prompt_of(2, 24)
    plain = make_engine(tiny_model, num_blocks=12, prefix_caching=False)
    plain.add_request("b", prompt, long)
    plain.step()
    block_ids, _ = plain.block_tables()["b"]
    engine = speculating(tiny_model, drafting_with(tiny_model, 12), num_blocks=12, prefix_caching=False)
    engine.add_request("a", other, long)
    finish(engine)
    assert engine.stats().acceptance_rate == 1
    cache, keys = engine._scheduler.cache, []
    cache.tier = tier = RemoteTier(engine._runner.kv_cache)
    cache.close(cache.open(prompt["prompt_token_ids"], keys=keys))
    tier.expect(keys)
    for layer in range(tiny_model.config.num_layers):
        tier.receive(keys, layer, pack_layer(plain._runner.kv_cache, layer, block_ids[: len(keys)]))
    engine.add_request("b", prompt, long)
    output = finish(engine)["b"]
    assert sum(step.blocks_loaded for step in engine.trace) == len(keys) == 5
    assert tokens_of(output) == tokens_of(finish(plain)["b"])
    assert engine.stats().acceptance_rate == 1


def check_landed(module, model) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculating_module, "DraftModelDrafter", module.DraftModelDrafter)
        test_pages_that_came_from_elsewhere_are_not_taken_for_its_own(model)


def check_cut(module, folder, expected) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "DraftModelDrafter", module.DraftModelDrafter)
        patch.setattr(opening, "open_draft_model", module.open_draft_model)
        test_guesses_are_what_the_model_says_after_the_cut_text(folder)
        test_after_a_time_without_guesses_it_cuts_again(folder, expected, on_again=12)


DRAFT_MODEL = "twophase_features.speculation.draft_model"


@pytest.mark.mutants
def test_landed_pages_that_are_trusted_are_noticed(tiny_model):
    mutant = Mutant("loaded pages are trusted", DRAFT_MODEL, "for block in plan.loaded:", "for block in ():")
    KillTable.record(mutant, lambda module: check_landed(module, tiny_model))


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("it reads blocks that are gone", "num_cut = num_freed  # it would", "pass  # it would"),
        ("as wide as the large model's window", "window.window - window.window // 8", "window.window"),
        ("blocks of another cut are trusted", "self._num_cut[block], self._num_held[block] = num_cut, 0", "pass"),
    ],
)
def test_mutants_of_the_cut_are_killed(folder, expected, name, old, new):
    KillTable.record(Mutant(name, DRAFT_MODEL, old, new), lambda module: check_cut(module, folder, expected))
