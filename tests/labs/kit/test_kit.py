"""The kit of the kernel labs: misused memory is named, wrong weights are drawn, learners' functions drive the engine."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase import LLM, SamplingParams
from twophase_kernels.attend_range import paged_attention_reference
from twophase_kernels.rope_kv_write import kv_write_reference
from twophase_labs.kit import timing
from twophase_labs.kit.guarded import run_guarded
from twophase_labs.kit.models import is_decided
from twophase_labs.kit.own_attention import OwnAttention
from twophase_labs.kit.weights_map import compare_weights
from twophase_labs.machine.cards import verdict_card
from twophase_labs.machine.checks import Rejected
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.grading.run_one import as_line, from_line
from twophase_labs.machine.judge import Judge, explain, run_cell
from twophase_labs.machine.kernels import tl, triton

COPY = """
@triton.jit
def copy_kernel(x_ptr, y_ptr, n, ROW: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, ROW)
    x = tl.load(x_ptr + {read}, mask={mask}, other=0.0)
    {extra}
    tl.store(y_ptr + {write}, x, mask={mask})
"""
RIGHT = {"read": "row * ROW + offs", "write": "row * ROW + offs", "mask": "offs < n", "extra": "x = x * 1.0"}
NEXT_ROW = "(row + 1) * ROW + offs"
BEHIND = (
    r"^copy_kernel, program \(2, 0, 0\) reads x_ptr \+ 12, that is \[3, 0\], outside of x_ptr, which has shape \[3, 4\] "
    r"and strides \[4, 1\]\.$"
)


def copy_with(dtype=torch.float32, **changes):
    """Run a copy kernel, with parts exchanged, over 3 rows of 4 of which 3 columns are wanted."""
    namespace = {"triton": triton, "tl": tl}
    run_cell(COPY.format(**{**RIGHT, **changes}), namespace, "<exercise 2.13>")
    x = torch.arange(12.0).reshape(3, 4).to(dtype)

    def launch(x, y):
        namespace["copy_kernel"][(3,)](x, y, 3, ROW=4)

    return x, run_guarded(launch, {"x": x}, {"y": torch.empty(3, 4)})


on_cpu = pytest.mark.skipif(
    not getattr(triton.runtime.driver._active, "runs_on_cpu", False), reason="not compiled for it"
)


class TestGuarded:
    @pytest.mark.parametrize("changes", [{}, {"read": "(row + 100 * (offs // 3)) * ROW + offs"}], ids=["right", "lane"])
    def test_what_a_kernel_leaves_out_is_nan_and_a_masked_off_lane_is_no_access(self, changes):
        x, after = copy_with(**changes)
        assert torch.equal(after["y"][:, :3], x[:, :3])
        assert after["y"][:, 3].isnan().all()
        assert torch.equal(after["x"], x)

    @on_cpu
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_what_a_masked_load_without_other_leaves_out_is_nan(self, dtype):
        load = "x = tl.load(x_ptr + row * ROW + offs, mask=offs < n - 1{})"
        x, after = copy_with(dtype, extra=load.format(""))
        assert torch.equal(after["y"][:, :2], x[:, :2].float())
        assert after["y"][:, 2].isnan().all()
        _, after = copy_with(dtype, extra=load.format(", other=0.0"))
        assert (after["y"][:, 2] == 0).all()

    @pytest.mark.parametrize(
        ("changes", "verdict", "reason", "detail"),
        [
            pytest.param({"read": NEXT_ROW}, "failed", BEHIND, r"line 6 of the cell: x = tl.load\(.*", marks=on_cpu),
            ({"write": NEXT_ROW}, "failed", "writes y_ptr|writes outside of `y`", ""),
            ({"write": "row * ROW + offs - 1"}, "failed", "writes y_ptr|writes outside of `y`", ""),
            ({"extra": "tl.store(x_ptr + offs, x + 1.0, mask=offs < n)"}, "failed", "changes its input `x`", ""),
            pytest.param(
                {"extra": "x = tl.arange(0, n)"}, "error", "does not compile: arange's arguments must be",
                r"line 5 of the kernel: x = tl.arange\(0, n\)", marks=on_cpu,
            ),
            pytest.param(
                {"extra": "print('x', x)"}, "failed", "does not compile: NotSupportedError: tt.print cannot be compiled",
                "", marks=on_cpu,
            ),
        ],
    )  # fmt: skip
    def test_what_a_kernel_may_not_do_is_told_with_its_line(self, changes, verdict, reason, detail):
        with pytest.raises(Exception) as caught:
            copy_with(**changes)
        got, said, details = explain(caught.value, object.__new__(Exercise), {})
        assert got == verdict
        assert re.search(reason, said)
        assert re.match(detail, "\n".join(details))

    @on_cpu
    def test_a_fault_in_a_function_that_was_given_is_told_with_its_file(self):
        from triton_on_cpu.errors import OutOfBoundsError

        place = "attend_tiles.py, line 48: pages = tl.load(table_ptr + 9)"
        fault = OutOfBoundsError(f"a_kernel, program (0, 0, 0) reads table_ptr + 9.\n  {place}")
        assert explain(fault, object.__new__(Exercise), {})[2] == (place,)

    @on_cpu
    def test_in_a_notebook_the_compilers_reason_is_told_whole(self):
        """The launch has explained it already, and Triton's words are on the second line; a hint would mislead."""
        exercise = Exercise("2.13", "", "kernel", ("copy_kernel",), 1, 1, hints=("NaN comes from a row not stored.",))

        @exercise.check("copies each row")
        def copies(answer, draw):
            """NaN comes from a row that was never stored."""
            answer.copy_kernel[(3,)](torch.arange(12.0), torch.zeros(12), 3, ROW=4)

        namespace = {"triton": triton, "tl": tl}
        cell = COPY.format(**{**RIGHT, "extra": "x += tl.zeros([ROW])"})
        run_cell(cell, namespace, "/tmp/ipykernel_12/35.py")
        verdict = Judge({"2.13": exercise}, {}, {}).judge(exercise, namespace)
        assert verdict.verdict == "error"
        assert verdict.reason == (
            "the kernel does not compile: Triton says: TypeError(\"missing a required argument: 'dtype'\")"
        )
        assert verdict.details[-1] == "line 7 of the cell: x += tl.zeros([ROW])"
        assert verdict.hint == ""

    @on_cpu
    def test_only_kernels_of_cells_are_checked(self):
        namespace = {"triton": triton, "tl": tl, "__name__": "elsewhere"}
        x, y = torch.arange(24.0)[:12], torch.zeros(12)
        for file in ("<reference 2.13>", "<exercise 2.13>", "/tmp/ipykernel_12/34.py", "<ipython-input-4-b70c>"):
            run_cell(COPY.format(**{**RIGHT, "read": NEXT_ROW}), namespace, file)
            if file == "<reference 2.13>":
                namespace["copy_kernel"][(3,)](x, y, 4, ROW=4)
                assert torch.equal(y, x + 4)
            else:
                with pytest.raises(IndexError, match=r"program \(2, 0, 0\) reads x_ptr\[12\]"):
                    namespace["copy_kernel"][(3,)](x, y, 4, ROW=4)


EXPECTED = torch.tensor([[0.5, 0.5, 0, 0, 0], [0.1, 0.2, 0.7, 0, 0]])


def with_weight(row, column, value):
    changed = EXPECTED.clone()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (EXPECTED + 1e-6, ""),
        (with_weight(1, 2, 0.0), "head 1 does not read key 2"),
        (with_weight(0, 4, 0.3), "head 0 reads what it must not see: key 4"),
        (EXPECTED * 1.5, "head 0 gives the wrong weight to key 0"),
        (EXPECTED / 0, "head 0 gets NaN from|head 0 gives the wrong weight"),
    ],
)
def test_a_wrong_weight_is_said_and_drawn(got, said):
    with pytest.raises(Rejected, match=said) if said else nullcontext() as caught:
        compare_weights(got, EXPECTED, rows=("head 0", "head 1"), columns=[f"key {i}" for i in range(5)], bounds=(2, 4))
    if said:
        assert caught.value.picture.startswith(b"\x89PNG")
        assert len(caught.value.picture) < 200_000


class TestOwnAttention:
    PROMPTS = ("The capital of France is", "Once upon a time there was a machine that", "One two three")

    def generate(self, backend):
        llm = LLM(attention_backend=backend, num_kv_blocks=64, max_num_seqs=4, max_num_batched_tokens=8)
        outputs = llm.generate(list(self.PROMPTS), SamplingParams(max_tokens=6, temperature=0))
        return [output.outputs[0].token_ids for output in outputs]

    def test_a_learners_parts_run_and_give_the_same_tokens(self):
        backends = []

        def prefill(q, k, v, tables, lens, cu, scale):
            return paged_attention_reference(q, k, v, tables, lens, cu, scale=scale)

        def decode(q, k, v, tables, lens, scale):
            return paged_attention_reference(q, k, v, tables, lens, scale=scale)

        def own(spec):
            backends.append(OwnAttention(spec, 16, write=kv_write_reference, prefill=prefill, decode=decode))
            return backends[0]

        assert self.generate(own) == self.generate("torch")
        calls = backends[0].num_calls
        assert calls["write"] > calls["decode"] > 0
        assert calls["prefill"] > 0

    @pytest.mark.parametrize("part", ["write", "prefill", "decode"])
    def test_a_broken_part_shows(self, part):
        def broken(*args):
            return None if part == "write" else torch.zeros_like(args[0])

        assert self.generate(lambda spec: OwnAttention(spec, 16, **{part: broken})) != self.generate("torch")


@pytest.mark.parametrize(("picture", "is_shown"), [(b"\x89PNG\r\n\x1a\n picture", True), (bytes(10**6), False)])
def test_a_picture_reaches_the_card_through_the_graders_json_unless_it_is_too_large(picture, is_shown):
    def check(answer, draw):
        raise Rejected("two keys are wrong", ("page 3",), picture)

    exercise = Exercise("1.1", "t", "code", ("f",), 1, 1, "o", checks=(Property("right keys", check, "Look."),))
    verdict = Judge({"1.1": exercise}, {}, {}).judge(exercise, {"f": len})
    again = from_line(as_line(verdict), "1.1")
    assert again == verdict
    assert verdict.reason == "two keys are wrong"
    assert ("data:image/png;base64," in verdict_card(exercise, again, 1)._repr_html_()) == is_shown


def check_timing_waits(module, monkeypatch):
    """On a GPU a call returns when its kernels are queued: the clock is read when they are done."""
    log = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    module.seconds(lambda: log.append("call"), repeats=2)
    assert log == ["wait", "call", "wait"] * 2


@pytest.mark.mutants
def test_the_clock_waits_for_the_gpu(monkeypatch):
    check_timing_waits(timing, monkeypatch)
    mutant = Mutant("launch time", "twophase_labs.kit.timing", "kwargs)\n            _wait_for_gpu()", "kwargs)")
    KillTable.record(mutant, lambda module: check_timing_waits(module, monkeypatch))


def test_after_a_cuda_error_the_kernel_has_to_be_restarted():
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")
    verdict, reason, details = explain(error, object.__new__(Exercise), {})
    assert (verdict, reason) == ("error", "the GPU has stopped: CUDA error: an illegal memory access was encountered")
    assert "restart the kernel" in details[-1]


@pytest.mark.parametrize(
    ("gap", "at", "is_clear"), [(1e-4, 3, False), (1e-4, 1, True), (0.1, 3, True), (0.0, 4, False)]
)
def test_a_token_that_rounding_could_decide_is_known(gap, at, is_clear):
    """Of the tokens at 3, 4 and 5 that a model wrote; `at` is where its two best are `gap` apart."""

    def model(ids):
        logits = torch.zeros(*ids.shape, 10)
        logits[..., 7] = 1.0
        logits[:, at - 1, 2] = 1.0 - gap
        return SimpleNamespace(logits=logits)

    assert is_decided(model, torch.tensor([1, 2, 3, 7, 7, 7]), 3) == is_clear
