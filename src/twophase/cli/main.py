"""The command line: arguments, dispatch, and what happens when something goes wrong.

Nothing heavy is imported here, so `twophase --help` answers at once; a command's module is imported when it runs.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from twophase import __version__
from twophase.cli import grade, labs, plan, simulate
from twophase.core.errors import (
    BackendUnavailableError,
    ConfigError,
    InvalidRequestError,
    ModelFolderError,
    TwophaseError,
)

EXIT_OK = 0
EXIT_FAILED = 1  # something broke while running
EXIT_USAGE = 2  # what was asked for cannot be done; argparse uses the same code
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

USAGE_ERRORS = (BackendUnavailableError, ConfigError, InvalidRequestError, ModelFolderError)

DEFAULT_MODEL = "smollm2-135m-instruct"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. User errors become one message on stderr, never a traceback."""
    try:
        args = build_parser().parse_args(argv)
        args.argv = sys.argv[1:] if argv is None else list(argv)
        exit_code = importlib.import_module(f"twophase.cli.{args.command}").run(args)
        sys.stdout.flush()
        return exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`twophase ... | head`). Python flushes stdout once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except TwophaseError as error:
        _complain(error)
        return EXIT_USAGE if isinstance(error, USAGE_ERRORS) else EXIT_FAILED
    except OSError as error:
        _complain(error)
        return EXIT_FAILED


def _complain(error: Exception) -> None:
    print(f"twophase: {error}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twophase", description="LLM inference from pages: run it, look inside it, measure it."
    )
    parser.add_argument("--version", action="version", version=f"twophase {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands)
    _add_model(commands)
    _add_generate(commands)
    _add_bench(commands)
    simulate.add_parser(commands)
    plan.add_parser(commands)
    grade.add_parser(commands)
    labs.add_parser(commands)
    return parser


Commands = argparse._SubParsersAction  # argparse has no public name for it


def _add_doctor(commands: "Commands[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser("doctor", help="check this machine; every problem comes with its cure")
    doctor.add_argument("--json", action="store_true", help="machine-readable verdict")


def _add_model(commands: "Commands[argparse.ArgumentParser]") -> None:
    model = commands.add_parser("model", help="the default model on disk")
    actions = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("prepare", help="write the default model's folder, once; does nothing when it is there")
    actions.add_parser("path", help="print the default model's folder")
    actions.add_parser("verify", help="compare the default model's files with their recorded checksums")


def _add_generate(commands: "Commands[argparse.ArgumentParser]") -> None:
    generate = commands.add_parser("generate", help="continue a prompt")
    generate.add_argument("prompt", metavar="PROMPT", help="the text to continue; '-' reads it from standard input")
    generate.add_argument("--chat", action="store_true", help="send it as a user's message through the chat template")
    _add_model_options(generate)
    generate.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="share the model between N processes, started here unless torchrun has started them",
    )
    sampling = generate.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=64, metavar="N", help="at most N new tokens (default 64)")
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    sampling.add_argument("--top-k", type=int, default=0, metavar="K", help="keep the K likeliest tokens; 0 keeps all")
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep this much probability mass")
    sampling.add_argument("--seed", type=int, metavar="S", help="makes sampling reproducible")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; repeatable")
    sampling.add_argument("--n", type=int, default=1, metavar="N", help="completions of the prompt")
    _add_structured_outputs(generate)
    output = generate.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object instead of text")
    output.add_argument(
        "--stream", action="store_true", help="print text as it comes, also when standard output is no terminal"
    )


def _add_structured_outputs(generate: argparse.ArgumentParser) -> None:
    guided = generate.add_argument_group("the form of the text").add_mutually_exclusive_group()
    guided.add_argument("--json-schema", metavar="FILE", help="JSON that this JSON Schema accepts")
    guided.add_argument("--regex", metavar="R", help="text that matches R as a whole")
    guided.add_argument("--choice", action="append", metavar="TEXT", help="TEXT, or another choice; repeatable")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("model and machine")
    options.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"'{DEFAULT_MODEL}' (default), a Hugging Face folder, or a hub id"
    )
    options.add_argument(
        "--backend", default="auto", choices=["auto", "torch", "triton"], help="who computes attention"
    )
    options.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    options.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16")


def _add_bench(commands: "Commands[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser("bench", help="measure this machine against the alternatives")
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    engine = subjects.add_parser("engine", help="against transformers.generate on the same weights")
    _add_model_options(engine)
    engine.add_argument("--threads", type=int, metavar="N", help="CPU threads for both sides (default: torch's choice)")
    engine.add_argument("--repeats", type=int, default=3, metavar="N", help="runs per side; medians are reported")
    kernels = subjects.add_parser("kernels", help="each Triton kernel against torch; needs CUDA")
    kernels.add_argument("--plot", metavar="FILE", help="write a picture (PNG, SVG or PDF by its ending)")
    scheduling = subjects.add_parser("scheduling", help="schedule() and block bookkeeping for 256 running requests")
    parallel = subjects.add_parser("tensor-parallel", help="one process against N that share the model")
    _add_model_options(parallel)
    parallel.add_argument("--size", type=int, default=2, metavar="N", help="processes that share it (default 2)")
    for parser in (engine, kernels, scheduling, parallel):
        parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    serve = subjects.add_parser("serve", help="open-loop load: requests come by the clock, however busy the engine is")
    _add_serve_options(serve)
    for parser in (engine, kernels, scheduling, parallel, serve):
        parser.add_argument("--json", action="store_true", help="machine-readable results")


def _add_serve_options(serve: argparse.ArgumentParser) -> None:
    load = serve.add_argument_group("load")
    what = load.add_mutually_exclusive_group()
    what.add_argument(
        "--workload",
        default="chat",
        metavar="NAME",
        help="chat (default), bursty, uniform, shared-prefix, overload, quick, or benchmark (256 requests at once), "
        "benchmark-pressure, benchmark-shared-prefix, benchmark-overload",
    )
    what.add_argument(
        "--trace", metavar="FILE", help="replay a .csv or .jsonl: arrival_s, prompt_tokens, output_tokens"
    )
    load.add_argument("--rate", type=float, metavar="R", help="requests per second (default: the workload's own)")
    load.add_argument("--cv", type=float, metavar="C", help="variation of the gaps between arrivals; 1 is Poisson")
    load.add_argument("--requests", type=int, metavar="N", help="how many (default: the workload's own)")
    load.add_argument(
        "--seed", type=int, default=0, metavar="S", help="fixes arrivals, lengths and prompts (default 0)"
    )
    load.add_argument("--duration-limit", type=float, metavar="SECONDS", help="abort what is unfinished by then")
    load.add_argument("--slo-ttft", type=float, metavar="SECONDS", help="goodput counts requests within this TTFT ...")
    load.add_argument("--slo-tpot", type=float, metavar="SECONDS", help="... and this mean time per output token")
    _add_model_options(serve)
    limits = serve.add_argument_group("the engine's limits (default: as LLM)")
    limits.add_argument("--policy", metavar="NAME", help=simulate.POLICY_HELP)
    limits.add_argument("--num-kv-blocks", type=int, metavar="N", help="blocks in the pool")
    limits.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences that run at once")
    limits.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens computed in one step")
    files = serve.add_argument_group("files to write")
    files.add_argument("--perfetto", metavar="FILE", help="a trace for ui.perfetto.dev (JSON)")
    files.add_argument("--prometheus", metavar="FILE", help="metrics as Prometheus text")
    files.add_argument("--plot", metavar="FILE", help="swim lanes, blocks, batches, percentiles (PNG, SVG or PDF)")
