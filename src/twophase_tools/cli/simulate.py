"""`twophase simulate`: the scheduler under a simulated clock, as fast as this machine or as a named GPU's roofline."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twophase_tools.cli.arguments import whole
from twophase_tools.cli.engine_options import add_engine_options, engine_config, engine_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from twophase.scheduling.scheduler import Scheduler
    from twophase_tools.load.slo import Slo
    from twophase_tools.load.workloads import Workload
    from twophase_tools.simulate.autoscale import Scaler
    from twophase_tools.simulate.calibrate import Calibration
    from twophase_tools.simulate.cost_model import CostModel
    from twophase_tools.simulate.fleet_report import FleetReport
    from twophase_tools.simulate.observers import Tally
    from twophase_tools.simulate.rig import Rig
    from twophase_tools.simulate.simulator import Replica

DESCRIPTION = """Serve a workload on simulated engines: the real scheduler, under a clock that a cost model advances.
'measured' is this machine, calibrated once in tens of seconds; a named GPU is a roofline whose assumptions are
printed. --plan runs what the file of `twophase plan` says, pools of prefill and decode engines included. --validate
measures how far the predictions for this machine are from the truth."""

MEASURED = "measured"
MOST_REPLICAS = 10_000
ROUTER_HELP = (
    "least-outstanding (default), round-robin, least-tokens, prefix:weight=N, hash:num_tokens=N,load_bound=N, "
    "length:limit_tokens=N,num_long=N"
)
AUTOSCALE_HELP = (
    "from --replicas to --max-replicas engines: kv=N (tokens of unfinished requests per K/V slot), requests=N (per "
    "engine), busy=N, queue-age=SECONDS"
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("simulate", help="serve a workload on simulated engines", description=DESCRIPTION)
    load = parser.add_argument_group("load")
    what = load.add_mutually_exclusive_group()
    what.add_argument(
        "--workload", metavar="NAME", help="as of `twophase bench serve` (default chat, or with --plan the plan's)"
    )
    what.add_argument(
        "--trace", metavar="FILE", help="replay a .csv or .jsonl: arrival_s, prompt_tokens, output_tokens"
    )
    load.add_argument("--rate", type=float, metavar="R", help="requests per second (default: the workload's own)")
    load.add_argument("--cv", type=float, metavar="C", help="variation of the gaps between arrivals; 1 is Poisson")
    load.add_argument("--requests", type=whole(1), metavar="N", help="how many (default: the workload's own)")
    load.add_argument("--day", type=float, metavar="SWING", help="let the rate follow the sun, by this share of it")
    load.add_argument("--seed", type=int, default=0, metavar="S", help="fixes arrivals and lengths (default 0)")
    load.add_argument("--slo-ttft", type=float, metavar="S", help="promised seconds to the first token, for goodput")
    load.add_argument("--slo-tpot", type=float, metavar="S", help="promised seconds per token after it")
    engine = parser.add_argument_group("engines")
    engine.add_argument("--plan", type=Path, metavar="FILE", help="engines, pools, load and SLO of a plan's file")
    engine.add_argument("--hardware", metavar="NAME", help="measured (default), a100, h100, h200, mi300x")
    engine.add_argument(
        "--model",
        metavar="NAME",
        help="default: the built-in one; on a GPU llama-3-8b, llama-3-70b or any folder",
    )
    engine.add_argument("--tensor-parallel", type=whole(most=4096), metavar="N", help="GPUs per engine (default 1)")
    engine.add_argument("--replicas", type=whole(most=MOST_REPLICAS), metavar="N", help="engines (default 1)")
    engine.add_argument("--router", default="least-outstanding", metavar="NAME", help=ROUTER_HELP)
    engine.add_argument("--autoscale", metavar="RULE", help=AUTOSCALE_HELP)
    engine.add_argument("--max-replicas", type=whole(most=MOST_REPLICAS), metavar="N", help="most, with --autoscale")
    engine.add_argument("--startup", type=float, metavar="S", help="seconds until a new engine serves (default 60)")
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

    if args.hardware not in (None, MEASURED):
        raise ConfigError(f"only this machine can be measured here, so --validate takes no --hardware {args.hardware}.")
    from twophase_tools.simulate.validate import validate

    limits = {name: value for name, value in engine_options(args).items() if name != "policy"}
    report = validate(_open_rig(args, **limits), say=_say)
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.to_text())
    return 0


def _simulate(args: argparse.Namespace) -> int:
    from twophase.core.errors import ConfigError
    from twophase_tools.simulate.routers import router_named

    if args.replicas is not None and args.replicas < 1:
        raise ConfigError(f"--replicas must be at least 1, got {args.replicas}.")
    router_named(args.router)  # a bad name is told before anything is measured
    for name in ("max_replicas", "startup"):
        if args.autoscale is None and getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} goes with --autoscale.")
    return _simulate_fleet(args) if args.plan is None else _simulate_plan(args)


def _simulate_fleet(args: argparse.Namespace) -> int:
    from twophase_tools.simulate.fleet import run_fleet
    from twophase_tools.simulate.fleet_report import FleetReport, Tallies
    from twophase_tools.simulate.routers import router_named
    from twophase_tools.simulate.simulator import Replica
    from twophase_tools.simulate.traffic import requests_of

    tallies, workload, count = Tallies(_slo(args)), _workload(args), args.replicas or 1
    cost_model, new_scheduler, notes = _engines(args)

    def new_replica() -> Replica:
        return Replica(new_scheduler(), cost_model, tallies.new())

    scaler = _scaler(args, new_replica)
    fleet = run_fleet(requests_of(workload), [new_replica() for _ in range(count)], router_named(args.router), scaler)
    total = tallies.total
    about = {"workload": workload.name, "seed": args.seed, "replicas": count, "notes": notes}
    about["cost_model"] = asdict(cost_model)  # type: ignore[call-overload]
    _print(args, about, total, [FleetReport("fleet", fleet, tallies, total.last_end_s)], notes)
    return 0


def _simulate_plan(args: argparse.Namespace) -> int:
    from twophase.core.errors import ConfigError
    from twophase_tools.capacity.config import read_config
    from twophase_tools.capacity.plan import Plan
    from twophase_tools.capacity.simulation import run_plan, workload_of
    from twophase_tools.load.workloads import Load
    from twophase_tools.simulate.routers import router_named

    taken = ("hardware", "model", "tensor_parallel", "slo_ttft", "slo_tpot", "autoscale")
    given = [name for name in taken if getattr(args, name) is not None] + list(engine_options(args))
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise ConfigError(f"a plan says what its engines are and promise, so {option} cannot be given with --plan.")
    plan = Plan(read_config(args.plan))
    is_own = args.workload is None and args.trace is None and args.day is None
    load = Load(args.requests, args.rate, args.cv, args.seed)
    workload = workload_of(plan.config, load) if is_own else _workload(args)
    result = run_plan(plan, workload, num_engines=args.replicas, router=lambda: router_named(args.router))
    notes = [plan.config.assumptions.to_text() + "; not measured"]
    about = {"workload": workload.name, "seed": args.seed, "plan": str(args.plan), "notes": notes}
    _print(args, about, result.total, list(result.reports), notes)
    return 0


def _print(
    args: argparse.Namespace, about: dict[str, Any], total: "Tally", reports: "list[FleetReport]", notes: list[str]
) -> None:
    if args.json:
        fleets = [report.to_dict() for report in reports]
        print(json.dumps(about | total.to_dict() | {"fleets": fleets}, indent=2))
        return
    is_one_engine = len(reports) == 1 and len(reports[0].fleet.lives) == 1
    print(total.to_text(), *([] if is_one_engine else [report.to_text() for report in reports]), *notes, sep="\n")


def _slo(args: argparse.Namespace) -> "Slo | None":
    from twophase_tools.load.slo import Slo

    return None if args.slo_ttft is None and args.slo_tpot is None else Slo(args.slo_ttft, args.slo_tpot)


def _scaler(args: argparse.Namespace, new_replica: "Callable[[], Replica]") -> "Scaler | None":
    from twophase.core.errors import ConfigError
    from twophase_tools.simulate.autoscale import Scaler, policy_named

    if args.autoscale is None:
        return None
    if args.max_replicas is None:
        raise ConfigError("--autoscale needs --max-replicas: how many engines there may be.")
    least, startup_s = args.replicas or 1, 60.0 if args.startup is None else args.startup
    policy = policy_named(args.autoscale)
    return Scaler(policy, new_replica, least=least, most=args.max_replicas, startup_s=startup_s)


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
    workload = named_workload(args.workload or "chat", Load(args.requests, args.rate, args.cv, args.seed))
    if args.day is None:
        return workload
    if not isinstance(workload, RandomWorkload) or args.rate is None or args.cv is not None:
        raise ConfigError("--day takes a workload of random lengths and a --rate to swing about, and no --cv.")
    return replace(workload, arrivals=Diurnal(args.rate, args.day))


def _engines(args: argparse.Namespace) -> "tuple[CostModel, Callable[[], Scheduler], list[str]]":
    """The cost model, what makes a fresh scheduler, and what the reader should know."""
    from twophase_tools.simulate.limits import make_scheduler

    engine_config(args)  # its rules are the scheduler's
    changes = engine_options(args)
    policy = changes.pop("policy", None)
    if "num_kv_blocks" in changes:
        changes["num_blocks"] = changes.pop("num_kv_blocks")
    if args.hardware in (None, MEASURED):
        calibration = _calibration(args)
        limits = calibration.limits | changes
        machine = calibration.machine
        notes = [f"{machine['cpu']}, calibrated {machine['date_utc']}: {calibration.to_text()}"]
        model: CostModel = calibration.cost_model
    else:
        model, limits, notes = _roofline(args)
        limits |= changes
    return model, partial(make_scheduler, limits, policy, enable_prefix_caching=True), notes


def _roofline(args: argparse.Namespace) -> "tuple[CostModel, dict[str, Any], list[str]]":
    from twophase.scheduling.limits import SchedulerConfig
    from twophase_tools.simulate.cost_model import RooflineCostModel
    from twophase_tools.simulate.hardware import hardware_named
    from twophase_tools.simulate.model_shapes import model_shape

    hardware, shape = hardware_named(args.hardware), model_shape(args.model or "llama-3-8b")
    model = RooflineCostModel(hardware, shape, 1 if args.tensor_parallel is None else args.tensor_parallel)
    config = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=shape.max_position_embeddings)
    limits = asdict(config) | {"num_blocks": model.num_blocks(), "block_size": model.block_size}
    notes = [
        f"{model.tensor_parallel} x {hardware.name} per engine, roofline; {hardware.source}",
        f"{shape.name} in bfloat16; {shape.source}",
        f"{model.assumptions.to_text()}; not measured",
    ]
    return model, limits, notes


def _calibration(args: argparse.Namespace) -> "Calibration":
    """The stored one, if it is of this machine, model and versions; else, or when asked for, a new one."""
    from twophase_features.model_store.prepare import cache_home
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
    from twophase.assembly import limits_of
    from twophase.config import EngineConfig
    from twophase.model.config import load_config
    from twophase.model.machine import resolve_device
    from twophase_features.model_store.prepare import DEFAULT_MODEL, resolve_model
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
    from twophase_features.model_store.prepare import DEFAULT_MODEL
    from twophase_tools.simulate.rig import Rig

    return Rig(LLM(args.model or DEFAULT_MODEL, skip_tokenizer_init=True, **limits), cpu_time=args.cpu_time)
