"""Beams in the scheduler: they fork, share, go and come back together, in pools far too small, beside other requests.

The fake model gives each text candidates by a hash; what a search must find is told by `best_texts`, from the definition.
"""

import random
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.mutation import KillTable, Mutant
from tests.scheduling.harness import EOS, VOCAB_SIZE, Harness, make_request
from tests.scheduling.test_mutants import running
from tests.scheduling.test_pressure import Disturber, random_groups, random_harness, random_request
from twophase.core.errors import InvalidRequestError
from twophase.core.plan import SampledToken
from twophase.engine.beam_search import BeamSearch
from twophase.scheduling.policy import Policy


def logprob_of(token_id: int, text) -> float:
    return -(1 + hash((token_id, *text)) % 9973) / 997


def stops_of(request) -> frozenset[int]:
    params = request.sampling_params
    return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else request.eos_token_ids)


def room_of(request, max_model_len: int) -> int:
    num_prompt_tokens = len(request.prompt_token_ids)
    return min(request.sampling_params.max_tokens, max_model_len - num_prompt_tokens)


def best_texts(request, max_model_len: int) -> list[tuple[int, ...]]:
    """The n best texts, by the definition: all texts of the next length, their best n, and those that ended."""
    params, prompt, stops = request.sampling_params, request.prompt_token_ids, stops_of(request)
    beams, ended, longest = [(0.0, ())], [], room_of(request, max_model_len)
    while True:
        texts = [(p + logprob_of(t, prompt + text), (*text, t)) for p, text in beams for t in range(VOCAB_SIZE)]
        texts.sort(key=lambda each: -each[0])
        length = len(texts[0][1])
        is_end = {text: text[-1] in stops or length == longest for _, text in texts}
        ended += [(p / length**params.length_penalty, text) for p, text in texts[: params.n] if is_end[text]]
        ended = sorted(ended, key=lambda each: -each[0])[: params.n]
        beams = [(p, text) for p, text in texts if not is_end[text]][: params.n]
        if not beams:
            return [text for _, text in ended]
        if len(ended) == params.n:
            hoped = longest if params.early_stopping == "never" and params.length_penalty > 0 else length
            is_hopeless = beams[0][0] / hoped**params.length_penalty <= ended[-1][0]
            if params.early_stopping is True or params.n == 1 or is_hopeless:
                return [text for _, text in ended]


class BeamHarness(Harness):
    """A harness that searches, for requests that ask for it; `searches` has what they found."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.searches: dict[str, BeamSearch] = {}
        self.num_led = self.most_shared = 0
        update = self.scheduler.update
        # Not in `execute`: a step that is executed may still be dropped, and then nothing was chosen.
        self.scheduler.update = lambda plan, sampled: update(plan, self.choose(plan, sampled))

    def add(self, *requests) -> None:
        super().add(*requests)
        for request in requests:
            if request.sampling_params.use_beam_search:
                longest = room_of(request, self.config.max_model_len)
                self.searches[request.request_id] = BeamSearch(request.sampling_params, stops_of(request), longest)

    def choose(self, plan, sampled) -> dict:
        texts = defaultdict(dict)
        for chunk in plan.chunks:
            sequence = self.scheduler.sequences.get(chunk.seq_id)
            if sequence is not None and sequence.beams and chunk.num_samples:
                texts[sequence.request.request_id][tuple(sequence.output_token_ids)] = chunk.seq_id
        for request_id, seq_ids in texts.items():
            prompt, search = self.requests[request_id].prompt_token_ids, self.searches[request_id]
            candidates = {
                text: [SampledToken(token_id, logprob_of(token_id, prompt + text)) for token_id in range(VOCAB_SIZE)]
                for text in seq_ids
            }
            self.num_led += any(len(text) < search.num_tokens for text in seq_ids)
            chosen = search.choose(candidates)
            sampled |= {seq_id: chosen[text] for text, seq_id in seq_ids.items()}
        return sampled

    def check_plan(self, plan) -> None:
        super().check_plan(plan)
        chunks = [chunk for chunk in plan.chunks if self.scheduler.sequences[chunk.seq_id].beams]
        assert not any(chunk.num_drafts for chunk in chunks), "a beam has drafts"
        planned = {chunk.seq_id for chunk in chunks}
        for chunk in chunks:
            beams = self.scheduler.sequences[chunk.seq_id].beams
            assert {beam.seq_id for beam in beams} <= planned, "beams apart"

    def check_state(self) -> None:
        super().check_state()
        beams_of = defaultdict(list)
        for sequence in self.scheduler.sequences.values():
            if sequence.request.sampling_params.use_beam_search:
                beams_of[sequence.request.request_id].append(sequence)
        for request_id, beams in beams_of.items():
            assert all(set(beam.beams) == set(beams) for beam in beams), "beams that do not know each other"
            assert sum(beam.num_completions for beam in beams) == self.requests[request_id].sampling_params.n
            assert len({beam.status for beam in beams}) == len({len(beam.token_ids) for beam in beams}) == 1
            assert len({beam.index for beam in beams}) == len(beams)
            texts = {tuple(beam.output_token_ids) for beam in beams}
            assert len(texts) == len(beams), "two beams of one text"
            found = self.searches[request_id].beams
            assert texts <= {beam.ids[: len(next(iter(texts)))] for beam in found}, "a text that no beam begins with"
            if beams[0].table is not None:
                held = [block for beam in beams for block in beam.table.block_ids]
                self.most_shared = max(self.most_shared, len(held) - len(set(held)))

    def check_outputs(self, *, but: frozenset[str] = frozenset()) -> None:
        super().check_outputs(but=but | frozenset(self.searches))
        for request_id, search in self.searches.items():
            if request_id not in but:
                request = self.requests[request_id]
                found = [beam.ids for beam in search.ended]
                assert found == best_texts(request, self.config.max_model_len), request_id
                assert [self.ends[request_id, i][0] for i in range(request.sampling_params.n)] == [
                    "stop"
                ] * request.sampling_params.n


def beam_request(request_id: str, prompt, max_tokens: int = 8, n: int = 3, **options):
    return make_request(request_id, prompt, max_tokens, n=n, use_beam_search=True, eos=[EOS], **options)


def play(seed: int, num_requests: int, disturbed: float, max_tokens=(1, 5, 12, 20), **options) -> BeamHarness:
    """As test_pressure's, and two requests of three are beam searches."""
    rng = random.Random(seed)
    harness = random_harness(rng, **options)
    disturber = Disturber(rng, harness)
    num_added = 0
    while num_added < num_requests or harness.scheduler.has_unfinished:
        while num_added < num_requests and len(harness.scheduler.sequences) < 12 and rng.random() < 0.7:
            num_added += 1
            request = random_request(rng, f"r{num_added}", harness.step_no, max_tokens)
            if rng.random() < 0.67:
                search = {
                    "length_penalty": rng.choice([-1, 0, 1, 2]),
                    "early_stopping": rng.choice([True, False, "never"]),
                }
                params = replace(request.sampling_params, use_beam_search=True, n=rng.randint(1, 4), **search)
                request = replace(request, sampling_params=params)
            with suppress(InvalidRequestError):
                harness.add(request)
        if rng.random() < disturbed:
            disturber.step()
        harness.step()
        assert harness.step_no < 400 * num_requests, "no end in sight"
    harness.run().check_outputs(but=frozenset(disturber.cut))
    return harness


# More are let in than there is room for.
CROWDED = {"max_num_seqs": 12, "budget": 16, "reserve_growth": False, "watermark": 0}


def histories(seeds, disturbed: float, **options) -> Counter:
    events: Counter = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.scheduling.test_pressure.Harness", BeamHarness)
        for seed in seeds:
            harness = play(seed, 12, disturbed, **(options | (CROWDED if seed % 4 else {})))
            events["search"] += len(harness.searches)
            events["led step"] += harness.num_led
            events["copy"] += harness.num_copies
            events["shared"] += harness.most_shared > 0
            events["preemption"] += len(harness.preempted)
            events["block swapped in"] += harness.num_swapped_in
    return events


@pytest.mark.parametrize("num_histories", [40, pytest.param(400, marks=pytest.mark.full)])
@pytest.mark.parametrize("disturbed", [0.0, 0.15], ids=["undisturbed", "aborts, failures and dropped steps"])
def test_searches_find_the_best_whatever_happens(num_histories, disturbed):
    events = histories(range(num_histories), disturbed)
    assert min(events.values()) > num_histories // 3, f"the histories exercise too little: {events}"


@pytest.mark.parametrize("num_histories", [20, pytest.param(200, marks=pytest.mark.full)])
def test_in_groups_of_layers(num_histories):
    for seed in range(num_histories):
        rng = random.Random(seed)
        options = random_groups(rng, 2) | {"block_size": 2, "num_swap_blocks": 80}
        histories([seed], 0.1, **options)


def test_the_beams_of_a_request_get_n_tokens_or_none():
    harness = BeamHarness()
    harness.add(beam_request("a", 3))
    plan = harness.schedule()
    (chunk,) = plan.chunks
    for count in (1, 2, 4):
        with pytest.raises(ValueError, match=r"the beams of request 'a' go on with 3 tokens in all, or with none; got"):
            Harness.module.Scheduler.update(harness.scheduler, plan, {chunk.seq_id: [SampledToken(7)] * count})
    harness.take(Harness.module.Scheduler.update(harness.scheduler, plan, {chunk.seq_id: ()}))
    assert harness.ends == {("a", index): ("stop", None) for index in range(3)}
    assert harness.cache.stats().num_in_use == 0


class PromptsThenDecodes(Policy):
    """What is left of the budget may be too little for all beams of a request: then none of them is decoded."""

    def rank(self, sequence):
        return (sequence.arrival_order, sequence.index)

    def plan(self, step):
        for sequence in step.running:
            if not sequence.is_decoding:
                step.prefill(sequence)
        for sequence in step.waiting:
            step.admit(sequence)
        for sequence in step.running:
            if sequence.is_decoding:
                step.decode(sequence)


def test_beams_decode_together_or_not_at_all():
    harness = BeamHarness(policy=PromptsThenDecodes(), max_num_seqs=4, budget=4)
    harness.add(beam_request("a", 3, n=3, ignore_eos=True))
    harness.step()
    harness.add(make_request("b", 6, 2))
    harness.run().check_outputs()
    assert harness.log[:7] == [
        (0, "a", 3),
        (1, "b", 4),
        (2, "b", 2),
        *[(3, name, 1) for name in ("a", "a/1", "a/2", "b")],
    ]


# In the first two, beams lose their blocks in the step in which some of them got new ones; in the last, places run out.
SWAPPED = {"window": None, "block_size": 4, "chunked": True, "num_swap_blocks": 60}
RARE = ([23, 45], 0.0, SWAPPED), ([229], 0.15, SWAPPED), ([69], 0.0, {})


def test_rare_histories():
    for seeds, disturbed, options in RARE:
        histories(seeds, disturbed, **options)


def some_histories() -> None:
    test_rare_histories()
    test_beams_decode_together_or_not_at_all()
    test_the_beams_of_a_request_get_n_tokens_or_none()
    histories(range(30), 0.0)
    histories(range(20), 0.15)
    for seed in range(12):
        options = random_groups(random.Random(seed), 2) | {"block_size": 2}
        histories([seed], 0.1, **options, num_swap_blocks=80)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("module", "name", "old", "new"),
    [
        ("scheduler", "a beam without a token keeps its blocks", "if not token_ids:", "if False:"),
        ("scheduler", "a fork is nobody's beam", "beam.beams.extend(sequences[1:])", "beam.beams.extend(())"),
        (
            "scheduler",
            "all forks take one token",
            "zip(sequences, shares, strict",
            "zip(sequences, [*shares][:1] * len(shares), strict",
        ),
        (
            "scheduler",
            "the newest token is not confirmed",
            "self.ledger.confirm(beam, len(beam.token_ids))",
            "self.ledger.confirm(beam, len(beam.token_ids) - 1)",
        ),
        (
            "scheduler",
            "one beam is preempted alone",
            "for other in others:\n            with blamed",
            "for other in ():\n            with blamed",
        ),
        (
            "scheduler",
            "the one that waits keeps its own tokens",
            "del first.token_ids[num_kept:]",
            "del first.token_ids[len(first.token_ids) :]",
        ),
        (
            "scheduler",
            "the one that waits stands for itself",
            "first.num_completions = num_completions",
            "first.num_completions = 1",
        ),
        (
            "scheduler",
            "one beam ends alone",
            "for each in together:\n            self._retire",
            "for each in together[:1]:\n            self._retire",
        ),
        ("scheduler", "two beams of one index", "if index not in taken)", "if index >= 0)"),
        (
            "scheduler",
            "who has ended is still a beam",
            "sequence.beams.remove(sequence)",
            "sequence.beams.copy().remove(sequence)",
        ),
        (
            "scheduler",
            "a beam goes on twice in a step",
            "branched.update(beam.seq_id for beam in sequence.beams)",
            "branched.update(())",
        ),
        ("scheduler", "any number of tokens", "if num_sampled not in (0, ", "if num_sampled in (-1, "),
        (
            "scheduler",
            "ends as what it stands for",
            "if sequence.beams:\n            indices = range(",
            "if False:\n            indices = range(",
        ),
        (
            "step",
            "beams cost one token together",
            "self._num_tokens + len(together) > self._max_tokens",
            "self._num_tokens + 1 > self._max_tokens",
        ),
        ("step", "a beam goes on without its victim", "if victim in together:", "if victim is each:"),
        ("step", "beams get drafts", "most = 0 if sequence.beams else min", "most = min"),
        (
            "step",
            "a planned beam is planned again",
            "if sequence.beams and sequence.seq_id in self._planned:",
            "if False:",
        ),
        ("ledger", "the copies of who lost its blocks are done", "if sequence not in self.moves.filled:", "if True:"),
        ("ledger", "what was not copied yet is saved", "[source_of.get(block_id, block_id) for", "[block_id for"),
        (
            "ledger",
            "nothing is left to compute",
            "num_computed, may_swap = num_kept - 1,",
            "num_computed, may_swap = num_kept,",
        ),
        ("ledger", "in a window what is gone is saved", "may_swap and self.cache.window is None", "may_swap"),
        (
            "ledger",
            "a fork takes one place",
            "num_completions + sum(fork.num_completions for fork in forks)",
            "num_completions + len(forks)",
        ),
    ],
    ids=lambda value: value if " " in value and "(" not in value and "=" not in value else "",
)
def test_mutants_are_killed(module, name, old, new):
    through = "twophase.scheduling.step" if module == "ledger" else None
    KillTable.record(Mutant(name, f"twophase.scheduling.{module}", old, new, through), running(some_histories))
