"""`twophase bench engine | kernels | scheduling`: results to stdout, progress to stderr."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from twophase.core.errors import ConfigError

PLOT_FORMATS = (".png", ".svg", ".pdf")


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        TwophaseError: An option, the model or the machine cannot be used; says why.
    """
    return {"engine": _engine, "kernels": _kernels, "scheduling": _scheduling}[args.subject](args)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _engine(args: argparse.Namespace) -> int:
    from twophase.bench.engine import bench_engine

    report = bench_engine(
        args.model,
        device=args.device,
        dtype=args.dtype,
        backend=args.backend,
        num_threads=args.threads,
        repeats=args.repeats,
        quick=args.quick,
        say=_say,
    )
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.to_text())
    return 0


def _kernels(args: argparse.Namespace) -> int:
    if args.plot is not None and Path(args.plot).suffix.lower() not in PLOT_FORMATS:
        raise ConfigError(f"--plot must end in {', '.join(PLOT_FORMATS)}, got {args.plot!r}.")
    from twophase.bench.kernels import bench_kernels, why_not_here
    from twophase.bench.machine import record_machine

    reason = why_not_here()
    if reason is not None:
        not_run = {"status": "not run here", "reason": reason, "machine": asdict(record_machine())}
        print(json.dumps(not_run, indent=2) if args.json else f"not run here: {reason}")
        return 0
    report = bench_kernels(args.quick)
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.to_text())
    if args.plot is not None:
        report.plot(Path(args.plot))
        _say(f"wrote {args.plot}")
    return 0


def _scheduling(args: argparse.Namespace) -> int:
    from twophase.bench.scheduling import measure_scheduling, to_text

    queues = (0, 100) if args.quick else (0, 1_000, 10_000, 100_000)
    timings = [measure_scheduling(num_waiting=n, num_steps=10 if args.quick else 300) for n in queues]
    print(json.dumps([asdict(timing) for timing in timings], indent=2) if args.json else to_text(timings))
    return 0
