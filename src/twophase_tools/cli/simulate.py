"""`twophase simulate`: the scheduler under a simulated clock, as fast as this machine or as a named GPU's roofline."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from twophase_tools.cli.arguments import whole
from twophase_tools.cli.engine_options import add_engine_options, engine_options

if TYPE_CHECKING:
    from twophase.scheduling.scheduler import Scheduler
    from twophase_tools.load.workloads import Workload
    from twophase_tools.simulate.calibrate import Calibration
    from twophase_tools.simulate.cost_model import CostModel
    from twophase_tools.simulate.rig import Rig

DESCRIPTION = """Serve a workload on simulated engines: the real scheduler, under a clock that a cost model advances.
'measured' is this machine, calibrated once in tens of seconds; a named GPU is a roofline whose assumptions are
printed. --validate measures how far the predictions for this machine are from the truth."""

MEASURED = "measured"
MOST_REPLICAS = 10_000


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("simulate", help="serve a workload on simulated engines", description=DESCRIPTION)
    load = parser.add_argument_group("load")
    what = load.add_mutually_exclusive_group()
    what.add_argument("--workload", default="chat", metavar="NAME", help="as of `twophase bench serve` (default chat)")
    what.add_argument(
        "--trace", metavar="FILE", help="replay a .csv or .jsonl: arrival_s, prompt_tokens, output_tokens"
    )
    load.add_argument("--rate", type=float, metavar="R", help="requests per second (default: the workload's own)")
    load.add_argument("--cv", type=float, metavar="C", help="variation of the gaps between arrivals; 1 is Poisson")
    load.add_argument("--requests", type=whole(1), metavar="N", help="how many (default: the workload's own)")
    load.add_argument("--day", type=float, metavar="SWING", help="let the rate follow the sun, by this share of it")
    load.add_argument("--seed", type=int, default=0, metavar="S", help="fixes arrivals and lengths (default 0)")
    engine = parser.add_argument_group("engines")
    engine.add_argument(
        "--hardware", default=MEASURED, metavar="NAME", help="measured (default), a100, h100, h200, mi300x"
    )
    engine.add_argument(
        "--model",
        metavar="NAME",
        help="default: the built-in one; on a GPU llama-3-8b, llama-3-70b or any folder",
    )
    engine.add_argument(
        "--tensor-parallel", type=whole(most=4096), default=1, metavar="N", help="GPUs per engine (default 1)"
    )
    engine.add_argument(
        "--replicas", type=whole(most=MOST_REPLICAS), default=1, metavar="N", help="engines (default 1)"
    )
    engine.add_argument("--router", default="least-outstanding", metavar="NAME", help="or round-robin")
    add_engine_options(engine, "policy", "admission", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens")
    parser.add_argument("--calibrate", action="store_true", help="measure this machine anew")
    parser.add_argument("--validate", action="store_true", help="predicted against measured, on this machine")
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure CPU time, on a machine that others use; one thread only"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable results")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate or validate, and print.

    Raises:
        TwophaseError: An option, a model or a request that cannot be used; says why.
    """
    return _validate(args) if args.validate else _simulate(args)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _validate(args: argparse.Namespace) -> int:
    from twophase.core.errors import ConfigError

    if args.hardware != MEASURED:
        raise ConfigError(f"only this machine can be measured here, so --validate takes no --hardware {args.hardware}.")
    from twophase_tools.simulate.validate import validate

    limits = {name: value for name, value in engine_options(args).items() if name != "policy"}
    report = validate(_open_rig(args, **limits), say=_say)
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.to_text())
    return 0


def _simulate(args: argparse.Namespace) -> int:
    from twophase.core.errors import ConfigError

    if args.replicas < 1:
        raise ConfigError(f"--replicas must be at least 1, got {args.replicas}.")
    from twophase_tools.simulate.fleet import router_named, run_fleet
    from twophase_tools.simulate.observers import Tally
    from twophase_tools.simulate.simulator import Replica
    from twophase_tools.simulate.traffic import requests_of

    router, workload = router_named(args.router), _workload(args)
    cost_model, schedulers, notes = _engines(args)
    tally = Tally()
    replicas = [Replica(scheduler, cost_model, tally) for scheduler in schedulers]
    run_fleet(requests_of(workload), replicas, router)
    result = tally.to_dict()
    if args.json:
        about = {"workload": workload.name, "seed": args.seed, "replicas": args.replicas, "notes": notes}
        print(json.dumps(about | {"cost_model": asdict(cost_model)} | result, indent=2))  # type: ignore[call-overload]
    else:
        print(tally.to_text(), *notes, sep="\n")
    return 0


def _workload(args: argparse.Namespace) -> "Workload":
    from twophase.core.errors import ConfigError
    from twophase_tools.load.replay import replay
    from twophase_tools.load.workloads import Load, RandomWorkload, named_workload
    from twophase_tools.simulate.traffic import Diurnal

    if args.trace is not None:
        given = [f"--{name}" for name in ("rate", "cv", "requests", "day") if getattr(args, name) is not None]
        if given:
            raise ConfigError(f"a trace says when and how many, so {' and '.join(given)} cannot be given with --trace.")
        return replay(args.trace)
    workload = named_workload(args.workload, Load(args.requests, args.rate, args.cv, args.seed))
    if args.day is None:
        return workload
    if not isinstance(workload, RandomWorkload) or args.rate is None or args.cv is not None:
        raise ConfigError("--day takes a workload of random lengths and a --rate to swing about, and no --cv.")
    return replace(workload, arrivals=Diurnal(args.rate, args.day))


def _engines(args: argparse.Namespace) -> "tuple[CostModel, list[Scheduler], list[str]]":
    """The cost model, a fresh scheduler for each replica, and what the reader should know."""
    from twophase_tools.simulate.limits import make_scheduler

    changes = engine_options(args)
    policy = changes.pop("policy", None)
    if "num_kv_blocks" in changes:
        changes["num_blocks"] = changes.pop("num_kv_blocks")
    if args.hardware == MEASURED:
        calibration = _calibration(args)
        limits = calibration.limits | changes
        machine = calibration.machine
        notes = [f"{machine['cpu']}, calibrated {machine['date_utc']}: {calibration.to_text()}"]
        model: CostModel = calibration.cost_model
    else:
        model, limits, notes = _roofline(args)
        limits |= changes
    schedulers = [make_scheduler(limits, policy, enable_prefix_caching=True) for _ in range(args.replicas)]
    return model, schedulers, notes


def _roofline(args: argparse.Namespace) -> "tuple[CostModel, dict[str, Any], list[str]]":
    from twophase.scheduling.config import SchedulerConfig
    from twophase_tools.simulate.cost_model import RooflineCostModel
    from twophase_tools.simulate.hardware import hardware_named
    from twophase_tools.simulate.model_shapes import model_shape

    hardware, shape = hardware_named(args.hardware), model_shape(args.model or "llama-3-8b")
    model = RooflineCostModel(hardware, shape, args.tensor_parallel)
    config = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=shape.max_position_embeddings)
    limits = asdict(config) | {"num_blocks": model.num_blocks(), "block_size": model.block_size}
    notes = [
        f"{args.tensor_parallel} x {hardware.name} per engine, roofline; {hardware.source}",
        f"{shape.name} in bfloat16; {shape.source}",
        f"{model.assumptions.to_text()}; not measured",
    ]
    return model, limits, notes


def _calibration(args: argparse.Namespace) -> "Calibration":
    """The stored one, if it is of this machine, model and versions; else, or when asked for, a new one."""
    from twophase.model.prepare import cache_home
    from twophase_tools.simulate.calibrate import calibrate, read_calibration

    path, key = cache_home() / "calibration.json", _calibration_key(args)
    if path.exists() and not args.calibrate:
        stored = read_calibration(path)
        if stored.key == key:
            return stored
        _say(f"{path} is of another model, machine, version, limits or clock: calibrating anew")
    _say("calibrating: tens of seconds")
    # With the engine's own limits: those asked for are the simulation's, and the next one may ask for others.
    calibration = replace(calibrate(_open_rig(args)), key=key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(calibration.to_json(), encoding="utf-8")
    _say(f"wrote {path}")
    return calibration


def _calibration_key(args: argparse.Namespace) -> dict[str, Any]:
    """All that a calibration depends on, as JSON has it."""
    from twophase.config import EngineConfig
    from twophase.model.config import load_config
    from twophase.model.load import resolve_device
    from twophase.model.prepare import DEFAULT_MODEL, resolve_model
    from twophase.sizing import limits_of
    from twophase_tools.bench.machine import record_machine

    folder, device, machine = resolve_model(args.model or DEFAULT_MODEL), resolve_device("auto"), record_machine()
    limits = limits_of(EngineConfig(), load_config(folder), device)
    key = {
        "model": str(folder.resolve()),
        "device": str(device),
        "clock": "CPU time" if args.cpu_time else "wall",
        "machine": {name: asdict(machine)[name] for name in ("cpu", "num_threads", "gpus", "versions")},
        "limits": asdict(limits),
    }
    return dict(json.loads(json.dumps(key)))


def _open_rig(args: argparse.Namespace, **limits: Any) -> "Rig":
    from twophase.llm import LLM
    from twophase.model.prepare import DEFAULT_MODEL
    from twophase_tools.simulate.rig import Rig

    return Rig(LLM(args.model or DEFAULT_MODEL, skip_tokenizer_init=True, **limits), cpu_time=args.cpu_time)
