"""`twophase simulate`: the scheduler under a simulated clock, as fast as a named GPU's roofline."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from twophase_tools.cli.arguments import add_json, add_options, whole
from twophase_tools.cli.bench import add_load, workload_of
from twophase_tools.cli.engine_options import add_engine_options, engine_config, engine_options

if TYPE_CHECKING:
    from twophase.scheduling.scheduler import Scheduler
    from twophase_tools.simulate.cost_model import RooflineCostModel

DESCRIPTION = """Serve a workload on simulated engines: the real scheduler, under a clock that a roofline advances.
Nothing is measured; the roofline's assumptions are printed."""

MOST_REPLICAS = 10_000
ROUTER_HELP = "least-outstanding (default), round-robin, least-tokens, prefix, length"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("simulate", help="serve a workload on simulated engines", description=DESCRIPTION)
    add_load(parser.add_argument_group("load"))
    engine = parser.add_argument_group("engines")
    add_options(
        engine,
        ("--hardware", str, "NAME", "a100, h100 (default), h200, mi300x", "h100"),
        ("--model", str, "NAME", "llama-3-8b (default), llama-3-70b or any folder", "llama-3-8b"),
        ("--tensor-parallel", whole(1, most=4096), "N", "GPUs per engine (default 1)", 1),
        ("--replicas", whole(1, most=MOST_REPLICAS), "N", "engines (default 1)", 1),
        ("--router", str, "NAME", ROUTER_HELP, "least-outstanding"),
    )
    add_engine_options(engine, "policy", "admission", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate, and print.

    Raises:
        TwophaseError: An option, a model or a request that cannot be used; says why.
    """
    from twophase_tools.simulate.fleet import run_fleet
    from twophase_tools.simulate.fleet_report import FleetReport
    from twophase_tools.simulate.routers import router_named
    from twophase_tools.simulate.simulator import Replica
    from twophase_tools.simulate.traffic import requests_of

    workload, slo = workload_of(args)
    router = router_named(args.router)
    cost_model, new_scheduler, notes = _engines(args)
    replicas = [Replica(new_scheduler(), cost_model, keeps_steps=False) for _ in range(args.replicas)]
    report = FleetReport(run_fleet(requests_of(workload), replicas, router), slo)
    if args.json:
        about = {"workload": workload.name, "seed": args.seed, "replicas": args.replicas, "notes": notes}
        about["cost_model"] = asdict(cost_model)
        print(json.dumps(about | report.total.to_dict() | {"fleet": report.to_dict()}, indent=2))
    else:
        engines = ["", report.to_text()] if args.replicas > 1 else []
        print(f"{workload.name}, simulated", report.total.to_text(), *engines, "", *notes, sep="\n")
    return 0


def _engines(args: argparse.Namespace) -> "tuple[RooflineCostModel, Callable[[], Scheduler], list[str]]":
    """The cost model, what makes a fresh scheduler, and what the reader should know."""
    from twophase.scheduling.limits import SchedulerConfig
    from twophase_tools.simulate.cost_model import RooflineCostModel
    from twophase_tools.simulate.hardware import hardware_named
    from twophase_tools.simulate.limits import make_scheduler
    from twophase_tools.simulate.model_shapes import model_shape

    engine_config(args)  # its rules are the scheduler's
    changes = engine_options(args)
    policy = changes.pop("policy", None)
    if "num_kv_blocks" in changes:
        changes["num_blocks"] = changes.pop("num_kv_blocks")
    hardware, shape = hardware_named(args.hardware), model_shape(args.model)
    model = RooflineCostModel(hardware, shape, args.tensor_parallel)
    config = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=shape.max_position_embeddings)
    limits = asdict(config) | {"num_blocks": model.num_blocks(), "block_size": model.block_size} | changes
    notes = [
        f"{model.tensor_parallel} x {hardware.name} per engine, roofline; {hardware.source}",
        f"{shape.name} in bfloat16; {shape.source}",
        f"{model.assumptions.to_text()}; not measured",
    ]
    return model, partial(make_scheduler, limits, policy, enable_prefix_caching=True), notes
