"""An engine is put together from the features that its options name, and from no other."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutation import KillTable, Mutant
from twophase import EngineConfig, SamplingParams, SpeculativeConfig, assembly, config
from twophase.core.errors import ModelFolderError
from twophase.doors import feature
from twophase.engine import executor, runner
from twophase.model.tokenizer import Tokenizer

ASKED = [
    ({}, set()),
    ({"enable_prefix_caching": False, "admission": "reserve", "kv_cache_dtype": "bfloat16"}, set()),
    ({"quantization": "int8"}, {"quantization.schemes"}),
    ({"sliding_window": 8}, {"pairs", "windows.resolve"}),
    ({"speculative_config": SpeculativeConfig()}, {"pairs", "speculation.config", "speculation.opening"}),
]


def features_asked_for(folder, options, module=assembly) -> set[str]:
    asked = set()

    def spy(name):
        asked.add(name)
        return feature(name)

    with pytest.MonkeyPatch.context() as patch:
        for each in (module, config, executor, runner):
            patch.setattr(each, "feature", spy)
        module.assemble(str(folder), EngineConfig(device="cpu", num_kv_blocks=16, **options))
    return asked


@pytest.mark.parametrize(("options", "expected"), ASKED, ids=lambda value: "+".join(sorted(value)))
def test_a_feature_comes_in_when_an_option_names_it(options, expected, tiny_folder):
    assert features_asked_for(tiny_folder, options) == expected


def test_only_a_name_that_is_no_folder_is_looked_up_in_the_model_store(tiny_folder, monkeypatch):
    asked = []
    store = SimpleNamespace(resolve_model=lambda name: asked.append(name) or Path(tiny_folder))
    monkeypatch.setattr(assembly, "feature", lambda name: {"model_store.prepare": store}[name])
    options = EngineConfig(device="cpu", num_kv_blocks=16)
    monkeypatch.chdir(tiny_folder.parent)
    (tiny_folder.parent / config.DEFAULT_MODEL).mkdir(
        exist_ok=True
    )  # the default model's name means the default model all the same
    for name in (str(tiny_folder), tiny_folder.name, config.DEFAULT_MODEL, "org/name"):
        assembly.assemble(name, options)
    assert asked == [config.DEFAULT_MODEL, "org/name"]
    monkeypatch.undo()
    with pytest.raises(ModelFolderError, match="is not a folder"):
        assembly.assemble("nowhere", options)


def check_grammars(folder, module=assembly) -> None:
    """The vocabulary is loaded by the first request, for all."""
    made = []

    class FakeGuidance:
        def __init__(self, to_json, eos_token_ids) -> None:
            made.append(self)

        def compile(self, params):
            return params

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "feature", lambda name: SimpleNamespace(Guidance=FakeGuidance))
        compile_grammar = module._grammar_compiler(Tokenizer.from_folder(folder), frozenset({0}))
        params = SamplingParams()
        assert not made
        assert compile_grammar(params) is compile_grammar(params) is params
    assert len(made) == 1


def test_the_first_request_with_structured_outputs_makes_the_compiler(tiny_folder):
    check_grammars(tiny_folder)


MUTANTS = [
    ("pairs of nothing", "if model_config.is_mixed or config.uses_features:", "if True:", {}),
    ("pairs not asked", "if model_config.is_mixed or config.uses_features:", "if False:", ASKED[3][0]),
    ("a window of nothing", "if model_config.sliding_window is not None or", "if True or", {}),
    ("speculation not asked for", "config.speculative_config is None and config.drafter is None", "config.speculative_config is None and config.drafter is not None", {}),
    ("a folder from the store", "if folder.is_dir() and", "if not folder.is_dir() and", {}),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new", "options"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_of_the_doors_are_killed(name, old, new, options, tiny_folder):
    expected = next(names for each, names in ASKED if each == options)

    def check(module) -> None:
        assert features_asked_for(tiny_folder, options, module) == expected

    KillTable.record(Mutant(name, "twophase.assembly", old, new), check)


@pytest.mark.mutants
def test_a_vocabulary_for_each_request_is_noticed(tiny_folder):
    mutant = Mutant(
        "a vocabulary for each request", "twophase.assembly", "guidance = cache(lambda:", "guidance = (lambda:"
    )
    KillTable.record(mutant, lambda module: check_grammars(tiny_folder, module))
