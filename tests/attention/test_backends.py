"""Every backend computes the same causal attention from pages as a dense oracle does without them."""

from dataclasses import replace
from itertools import product
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

from tests.attention.harness import QUANTISED_TOLERANCE, TOLERANCE, History, assert_close, make_spec
from tests.mutation import KillTable, Mutant
from twophase.attention.interface import AttentionBatch
from twophase.attention.torch_backend import TorchBackend
from twophase.core.errors import BackendUnavailableError
from twophase.model.machine import make_backend
from twophase_kernels import KernelsUnavailableError, _triton

HERE = "cuda" if torch.cuda.is_available() else "cpu"
CUDA_DEVICE = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", CUDA_DEVICE]
# Kernels are compiled for one of them, and take no tensors of the other.
TRITON_DEVICES = [CUDA_DEVICE if torch.cuda.is_available() else "cpu"]


def play(make, spec, lengths, schedule, *, tolerance=None, frees=False, **options) -> None:
    """Run a schedule of {sequence: tokens} steps and compare every output with the oracle.

    `frees`: After each step, what no later query sees is poisoned, and gone from the block tables.
    """
    history = History(spec, lengths, **options)
    backend = make(history)
    for counts in schedule:
        firsts = {s: history.sequences[s].num_computed for s in counts}
        for s, out in history.step(backend, counts).items():
            assert_close(history, s, out, firsts[s], tolerance or TOLERANCE[history.dtype])
        if frees:
            history.free_unseen()


def torch_backend(history: History) -> TorchBackend:
    return TorchBackend(history.spec, history.block_size)


def triton_backend(history: History):
    triton = pytest.importorskip("twophase_features.triton.attention", reason="not run here: no triton")
    return triton.TritonBackend(history.spec)


# Prompts in one go and in chunks, then decodes in a mixed batch: lengths around the page and the split.
MIXED = ([1, 15, 16, 17, 40, 300], [{0: 1, 1: 14, 2: 16, 3: 9, 4: 33, 5: 257}, {1: 1, 3: 1, 4: 7, 5: 42}, {3: 1, 5: 1}])
SMALL = ([3, 19, 34], [{0: 2, 1: 12, 2: 33}, {0: 1, 1: 7, 2: 1}])
MIXED[1].append({3: 6})
ALONE = ([103], [{0: 100}, {0: 1}, {0: 1}, {0: 1}])
PAIR = ([34, 21], [{0: 30, 1: 20}, {0: 1, 1: 1}, {0: 3}])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 64, 256])
def test_torch_mixed_batch(device, dtype, block_size):
    play(torch_backend, make_spec(), *MIXED, device=device, dtype=dtype, block_size=block_size)


@pytest.mark.parametrize("window", [1, 2, 16, 24, 1000])
@pytest.mark.parametrize("num_sinks", [0, 1, 4, 20])
def test_torch_window_and_sinks(window, num_sinks):
    play(torch_backend, make_spec(window=window, num_sinks=num_sinks), *MIXED)


# Short and long contexts in one batch, so that splits of different lengths stand side by side; chunks whose first query
# is far older than their last; sequences that end in the middle of a page and at its end.
FREED_LENGTHS = [3, 64, 200, 333]
FREED_STEPS = [
    {0: 2, 1: 31, 2: 150, 3: 9},
    {0: 1, 1: 1, 2: 1, 3: 160},
    {1: 17, 2: 1, 3: 1},
    {1: 1, 2: 33, 3: 90},
    {1: 1, 2: 1, 3: 1},
]


@pytest.mark.parametrize("kv_format", ["none", "int8", pytest.param("fp8_e4m3", marks=pytest.mark.full)])
@pytest.mark.parametrize(("window", "num_sinks"), [(1, 0), (1, 4), (7, 0), (16, 1), (24, 20), (40, 140), (1000, 4)])
def test_torch_reads_no_freed_page(window, num_sinks, kv_format):
    spec = make_spec(window=window, num_sinks=num_sinks)
    tolerance = None if kv_format == "none" else 1.0  # NaN is what it must not find
    for block_size in (4, 16):
        options = {"block_size": block_size, "kv_format": kv_format, "tolerance": tolerance}
        play(torch_backend, spec, FREED_LENGTHS, FREED_STEPS, frees=True, **options)


@pytest.mark.parametrize("device", TRITON_DEVICES)
@pytest.mark.parametrize("kv_format", ["none", "int8"])
@pytest.mark.parametrize(("window", "num_sinks"), [(1, 0), (12, 2), (40, 20)])
def test_triton_reads_no_freed_page(device, window, num_sinks, kv_format):
    spec = make_spec(3, 1, head_dim=16, window=window, num_sinks=num_sinks)
    options = {"kv_format": kv_format, "tolerance": None if kv_format == "none" else 1.0, "device": device}
    play(triton_backend, spec, [70, 100], [{0: 40, 1: 60}, {0: 1, 1: 20}, {0: 9, 1: 1}], frees=True, **options)


@pytest.mark.parametrize("kv_format", QUANTISED_TOLERANCE)
def test_torch_quantised_pages(kv_format):
    history = History(make_spec(), [70, 33], kv_format=kv_format)
    backend = torch_backend(history)
    history.step(backend, {0: 69, 1: 10})
    for s, out in history.step(backend, {0: 1, 1: 23}).items():
        want = history.oracle(s)[-len(out) :]
        assert (out.double() - want).norm() < QUANTISED_TOLERANCE[kv_format] * want.norm()


@pytest.mark.parametrize(("window", "num_sinks"), [(None, 0), (24, 4)])
def test_torch_gives_a_sequence_the_same_bits_in_any_company(window, num_sinks):
    spec, lengths = make_spec(window=window, num_sinks=num_sinks), [90, 40, 7]
    steps = [{0: 60, 1: 39, 2: 3}, {0: 1, 1: 1, 2: 4}, {0: 29}]
    together, alone = History(spec, lengths), History(spec, lengths)
    for step in steps:
        outs = together.step(torch_backend(together), step)
        for s, count in step.items():
            assert torch.equal(alone.step(torch_backend(alone), {s: count})[s], outs[s])


def check_runs(module):
    """Decodes; what fits a tile with its group of 3 heads, a single token behind it too; from a long one on the rest."""
    lens = (1, 1, 5, 2, 1, 65, 4)
    cu_query_lens = torch.tensor([0, *lens]).cumsum(0).int()
    tokens, seqs = torch.zeros(79, dtype=torch.int32), torch.zeros(7, dtype=torch.int32)
    batch = AttentionBatch(tokens, tokens, seqs, cu_query_lens, torch.zeros(7, 16, dtype=torch.int32), 2, lens, lens)
    runs = module.TritonBackend(make_spec()).plan(batch).runs
    bounds = [None if run.cu_query_lens is None else run.cu_query_lens.tolist() for run in runs]
    sequences = [(run.sequences.start, run.sequences.stop) for run in runs]
    found = [(*s, cu, run.max_query_len, run.is_long) for s, cu, run in zip(sequences, bounds, runs, strict=True)]
    assert found == [(0, 2, None, 1, False), (2, 5, [0, 5, 7, 8], 5, False), (5, 7, [0, 65, 69], 65, True)]
    assert [(run.tokens.start, run.tokens.stop) for run in runs] == [(0, 2), (2, 10), (10, 79)]
    large_group = module.TritonBackend(make_spec(65, 1)).plan(replace(batch, query_lens_host=(1, 1, 2, 1, 1, 1, 1)))
    assert [run.is_long for run in large_group.runs] == [False, True]
    # A chunk's kernel must not depend on the chunks before it.
    always_same = module.TritonBackend(make_spec(), deterministic=True).plan(batch).runs
    assert [(run.sequences.start, run.is_long) for run in always_same] == [(0, False), (2, True)]


RUN_MUTANTS = [
    ("drafts not split", "n > self.max_decode_len for", "n > 1 for"),
    ("the batch decides on a chunk's kernel", "if not deterministic:", "if True:"),
    ("short chunks behind long ones are short", "first >= first_long", "longest > 65"),
]


def test_runs_of_a_batch():
    check_runs(pytest.importorskip("twophase_features.triton.attention", reason="not run here: no triton"))


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "old", "new"), RUN_MUTANTS, ids=[row[0] for row in RUN_MUTANTS])
def test_run_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_features.triton.attention", old, new), check_runs)


@pytest.mark.parametrize("device", TRITON_DEVICES)
@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (make_spec(), {}),
        (make_spec(window=12, num_sinks=2), {}),
        (make_spec(), {"kv_format": "int8", "tolerance": 0.15}),
        (make_spec(), {"kv_format": "fp8_e4m3", "tolerance": 0.5, "dtype": torch.bfloat16}),
        (make_spec(9, 3), {"dtype": torch.float16}),
        (make_spec(9, 3, window=24, num_sinks=20), {"dtype": torch.bfloat16}),
    ],
    ids=["plain", "window and sinks", "int8", "fp8, bf16", "fp16", "window, bf16"],
)
def test_triton_mixed_batch(device, spec, options):
    play(triton_backend, spec, *MIXED, device=device, **options)


def test_compiled_kernels_asked_for_by_name_are_what_auto_takes_on_a_cpu(monkeypatch, caplog):
    cpu = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "block_size": 16}
    monkeypatch.delenv("TWOPHASE_KERNELS", raising=False)
    if not torch.cuda.is_available():
        assert make_backend("auto", make_spec(), **cpu).name == "torch"
    monkeypatch.setenv("TWOPHASE_KERNELS", "cpu")
    monkeypatch.setattr(_triton, "mode", lambda: "cpu")
    assert make_backend("auto", make_spec(), **cpu).name == "triton"
    monkeypatch.setattr(_triton, "mode", lambda: "interpreted")
    assert make_backend("auto", make_spec(), **cpu).name == "torch"
    assert "Triton kernels are interpreted" in caplog.text


CUDA = {"device": torch.device("cuda:1"), "dtype": torch.float16, "block_size": 16}


def test_auto_says_why_it_is_not_triton(caplog):
    """On a GPU 'auto' takes Triton, or says what keeps it; 'triton' refuses with the same words."""
    pytest.importorskip("triton", reason="not run here: no triton")

    def no_compiler():
        raise KernelsUnavailableError("no gcc")

    for how, capability, why in (
        (lambda: "cuda", (9, 0), None),
        (lambda: "cuda", (8, 0), None),
        (lambda: "cuda", (7, 5), "capability 8.0 (Ampere) or newer, and cuda:1 has 7.5"),
        (lambda: "interpreted", (9, 0), "Triton kernels are interpreted"),
        (lambda: "cpu", (9, 0), "Triton kernels are compiled for the CPU"),
        (no_compiler, (9, 0), "no gcc"),
    ):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_triton, "mode", how)
            patched.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
            caplog.clear()
            chosen = make_backend("auto", make_spec(), **CUDA)
            assert chosen.name == ("triton" if why is None else "torch")
            assert (why or "") in caplog.text
            assert bool(why) == bool(caplog.text), "who asked for 'auto' would wonder why it is slow"
            if why is not None:
                with pytest.raises(BackendUnavailableError) as caught:
                    make_backend("triton", make_spec(), **CUDA)
                assert why in str(caught.value)


def test_interpreted_bfloat16_is_refused():
    cpu = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "block_size": 16}
    with patch.object(_triton, "mode", lambda: "interpreted"):
        assert make_backend("triton", make_spec(), **cpu | {"dtype": torch.float16}).name == "triton"
        said = r"interpreted.* float32 and float16 on the CPU, got torch\.bfl"
        with pytest.raises(BackendUnavailableError, match=said):
            make_backend("triton", make_spec(), **cpu)


MODULE = "twophase.attention.torch_backend"
MUTANTS = [
    Mutant("last token dropped", MODULE, "- -seq_len % size)", "- -seq_len % size - 1)"),
    Mutant("scale forgotten", MODULE, "mask, scale=scale).reshape", "mask, scale=1.0).reshape"),
    Mutant("rotation reversed", MODULE, "torch.cat([-sin, sin], -1)", "torch.cat([sin, -sin], -1)"),
    Mutant("window off by one", MODULE, "keys > queries - self.spec.window", "keys >= queries - self.spec.window"),
    Mutant("sinks dropped", MODULE, "| (keys < self.spec.num_sinks)", ""),
    Mutant("sinks counted twice", MODULE, "range(min(first_page, -(-self.spec.num_sinks // self.block_size)))", "range(-(-self.spec.num_sinks // self.block_size))"),
    Mutant("chunk starts at its last query", MODULE, "self._visible_pages(seq_len - num_queries, seq_len)", "self._visible_pages(seq_len - 1, seq_len)"),
    Mutant("causality off by one", MODULE, "(keys <= queries)", "(keys < queries)"),
    Mutant("history forgotten", MODULE, "if not is_windowed and num_queries in (1, seq_len)", "if not is_windowed"),
    Mutant("scales forgotten", MODULE, "codes.float() * scale.flatten(0, 1).index_select(0, rows).view(*pages.shape[:2], 1)", "codes.float()"),
    Mutant("KV heads reversed", MODULE, "len(heads) + heads)", "len(heads) + heads.flip(0))"),
]  # fmt: skip


def check(module: ModuleType) -> None:
    """What every mutant must fail: mixed batches, plain, windowed and quantised."""

    def make(history):
        return module.TorchBackend(history.spec, history.block_size)

    play(make, make_spec(), *MIXED)
    play(make, make_spec(window=24), [26], [{0: 25}, {0: 1}])
    play(make, make_spec(window=24, num_sinks=4), *MIXED)
    play(make, make_spec(window=24, num_sinks=20), *MIXED)
    play(make, make_spec(window=7), FREED_LENGTHS, FREED_STEPS, frees=True)
    play(make, make_spec(window=24, num_sinks=4), FREED_LENGTHS, FREED_STEPS, frees=True)
    play(make, make_spec(), *SMALL, kv_format="int8", tolerance=0.15)
    for window, schedule in product((None, 24), (ALONE, PAIR)):
        play(make, make_spec(window=window), *schedule)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_killed(mutant):
    KillTable.record(mutant, check)
