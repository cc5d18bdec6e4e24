"""Decode steps replayed as graphs give what eager steps give: on a GPU, and without one by graphs that are played.

A played graph does what a real one does: its replay computes again from the buffers that it was captured with and with
the host's choices of that moment, and leaves the result where it was. So what is stale or too narrow shows on a CPU.
"""

import contextlib
import functools
import logging
import math

import pytest
import torch

from tests.engine.engines import BLOCK_SIZE, make_engine, prompt_of, run, tokens_of, with_backend
from tests.engine.speculating import Oracle
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant
from twophase.attention.torch_backend import TorchBackend
from twophase.core.plan import ScheduledChunk
from twophase.core.request import SamplingParams
from twophase.engine.runner import pack
from twophase.model import llama
from twophase_features import step_graphs
from twophase_features.speculation.speculator import GatedSpeculator
from twophase_features.triton import attention as triton_backend
from twophase_kernels import attend_range, rmsnorm_residual, rope_kv_write, silu_mul

PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((3, 5, 9, 17, 40))]
PARAMS = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (20, 9, 14, 20, 3)]


@pytest.fixture(scope="module")
def cuda_model(tmp_path_factory):
    # Head size 16: the smallest that tensor cores multiply.
    folder, _ = make_folder("llama", tmp_path_factory.mktemp("cuda"), head_dim=16)
    options = {"dtype": torch.float32, "device": torch.device("cuda"), "attention_backend": "triton"}
    return load_model(folder, block_size=BLOCK_SIZE, **options)


@pytest.mark.gpu
def test_graphs_equal_eager(cuda_model):
    engine = make_engine(cuda_model)
    eager = make_engine(cuda_model)
    eager._runner.graphs = None
    graphs = engine._runner.graphs
    engine.speculator = graphs.room
    outputs = run(engine, PROMPTS, PARAMS)
    assert [tokens_of(output) for output in outputs] == [tokens_of(output) for output in run(eager, PROMPTS, PARAMS)]
    assert None not in graphs._graphs.values(), "a capture failed"
    assert None not in graphs.pieces._pieces.values(), "a capture failed"
    assert graphs.ahead.num_used > 0


@pytest.mark.gpu
def test_graphs_of_drafts_equal_eager(cuda_model):
    tokens = [tokens_of(output) for output in run(make_engine(cuda_model), PLAYED_PROMPTS, VERIFIED_PARAMS)]
    engine = ragged_engine(tokens)(cuda_model)
    assert [tokens_of(output) for output in run(engine, PLAYED_PROMPTS, VERIFIED_PARAMS)] == tokens
    assert {shape.max_query_len for shape in engine._runner.graphs._graphs} == {1, 2, 3, 4}


@pytest.mark.gpu
def test_a_failed_capture_is_logged_and_decodes_go_on(cuda_model, monkeypatch, caplog):
    engine = make_engine(cuda_model)
    expected = [tokens_of(output) for output in run(make_engine(cuda_model), PROMPTS, PARAMS)]

    def no_capture():
        raise RuntimeError("no capture today")

    graphs = engine._runner.graphs = step_graphs.DecodeGraphs(
        cuda_model, engine._runner.kv_cache, 2048, step_graphs.CudaGraphs(cuda_model.device)
    )
    monkeypatch.setattr(graphs._way, "capture", no_capture)
    with caplog.at_level(logging.WARNING):
        assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert "no capture today" in caplog.text


@pytest.mark.gpu
def test_the_torch_backend_runs_eagerly(tmp_path):
    folder, _ = make_folder("llama", tmp_path)
    options = {"dtype": torch.float32, "device": torch.device("cuda"), "attention_backend": "torch"}
    engine = make_engine(load_model(folder, block_size=BLOCK_SIZE, **options))
    assert engine._runner.graphs is None
    assert len(tokens_of(run(engine, PROMPTS[:1])[0])) == 8


PLAYED_PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((3, 5, 60))]
PLAYED_PARAMS = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (3, 4, 7)]


class PlayedGraphs:
    """Stands for torch's CUDA graphs and streams; `captures` has the options of each capture."""

    def __init__(self, monkeypatch):
        self.captures = []
        self.capturing = None
        monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (), {}))
        monkeypatch.setattr(torch.cuda, "graph", self._capture)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
        monkeypatch.setattr(torch.cuda, "Stream", self._stream)
        monkeypatch.setattr(torch.cuda, "current_stream", self._stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    def _stream(self, device=None):
        stream = type("Stream", (), {"wait_stream": lambda self, other: None})()
        stream.device = device
        return stream

    @contextlib.contextmanager
    def _capture(self, graph, **options):
        self.captures.append(options)
        self.capturing = graph
        yield
        self.capturing = None

    def follow(self, graphs):
        """Make replays of `graphs` compute."""
        forward = graphs._forward

        def captured_forward(inputs):
            hidden = forward(inputs)
            if self.capturing is not None:
                self.capturing.replay = lambda: hidden.copy_(forward(inputs))
            return hidden

        graphs.pieces = None  # their replays are tested by recordings
        graphs._forward = captured_forward


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def cpu_model(request, tmp_path_factory):
    folder, _ = make_folder(request.param, tmp_path_factory.mktemp("played"))
    return load_model(folder)


def with_references(model, monkeypatch, backends=triton_backend):
    """`model` on the Triton backend of that module, whose kernels are replaced by their references."""
    for name, reference in {
        "paged_decode": attend_range.paged_attention_reference,
        "paged_prefill": attend_range.paged_attention_reference,
        "rope_kv_write": rope_kv_write.rope_kv_write_reference,
        "rmsnorm_residual": rmsnorm_residual.rmsnorm_residual_reference,
        "silu_mul": silu_mul.silu_mul_reference,
    }.items():
        monkeypatch.setattr(backends, name, reference)
    return with_backend(model, llama.model_backend(model.config, backends.TritonBackend))


def check_played_graphs(module, model, expected):
    """Contexts that outgrow their graph, batches that shrink: the tokens of eager steps; tables as wide as contexts."""
    graphs, found, captures, _ = play(module, model, PLAYED_PROMPTS, PLAYED_PARAMS)
    assert found == expected
    widths = {shape.context: graph.inputs.view().block_tables.shape[1] for shape, graph in graphs._graphs.items()}
    assert widths == {64: 16, 100: 32}
    for options in captures:
        stream, mode = options.get("stream"), options.get("capture_error_mode")
        assert getattr(stream, "device", None) == graphs._kv_cache.device, "captured on torch's own stream"
        assert mode == "thread_local", "other threads allocate while this one captures"


def play(module, model, prompts, params, make=make_engine, backends=triton_backend, at_start=False):
    """(graphs, each request's tokens, the options of all captures, the engine's counts), decodes being replayed by graphs that are played; all captured `at_start`."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        played = PlayedGraphs(monkeypatch)
        monkeypatch.setattr(module, "MIN_GRAPH_CONTEXT", 64)
        monkeypatch.setattr(module, "CONTEXT_GROWTH", 2)
        monkeypatch.setattr(module, "pack", lambda *args, device, **options: pack(*args, **options))
        model = with_references(model, monkeypatch, backends)
        engine = make(model, max_model_len=100)
        graphs = engine._runner.graphs = module.DecodeGraphs(
            model, engine._runner.kv_cache, 100, module.CudaGraphs(torch.device("cpu"))
        )
        played.follow(graphs)
        # Of what nobody wrote no number may come.
        monkeypatch.setattr(torch, "empty", lambda *args, **options: torch.full(*args, math.nan, **options))
        if at_start:
            graphs.capture_all(engine._scheduler, 0)
            monkeypatch.setattr(graphs._way, "capture", None)
        found = [tokens_of(output) for output in run(engine, prompts, params)]
    return graphs, found, played.captures, engine.stats()


@pytest.fixture(scope="module")
def eager_tokens(cpu_model):
    return [tokens_of(output) for output in run(make_engine(cpu_model), PLAYED_PROMPTS, PLAYED_PARAMS)]


def test_played_graphs_equal_eager(cpu_model, eager_tokens):
    check_played_graphs(step_graphs, cpu_model, eager_tokens)


def check_start_up(module, model, expected):
    """Every shape is captured before the first step, the largest first, and none later."""
    graphs, found, captures, _ = play(module, model, PLAYED_PROMPTS, PLAYED_PARAMS, at_start=True)
    assert found == expected
    shapes = list(graphs._graphs)
    assert [shape.num_rows for shape in shapes if shape.context == 64] == [8, 4, 2, 1]
    assert shapes == sorted(shapes, reverse=True)
    assert {shape.context for shape in shapes} == {64, 100}
    assert len(captures) == len(shapes)


def test_captured_at_start_up(cpu_model, eager_tokens):
    check_start_up(step_graphs, cpu_model, eager_tokens)


class Ragged(Oracle):
    """Guesses none to three tokens in turn: for one sequence, then for all, then for another one."""

    num_steps = 0

    def propose(self, requests):
        turn, most = divmod(self.num_steps, 4)
        self.num_steps += 1
        guesses = enumerate(super().propose(requests))
        return [drafts[: most if turn % 2 or i == turn % len(requests) else 0] for i, drafts in guesses]


VERIFIED_PARAMS = SamplingParams(temperature=0, max_tokens=39, ignore_eos=True)


def ragged_engine(outputs):
    """make_engine, with drafts: some of them wrong."""
    drafter = Ragged(PLAYED_PROMPTS, outputs, lambda position: position % 3 == 2)
    return functools.partial(make_engine, speculator=GatedSpeculator(drafter, 3, None))


def check_played_verifications(module, model, expected, backends=triton_backend):
    """The tokens of eager steps without drafts; as many drafts were right; a graph for each number of drafts."""
    tokens, num_drafts = expected
    params = [VERIFIED_PARAMS] * len(PLAYED_PROMPTS)
    graphs, found, _, stats = play(module, model, PLAYED_PROMPTS, params, ragged_engine(tokens), backends)
    assert found == tokens
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == num_drafts, "a verification failed"
    assert stats.num_accepted_tokens > 0
    assert {shape.max_query_len for shape in graphs._graphs} == {1, 2, 3, 4}
    assert all(len(graph.hidden) == shape.num_rows * shape.max_query_len for shape, graph in graphs._graphs.items())
    assert all(graph.hidden.isfinite().all() for graph in graphs._graphs.values()), "padding holds what memory held"


@pytest.fixture(scope="module")
def verified(cpu_model):
    """The tokens without drafts; in eager steps, how many drafts there are and how many are right."""
    tokens = [tokens_of(output) for output in run(make_engine(cpu_model), PLAYED_PROMPTS, VERIFIED_PARAMS)]
    engine = ragged_engine(tokens)(cpu_model, max_model_len=100)
    assert [tokens_of(output) for output in run(engine, PLAYED_PROMPTS, VERIFIED_PARAMS)] == tokens
    return tokens, (engine.stats().num_draft_tokens, engine.stats().num_accepted_tokens)


def test_played_verifications_equal_eager(cpu_model, verified):
    check_played_verifications(step_graphs, cpu_model, verified)


def check_room_for_drafts(module, model, num_drafts):
    """A graph has as many tokens for each sequence as the one with the most drafts, whichever that is."""
    asked = {}

    def stop(chunks, block_size, **shape):
        asked.update(shape)
        raise InterruptedError

    chunks = [
        ScheduledChunk(seq_id=i, token_ids=(7,) * (1 + n), start=5, block_ids=(i,), num_samples=1 + n, num_drafts=n)
        for i, n in enumerate(num_drafts)
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        PlayedGraphs(monkeypatch)
        monkeypatch.setattr(module, "pack", stop)
        kv_cache = make_engine(model)._runner.kv_cache
        model = with_references(model, monkeypatch)
        graphs, most = (
            module.DecodeGraphs(model, kv_cache, 100, module.CudaGraphs(kv_cache.device)),
            model.backend.max_decode_len,
        )
        graphs.pieces = None
        with pytest.raises(InterruptedError):
            graphs.run(chunks)
        middle = chunks[0]._replace(token_ids=(7,), num_drafts=0, num_samples=0)
        assert graphs.run([middle, *chunks[1:]]) == (None, None), "a chunk of one token that samples none"
        prompt = chunks[0]._replace(token_ids=(7,) * 3, num_drafts=0, num_samples=1)
        assert graphs.run([prompt, *chunks[1:]]) == (None, None), (
            "a prompt's lengths are too many for graphs of their own"
        )
        too_many = chunks[0]._replace(token_ids=(7,) * (most + 1), num_drafts=most)
        assert graphs.run([too_many, *chunks[1:]]) == (None, None), "of so many drafts the graph would be a prefill's"
    assert (asked["num_rows"], asked["num_tokens"]) == (2, 2 * (1 + max(num_drafts)))


@pytest.mark.parametrize("num_drafts", [(0, 3), (3, 0), (2, 2)])
def test_room_for_drafts(cpu_model, num_drafts):
    check_room_for_drafts(step_graphs, cpu_model, num_drafts)


def check_device_is_current(module, model):
    """Triton launches on the current device, so the tokens' device is the current one in all that a backend does."""
    entered = []

    @contextlib.contextmanager
    def current(device):
        entered.append(device)
        yield
        entered.pop()

    def watched(call):
        def launch(*args):
            assert entered == [torch.device("cpu")], "launched while another device may be the current one"
            return call(*args)

        return launch

    backend = TorchBackend(model.backend.spec, BLOCK_SIZE)
    for name in ("write", "attend", "rmsnorm", "silu_mul"):
        setattr(backend, name, watched(getattr(backend, name)))
    packed = pack([ScheduledChunk(0, (5, 6, 7), 0, (1,), 1)], BLOCK_SIZE)
    module._current = current
    fresh = module.LlamaModel(model.config, model.weights, backend)
    fresh.forward(packed.arrays["token_ids"], backend.plan(packed.view()), make_engine(model)._runner.kv_cache)
    assert not entered


@pytest.mark.parametrize("cpu_model", ["llama"], indirect=True)
def test_a_models_device_is_current_while_it_runs(cpu_model, monkeypatch):
    monkeypatch.setattr(llama, "_current", llama._current)  # put back afterwards
    check_device_is_current(llama, cpu_model)


GRAPHS, BACKEND, MODEL = step_graphs.__name__, triton_backend.__name__, llama.__name__
# name, module, old, new, check
MUTANTS = [
    ("tables as wide as the model allows", GRAPHS, "-(-shape.context // (block", "-(-self._max_model_len // (block", "played"),
    ("tables too narrow", GRAPHS, "-(-shape.context // (block_size * TABLE_COLUMNS))", "shape.context // (block_size * TABLE_COLUMNS)", "played"),
    ("stale inputs", GRAPHS, "        captured.inputs.arrays.buffer.copy_(packed.arrays.buffer)\n", "", "played"),
    ("padding returned", GRAPHS, "captured.hidden[: sum(", "captured.hidden[-1 : -1 - sum(", "played"),
    ("capture on the first device's stream", GRAPHS, "stream=self._stream, ", "", "played"),
    ("the smallest first", GRAPHS, "for context in contexts), reverse=True)", "for context in contexts))", "start"),
    ("the shortest context alone", GRAPHS, "range(1, self._max_model_len + 1, MIN_GRAPH_CONTEXT)", "range(1, 2)", "start"),
    ("too few rows", GRAPHS, "for n in range(num_seqs)", "for n in range(2)", "start"),
    ("other threads end a capture", GRAPHS, ', capture_error_mode="thread_local"', "", "played"),
    ("a graph for the tables of all groups", GRAPHS, "for chunk in chunks) // num_groups", "for chunk in chunks)", "played"),
    ("no graph with drafts", GRAPHS, "== 1 + chunk.num_drafts", "== 1", "verified"),
    ("one graph for any number of drafts", GRAPHS, "captured = self._graphs[shape]\n", "captured = self._graphs.setdefault(shape._replace(max_query_len=4), self._graphs.pop(shape))\n", "verified"),
    ("captured for the first batch's lengths", GRAPHS, "            query_lens=(shape.max_query_len,) * shape.num_rows,\n", "", "verified"),
    ("drafts' rows not returned", GRAPHS, "[: sum(len(chunk.token_ids) for chunk in chunks)]", "[: len(chunks)]", "verified"),
    ("as many drafts as the first one", GRAPHS, "max(len(chunk.token_ids) for chunk in chunks)", "len(chunks[0].token_ids)", "room"),
    ("chunks that sample nothing", GRAPHS, "chunk.num_samples and len(", "len(", "room"),
    ("prompts in graphs", GRAPHS, "len(chunk.token_ids) == 1 + chunk.num_drafts", "len(chunk.token_ids) > 0", "room"),
    ("any number of drafts", GRAPHS, "not is_decode or max_query_len > self._model.backend.max_decode_len", "not is_decode", "room"),
    ("padding is what memory held", BACKEND, "(torch.zeros if has_drafts else torch.empty)", "torch.empty", "backend"),
    ("lengths of the first batch captured", BACKEND, "batch.cu_query_lens[first : end + 1] - start", "torch.tensor([sum(lens[first:s]) for s in range(first, end + 1)])", "backend"),
    ("every run starts at the first token", BACKEND, "slice(start, start + sum(lens[first:end]))", "slice(0, sum(lens[first:end]))", "backend"),
    ("lengths counted on from other runs", BACKEND, "batch.cu_query_lens[first : end + 1] - start", "batch.cu_query_lens[first : end + 1]", "backend"),
    ("tables of the first sequences", BACKEND, "batch.block_tables[sequences]", "batch.block_tables[: len(batch.block_tables[sequences])]", "backend"),
    ("any device", MODEL, "with _current(token_ids.device)", "with nullcontext()", "device"),
]  # fmt: skip


def test_the_current_device():
    assert isinstance(llama._current(torch.device("cpu")), contextlib.nullcontext)
    guard = llama._current(torch.device("cuda:1"))
    assert isinstance(guard, torch.cuda.device)
    assert guard.idx == 1


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("cpu_model", "row"),
    # Gemma's answers repeat a token, whatever it reads; it alone has groups of layers.
    [pytest.param("gemma3" if "all groups" in row[0] else "llama", row, id=row[0]) for row in MUTANTS],
    indirect=["cpu_model"],
)
def test_mutants_are_killed(row, cpu_model, eager_tokens, verified, monkeypatch):
    *planted, check = row
    monkeypatch.setattr(llama, "_current", llama._current)  # put back afterwards
    checks = {
        "played": functools.partial(check_played_graphs, model=cpu_model, expected=eager_tokens),
        "start": functools.partial(check_start_up, model=cpu_model, expected=eager_tokens),
        "verified": functools.partial(check_played_verifications, model=cpu_model, expected=verified),
        "room": functools.partial(check_room_for_drafts, model=cpu_model, num_drafts=(0, 3)),
        "backend": lambda backends: check_played_verifications(step_graphs, cpu_model, verified, backends),
        "device": functools.partial(check_device_is_current, model=cpu_model),
    }
    KillTable.record(Mutant(*planted), checks[check])
