"""Decodes begun ahead of the host, on a fake device: the tokens of eager steps, one wait, two transfers, no idle device.

The device of these tests is a CPU with a clock of its own: a replay takes DEVICE ticks in the order of a queue, each step
of the host takes HOST, and a wait ends when the device has done what was queued before it.
"""

import contextlib

import pytest
import torch

from tests.engine.engines import finish, make_engine, prompt_of, run, tokens_of
from tests.engine.test_step_graphs import PlayedGraphs, with_references
from tests.engine.test_waits import CASES
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant
from twophase.core.plan import ScheduledChunk
from twophase.core.request import SamplingParams
from twophase.engine import runner, sampler
from twophase.engine.runner import pack
from twophase_features import look_ahead, step_graphs

pytest.importorskip("triton", reason="not run here: no triton")

DEVICE, HOST = 20, 15
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((3, 7, 9))]  # two of them need a new block at once
COUNTS = (30, 21, 30)  # tokens; the second ends in the middle


class Device:
    """Counts a step's transfers and waits, and the ticks for which the device had nothing to do between replays."""

    def __init__(self, monkeypatch):
        self.now = self.free = self.idle = 0
        self.counts = []
        monkeypatch.setattr(runner.Parcel, "of", self._counted("transfers", runner.Parcel.of))
        monkeypatch.setattr(sampler, "read", self._counted("waits", sampler.read))

    def _counted(self, name, function):
        def call(*args):
            self.counts[-1][name] += 1
            queued = self.free  # what is queued within a call that reads lies behind it
            result = function(*args)
            if name == "waits":
                self.now = max(self.now, queued)
            return result

        return call

    def begin_step(self):
        self.now += HOST
        self.counts.append({"transfers": 0, "waits": 0})

    def follow(self, graphs):
        """Replays of `graphs` take time."""
        capture = graphs._try_capture

        def timed_capture(packed, shape):
            captured = capture(packed, shape)
            replay = captured.graph.replay

            def timed_replay():
                replay()
                self.idle += max(0, self.now - self.free)
                self.free = max(self.free, self.now) + DEVICE

            captured.graph.replay = timed_replay
            return captured

        graphs._try_capture = timed_capture


@contextlib.contextmanager
def on_device(model, module=look_ahead, graphs_module=step_graphs, **options):
    """An engine on the fake device, the device, and what is begun ahead."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        played, device = PlayedGraphs(monkeypatch), Device(monkeypatch)
        monkeypatch.setattr(graphs_module, "LookAhead", module.LookAhead)
        monkeypatch.setattr(graphs_module, "Room", module.Room)
        monkeypatch.setattr(graphs_module, "pack", lambda *args, device, **options: pack(*args, **options))
        model = with_references(model, monkeypatch)
        engine = make_engine(model, max_model_len=100, **options)
        way = graphs_module.CudaGraphs(torch.device("cpu"))
        graphs = engine._runner.graphs = graphs_module.DecodeGraphs(model, engine._runner.kv_cache, 100, way)
        engine.speculator = graphs.room
        played.follow(graphs)
        device.follow(graphs)
        step = engine.step
        monkeypatch.setattr(engine, "step", lambda: (device.begin_step(), step())[1])
        yield engine, device, graphs.ahead


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(make_folder("llama", tmp_path_factory.mktemp("ahead"))[0])


def params_of(case):
    return [SamplingParams(**CASES[case], max_tokens=count, ignore_eos=True, seed=7) for count in COUNTS]


def check(model, case, *modules):
    """Sequences of different lengths, one of which ends before the others."""
    expected = run(make_engine(model, max_model_len=100), PROMPTS, params_of(case))
    with on_device(model, *modules) as (engine, device, ahead):
        found = run(engine, PROMPTS, params_of(case))
    assert list(map(tokens_of, found)) == list(map(tokens_of, expected))
    first, *decodes = device.counts[1:]
    assert first == {"transfers": 3, "waits": 1}, "its own batch, and the next one's"
    assert len(decodes) == max(COUNTS) - 2
    assert all(each["transfers"] <= 2 and each["waits"] == 1 for each in decodes)
    assert ahead.num_used == len(decodes), "each decode but the first was begun ahead"
    assert ahead.num_begun == ahead.num_used
    assert device.idle == 2 * HOST, "the prompts' step, which is eager, and the first decode's"


def served_under_pressure(engine):
    """Requests that join in the middle, and lose their blocks to each other; each one's tokens."""
    found = {}
    for i, prompt in enumerate((*PROMPTS, *PROMPTS)):
        params = SamplingParams(temperature=i % 2, max_tokens=COUNTS[i % 3], ignore_eos=True, seed=i)
        engine.add_request(str(i), prompt, params)
        found |= {output.request_id: output for _ in range(4) for output in engine.step()}
    found |= finish(engine)
    assert any(step.preempted for step in engine.trace), "there was to be pressure"
    return {name: tokens_of(output) for name, output in found.items()}


def check_pressure(model, *modules):
    options = {"num_blocks": 26, "budget": 8}
    expected = served_under_pressure(make_engine(model, max_model_len=100, **options))
    with on_device(model, *modules, **options) as (engine, _, ahead):
        assert served_under_pressure(engine) == expected
    assert 0 < ahead.num_used < ahead.num_begun


def check_watched(model, *modules):
    """A watched step runs eagerly, and drops the step that was begun in its place; the next but one is begun again. None is
    begun after the last token, for which there would be a slot."""
    prompt, params = PROMPTS[2], params_of("greedy")[2]
    expected = tokens_of(run(make_engine(model, max_model_len=100), [prompt], params)[0])
    with on_device(model, *modules) as (engine, _, ahead):
        engine.add_request("0", prompt, params)
        for _ in range(4):
            engine.step()
        num_used = ahead.num_used
        assert ahead._ahead is not None
        engine._runner.watch = lambda chunks: contextlib.nullcontext()
        engine.step()
        engine._runner.watch = None
        assert ahead._ahead is None, "its states are memory that the next replay overwrites"
        assert ahead.num_used == num_used
        assert tokens_of(finish(engine)["0"]) == expected
        assert ahead.num_used > num_used
        assert ahead.num_begun == ahead.num_used + 1, "the dropped one"


CHUNK = ScheduledChunk(seq_id=4, token_ids=(7,), start=5, block_ids=[2, 8], num_samples=1)
# A window may have left a block that the step read.
SAME = [{}, {"block_ids": [-1, 8, 1]}, {"block_ids": [2, 8, 1, 4]}]
OTHERS = [
    {"start": 7}, {"seq_id": 5}, {"block_ids": [2, 9]}, {"block_ids": [2]}, {"num_samples": 0}, {"token_ids": (7, 7)},
    {"num_drafts": 1},
]  # fmt: skip


def check_taking(module):
    """A step is taken once, by its own sequences, or some of them, over the same blocks; else it was for nothing."""
    hidden = torch.arange(3.0)[:, None]
    chunks = [CHUNK._replace(seq_id=i) for i in (3, 4, 9)]
    following = [chunk._replace(start=6, block_ids=[2, 8, 1]) for chunk in chunks]

    def begun(block_size=4, is_wanted=True):
        ahead = module.LookAhead(lambda chunks, token_ids: hidden, block_size, 1, 100)
        ahead.begin_step(is_wanted)
        ahead.note(chunks)
        ahead.begin(torch.tensor([1, 2, 3]))
        return ahead

    ahead = begun()
    assert ahead.take(following).tolist() == [[0.0], [1.0], [2.0]]
    assert ahead.take(following) is None, "once"
    assert begun().take([following[2], following[0]]).tolist() == [[2.0], [0.0]]
    for change in SAME:
        assert begun().take([following[0]._replace(**change)]).tolist() == [[0.0]], change
    for change in OTHERS:
        assert begun().take([following[0], following[1]._replace(**change)]) is None, change
    assert begun(is_wanted=False).num_begun == 0, "a drafter's step would be another one"
    ahead = begun()
    ahead.note(chunks)
    ahead.begin_step(True)
    ahead.begin(torch.tensor([1, 2, 3]))
    assert ahead.num_begun == 1, "the chunks are those of the step before"
    assert begun(block_size=3).num_begun == 0, "there is no slot"


def check_reading(module):
    """The values are those before `meanwhile`, which is called once."""
    calls, tensor = [], torch.tensor([1, 2])
    ids, peak = module.read([tensor, torch.tensor(0.5)], lambda: calls.append(tensor.fill_(9)))
    assert (ids.tolist(), peak.tolist(), len(calls)) == ([1, 2], 0.5, 1)


def test_reading():
    check_reading(runner)


def test_taking():
    check_taking(look_ahead)


@pytest.mark.parametrize("case", CASES)
def test_a_device_that_never_waits_for_the_host(model, case):
    check(model, case)


def test_sequences_that_join_and_are_preempted(model):
    check_pressure(model)


def test_a_watched_step(model):
    check_watched(model)


def test_without_a_step_ahead_the_device_waits_for_the_host(model, monkeypatch):
    monkeypatch.setattr(look_ahead.LookAhead, "begin", lambda self, token_ids: None)
    with on_device(model) as (engine, device, _):
        run(engine, PROMPTS, params_of("greedy"))
    assert device.idle == HOST * max(COUNTS)


AHEAD, GRAPHS = look_ahead.__name__, step_graphs.__name__
# name, module, old, new, check
MUTANTS = [
    ("tokens of the step before", GRAPHS, "[: len(token_ids)].copy_(token_ids)", "[: len(token_ids)]", "greedy"),
    ("nothing begun", GRAPHS, "            self.ahead.begin(token_ids)\n", "            pass\n", "greedy"),
    ("nothing meanwhile", "twophase.engine.runner", "    meanwhile()\n", "", "reading"),
    ("values of after the step ahead", "twophase.engine.runner", "    values = torch.cat", "    meanwhile()\n    values = torch.cat", "reading"),
    ("at the position of the step before", AHEAD, "start=chunk.start + 1,", "start=chunk.start,", "greedy"),
    ("no room", AHEAD, "return plan if plan.prefills else with_drafts", "return plan if True else with_drafts", "greedy"),
    ("the room is taken back", "twophase.scheduling.planner", "table.num_tokens - 1:\n            self.cache.truncate(table, num_computed + 1)", "table.num_tokens:\n            self.cache.truncate(table, num_computed)", "greedy"),
    ("beyond the last block", AHEAD, "min(self._num_slots(chunk), self._max_model_len)", "self._max_model_len", "pressure"),
    ("rows of the first sequences", AHEAD, "if rows == list(range(len(rows))):", "if True:", "greedy"),
    ("any position", AHEAD, "chunk.start == begun.start and ", "", "taking"),
    ("any blocks", AHEAD, "begun.start and is_same", "begun.start", "taking"),
    ("fewer blocks", AHEAD, "        len(blocks) == len(begun.block_ids)\n        and all", "        all", "taking"),
    ("left by the window", AHEAD, "new in (old, -1)", "new == old", "taking"),
    ("a step ahead is used twice", AHEAD, "ahead, self._ahead, self._latest = self._ahead, None, None", "ahead, self._latest = self._ahead, None", "taking"),
    ("any sequence", AHEAD, "row_of.get(chunk.seq_id, -1)", "row_of.get(chunk.seq_id, 1)", "taking"),
    ("chunks of the step before", AHEAD, "self._latest, self._is_wanted = None, is_wanted", "self._is_wanted = is_wanted", "taking"),
    ("after the last tokens", AHEAD, "is_wanted=goes_on and not", "is_wanted=not", "watched"),
    ("a token too early", AHEAD, "len(sequence.token_ids) + 1 <", "len(sequence.token_ids) + 2 <", "greedy"),
    ("after the first sequence's last token", AHEAD, "goes_on = any(", "goes_on = all(", "greedy"),
    ("kept beside a watched step", GRAPHS, "hidden = None if self.ahead is None else", "hidden = None if self.ahead is None or is_watched else", "watched"),
    ("a watched step is replayed", GRAPHS, "        if is_watched:\n            return None, None\n", "", "watched"),
    ("beside a drafter", AHEAD, " or not is_wanted", "", "taking"),
    ("with drafts", AHEAD, "chunk.num_samples == 1 and not chunk.num_drafts and ", "chunk.num_samples == 1 and ", "taking"),
    ("several tokens", AHEAD, " and len(chunk.token_ids) == 1\n", "\n", "taking"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("row", MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(model, row, monkeypatch):
    *planted, case = row

    def noticing(module):
        modules = {AHEAD: (module, step_graphs), GRAPHS: (look_ahead, module)}.get(planted[1], ())
        if planted[1].endswith("planner"):
            monkeypatch.setattr("twophase.scheduling.scheduler.Planner", module.Planner)
        if case == "taking":
            check_taking(module)
        elif case == "reading":
            check_reading(module)
        elif case == "watched":
            check_watched(model, *modules)
        elif case == "pressure":
            check_pressure(model, *modules)
        else:
            check(model, case, *modules)

    KillTable.record(Mutant(*planted), noticing)
