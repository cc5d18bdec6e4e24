"""The sampler against an independent oracle: exact supports, chi-square on the draws, bad rows, reproducibility."""

import math

import numpy as np
import pytest
import torch

from tests.engine.sampling_oracle import chi_square_p_value, probabilities, sample_of
from tests.mutation import KillTable, Mutant
from twophase.core.request import SamplingParams
from twophase.engine import sampler
from twophase.engine.philox import philox4x32, uniforms
from twophase.engine.runner import Parcel
from twophase.engine.sampler import SampleRow, SamplingError, sample
from twophase_features import truncation
from twophase_features.beam_search.search import NextTokenParams
from twophase_features.score_edits import bias_of

NUM_DRAWS = 5_000
VOCAB_SIZE = 300  # three chunks of the CDF, the last one padded

# Every draw has a fixed seed, so these tests do not flicker; the bound is what a wrong sampler falls far below.
LOWEST_P_VALUE = 1e-3

# One line per processor, alone and together.
CASES = {
    "plain": {},
    "temperature below 1": {"temperature": 0.6},
    "temperature above 1": {"temperature": 1.7},
    "top-k 1": {"top_k": 1},
    "top-k 7": {"top_k": 7},
    "top-k of the whole vocabulary": {"top_k": VOCAB_SIZE},
    "top-k beyond the vocabulary": {"top_k": 10 * VOCAB_SIZE},
    "top-p 0.9": {"top_p": 0.9},
    "top-p tiny": {"top_p": 1e-9},
    "top-p that needs more than the candidates": {"top_p": 0.999, "temperature": 50.0},
    "min-p 0.05": {"min_p": 0.05},
    "min-p 1": {"min_p": 1.0},
    "repetition penalty": {"repetition_penalty": 1.8, "temperature": 4.0},  # so that a negative score is drawn, too
    "repetition penalty below 1": {"repetition_penalty": 0.7},
    "top-k and top-p": {"top_k": 20, "top_p": 0.7},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"presence_penalty": -0.5, "frequency_penalty": 0.9},
    "bias": {"logit_bias": {token: 3.0 - token % 7 for token in range(90, 140)}},
    "bias before the penalty": {
        "logit_bias": dict.fromkeys(range(100, 160), 1.5),
        "repetition_penalty": 2.0,
        "temperature": 2.0,
    },
    "allowed": {"allowed": range(40, 300, 3)},
    "allowed and top-k": {"allowed": range(0, 300, 2), "top_k": 20},
    "banned": {"banned": frozenset(range(0, 150))},
    "all": {"repetition_penalty": 1.3, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "all edits": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "logit_bias": dict.fromkeys(range(100, 200), 1.0),
        "allowed": range(0, 250),
        "banned": frozenset(range(120, 140)),
    },
}
# A prompt, and an output in which some tokens are twice.
SEEN_TOKEN_IDS = [*range(200, 240), 3, 5, 5, 17, 250, 299, 3, *range(100, 160), *range(100, 130)]
NUM_OUTPUT = 97
NUM_WORDS = 9  # of masks: the tokens beyond them are not allowed


def logits_of(seed: int, num_rows: int = 1, scale: float = 2.0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def row(
    params: SamplingParams, *, seed=0, first_index=0, position=0, num_samples=1, token_ids=(), **edits
) -> SampleRow:
    bias = bias_of(params) if params.logit_bias else None
    return SampleRow(params, seed, first_index, position, num_samples, token_ids, bias=bias, **edits)


def row_of(case: str, num_samples: int, **options) -> SampleRow:
    given = dict(CASES[case])
    edits = {"banned": given.pop("banned", ())}
    if "allowed" in given:
        edits["allowed"] = packed(given.pop("allowed"))
    common = {"position": NUM_OUTPUT, "token_ids": SEEN_TOKEN_IDS, "num_samples": num_samples}
    return row(SamplingParams(n=num_samples, **given), **common | edits | options)


def packed(token_ids) -> np.ndarray:
    words = np.zeros(NUM_WORDS, np.uint32)
    for token_id in token_ids:
        if token_id < 32 * NUM_WORDS:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def counts_of(tokens, vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    return np.bincount([token.token_id for token in tokens], minlength=vocab_size)


def assert_distribution(tokens, expected: np.ndarray) -> None:
    counts = counts_of(tokens, len(expected))
    assert not counts[expected == 0].any(), f"drew tokens that are dropped: {counts[expected == 0].nonzero()[0]}"
    p_value = chi_square_p_value(counts, expected * len(tokens))
    assert p_value > LOWEST_P_VALUE, f"draws do not follow the distribution: p = {p_value:.2g}"


class TestPhilox:
    # The authors' test vectors (Random123, kat_vectors).
    @pytest.mark.parametrize(
        ("counter", "key", "words"),
        [
            ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
            ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
            ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
        ],
    )
    def test_known_answers(self, counter, key, words):
        def column(text):
            return np.array([[int(word, 16)] for word in text.split()], np.uint32)

        np.testing.assert_array_equal(philox4x32(column(counter), column(key)), column(words))

    def test_seed_index_and_position_all_matter(self):
        draws = uniforms([1, 2, 1 << 32, 1, 1, 0], [0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1])
        assert len(set(draws)) == len(draws)


def check_distribution_of_each_processor(module) -> None:
    for number, case in enumerate(CASES):
        logits, drawn = logits_of(number), row_of(case, NUM_DRAWS, seed=number)
        (tokens,) = sample_of(module)(logits, [drawn])
        try:
            assert_distribution(tokens, probabilities(logits[0], drawn))
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


def check_rows_together(module) -> None:
    """Every processor in one batch, each row as if it were alone; the logits stay what they are."""
    rows = [row_of(case, 3, seed=i, first_index=i) for i, case in enumerate(CASES)]
    rows.insert(2, row(SamplingParams(temperature=0, n=2), num_samples=2))
    logits = logits_of(3, len(rows))
    before = logits.clone()
    together = sample_of(module)(logits, rows)
    assert torch.equal(logits, before)
    alone = [sample_of(module)(logits[i : i + 1], [r])[0] for i, r in enumerate(rows)]
    assert together == alone
    assert together[2] == (together[2][0],) * 2


def check_draws_differ_by_completion_and_position(module) -> None:
    params = SamplingParams(n=64)
    logits = logits_of(5, 1, scale=0.1)
    (forks,) = sample_of(module)(logits, [row(params, num_samples=64)])
    assert len(set(forks)) > 40
    singles = [sample_of(module)(logits, [row(params, first_index=i)])[0][0] for i in range(64)]
    assert list(forks) == singles
    later = sample_of(module)(logits.expand(64, -1), [row(params, position=p) for p in range(64)])
    assert len({tokens[0] for tokens in later}) > 40


class TestDistributions:
    def test_a_vocabulary_of_one_token(self):
        assert sample(torch.zeros(1, 1), [row(SamplingParams())])[0][0].token_id == 0

    def test_ties_at_the_boundary_are_all_kept(self):
        logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
        for params in (SamplingParams(top_k=2, n=500), SamplingParams(top_p=0.6, n=500)):
            (tokens,) = sample(logits, [row(params, num_samples=500)])
            assert set(counts_of(tokens, 5).nonzero()[0]) == {0, 1, 2, 3}


def check_edges(module) -> None:
    """Extreme uniforms land on the first and the last possible token, never on one of weight 0; NaN on any token."""
    weights = torch.zeros(3, VOCAB_SIZE)
    weights[0, [4, 140, 260]] = torch.tensor([1e-9, 1.0, 1e-7])
    weights[1], weights[2, 7] = math.nan, 1.0
    u, row_of_draw = np.array([0.0, 1e-8, 0.5, 1.0 - 2.0**-53, 0.5, 0.5]), np.array([0, 0, 0, 0, 1, 2])
    drawn = module.draw(weights, Parcel.of({"u": u, "random_row_of_draw": row_of_draw}, "cpu")).tolist()
    assert [*drawn[:4], drawn[5]] == [4, 140, 140, 260, 7]
    assert 0 <= drawn[4] < VOCAB_SIZE


def check_order_of_processors(module) -> None:
    """For each neighbouring pair, a distribution that tells the two orders apart."""

    def support(p, token_ids=(), **options):
        logits = torch.tensor([p], dtype=torch.float64).log().float()
        params = SamplingParams(n=300, **options)
        (tokens,) = sample_of(module)(logits, [row(params, num_samples=300, token_ids=token_ids)])
        return set(counts_of(tokens, len(p)).nonzero()[0].tolist())

    # Penalty, then temperature, then top-k: token 0 is best until penalised (logits are <= 0, so it is multiplied).
    assert support([0.6, 0.3, 0.1], token_ids=[0], repetition_penalty=5.0, top_k=1) == {1}
    # Temperature, then top-p: sharpened, the best token alone holds the mass.
    assert support([0.5, 0.3, 0.2], temperature=0.25, top_p=0.7) == {0}
    # Temperature, then min-p: flattened, the worst token is within reach of the best.
    assert support([0.7, 0.25, 0.05], temperature=4.0, min_p=0.4) == {0, 1, 2}
    # Top-k, then top-p of what is left: 0.4 is 0.57 of the two best.
    assert support([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.55) == {0}
    # Top-p, then min-p: after min-p, 0.5 would be 0.71 of the mass and stand alone.
    assert support([0.5, 0.2, 0.15, 0.15], min_p=0.35, top_p=0.7 - 1e-6) == {0, 1}
    # Top-k and min-p each count, whichever is stricter.
    assert support([0.5, 0.3, 0.1, 0.1], top_k=3, min_p=0.5) == {0, 1}
    assert support([0.5, 0.3, 0.1, 0.1], top_k=1, min_p=0.5) == {0}


def check_logprobs(module) -> None:
    logits = logits_of(6, 5)
    options = [{"logprobs": 3}, {}, {"logprobs": 0}, {"logprobs": 5, "n": 2}]
    params = [SamplingParams(temperature=0.5, top_k=9, repetition_penalty=1.5, **o) for o in options]
    params.insert(1, NextTokenParams(temperature=0.5, logprobs=40))  # of a beam search
    rows = [row(p, num_samples=p.n, token_ids=SEEN_TOKEN_IDS) for p in params]
    divided = torch.tensor([1, 0.5, 1, 1, 1])[:, None]
    expected = torch.log_softmax(logits.double() / divided, -1)
    for r, (p, tokens) in enumerate(zip(params, sample_of(module)(logits, rows), strict=True)):
        for token in tokens:
            if p.logprobs is None:
                assert token.logprob is None
                assert token.top_logprobs == ()
                continue
            assert token.logprob == pytest.approx(expected[r, token.token_id].item(), abs=1e-5)
            best = expected[r].topk(p.logprobs)
            assert [i for i, _ in token.top_logprobs] == best.indices.tolist()
            assert [x for _, x in token.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_more_logprobs_than_the_vocabulary_are_the_vocabulary():
    (tokens,) = sample(torch.zeros(1, 3), [row(SamplingParams(temperature=0, logprobs=20))])
    assert len(tokens[0].top_logprobs) == 3


def check_bad_rows(module) -> None:
    logits = logits_of(7, 5)
    logits[1, 40] = math.nan
    logits[2, 40] = math.inf
    logits[3] = -math.inf
    for options in ({"temperature": 0}, {}, {"top_p": 0.9, "top_k": 20}, {"top_p": 0.999, "temperature": 50.0}):
        rows = [row(SamplingParams(**options), seed=i) for i in range(5)]
        results = sample_of(module)(logits, rows)
        assert [isinstance(result, Exception) for result in results] == [False, True, True, True, False]
        for good in (0, 4):
            assert results[good] == sample_of(module)(logits[good : good + 1], [rows[good]])[0]


def check_extremes(module) -> None:
    """Whatever the parameters are within their rules, what is drawn is a token that its row may have."""
    allowed = np.zeros(10, np.uint32)
    allowed[[3, 4]] = 1 << 5, 1 << 31
    legal = {3 * 32 + 5, 4 * 32 + 31}
    for temperature in (5e-324, 1e-30, 3.3e38, 3.5e38, 1e300, 1.7e308):
        for penalty in (0.01, 100):
            for options in ({}, {"min_p": 0, "top_p": 0.9}, {"min_p": 1, "top_k": 2}, {"top_p": 1e-300}):
                params = SamplingParams(temperature=temperature, repetition_penalty=penalty, **options)
                rows = [row(params, seed=s, token_ids=[*legal, 7])._replace(allowed=allowed) for s in range(8)]
                results = sample_of(module)(logits_of(11, 1, scale=300.0).expand(8, -1), rows)
                assert {token.token_id for (token,) in results} <= legal, params


def test_a_bad_row_says_what_was_found():
    (result,) = sample(torch.tensor([[0.0, math.nan]]), [row(SamplingParams())])
    assert isinstance(result, SamplingError)
    assert "not finite (maximum: nan)" in str(result)


CHECKS = {
    "distribution": check_distribution_of_each_processor,
    "together": check_rows_together,
    "draws": check_draws_differ_by_completion_and_position,
    "edges": check_edges,
    "order": check_order_of_processors,
    "logprobs": check_logprobs,
    "bad rows": check_bad_rows,
    "extremes": check_extremes,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_sampler(check):
    check(sampler)


# The kernels' own distributions: tests/kernels/test_sampling.py.
SLOW = {"distribution": pytest.mark.full}


@pytest.mark.parametrize("check", [pytest.param(CHECKS[name], id=name, marks=SLOW.get(name, ())) for name in CHECKS])
def test_by_kernels(check, monkeypatch):
    """As on a GPU, and where compiled kernels are asked for by name."""
    pytest.importorskip("triton", reason="not run here: no triton")
    for module in (sampler, truncation):
        monkeypatch.setattr(module, "prefers_kernels", lambda device: True)
    monkeypatch.setattr(truncation, "truncate", None)
    check(sampler)


SAMPLER, EDITS, TRUNCATION = "twophase.engine.sampler", "twophase_features.score_edits", "twophase_features.truncation"
# name, module, source text, replacement, the check that must notice
MUTANTS = [
    ("penalty ignores the sign", EDITS, "torch.where(seen > 0, seen / penalty, seen * penalty)", "seen / penalty", "distribution"),
    ("penalty upside down", EDITS, "torch.where(seen > 0,", "torch.where(seen < 0,", "distribution"),
    ("temperature multiplied", SAMPLER, '.div_(given["temperature"]', '.mul_(given["temperature"]', "distribution"),
    ("temperature beyond float32", SAMPLER, "min(max(p.temperature, tiny), huge)", "max(p.temperature, tiny)", "extremes"),
    ("top-k keeps one too few", TRUNCATION, "[:, None] - 1).squeeze(1)", "[:, None] - 2 + (torch.tensor(ranks)[:, None] == 1).long()).squeeze(1)", "distribution"),
    ("top-p of the whole row, not of what top-k left", TRUNCATION, "(weights * (weights >= lowest[:, None])).sum(", "weights.sum(", "order"),
    ("top-p excludes the token that reaches it", TRUNCATION, "< wanted[:, None]).sum(dim=-1)\n", "< wanted[:, None]).sum(dim=-1).sub(1).clamp(min=0)\n", "distribution"),
    ("top-p trusts its candidates", TRUNCATION, "(~(is_covered | is_limited))", "(is_covered & ~is_covered)", "distribution"),
    ("min-p ignored", TRUNCATION, "torch.from_numpy(min_p.astype(np.float32))", "torch.zeros(len(min_p))", "distribution"),
    ("min-p forgotten beside top-k", TRUNCATION, "lowest[sorting].maximum(_top_k_top_p(chosen", "(_top_k_top_p(chosen", "order"),
    ("all completions draw alike", SAMPLER, "row.first_index + i for", "row.first_index for", "draws"),
    ("position ignored", SAMPLER, "[row.position for _, row, _ in chosen]", "[0 for _, row, _ in chosen]", "draws"),
    ("seed ignored", SAMPLER, "[row.seed for _, row, _ in chosen]", "[i for i, _ in enumerate(chosen)]", "together"),
    ("draws of the first row", SAMPLER, "cumsum(dim=-1)[row_of_draw]", "cumsum(dim=-1)[row_of_draw * 0]", "edges"),
    ("tokens of the first row", SAMPLER, "masses[row_of_draw, chunk", "masses[row_of_draw * 0, chunk", "edges"),
    ("the token before", SAMPLER, "inner[:, -1:], right=True)", "inner[:, -1:], right=False)", "edges"),
    ("u up to the total", SAMPLER, ".long().minimum(total - 1)", ".ceil().long()", "edges"),
    ("the chunk's end for its beginning", SAMPLER, "+ inner[:, -1:], right", ", right", "distribution"),
    ("chunk size off", SAMPLER, "chunk * CHUNK + token", "chunk * (CHUNK - 1) + token", "distribution"),
    ("logprobs of the penalised scores", SAMPLER, "logprobs_of(token_ids, logits,", "logprobs_of(token_ids, scores,", "logprobs"),
    ("logprobs without normalisation", "twophase_features.logprobs", '["asking_temperature"][:, None]).log_softmax(dim=-1)', '["asking_temperature"][:, None])', "logprobs"),
    ("NaN passes", SAMPLER, "-math.inf < peak < math.inf", "not (peak == math.inf or peak == -math.inf)", "bad rows"),
    ("biases of all rows", EDITS, 'scores[given("rows"), given("ids")] +=', 'scores[:, given("ids")] +=', "together"),
    ("edits in place", EDITS, "scores = logits.clone()", "scores = logits", "together"),
    ("each edit starts anew", EDITS, "apply(scores, partial", "apply(scores := logits.clone(), partial", "distribution"),
    ("biases last", EDITS, "    for name, _, _, apply in EDITS:\n", "    for name, _, _, apply in EDITS[1:] + EDITS[:1]:\n", "distribution"),
    ("prompts are counted", EDITS, "row.token_ids[-row.position :]", "row.token_ids", "distribution"),
    ("presence forgotten", EDITS, "row.params.presence_penalty + row", "row", "distribution"),
    ("frequency is presence", EDITS, "* counted[r][1].astype(np.float32)", "* np.ones(len(counted[r][1]))", "distribution"),
    ("bans of all rows", EDITS, 'scores[given("rows"), given("ids")] = -math', 'scores[:, given("ids")] = -math', "together"),
    ("mask not applied", EDITS, ".masked_fill_(forbidden, -math.inf)", "", "distribution"),
    ("mask of the neighbour row", EDITS, "masked_fill_(forbidden,", "masked_fill_(forbidden.roll(1, 0),", "together"),
    ("masked rows shifted", EDITS, "scores[rows] =", "scores[(rows - 1).clamp_min(0)] =", "together"),
    ("highest bit first", EDITS, 'bitorder="little"', 'bitorder="big"', "distribution"),
    ("everything allowed beyond the last word", EDITS, ", value=True)", ", value=False)", "distribution"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants(mutant):
    *planted, check = mutant
    KillTable.record(Mutant(*planted), CHECKS[check])


@pytest.mark.gpu
def test_cuda_draws_what_the_cpu_draws():
    """The uniforms are made on the host; only rounding in exp and sums differs, which these draws do not meet."""
    rows = [row_of(case, 5, seed=i) for i, case in enumerate(CASES)]
    logits = logits_of(3, len(rows))
    on_cpu, on_cuda = sample(logits, rows), sample(logits.cuda(), rows)
    assert [[t.token_id for t in tokens] for tokens in on_cuda] == [[t.token_id for t in tokens] for tokens in on_cpu]
