"""Predictions of all cases of `bench kernels`, as a file to be kept until a GPU has measured them."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from ptx_emulator import CompilingProcess
from twophase.core.errors import BackendUnavailableError
from twophase_kernels import KernelsUnavailableError
from twophase_tools.bench.kernel_cases import KernelCase
from twophase_tools.bench.machine import installed_versions
from twophase_tools.bench.report import table
from twophase_tools.bench.time_model.bounds import Card, bound_launch
from twophase_tools.bench.time_model.launches import Launch, recorded_cases
from twophase_tools.bench.time_model.rates import ASSUMED, NUM_SMS, PIPES
from twophase_tools.bench.time_model.trips import trips
from twophase_tools.simulate.hardware import hardware_named

STATUS = "predicted from machine code; no GPU measured any of it"
BOUNDS = ("lower", "predicted", "upper")
OF_LAUNCH = ("kernel", "grid", "num_warps", "num_stages", "registers", "shared_bytes", "programs_per_sm")


def predict(card_name: str, pattern: str = "") -> dict[str, Any]:
    """The file's content: every case's bounds in microseconds, and what they rest on. It compiles, for a minute.

    Args:
        card_name: 'h100' or 'h200'.
        pattern: Only cases with a match of this regular expression in 'kernel label'.

    Raises:
        BackendUnavailableError: There is no Triton to compile with.
    """
    hardware = hardware_named(card_name)
    try:
        with CompilingProcess() as process:
            results = process.call(_predict_here, Card(NUM_SMS, hardware.bytes_per_s), pattern)
    except KernelsUnavailableError as error:
        raise BackendUnavailableError(f"bench predict cannot compile here: {error}") from error
    return {
        "status": STATUS,
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": hardware.name,
        "peaks": hardware.source,
        "versions": installed_versions(("twophase", "triton", "torch")),
        "rates": {name: rate._asdict() for name, rate in {**PIPES, **ASSUMED}.items()},
        "results": results,
    }


def _predict_here(card: Card, pattern: str) -> list[dict[str, Any]]:
    return [_predict_case(case, launches, card) for case, launches in recorded_cases(card.num_sms, pattern)]


def _predict_case(case: KernelCase, launches: list[Launch], card: Card) -> dict[str, Any]:
    """Times of a case's launches add up. Partial results, which the second one merges, stay in the L2 cache."""
    found, parts = [], Counter[str]()
    for place, launch in enumerate(launches):
        num_bytes = 0 if place else case.work.num_bytes
        found.append(bound_launch(launch, trips(launches, place, case.chunks), num_bytes, card))
        parts.update(found[-1].parts)
    return {
        "kernel": case.kernel,
        "label": case.label,
        **{f"{name}_us": _us(sum(getattr(bounds, name) for bounds in found)) for name in BOUNDS},
        "limited_by": max(parts, key=parts.__getitem__),
        "parts_us": {name: _us(seconds) for name, seconds in parts.items() if _us(seconds)},
        "launches": [_described(launch) for launch in launches],
    }


def _described(launch: Launch) -> dict[str, Any]:
    """Of straight code and loops the amounts that a warp asks for, in the units of `rates`."""
    sizes = {name: getattr(launch, name) for name in OF_LAUNCH}
    return sizes | {"straight": launch.code.straight, "loops": launch.code.loops}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def to_text(predictions: dict[str, Any]) -> str:
    rows = []
    for case in predictions["results"]:
        times = (f"{case[f'{name}_us']:,.1f}" for name in BOUNDS)
        rows.append((f"{case['kernel']} {case['label']}", *times, case["limited_by"]))
    title = f"{predictions['card']}, microseconds: {predictions['status']}"
    return f"{title}\n{table(('case', *(f'{name}:' for name in BOUNDS), 'limited by'), rows)}"
