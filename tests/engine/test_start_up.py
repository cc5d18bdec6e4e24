"""A GPU before the first request: graphs that the engine's steps need, memory for them, and compiled kernels.

The GPU of these tests is a CPU whose captures take memory (`PlayedGraphs`).
"""

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.engine.engines import BLOCK_SIZE, make_engine, prompt_of, run
from tests.engine.test_step_graphs import PlayedGraphs, with_references
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant
from twophase import EngineConfig, SpeculativeConfig, assembly, memory
from twophase.attention.torch_backend import TorchBackend
from twophase.engine import runner
from twophase.engine.runner import pack
from twophase.model.config import load_config
from twophase.model.llama import LlamaModel
from twophase.scheduling.limits import SchedulerConfig
from twophase_features import start_up, step_graphs
from twophase_features.speculation import opening
from twophase_features.triton import attention as triton_backend
from twophase_kernels.paged_prefill import prefill_tiles

pytest.importorskip("triton", reason="not run here: no triton")

CPU, GIB = torch.device("cpu"), 2**30


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request, tmp_path_factory):
    return load_model(make_folder(request.param, tmp_path_factory.mktemp("start"))[0])


class Started:
    """An engine on the fake GPU, with contexts of 64 and 128 tokens; what its captures take is counted in `played`."""

    def __init__(self, monkeypatch, model, graphs_module=step_graphs, max_model_len=128, **options):
        self.played = PlayedGraphs(monkeypatch)
        for name, value in {
            "MIN_GRAPH_CONTEXT": 64,
            "CONTEXT_GROWTH": 2,
            "pack": lambda *args, device, **options: pack(*args, **options),
            "mode": lambda: "cuda",
        }.items():
            monkeypatch.setattr(graphs_module, name, value)
        monkeypatch.setattr(start_up, "MIN_GRAPH_CONTEXT", 64)
        self.engine = make_engine(with_references(model, monkeypatch), max_model_len=max_model_len, **options)
        self.runner, self.scheduler = self.engine._runner, self.engine._scheduler
        cache = self.runner.kv_cache
        self.graphs = self.runner.graphs = graphs_module.decode_graphs(self.runner.model, cache, max_model_len)

    def shapes(self):
        return {(shape.num_rows, shape.context) for shape in self.graphs._graphs}


def check_shapes(module, model):
    """As many sequences and as long ones as the engine may run: others are not captured, and these are not captured later."""
    for options, rows, contexts, sizes in (
        ({"max_num_seqs": 4}, {1, 2, 4}, {64, 128}, {64}),
        ({"max_num_seqs": 20, "budget": 100}, {1, 2, 4, 8, 16, 32}, {64, 128}, {64, 128}),
        ({"max_num_seqs": 1, "max_model_len": 64}, {1}, {64}, {64}),
        ({"max_num_seqs": 1, "num_blocks": 16 if model.config.sliding_window is None else 8}, {1}, {64}, {64}),
    ):
        with pytest.MonkeyPatch.context() as monkeypatch:
            started = Started(monkeypatch, model, module, **options)
            assert not started.shapes(), "a runner without an engine captures what it needs, when it needs it"
            started.graphs.capture_all(started.scheduler, 0)
            assert started.shapes() == {(n, context) for n in rows for context in contexts}, options
            assert set(started.graphs.pieces._pieces) == sizes, options


def test_only_shapes_that_the_engine_may_run(model):
    check_shapes(step_graphs, model)


LIMITS = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=70, max_model_len=5000)
SIZES = {"num_layers": 3, "hidden_size": 8, "intermediate_size": 16, "num_heads": 1, "num_kv_heads": 1, "head_dim": 4}


def model_of(folder, backend="triton", can_be_captured=True):
    """A model of these sizes, as far as its memory is asked for."""
    model, mlp = object.__new__(LlamaModel), SimpleNamespace(can_be_captured=can_be_captured)
    model.config = replace(load_config(folder), **SIZES, vocab_size=10)
    model.weights = SimpleNamespace(dtype=torch.bfloat16, layers=[SimpleNamespace(mlp=mlp)])
    model.backend, model.device = SimpleNamespace(name=backend), torch.device("cuda")
    return model


def check_estimate(module, folder):
    """Batches of 4, 2 and 1 in contexts of 1,024, 4,096 and 5,000 tokens; pieces of 128 and 64 tokens."""
    free = [64 * GIB]
    computing = 128 * (3 * 8 + 4 * 4 + 3 * 16) * 2 + 64 * 160 + 2**26
    tables = 4 * 7 * (64 + 256 + 313)
    results = (3 * 7 + 192) * 8 * 2
    launches = (9 + 2) * 3 * 2**19
    largest = computing + 4 * 4 * 313 + 128 * 8 * 2 + 3 * 2**19
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(step_graphs, "mode", lambda: "cuda")
        monkeypatch.setattr(module, "free_memory_bytes", lambda device: free[0])
        for_graphs = 2 * computing + tables + results + launches
        assert module.graph_bytes(model_of(folder), LIMITS, 16) == (for_graphs, largest)
        assert module.graph_bytes(model_of(folder, backend="torch"), LIMITS, 16) == (0, 0)
        assert module.graph_bytes(model_of(folder, can_be_captured=False), LIMITS, 16) == (0, 0)
        step = 70 * (3 * 8 + 4 * 4 + 3 * 16) * 2 + 64 * 160
        assert module.reserved_bytes([model_of(folder)], LIMITS, 16, has_graphs=False) == step
        assert module.reserved_bytes([model_of(folder)] * 2, LIMITS, 16, has_graphs=True) == step + 2 * for_graphs
        free[0] = 15 * for_graphs  # more than an eighth of which the two models' graphs would take
        assert module.reserved_bytes([model_of(folder)] * 2, LIMITS, 16, has_graphs=True) == step


def test_the_estimate_by_hand(tiny_folder):
    check_estimate(start_up, tiny_folder)


def check_pool(module, folder):
    """The pool leaves the reserve, whatever its share; without graphs it is larger."""
    config = model_of(folder).config
    sizes, target = {}, module._Target(folder, config, CPU, torch.bfloat16, None, None, LIMITS)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(step_graphs, "mode", lambda: "cuda")
        for each in (memory, start_up):
            monkeypatch.setattr(each, "free_memory_bytes", lambda device: 4 * GIB)
        for has_graphs in (True, False):
            options = EngineConfig(device="cpu", kv_memory_fraction=1.0, max_num_seqs=3)
            blocks = module._num_blocks(options, target, [model_of(folder)], 2**23, has_graphs)
            reserved = start_up.reserved_bytes([model_of(folder)], LIMITS, 16, has_graphs)
            assert 0 <= 4 * GIB - reserved - blocks * 2**23 < 2**23
            sizes[has_graphs] = blocks
    assert sizes[True] < sizes[False]


def test_the_pool_leaves_memory_for_graphs(tiny_folder):
    check_pool(assembly, tiny_folder)


def check_memory(modules, model, factor):
    """All is captured if captures take less than was estimated; if they take more, a step's memory is free afterwards."""
    graphs_module, module = modules
    with pytest.MonkeyPatch.context() as monkeypatch:
        started = Started(monkeypatch, model, graphs_module, max_num_seqs=3)
        models, limits = [started.runner.model], started.scheduler.config
        for_a_step, at_start = (module.reserved_bytes(models, limits, BLOCK_SIZE, has) for has in (False, True))
        estimate, largest = module.graph_bytes(*models, limits, BLOCK_SIZE)
        each = factor * (estimate - largest) / (6 + model.config.num_layers + 1)  # 6 batches, and a size of pieces

        def free_bytes(device):
            return at_start - each * len(started.played.captures)

        monkeypatch.setattr(graphs_module, "free_memory_bytes", free_bytes)
        module.warm_up([started.runner], started.scheduler)
        captured = [*started.graphs._graphs.values(), *started.graphs.pieces._pieces.values()]
        assert len(captured) == 6 + 1
        assert (None in captured) == (factor > 1)
        assert free_bytes(CPU) >= for_a_step


@pytest.mark.parametrize("factor", [0.9, 3])
def test_no_capture_takes_a_steps_memory(model, factor):
    check_memory((step_graphs, start_up), model, factor)


class Launches:
    """The launches of attention since the last look, by kernel and tile; what a random row draws is one, too."""

    def __init__(self, monkeypatch, model):
        self.seen = set()
        for name in ("paged_prefill", "paged_decode"):
            monkeypatch.setattr(triton_backend, name, self._noted(name, getattr(triton_backend, name)))
        group = model.config.num_heads // model.config.num_kv_heads
        self._tiles = functools.partial(prefill_tiles, group, 128, torch.bfloat16, "none", False)

    def _noted(self, name, function):
        def launch(q, k, v, tables, lens, cu_query_lens=None, *, max_query_len, **options):
            is_prefill = name == "paged_prefill"
            kind = self._tiles(max_query_len, "hopper") if is_prefill else cu_query_lens is not None
            self.seen.add((name, kind))
            return function(q, k, v, tables, lens, cu_query_lens, max_query_len=max_query_len, **options)

        return launch

    def look(self):
        seen, self.seen = self.seen, set()
        return seen


def check_first_request(modules, model):
    """Prompts of any length launch what was launched before; a row was drawn; and no K or V is in the cache."""
    graphs_module, module = modules
    drawn = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        started = Started(monkeypatch, model, graphs_module, max_num_seqs=2, budget=128)
        launches = Launches(monkeypatch, model)
        monkeypatch.setattr(module, "sample", lambda logits, rows: drawn.append((logits.shape, rows)))
        module.warm_up([started.runner], started.scheduler)
        compiled = launches.look()
        ((shape, (row,)),) = drawn
        assert shape == (1, model.config.vocab_size)
        assert not row.params.is_greedy
        assert not any(tensor.any() for tensor in started.runner.kv_cache.storage)
        started.runner.graphs = None  # all launches of the requests are seen
        for length in (1, 2, 3, 17, 40, 100, 120):
            run(started.engine, [prompt_of(1, length)])
        asked = launches.look()
        assert {kind for kind, _ in asked} == {"paged_prefill", "paged_decode"}
        assert asked <= compiled


def test_the_first_request_compiles_nothing(model):
    check_first_request((step_graphs, start_up), model)


def test_recordings_are_made_when_they_are_needed(model, monkeypatch):
    """A recording of launches takes as long as the step that it saves once."""
    engine = make_engine(with_references(model, monkeypatch))
    graphs = engine._runner.graphs = step_graphs.DecodeGraphs(
        engine._runner.model, engine._runner.kv_cache, 128, step_graphs.RecordedLaunches()
    )
    monkeypatch.setattr(graphs, "_forward", None)
    start_up.warm_up([engine._runner], engine._scheduler)
    assert not graphs._graphs


def check_order(module, folder):
    """All caches are allocated before the first capture, the draft model's too, and its graphs are captured at start-up."""
    order, backend = [], type("Backend", (TorchBackend,), {"name": "triton"})
    graphs = SimpleNamespace(decode_graphs=lambda *args: SimpleNamespace(room="room"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for each in (module, opening):
            cache = each.KVCache
            monkeypatch.setattr(each, "KVCache", lambda *a, make=cache, **kw: order.append("cache") or make(*a, **kw))
        monkeypatch.setattr(runner, "feature", lambda name: graphs)
        monkeypatch.setattr(start_up, "warm_up", lambda runners, scheduler: order.append((runners, scheduler)))
        make = lambda spec: backend(spec, BLOCK_SIZE)  # noqa: E731
        monkeypatch.setattr(opening, "make_backend", lambda name, spec, **options: make(spec))
        options = {"device": "cpu", "num_kv_blocks": 16, "block_size": BLOCK_SIZE, "attention_backend": make}
        plain = module.assemble(str(folder), EngineConfig(**options))
        assert order == ["cache", ([plain.runner], plain.scheduler)]
        assert plain.engine.speculator == "room"
        order.clear()
        drafting = SpeculativeConfig(method="draft_model", model=str(folder))
        parts = module.assemble(str(folder), EngineConfig(**options, speculative_config=drafting))
        runners = [parts.runner, parts.engine.speculator.drafter._runner]
        assert order == ["cache", "cache", (runners, parts.scheduler)]
        own = EngineConfig(**options, scheduler_factory=lambda limits, cache: assembly.Scheduler(limits, cache))
        assert module.assemble(str(folder), own).engine.speculator is None, "whose slots it would take is not known"


def test_caches_are_allocated_before_graphs(tiny_folder):
    check_order(assembly, tiny_folder)


GRAPHS, PIECES, START = step_graphs.__name__, "twophase_features.piecewise_graphs", start_up.__name__
ASSEMBLY = assembly.__name__
MUTANTS = [
    ("as many batches as blocks", GRAPHS, "self._way.max_tokens, limits.max_num_seqs, ", "self._way.max_tokens, ", "shapes"),
    ("contexts longer than the pool", GRAPHS, " if cache.num_blocks_at_most(length) <= cache.num_blocks]", "]", "shapes"),
    ("captured when it is made", GRAPHS, "max_model_len, CudaGraphs(kv_cache.device))\n", "max_model_len, CudaGraphs(kv_cache.device)).replay([ScheduledChunk(0, (0,), 0, (0,) * kv_cache.num_groups, 1)])\n", "shapes"),
    ("pieces of larger steps", GRAPHS, "capture_all(limits.max_num_batched_tokens)", "capture_all(512)", "shapes"),
    ("pieces rounded down", PIECES, "range(-(-max_tokens // TOKENS_STEP)", "range((max_tokens // TOKENS_STEP)", "pieces"),
    ("no inputs", START, "computing + inputs + sum", "computing + sum", "estimate"),
    ("no results", START, " + sum(tokens) * config.hidden_size * value_bytes", "", "estimate"),
    ("no pieces", START, "    num_tokens += piece_sizes(min(CudaGraphs.max_piece_tokens, limits.max_num_batched_tokens))\n", "", "estimate"),
    ("graphs of a backend without", START, 'model.backend.name != "triton" or ', "", "estimate"),
    ("graphs of one model", START, "for model in models) if has_graphs", "for model in models[:1]) if has_graphs", "estimate"),
    ("no step", START, "return for_graphs + max(", "return for_graphs or max(", "estimate"),
    ("captured to the last byte", GRAPHS, "        if free_bytes < self.kept_bytes:\n", "        if False:\n", "memory"),
    ("not told", GRAPHS, "begin_s, self._way.kept_bytes = time.monotonic(), kept_bytes", "begin_s = time.monotonic()", "memory"),
    ("the graph at hand forgotten", START, "for_a_step + largest)", "for_a_step)", "memory"),
    ("long prompts alone", START, "PROMPT_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)", "PROMPT_LENGTHS = (128,)", "first"),
    ("short prompts alone", START, "16, 32, 64, 128)", ")", "first"),
    ("no draw", START, "        sample(runner", "        id(runner", "first"),
    ("a greedy draw", START, "SamplingParams()", "SamplingParams(temperature=0)", "first"),
    ("K and V written", GRAPHS, '        packed.arrays["slots"].fill_(-1)\n        return', "        return", "first"),
    ("the pool takes it all", ASSEMBLY, "config.kv_memory_fraction, reserved))", "config.kv_memory_fraction))", "pool"),
    ("the draft model's graphs later", ASSEMBLY, "runners = [own] if speculation is None else [own, *speculation.runners]", "runners = [own]", "order"),
    ("a custom scheduler's room", ASSEMBLY, "config.cache_factory or config.scheduler_factory or own.graphs is None", "config.cache_factory or own.graphs is None", "order"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("row", MUTANTS, ids=[row[0] for row in MUTANTS])
def test_mutants_are_killed(row, model, tiny_folder, monkeypatch):
    *planted, check = row

    def noticing(module):
        if planted[1] == PIECES:
            monkeypatch.setattr(step_graphs, "PiecewiseGraphs", module.PiecewiseGraphs)
        modules = (module, start_up) if planted[1] == GRAPHS else (step_graphs, module)
        {
            "shapes": functools.partial(check_shapes, module, model),
            "pieces": functools.partial(check_shapes, step_graphs, model),
            "estimate": functools.partial(check_estimate, module, tiny_folder),
            "memory": functools.partial(check_memory, modules, model, 3),
            "first": functools.partial(check_first_request, modules, model),
            "pool": functools.partial(check_pool, module, tiny_folder),
            "order": functools.partial(check_order, module, tiny_folder),
        }[check]()

    KillTable.record(Mutant(*planted), noticing)
