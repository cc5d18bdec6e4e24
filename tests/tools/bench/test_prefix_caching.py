"""What is found, shared and betrayed, by counts; time is counted in tokens computed, so the ratios are exact."""

import json
import math
import random
from dataclasses import replace

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.cli.conftest import twophase  # noqa: F401  (a fixture)
from twophase import LLM
from twophase.core.errors import ConfigError
from twophase_tools.bench import prefix_attack, prefix_caching
from twophase_tools.bench.prefix_attack import AttackShape
from twophase_tools.bench.prefix_caching import Shape

BLOCK = 4
ATTACK = AttackShape(known_len=8, secret_len=12, num_candidates=5, num_trials=6)
SHAPE = Shape(system_len=40, question_len=8, num_users=3, output_len=8, num_prompts=3, prompt_len=20, attack=ATTACK)


class Bench:
    """Opens models and is their clock: a second for each token that any of them computed."""

    def __init__(self, folder):
        self.folder = folder
        self.llms: list[LLM] = []

    def open_llm(self, **options) -> LLM:
        limits = {"num_kv_blocks": 96, "max_num_seqs": 8, "max_num_batched_tokens": 160, "block_size": BLOCK}
        self.llms.append(LLM(self.folder, device="cpu", attention_backend="torch", **{**limits, **options}))
        return self.llms[-1]

    def clock(self):
        return sum(llm.engine.stats().num_computed_tokens for llm in self.llms)


@pytest.fixture
def bench(tiny_folder):
    return Bench(tiny_folder)


@pytest.fixture(scope="module")
def report(tiny_folder):
    of_module = Bench(tiny_folder)
    return prefix_caching.bench_prefix_caching(of_module.open_llm, SHAPE, repeats=3, clock=of_module.clock)


def test_time_to_first_token_is_that_of_what_is_left_to_compute(report):
    hits = report.hits
    assert (hits.cold_s, hits.partial_s, hits.full_s) == (48, 8, 4)
    assert (hits.num_cached_partial, hits.num_cached_full) == (40, 44)
    assert (hits.partial_ratio, hits.full_ratio) == (8 / 48, 4 / 48)


def test_users_share_the_blocks_of_their_system_prompt(report):
    sharing = report.sharing
    assert (sharing.num_hit_tokens, sharing.num_queried_tokens, sharing.hit_rate) == (120, 144, 120 / 144)
    # Blocks: 10 of the system prompt, once or for each; 4 of each user's question and answer. The last token has none.
    assert (sharing.peak_blocks, sharing.peak_blocks_before) == (10 + 3 * 4, 3 * 14)
    assert sharing.blocks_ratio == 22 / 42
    # Each user's first answer token comes with the prompt, and 7 more are computed.
    assert sharing.time_ratio == (3 * (8 + 7)) / (3 * (48 + 7))


def test_where_nothing_is_shared_nothing_is_found(report):
    assert (report.cost.num_hit_tokens, report.cost.time_ratio) == (0, 1)
    assert report.cost.scheduling_ratio > 0
    assert math.isfinite(report.cost.share)


# -- the stranger


def check_attack(module, bench) -> None:
    """What each probe finds, and who is named, with shared blocks and without."""
    llm = bench.open_llm()
    guesses = []
    for seed in range(12):
        # Without salts twice: that the same prompts were asked for before must not tell anything.
        for has_salts in (False, True, False):
            trial = module.attack(llm, ATTACK, random.Random(seed), has_salts=has_salts, clock=bench.clock)
            found = trial.hit.num_cached_tokens, {probe.num_cached_tokens for probe in trial.misses}
            assert found == ((8, {8}) if has_salts else (20, {8})), found
            assert len(trial.misses) == 4
            assert trial.hit.ttft_s == 21 - trial.hit.num_cached_tokens
            if has_salts:
                guesses.append(trial.is_found)
            else:
                assert trial.is_found
    # With salts all take the same time, so the first one is named; it is the secret now and then.
    assert 0 < sum(guesses) < 6, guesses


def check_summary(module, bench) -> None:
    def trial(is_found, hit, *misses):
        probe = module.Probe
        return module.Trial(is_found, probe(*hit), tuple(probe(*miss) for miss in misses))

    trials = [
        trial(True, (1.0, 20), (5.0, 8), (6.0, 8)),
        trial(True, (3.0, 20), (7.0, 8), (9.0, 8)),
        trial(False, (8.0, 20), (2.0, 8), (3.0, 8)),
    ]
    result = module.summarise(trials, has_salts=False)
    assert (result.num_found, result.num_trials, result.success_rate) == (2, 3, pytest.approx(2 / 3))
    assert result.chance == pytest.approx(1 / 3)
    assert result.luck == pytest.approx(7 / 27)  # of 27 outcomes 6 with two right and 1 with three
    assert (result.hit_s, result.miss_s, result.num_cached_hit, result.num_cached_miss) == (3.0, 5.5, 20, 8)
    assert module.probability_of_at_least(0, 9, 0.2) == pytest.approx(1)


CHECKS = (check_attack, check_summary)


@pytest.mark.parametrize("check", CHECKS)
def test_the_attack(check, bench):
    check(prefix_attack, bench)


def test_salts_turn_certainty_into_a_guess(report):
    shared, salted = report.attacks
    assert (shared.has_salts, shared.success_rate, shared.hit_s, shared.miss_s) == (False, 1, 1, 13)
    assert (salted.has_salts, salted.hit_s, salted.miss_s, salted.num_cached_hit) == (True, 13, 13, 8)
    assert shared.luck == pytest.approx(0.2**6)
    assert salted.num_found < salted.num_trials


# name, old, new
MUTANTS = [
    ("one salt for all", '("victim", "stranger") if has_salts', '("tenant", "tenant") if has_salts'),
    ("salts always", 'if has_salts else ("", "")', 'if True else ("", "")'),
    ("the first candidate reads the known text", "    first_token(llm, known, stranger)\n", ""),
    ("old prompts are remembered", "    llm.scheduler.cache.reset_prefix_cache()\n", "    known_before = None\n"),
    ("the slowest is named", "named = min(", "named = max("),
    ("one secret for ever", "secret = rng.randrange(shape.num_candidates)", "secret = 0"),
    ("the secret counts as a miss", "if index != secret", ""),
    ("luck without the last success", "range(num_successes, num_trials + 1)", "range(num_successes + 1, num_trials + 1)"),
    ("one candidate too few", "chance = 1 / (1 + len(", "chance = 1 / (0 + len("),
    ("the prompt's end is its secret's", "[*known, *candidate, *end], stranger", "[*known, *candidate], stranger"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("row", MUTANTS, ids=lambda row: row[0])
def test_mutants_are_killed(row, bench):
    name, *texts = row
    mutant = Mutant(name, prefix_attack.__name__, *texts)
    KillTable.record(mutant, lambda module: [check(module, bench) for check in CHECKS])


# -- errors and the command


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"secret_len": 3}, "whole blocks of 4 tokens"),
        ({"secret_len": 6}, "whole blocks of 4 tokens"),
        ({"secret_len": 0}, "the secret at least one, got 8 and 0"),
        ({"known_len": 9}, "got 9 and 12"),
        ({"num_candidates": 1}, "at least 2 candidates and 1 trial, got 1 and 6"),
        ({"num_trials": 0}, "got 5 and 0"),
    ],
)
def test_attacks_that_cannot_be(bench, changes, message):
    with pytest.raises(ConfigError, match=message):
        prefix_attack.run_attacks(bench.open_llm(), replace(ATTACK, **changes), random.Random(0))


def test_no_repeat_is_refused(bench):
    with pytest.raises(ConfigError, match="--repeats must be at least 1, got 0"):
        prefix_caching.bench_prefix_caching(bench.open_llm, repeats=0)
    assert not bench.llms


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command(twophase, tiny_folder, as_json):  # noqa: F811
    options = ("--quick", "--model", tiny_folder, "--device", "cpu", *["--json"] * as_json)
    exit_code, out, err = twophase("bench", "prefix-caching", *options)
    assert exit_code == 0, err
    if as_json:
        found = json.loads(out)
        assert found["hits"]["num_cached_full"] == 32
        assert [result["num_cached_hit"] for result in found["attacks"]] == [32, 16]
        assert found["machine"]["num_cores"] > 0
    else:
        for words in ("(32 found)", "3 users at once", "nothing shared", "a salt per tenant"):
            assert words in out
