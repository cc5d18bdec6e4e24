"""Log-probabilities of prompts: transformers' own, whatever the engine does with the prompt in between."""

from dataclasses import replace
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

from tests.engine.engines import GREEDY, check_idle, finish, make_engine, prompt_of, run
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant, installed
from twophase.core.plan import ScheduledChunk
from twophase.core.request import Request, SamplingParams
from twophase.engine.engine import Engine
from twophase.engine.request_state import RequestState
from twophase.engine.runner import ModelRunner
from twophase.scheduling.planner import Planner
from twophase_features import logprobs
from twophase_features.step_memory import SCORED_ROWS

LENGTHS = (1, 2, 4, 5, 17, 30, 41)  # below, at and above block boundaries; beyond the sliding window
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate(LENGTHS)]
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=3)
ONE = replace(GREEDY, max_tokens=1)


@torch.inference_mode()
def expected_of(oracle, prompt) -> torch.Tensor:
    """[L, V]: of the token at each position and all others, given those before; row 0 is that of position 1."""
    return oracle(torch.tensor([prompt["prompt_token_ids"]])).logits[0].double().log_softmax(-1)


@pytest.fixture(scope="module", params=["llama", "mistral"])
def case(request, tmp_path_factory):
    """A model, and what transformers says of the prompts."""
    folder, oracle = make_folder(request.param, tmp_path_factory.mktemp(request.param), eos_token_id=None)
    return (
        load_model(folder),
        {tuple(prompt["prompt_token_ids"]): expected_of(oracle, prompt) for prompt in PROMPTS},
        oracle,
    )


def check_output(output, rows: torch.Tensor, num_top: int = 3) -> None:
    """Logits agree with transformers' within 1e-4 (tests/model), so log-probabilities do within twice that."""
    entries = output.prompt_logprobs
    assert entries is not None
    assert len(entries) == len(output.prompt_token_ids), f"{len(entries)} entries"
    assert entries[0] is None
    for position, (entry, row) in enumerate(zip(entries[1:], rows[:-1], strict=True), 1):
        assert entry is not None, f"position {position}"
        assert entry.token_id == output.prompt_token_ids[position], f"position {position}"
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=2e-4), f"position {position}"
        best = row.topk(num_top).values.tolist()
        assert [x for _, x in entry.top] == pytest.approx(best, abs=2e-4), f"position {position}"
        assert [row[i].item() for i, _ in entry.top] == pytest.approx(best, abs=2e-4), f"position {position}"


def check_outputs(case, outputs) -> None:
    for output in outputs:
        assert [each.error for each in output.outputs] == [None] * len(output.outputs)
        check_output(output, case[1][output.prompt_token_ids])


def test_no_prefix_is_looked_up_and_all_are_published(case):
    engine = make_engine(case[0], budget=16)
    for _ in range(2):
        outputs = run(engine, PROMPTS, PARAMS)
        check_outputs(case, outputs)
        assert [output.metrics.num_cached_tokens for output in outputs] == [0] * len(PROMPTS)
    num_shared = [output.metrics.num_cached_tokens for output in run(engine, PROMPTS, GREEDY)]
    assert num_shared[-1] == 40
    assert engine.stats().cache.num_queries == len(PROMPTS), "who looks nothing up counts neither as hit nor as miss"


def preempting(model, num_host_blocks: int = 0, **options) -> Engine:
    """Three decodes grow until there is no block left, while the prompt of a fourth is computed, bit by bit."""
    engine = make_engine(model, num_blocks=20, budget=5, max_num_seqs=4, num_host_blocks=num_host_blocks, **options)
    for i in range(3):
        engine.add_request(f"long {i}", prompt_of(i, 1), replace(GREEDY, max_tokens=22))
    engine.step()
    engine.add_request("asking", PROMPTS[-1], PARAMS)
    return engine


def test_few_logits_at_a_time(case):
    model, _, oracle = case
    prompts = [prompt_of(1, 100), prompt_of(2, 60)]
    sizes, logits = [], model.logits
    with patch.object(model, "logits", lambda hidden: sizes.append(len(hidden)) or logits(hidden)):
        outputs = run(make_engine(model, budget=400), prompts, PARAMS)
    for prompt, output in zip(prompts, outputs, strict=True):
        check_output(output, expected_of(oracle, prompt))
    assert sizes[:4] == [SCORED_ROWS, SCORED_ROWS, 99 + 59 - 2 * SCORED_ROWS, 2]


def test_as_far_as_they_are_computed(case):
    engine = make_engine(case[0], budget=8)
    engine.add_request("a", PROMPTS[-1], PARAMS)
    engine.step()
    output = engine.abort("a")
    assert [each and each.token_id for each in output.prompt_logprobs] == [None, *output.prompt_token_ids[1:9]]
    check_idle(engine)


def test_an_error_in_the_model_is_the_request_s_own(case):
    """The batch is computed again in halves, and what it has scored by then is not counted twice."""
    engine = make_engine(case[0], budget=200)
    broken, logits = [], case[0].logits

    def fail_once(hidden):
        if not broken:
            broken.append(True)
            raise RuntimeError("out of memory")
        return logits(hidden)

    with patch.object(case[0], "logits", fail_once):
        check_outputs(case, run(engine, PROMPTS, PARAMS))


def entries_of(module: ModuleType, parts, *wanted):
    """The entries of two prompts whose first token has none; `wanted` has each one's other tokens, and `num_top`."""
    pairs = []
    for ids, num_top in wanted:
        request = Request("a", (0, *ids), SamplingParams(prompt_logprobs=num_top))
        chunk = ScheduledChunk(0, request.prompt_token_ids, 0, [0], 0, num_scored=len(ids))
        pairs.append((chunk, RequestState.start(request, True, None)))
    scorer = module.PromptScorer(pairs)
    for part in parts:
        scorer.take(part)
    scorer.note()
    return [state.prompt_logprobs[1:] for _, state in pairs]


# -- mutants


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder, oracle = make_folder("llama", tmp_path_factory.mktemp("mutants"), eos_token_id=None)
    return load_model(folder), expected_of(oracle, PROMPTS[-1])


def check_all(llama, module=None) -> None:
    """A prompt in chunks, found in the cache and preempted; with the classes that `module` has in place of ours."""
    model, rows = llama
    engine_class, runner_class = getattr(module, "Engine", Engine), getattr(module, "ModelRunner", ModelRunner)
    with (
        patch("tests.engine.engines.ModelRunner", runner_class),
        patch("twophase.scheduling.scheduler.Planner", getattr(module, "Planner", Planner)),
        installed(module if hasattr(module, "PromptScorer") else logprobs),
    ):
        engine = make_engine(model, budget=16, engine_class=engine_class)
        run(engine, PROMPTS[-1:], ONE)
        found, short, together = run(engine, [PROMPTS[-1], PROMPTS[0], PROMPTS[-1]], replace(ONE, prompt_logprobs=3))
        asking = finish(preempting(model, engine_class=engine_class))["asking"]
    for output in (found, together, asking):
        assert output.outputs[0].error is None, output.outputs[0].error
        check_output(output, rows)
    assert short.prompt_logprobs == (None,)


ENGINE, RUNNER = "twophase.engine.engine", "twophase.engine.runner"
STATE, PLANNER = "twophase.engine.request_state", "twophase.scheduling.planner"
SCORES = "twophase_features.logprobs"
MUTANTS = [
    ("a chunk begins with its own token", SCORES, "prompt_token_ids[chunk.start + 1 :]", "prompt_token_ids[chunk.start :]", None),
    ("the last row of a chunk is left out", SCORES, "max(0, min(len(chunk.token_ids), num", "max(0, min(len(chunk.token_ids) - 1, num", None),
    ("the last token's row too", SCORES, "num_prompt_tokens - 1 - chunk.start))", "num_prompt_tokens - chunk.start))", None),
    ("the first token has one", STATE, "state.prompt_logprobs = [None]", "state.prompt_logprobs = []", ENGINE),
    ("a place too early", SCORES, "state.prompt_logprobs[chunk.start + 1 :]", "state.prompt_logprobs[chunk.start :]", None),
    ("a preempted prompt's twice", SCORES, "state.prompt_logprobs[chunk.start + 1 :] =", "state.prompt_logprobs +=", None),
    ("a row further", SCORES, "[start + row for", "[start + 1 + row for", None),
    ("rows of the first chunk", SCORES, "[start + row for", "[row for", None),
    ("looked up", PLANNER, "sequence.lookup_ids", "sequence.token_ids", None),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "module", "old", "new", "through"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_mutant_is_killed(name, module, old, new, through, llama):
    KillTable.record(Mutant(name, module, old, new, through), lambda mutated: check_all(llama, mutated))


def check_scorer(module) -> None:
    """Two chunks' rows in slices that don't end where the chunks do."""
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    one, two = entries_of(module, logits.split([3, 2]), ([3, 0], 2), ([6, 1, 2], 0))
    rows = logits.double().log_softmax(-1)
    for entry, token_id, row in zip((*one, *two), (3, 0, 6, 1, 2), rows, strict=True):
        assert (entry.token_id, entry.logprob) == (token_id, pytest.approx(row[token_id].item(), abs=1e-5))
    assert [[i for i, _ in entry.top] for entry in (*one, *two)] == [*rows[:2].topk(2).indices.tolist(), [], [], []]


SCORER_MUTANTS = [
    ("each slice begins anew", "self._num_taken += len(logits)", "pass"),
    ("no normalisation", "logits.log_softmax(dim=-1)", "logits"),
    ("as many as anybody wants", "top[: _num_top(state)]", "top"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), SCORER_MUTANTS, ids=[row[0] for row in SCORER_MUTANTS])
def test_scorer_mutant_is_killed(name, old, new):
    KillTable.record(Mutant(name, SCORES, old, new), check_scorer)
