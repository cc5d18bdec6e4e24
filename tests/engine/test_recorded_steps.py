"""Decode steps on a CPU as recorded launches: logits and tokens of steps that are not recorded, whatever the batches are.

The kernels are compiled, in a child process. Products of up to two rows are kernels, of more rows torch's, so that both
are in some recording.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch

import triton_on_cpu
from ptx_emulator import CompilingProcess
from tests.engine.engines import BLOCK_SIZE, finish, make_engine, prompt_of, run, tokens_of
from tests.engine.test_step_graphs import PLAYED_PROMPTS, VERIFIED_PARAMS, ragged_engine
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant, is_killed
from triton_on_cpu.recording import _Operation
from twophase.core.request import SamplingParams
from twophase.model.llama import LlamaModel
from twophase_features import step_graphs
from twophase_features.piecewise_graphs import PiecewiseGraphs
from twophase_features.triton.linear import with_kernels

pytest.importorskip("triton", reason="not run here: no triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: kernels for CPUs")

MAX_LEN = 128
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((3, 5, 60))]
PARAMS = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (5, 9, 12)]


@pytest.fixture(scope="module")
def compiling():
    with CompilingProcess() as process:
        yield process


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: make_folder(kind, tmp_path_factory.mktemp(kind))[0] for kind in ("llama", "qwen3", "gemma3")}


@functools.cache
def opened(folder, dtype=torch.float32):
    triton_on_cpu.install()
    model = load_model(folder, block_size=BLOCK_SIZE, attention_backend="triton", dtype=dtype)
    return LlamaModel(model.config, with_kernels(model.weights, max_rows=2), model.backend)


class Logits:
    """The logits of an engine's steps, by their number of rows."""

    def __init__(self, engine):
        self.steps = []
        compute = engine._runner.run

        def run(*args):
            logits = compute(*args)
            self.steps.append(None if logits is None else logits.clone())
            return logits

        engine._runner.run = run


def recorded_engine(module, model, make=make_engine, max_piece_tokens=0, **options):
    """An engine with the module's recordings, for contexts of 64, then 128 tokens; and its logits."""
    module.MIN_GRAPH_CONTEXT, module.CONTEXT_GROWTH = 64, 2
    engine = make(model, max_model_len=MAX_LEN, **options)
    way = module.RecordedLaunches()
    way.max_piece_tokens = max_piece_tokens
    engine._runner.graphs = module.DecodeGraphs(model, engine._runner.kv_cache, MAX_LEN, way)
    return engine, Logits(engine)


def plain_engine(model, make=make_engine, **options):
    engine = make(model, max_model_len=MAX_LEN, **options)
    assert engine._runner.graphs is not None, "a model on Triton's backend records by itself"
    engine._runner.graphs = None
    return engine, Logits(engine)


def check_same(module, model, serve, make=make_engine, max_piece_tokens=0, **options):
    """`serve(engine)` gives the same on a plain engine; returns the recorded one's shapes, and the engine."""
    (plain, expected), (engine, found) = (
        plain_engine(model, make, **options),
        recorded_engine(module, model, make, max_piece_tokens, **options),
    )
    assert serve(engine) == serve(plain)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.1}[model.weights.dtype]
    assert len(found.steps) == len(expected.steps)
    for ours, theirs in zip(found.steps, expected.steps, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    graphs = engine._runner.graphs
    assert graphs._graphs, "nothing was recorded"
    assert None not in graphs._graphs.values(), "a capture failed"
    return set(graphs._graphs), engine


def serve_in_turn(engine):
    """Sequences end and join, in the middle too; tables grow and change; contexts outgrow a recording."""
    outputs = {}
    for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(i), prompt, params)
        outputs |= {output.request_id: output for _ in range(3) for output in engine.step()}
    for i, seed in enumerate((7, 8)):
        engine.add_request(f"late {i}", prompt_of(seed, 4), PARAMS[2])
    outputs |= finish(engine)
    return {name: tokens_of(output) for name, output in outputs.items()}


def check_batches(module, model):
    shapes, engine = check_same(module, model, serve_in_turn)
    assert {(shape.num_rows, shape.context) for shape in shapes} >= {(1, 64), (2, 64), (4, 128)}
    for shape, captured in engine._runner.graphs._graphs.items():
        operations = {part._function for part in captured.graph._parts if isinstance(part, _Operation)}
        # Beside a busy process a thread of torch's that spins at the end of an operation holds up the step.
        if shape.num_rows <= 2 and model.weights.layers[0].q_norm is None:  # else torch norms the heads
            assert operations == {torch.ops.aten.embedding.default}, "the kernels compute all else"


def serve_together(engine):
    return [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)]


def check_pieces(module, model):
    """Steps with prompts in pieces, of two sizes; too large a step, and one whose capture fails, run eagerly."""
    for serve, max_piece_tokens, sizes in (
        (serve_in_turn, 128, {64}), (serve_together, 128, {128}), (serve_together, 64, set()),
    ):  # fmt: skip
        _, engine = check_same(module, model, serve, max_piece_tokens=max_piece_tokens, budget=100)
        pieces = engine._runner.graphs.pieces._pieces
        assert set(pieces) == sizes
        assert None not in pieces.values(), "a capture failed"
    with patch.object(PiecewiseGraphs, "_captured", side_effect=RuntimeError("no capture today")):
        _, engine = check_same(module, model, serve_together, max_piece_tokens=128, budget=100)
    assert engine._runner.graphs.pieces._pieces == {128: None}


def check_drafts(module, model):
    """Steps that verify drafts, of each number."""
    tokens = [tokens_of(output) for output in run(plain_engine(model)[0], PLAYED_PROMPTS, VERIFIED_PARAMS)]

    def serve(engine):
        return [tokens_of(output) for output in run(engine, PLAYED_PROMPTS, VERIFIED_PARAMS)]

    shapes, engine = check_same(module, model, serve, lambda model, **options: ragged_engine(tokens)(model, **options))
    assert engine.stats().num_accepted_tokens > 0
    assert {shape.max_query_len for shape in shapes} == {1, 2, 3, 4}


def check_neighbours(module, model):
    """Two engines in turn; then each in a thread of its own, at once."""
    served = (PROMPTS, PROMPTS[:2])
    expected = [[tokens_of(output) for output in run(plain_engine(model)[0], prompts, PARAMS[2])] for prompts in served]
    engines = [recorded_engine(module, model)[0] for _ in served]
    for engine, prompts in zip(engines, served, strict=True):
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, PARAMS[2])
    outputs = [{}, {}]
    while any(engine.has_unfinished_requests() for engine in engines):
        for engine, found in zip(engines, outputs, strict=True):
            found |= {output.request_id: tokens_of(output) for output in engine.step()}
    assert [[found[str(i)] for i in range(len(found))] for found in outputs] == expected

    def serve(engine, prompts):
        return [[tokens_of(output) for output in run(engine, prompts, PARAMS[2])] for _ in range(4)]

    with ThreadPoolExecutor(2) as pool:
        engines = [recorded_engine(module, model)[0] for _ in served]
        assert list(pool.map(serve, engines, served)) == [[tokens] * 4 for tokens in expected]


def check_large_batches(module, model):
    """Batches of more tokens than a recording may have run as they are; so do prompts."""
    engine, _ = recorded_engine(module, model)
    engine._runner.graphs._way.max_tokens = 2
    run(engine, PROMPTS, PARAMS)
    assert {shape.num_rows for shape in engine._runner.graphs._graphs} == {1, 2}


def in_mode_cpu(check, folder, mutant=None, **options):
    model = opened(folder, **options)
    if mutant is None:
        return check(step_graphs, model)
    if mutant.module == STEPS:
        return is_killed(mutant, lambda module: check(module, model))

    def check_with(module):
        with patch.object(step_graphs, "PiecewiseGraphs", module.PiecewiseGraphs):
            check(step_graphs, model)

    return is_killed(mutant, check_with)


CHECKS = [check_batches, check_pieces, check_drafts, check_neighbours, check_large_batches]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_recorded_steps(compiling, folders, check):
    compiling.call(in_mode_cpu, check, folders["llama"])


@pytest.mark.full  # compiles other kernels
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_other_families(compiling, folders, kind):
    """Norms of queries and keys, GELU and a factor on embeddings are torch's; layers of different kinds."""
    compiling.call(in_mode_cpu, check_batches, folders[kind])


@pytest.mark.full
def test_bfloat16(compiling, folders):
    compiling.call(in_mode_cpu, check_large_batches, folders["llama"], dtype=torch.bfloat16)


STEPS, PIECES = "twophase_features.step_graphs", "twophase_features.piecewise_graphs"
MUTANTS = [
    (STEPS, "no replay", check_batches, "        captured.graph.replay()\n", ""),
    (STEPS, "torch's operations refused", check_batches, "record(torch_operations=True)", "record()"),
    (STEPS, "one recording for all contexts", check_batches, "_Shape(num_rows, max_query_len, padded_context(longest, self._max_model_len))\n", "_Shape(num_rows, max_query_len, 64)\n"),
    (STEPS, "one recording for all batches", check_batches, "_Shape(num_rows, max_query_len, padded", "_Shape(4, max_query_len, padded"),
    (STEPS, "any batch", check_large_batches, "num_rows * max_query_len > self._way.max_tokens", "False"),
    (STEPS, "recordings of all engines", check_neighbours, "        self._graphs: dict[_Shape, _Graph | None] = {}\n", "        self._graphs = logger.__dict__.setdefault(\"_shared\", {})\n"),
    (PIECES, "tokens of the step before", check_pieces, 'for name in ("token_ids", "positions", "slots")', 'for name in ("positions", "slots")'),
    (PIECES, "slots of padding", check_pieces, '        pieces.inputs.arrays["slots"].fill_(-1)\n        for', "        for"),
    (PIECES, "attention left out", check_pieces, "self._attended[:num_tokens].copy_(backend.attend(self._queries[:num_tokens], kv, plan))", "pass"),
    (PIECES, "queries of the capture", check_pieces, "                self._queries[:num_tokens].copy_(q)\n", ""),
    (PIECES, "the last piece left out", check_pieces, "        last.replay()\n", ""),
    (PIECES, "rows of the whole batch", check_pieces, 'hidden[packed.arrays["rows"]]', "hidden[: len(packed.arrays['rows'])]"),
    (PIECES, "any size", check_pieces, "        if size > self._way.max_piece_tokens:\n            return None, None\n", ""),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("module", "name", "check", "old", "new"), MUTANTS, ids=[row[1] for row in MUTANTS])
def test_mutants_are_killed(compiling, folders, module, name, check, old, new):
    mutant = Mutant(name, module, old, new)
    mutant.source()
    if KillTable.only_planted:
        return
    try:
        how = compiling.call(in_mode_cpu, check, folders["llama"], mutant)
    except RuntimeError as crashed:
        how = str(crashed)
    KillTable.rows.append((mutant.module, name, how))
    assert how is not None, f"mutant survived: {name}"
