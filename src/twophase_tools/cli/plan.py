"""`twophase plan`: will it fit, how many at once, how fast? On paper, from one file."""

import argparse
import json
from pathlib import Path
from typing import Any

from twophase_tools.cli.arguments import add_json

DESCRIPTION = """Plan a deployment from one file: memory, requests at once, expected latencies by roofline (nothing
is measured), and warnings. Exits 0 with or without warnings, 2 for a file that cannot be used."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("plan", help="does a deployment fit, and how fast is it?", description=DESCRIPTION)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="the file; --example prints one")
    source.add_argument("--example", action="store_true", help="print a file to start from")
    parser.add_argument(
        "--for",
        dest="target",
        choices=("vllm", "kubernetes"),
        help="print vLLM's command lines, or the values of its production stack's chart, instead of the plan",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan.

    Raises:
        ConfigError: A file that cannot be used; names the key and the rule.
    """
    from twophase_tools.capacity.config import EXAMPLE, read_config
    from twophase_tools.capacity.elsewhere import production_stack_values, vllm_commands
    from twophase_tools.capacity.plan import Plan
    from twophase_tools.capacity.report import to_dict, to_text

    if args.example:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return 0
    plan = Plan(read_config(args.config))
    if args.target is not None:
        print(vllm_commands(plan) if args.target == "vllm" else production_stack_values(plan))
        return 0
    print(json.dumps(to_dict(plan), indent=2, allow_nan=False) if args.json else to_text(plan))
    return 0
