"""The feature table, executed: what works gives every request its tokens, what is refused is refused in time."""

import random
from itertools import combinations

import pytest

from docs.feature_grid import AT_A_REQUEST, PAIRS, TITLES, as_markdown, is_one_option, refusal
from tests.engine.feature_runs import COMMON, REQUESTS, check_features, draw_requests, examples_of, folder_for
from tests.engine.tokenizers_for_tests import make_text_folder
from tests.mutation import KillTable, Mutant
from twophase import LLM
from twophase.config import EngineConfig, configured
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase_features import pairs as pairs_module
from twophase_features.pairs import FEATURES, REFUSALS, check_pairs
from twophase_features.parallel.disaggregation import disaggregated

WORKING = [pair for pair in PAIRS if not refusal(*pair) and not is_one_option(*pair)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with a tokenizer, and heads wide enough for int8 pages; below it one of layers of different kinds,
    and one with experts."""
    path = tmp_path_factory.mktemp("features")
    make_text_folder(path, family="llama-wide-heads")
    make_text_folder(path / "mixed", family="gemma3", head_dim=16)
    make_text_folder(path / "sparse", family="qwen3-moe")
    return path


def name_of(pair):
    return "+".join(pair)


# The rest runs with --full.
SAMPLE = [*random.Random(0).sample(WORKING, 8), ("tensor_parallel", "swap"), ("ngram", "window")]
SAMPLE += [("mixed", name) for name in ("int8", "tensor_parallel", "own_drafter", "prompt_logprobs", "reserve", "fair")]
SAMPLE += [(name, "triton") for name in ("swap", "ngram", "window", "mixed", "int8", "int8_weights", "tensor_parallel")]
SAMPLE += [("expert_parallel", name) for name in ("swap", "ngram", "int8")]
SAMPLE += [
    ("prompt_logprobs", name) for name in ("prefix_caching", "swap", "several", "tensor_parallel", "disaggregated")
]


@pytest.mark.parametrize("pair", SAMPLE, ids=name_of)
def test_some_pairs_work(pair, folder):
    check_features(pair, seed=1, folder=folder)


@pytest.mark.full
@pytest.mark.parametrize("pair", WORKING, ids=name_of)
def test_all_pairs_work(pair, folder):
    check_features(pair, seed=2, folder=folder)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(24))
def test_random_triples_work(seed, folder):
    rng = random.Random(seed)
    while True:
        names = tuple(rng.sample(list(TITLES), 3))
        if not any(refusal(*pair) or is_one_option(*pair) for pair in combinations(names, 2)):
            break
    check_features(names, seed, folder)


@pytest.mark.parametrize("pair", REFUSALS, ids=name_of)
def test_refused_before_a_weight_is_read(pair, folder, monkeypatch):
    def load_weights(*args):
        raise AssertionError("weights are read")

    monkeypatch.setattr("twophase.assembly.load_weights", load_weights)
    for first in examples_of(pair[0], folder):
        for second in examples_of(pair[1], folder):
            with pytest.raises(ConfigError) as caught:
                open_both(pair, COMMON | first | second, folder_for(pair, folder), monkeypatch)
            assert all(FEATURES[name].option in str(caught.value) for name in pair)


def open_both(pair, options, folder, monkeypatch) -> None:
    if "disaggregated" not in pair:
        LLM(folder, **options)
        return
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with disaggregated(folder, **options):
        pass


@pytest.mark.parametrize("pair", AT_A_REQUEST, ids=name_of)
def test_text_is_refused_when_the_request_comes(pair, folder):
    ((option, _),) = REQUESTS[pair[0]].items()
    llm = LLM(folder, **COMMON, skip_tokenizer_init=True)
    requests = draw_requests(random.Random(0), pair)
    prompt, params = next(each for each in requests if getattr(each[1], option))
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt, params)
    assert option in str(caught.value)
    assert "skip_tokenizer_init" in str(caught.value)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if is_one_option(*pair)], ids=name_of)
def test_values_of_one_option_are_never_both_on(pair, folder):
    one, other = (examples_of(name, folder)[0] for name in pair)
    assert any(one[option] != other[option] for option in set(one) & set(other))


@pytest.mark.parametrize("name", TITLES)
def test_an_example_is_no_default_and_switches_on_what_may_be_refused(name, folder):
    if name in (*REQUESTS, "disaggregated", "mixed"):  # which no option switches on
        return
    default = configured(None, {})
    for example in examples_of(name, folder):
        config = configured(None, example)
        assert (config != default) == (name not in ("prefix_caching", "optimistic"))
        check_pairs(config)
        if name in FEATURES:
            assert (FEATURES[name].is_on(default), FEATURES[name].is_on(config)) == (False, True), example


def test_the_engine_asks_about_every_pair(folder):
    """`uses_features` spares an engine without features the question; it must not spare any other one."""
    assert not EngineConfig().uses_features
    for one, other in REFUSALS:
        if not {"mixed", "disaggregated"} & {one, other}:
            for first in examples_of(one, folder):
                assert configured(None, first | examples_of(other, folder)[0]).uses_features


def test_the_grid_has_no_blank_and_a_row_for_each_feature():
    heads, _, *rows = [line.split("|")[1:-1] for line in as_markdown().splitlines() if line.startswith("|")]
    assert len(rows) == len(TITLES)
    assert all(len(row) == len(heads) and all(cell.strip() for cell in row) for row in rows)
    assert sum(row.count(" ✓ ") for row in rows) == 2 * len(WORKING)
    assert {name for pair in REFUSALS for name in pair} == set(FEATURES) <= set(TITLES)


def check_table(module, folder):
    """By hand: what each of these comes to."""
    ready = examples_of("ready_made", folder)[0]
    drafter = examples_of("draft_model", folder)[0] | examples_of("own_drafter", folder)[0]
    window, ranks = {"sliding_window": 8}, {"tensor_parallel_size": 2}
    whole = {"enable_expert_parallel": True}
    for options, arguments, other in [
        (window, {"also": ("disaggregated",)}, "disaggregation"),
        (window, {"also": ("mixed",)}, "layers that see all keys"),
        ({"num_attention_sinks": 2}, {"also": ("disaggregated",)}, "disaggregation"),
        (ranks, {"also": ("disaggregated",)}, "disaggregation"),
        (whole | ranks, {"also": ("disaggregated",)}, "enable_expert_parallel"),
        (whole | ranks | ready, {}, "enable_expert_parallel"),
        (window | ready, {}, "ready-made"),
        (ranks | ready, {}, "ready-made"),
        (drafter, {}, "both propose drafts"),
    ]:
        with pytest.raises(ConfigError, match=f"do not go together.*{other}|{other}.*do not go together"):
            module.check_pairs(configured(None, options), **arguments)
    module.check_pairs(configured(None, window | ranks | {"kv_cache_dtype": "int8"}))
    module.check_pairs(configured(None, whole | ready))  # one rank has all experts, and all heads
    module.check_pairs(configured(None, {}), also=("disaggregated",))


def test_the_table_by_hand(folder):
    check_table(pairs_module, folder)


MUTANTS = [
    ("sinks alone", "or config.num_attention_sinks > 0", ""),
    ("only options count", "name in also or", ""),
    ("experts of one rank", "config.enable_expert_parallel and config.tensor_parallel_size > 1", "config.enable_expert_parallel"),
    ("one rank", "lambda config: config.tensor_parallel_size > 1", "lambda config: config.tensor_parallel_size > 2"),
    ("one of the two is enough", "{one, other} <= on", "{one, other} & on"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[row[0] for row in MUTANTS])
def test_table_mutants_are_killed(name, old, new, folder):
    KillTable.record(Mutant(name, "twophase_features.pairs", old, new), lambda module: check_table(module, folder))
