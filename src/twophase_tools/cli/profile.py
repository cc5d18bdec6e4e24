"""`twophase profile`: a trace of the engine's steps for Perfetto, and a table of where their time goes."""

import argparse
import json
from pathlib import Path
from typing import Any

from twophase_tools.cli.arguments import add_json, add_model, add_options, say, whole
from twophase_tools.cli.engine_options import add_engine_options, engine_config

DESCRIPTION = """Profile steps of the engine: a Chrome trace for ui.perfetto.dev, with the engine's phases as ranges,
and torch's table of their times. On CUDA the GPU's kernels are in it too. The profiler makes steps longer: compare
shares, and take times from `twophase bench`."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("profile", help="where the time of a step goes", description=DESCRIPTION)
    step = parser.add_argument_group("the step")
    step_help = "decode (default), prefill, or mixed: half of the requests decode, the others' prompts are computed"
    add_options(
        step,
        ("--step", str, "KIND", step_help, "decode"),
        ("--batch", whole(1), "N", "requests in it (default 8)", 8),
        ("--steps", whole(1, 1000), "N", "how many (default 5)", 5),
    )
    step.add_argument(
        "--prompt-lens", type=whole(1), nargs="+", default=[128], metavar="N", help="tokens, in turns (default 128)"
    )
    engine = parser.add_argument_group("the engine")
    add_model(engine)
    add_engine_options(
        engine, "attention_backend", "device", "dtype", "quantization", "kv_cache_dtype", "num_kv_blocks",
        "max_num_batched_tokens",
    )  # fmt: skip
    add_options(parser, ("--output", str, "FILE", "a .json or .json.gz (default profile.json)", "profile.json"))
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Profile and print.

    Raises:
        TwophaseError: An option, the model or the machine cannot be used; says why.
    """
    from twophase.core.errors import ConfigError
    from twophase_tools.profiling import StepShape, profile_steps, to_dict, to_text

    file = Path(args.output)
    if file.is_dir() or not file.resolve().parent.is_dir():
        raise ConfigError(f"--output must name a file in a folder that exists, got {args.output!r}.")
    shape = StepShape(args.step, args.batch, tuple(args.prompt_lens))
    averages = profile_steps(args.model, engine_config(args), shape, args.steps, file)
    say(f"wrote {file}; ui.perfetto.dev opens it")
    print(json.dumps(to_dict(averages), indent=2) if args.json else to_text(averages))
    return 0
