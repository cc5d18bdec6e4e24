"""A draft model beside what changes its pages: prompts computed elsewhere."""

import pytest

import tests.engine.speculating as speculating_module
from tests.engine.engines import finish, make_engine, prompt_of, tokens_of
from tests.engine.speculating import drafting_with, speculating
from tests.mutation import KillTable, Mutant
from twophase import SamplingParams
from twophase_features.parallel._protocol import Pages
from twophase_features.parallel.pages import pack_layer
from twophase_features.parallel.remote_tier import RemoteTier


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
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0
    cache, keys = engine._scheduler.cache, []
    cache.tier = tier = RemoteTier(engine._runner.kv_cache)
    cache.close(cache.open(prompt["prompt_token_ids"], keys=keys))
    tier.expect(keys)
    for layer in range(tiny_model.config.num_layers):
        parts = pack_layer(plain._runner.kv_cache, layer, block_ids[: len(keys)])
        tier.receive(Pages(tuple(keys), layer, parts))
    engine.add_request("b", prompt, long)
    output = finish(engine)["b"]
    assert sum(step.blocks_loaded for step in engine.trace) == len(keys) == 5
    assert tokens_of(output) == tokens_of(finish(plain)["b"])
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0


def check_landed(module, model) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculating_module, "DraftModelDrafter", module.DraftModelDrafter)
        test_pages_that_came_from_elsewhere_are_not_taken_for_its_own(model)


@pytest.mark.mutants
def test_landed_pages_that_are_trusted_are_noticed(tiny_model):
    mutant = Mutant(
        "loaded pages are trusted",
        "twophase_features.speculation.draft_model",
        "for block in plan.loaded:",
        "for block in ():",
    )
    KillTable.record(mutant, lambda module: check_landed(module, tiny_model))
