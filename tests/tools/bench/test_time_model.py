"""The time model of the kernels, against numbers worked out by hand."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from twophase.core.errors import ConfigError
from twophase_tools.bench.kernel_cases import FULL, CaseTable
from twophase_tools.bench.time_model.bounds import Card, bound_launch, makespan
from twophase_tools.bench.time_model.launches import Launch
from twophase_tools.bench.time_model.machine_code import MachineCode, amounts, read_code
from twophase_tools.bench.time_model.predict import predict
from twophase_tools.bench.time_model.score import score
from twophase_tools.bench.time_model.trips import trips

ROOT = Path(__file__).parents[3]
PREDICTED = ROOT / "kernels/results/2026-11-28-nvidia-h100-predicted.json"
H100 = Card(132, 3.35e12)


def launch_of(kernel="a_kernel", grid=(1, 1, 1), loops=(), straight=(), programs_per_sm=1, **arguments):
    code = MachineCode(Counter(straight), tuple(Counter(loop) for loop in loops))
    return Launch(kernel, grid, arguments, code, 4, 3, 32, 0, programs_per_sm)


@pytest.mark.parametrize(
    ("text", "pipes"),
    [
        ("LDS.128 R4, [R2]", {"shared": 512}),
        ("STG.E.U16 desc[UR4][R2.64], R1", {"l2": 64}),
        ("LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]", {"l2": 512, "copies": 512}),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", {"mma.sync": 2 * 16 * 8 * 16}),
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24", {"tensor": 2 * 64 * 128 * 16 // 4}),
        ("QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24", {"tensor fp8": 16_384}),
        ("F2FP.BF16.F32.PACK_AB R1, R2, R3", {"convert": 64}),
        ("ISETP.GE.AND P0, PT, R0, 0x2, PT", {"alu": 32}),
    ],
)
def test_what_an_instruction_asks_for(text, pipes):
    assert amounts(text) == {"issue": 1, **pipes}
    with pytest.raises(ValueError, match="asks of memory"):
        amounts("STL.64 [R1], R2")


def test_code_inside_and_outside_of_a_loop():
    lines = [("LDGSTS.E.128 [R1], [R2]", 2), ("FADD R1, R1, R1", 4), ("@!P1 LDGSTS.E.128 [R1], [R2]", 1)]
    lines += [("MUFU.EX2 R1, R2", 15), ("@P0 BRA 0x10", 5), ("EXIT", 5), ("BRA 0x60", 0)]
    row = "/*{:04x}*/  {} ;  /* 0x{:016x} */\n  /* 0x{:016x} */\n"
    code = read_code("".join(row.format(16 * i, text, 0, stall << 41) for i, (text, stall) in enumerate(lines)))
    assert +code.straight == {"issue": 3, "stall": 7}  # the copy before the loop belongs to its first turn
    assert code.loops == ({"issue": 4, "fma": 32, "l2": 512, "copies": 512, "mufu": 32, "stall": 25},)


def test_turns_of_decode_and_merge():
    heads, lengths = 2, ((1, 100), (1, 900))
    fixed = launch_of("paged_decode_kernel", (heads, 2, 2), [{}], BLOCK_N=64, CHUNK=0, partial_ptr=None)
    assert trips([fixed], 0, lengths).ravel().tolist() == [1, 1, 8, 8, 1, 1, 7, 7]  # 2 and 15 tiles, halved
    # The mean, 500 keys, in whole tiles and at least 512: parts of 100, of 512 and of 388.
    by_length = launch_of("paged_decode_kernel", (heads, 4, 1), [{}] * 3, BLOCK_N=64, CHUNK=512, partial_ptr=...)
    merge = launch_of("merge_splits_kernel", (2, 1, 1), [{}] * 2, num_splits=0, BLOCK_S=16, ROWS=1)
    assert trips([by_length], 0, lengths)[::heads].tolist() == [[1, 1, 2], [1, 1, 8], [1, 1, 7], [1, 1, 0]]
    assert trips([by_length, merge], 1, lengths).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(ValueError, match="has 1 loops in machine code and 2 programs"):
        trips([launch_of(grid=(2, 1, 1), loops=[{}])], 0, lengths)


def test_turns_of_prefill_and_of_a_linear_layer():
    # 5 tokens after 2, in tiles of 2 tokens and 2 keys, the last first: positions 6; 4 and 5; 2 and 3.
    prefill = launch_of("paged_prefill_kernel", (3, 1, 1), [{}] * 3, BLOCK_M=4, BLOCK_N=2, H=2, H_KV=1)
    assert trips([prefill], 0, ((5, 7),)).tolist() == [[0, 3, 1], [0, 2, 1], [0, 1, 1]]
    linear = launch_of("fp8_linear_kernel", (1, 1, 3), [{}], num_inputs=640, BLOCK_I=128)
    assert trips([linear], 0, ()).ravel().tolist() == [2, 2, 1]


def test_programs_start_in_order_as_others_end():
    assert makespan(lambda _: np.array([1.0, 2.0, 3.0]), 3, slots=2) == 4
    # Two share: the first, of 1, ends at 2; then the second has had half its 2, and shares with the third, of 1.
    assert makespan(lambda running: running * np.array([1.0, 2.0, 1.0]), 3, slots=2) == pytest.approx(4)


def test_a_kernel_bound_by_memory_takes_its_bytes_over_the_bandwidth():
    found = bound_launch(launch_of(straight={"issue": 9}), np.zeros((10_000, 0), int), 3_350_000_000, H100)
    assert (found.lower, found.predicted) == pytest.approx((1e-3 + 0.24e-6, 1e-3 / 0.9 + 1e-6))


def test_a_kernel_bound_by_products():
    """8 programs of 1,000 turns: 2,048 cycles of the tensor cores, and 300 that a warp waits."""
    found = bound_launch(
        launch_of(loops=[{"tensor": 2048 * 1024, "stall": 300, "copies": 1}]), np.full((8, 1), 1000), 0, H100
    )
    assert found.lower == pytest.approx(0.24e-6 + 2_048_000 / 1.98e9)
    assert found.predicted == pytest.approx(1e-6 + 1.2e-6 + 2_348_000 / 1.83e9)
    assert found.upper == pytest.approx(3e-6 + 4.8e-6 + 2_348_000 / 1.5e9 + 1000 * 1.2e-6)
    launch = launch_of(loops=[{"tensor": 2048 * 4096 // 4}], programs_per_sm=2)  # they share the SM's pipes
    found = bound_launch(launch, np.full((264, 1), 1000), 0, H100)
    assert found.predicted == pytest.approx(1e-6 + 2 * 2_048_000 / 1.83e9)
    assert found.upper == pytest.approx(3e-6 + 4.8e-6 + 2 * 2_048_000 / 1.5e9 + 1000 * 1.2e-6)
    launch = launch_of(loops=[{"tensor": 4096, "copies": 1}])  # two copies are under way: 0.3 us a turn
    assert bound_launch(launch, np.full((8, 1), 1000), 0, H100).predicted == pytest.approx(2.2e-6 + 300e-6)


def test_compiled_kernels():
    pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
    decode, silu = predict("h100", pattern=r"^silu_mul 64 |^paged_decode B=1, 8,192")["results"]
    (launch, _), (other,) = decode["launches"], silu["launches"]
    # Three tiles of 64 keys and values of 256 bytes, and more, are 102 KiB of 228: two programs.
    assert (launch["grid"], launch["programs_per_sm"]) == ((8, 1, 32), 2)
    assert (other["grid"], other["programs_per_sm"], other["loops"]) == ((64, 14, 1), 16, ())
    # A thread has 8 elements: 8 exp2 and 8 reciprocals; it loads 16 bytes twice, and stores 16.
    assert (other["straight"]["mufu"], other["straight"]["l2"]) == (16 * 32, 3 * 16 * 32)
    assert silu["lower_us"] == pytest.approx(64 * 14_336 * 6 / 3.35e6 + 0.24, abs=0.01)


def test_the_committed_predictions_are_of_every_case_and_in_order(twophase, monkeypatch, tmp_path):
    monkeypatch.setattr("twophase_tools.bench.time_model.predict.predict", lambda _: json.loads(PREDICTED.read_text()))
    exit_code, out, _ = twophase("bench", "predict", "--results", tmp_path)
    assert (exit_code, (tmp_path / PREDICTED.name).read_text()) == (0, PREDICTED.read_text())
    assert out.count("\n") == 3 + len(found := json.loads(PREDICTED.read_text())["results"])
    table = CaseTable(FULL, torch.bfloat16, torch.device("meta"))
    assert [(case["kernel"], case["label"]) for case in found] == [(case.kernel, case.label) for case in table]
    assert all(0 < case["lower_us"] <= case["predicted_us"] <= case["upper_us"] for case in found)
    row = "| `{kernel}` {label} | {lower_us:,.1f} | {predicted_us:,.1f} | {upper_us:,.1f} | {limited_by} |"
    told = re.findall(r"^\| `.+` .+ \| [\d,.]+ \| .+ \|$", (ROOT / "docs/gpu.md").read_text(), re.MULTILINE)
    assert (len(told), {*told} - {row.format(**case) for case in found}) == (17, set())


def test_scores(twophase, tmp_path):
    bounds = {"kernel": "k", "lower_us": 8.0, "predicted_us": 10.0, "upper_us": 30.0, "limited_by": "memory"}
    predictions = {"card": "NVIDIA H100 SXM", "results": [bounds | {"label": label} for label in "abcd"]}
    times = [("a", 12e-6), ("b", 40e-6), ("c", None)]
    ours = [{"kernel": "k", "label": a, "variants": [{"name": "twophase", "elapsed_s": s}]} for a, s in times]
    measured = {"machine": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}]}, "results": ours}
    found = score(measured, predictions)
    cases = [(case["measured_us"], case["ratio"], case["is_within"]) for case in found.pop("cases")]
    assert cases == [(12, 1.2, True), (40, 4.0, False), (None, None, None), (None, None, None)]
    assert found == {"measured": 2, "not_measured": 2, "share_within_bounds": 0.5, "median_ratio": 2.6}
    for name, content in (("measured", measured), ("predicted", predictions)):
        (tmp_path / name).write_text(json.dumps(content))
    exit_code, out, _ = twophase("bench", "predict", "--score", tmp_path / "measured", tmp_path / "predicted")
    assert (exit_code, out.count("not measured"), out.count("outside")) == (0, 2, 1)
    assert out.endswith("2 cases measured, 2 not; within the bounds 50%; measured / predicted, median: 2.60\n")
    h200 = measured | {"machine": {"gpus": [{"name": "NVIDIA H200"}]}}
    for wrong, said in ((h200, "of an NVIDIA H200"), (measured | {"results": []}, "none of"), ({}, "KeyError")):
        with pytest.raises(ConfigError, match=said):
            score(wrong, predictions)
