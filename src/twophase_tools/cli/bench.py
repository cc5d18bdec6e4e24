"""`twophase bench SUBJECT`: results to stdout, progress to stderr."""

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twophase.core.errors import BackendUnavailableError, ConfigError
from twophase_tools.cli.arguments import read_text
from twophase_tools.cli.engine_options import engine_config, engine_options
from twophase_tools.cli.generate import speculative_config
from twophase_tools.cli.ranks import check_shares, is_rank, run_in_ranks
from twophase_tools.extras import check_installed

if TYPE_CHECKING:
    from twophase_tools.bench.kernels import KernelReport
    from twophase_tools.bench.serve import ServeReport, ServingRun
    from twophase_tools.load.workloads import Load, Workload

PLOT_FORMATS = (".png", ".svg", ".pdf")
# Of `bench quality`: the options that are bounds, and their names among the gate's own.
QUALITY_BOUNDS = {
    "max_perplexity_ratio": "perplexity_ratio",
    "max_kl": "mean_kl",
    "min_top1_agreement": "top1_agreement",
    "max_needles_lost": "needles_lost",
    "max_objects_lost": "objects_lost",
    "min_equal_fields": "equal_fields",
    "min_answers_kept": "answers_kept",
    "max_used": "mean_used",
}


@runtime_checkable
class Report(Protocol):
    """What a benchmark gives back."""

    def to_dict(self) -> dict[str, Any]: ...
    def to_text(self) -> str: ...


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        TwophaseError: An option, the model or the machine cannot be used; says why.
    """
    subjects = {
        "engine": _engine,
        "kernels": _kernels,
        "http": _http,
        "prefix-caching": _prefix_caching,
        "quality": _quality,
        "scheduling": _scheduling,
        "serve": _serve,
        "soak": _soak,
        "speculative": _speculative,
        "window": _window,
        "tensor-parallel": _tensor_parallel,
        "disaggregation": _disaggregation,
    }
    return subjects[args.subject](args)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(report: Report, args: argparse.Namespace) -> None:
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.to_text())


def _engine(args: argparse.Namespace) -> int:
    check_installed("bench engine", "transformers")
    if args.json and args.markdown:
        raise ConfigError("--json and --markdown are two forms of the same result: choose one.")
    from twophase_tools.bench.engine import bench_engine
    from twophase_tools.bench.peers.contender import LLAMA_CPP, VLLM, option_of

    given = {VLLM: args.vllm_python, LLAMA_CPP: args.llama_cpp_python}
    pythons = {peer: python for peer, python in given.items() if python is not None}
    for peer, python in pythons.items():
        if shutil.which(python) is None:
            raise ConfigError(f"{option_of(peer)} must name an interpreter, a file that can be run; got {python!r}.")
    report = bench_engine(
        args.model,
        **_machine(args),
        num_threads=args.threads,
        repeats=args.repeats,
        quick=args.quick,
        weights=args.weights,
        pythons=pythons,
        peer_limit_s=args.peer_limit,
        say=_say,
    )
    if args.markdown:
        print(report.to_markdown())
    else:
        _show(report, args)
    return 0


def _machine(args: argparse.Namespace) -> dict[str, Any]:
    """Where a benchmark runs, and in which dtype."""
    config = engine_config(args)
    return {"device": config.device, "dtype": config.dtype, "backend": config.attention_backend}


def _kernels(args: argparse.Namespace) -> int:
    _check_picture("--plot", args.plot)
    asked_for = [f"--{name}" for name in ("plot", "results", "quick") if getattr(args, name)]
    if args.dry_run:
        if asked_for:
            raise ConfigError(f"a dry run measures nothing: leave out {' and '.join(asked_for)}.")
        return _dry_run_kernels(args)
    from twophase_tools.bench.kernels import bench_kernels, why_not_here
    from twophase_tools.bench.machine import record_machine

    reason = why_not_here()
    if reason is not None and args.results is not None:
        raise BackendUnavailableError(f"there are no results to write: bench kernels {reason}, and torch finds none.")
    if reason is not None:
        not_run = {"status": "not run here", "reason": reason, "machine": asdict(record_machine())}
        print(json.dumps(not_run, indent=2) if args.json else f"not run here: {reason}")
        return 0
    report = bench_kernels(args.quick, _say)
    if args.results is not None:  # first, so that nothing after it can lose them
        _say(f"wrote {report.save(Path(args.results))}")
    _show(report, args)
    if args.plot is not None:
        report.plot(Path(args.plot))
        _say(f"wrote {args.plot}")
    return _say_problems(report)


def _dry_run_kernels(args: argparse.Namespace) -> int:
    from twophase_tools.bench.kernels import dry_run

    report = dry_run()
    _show(report, args)
    return _say_problems(report)


def _say_problems(report: "KernelReport") -> int:
    """To stderr; 1 if there are any."""
    for problem in report.problems:
        _say(f"problem: {problem}")
    return 1 if report.problems else 0


def _check_picture(option: str, file: str | None) -> None:
    if file is None:
        return
    check_installed(option, "matplotlib")
    if Path(file).suffix.lower() not in PLOT_FORMATS:
        raise ConfigError(f"{option} must end in {', '.join(PLOT_FORMATS)}, got {file!r}.")


def _prefix_caching(args: argparse.Namespace) -> int:
    from twophase_tools.bench.prefix_caching import QUICK, Shape, bench_prefix_caching, open_model

    shape = QUICK if args.quick else Shape()
    opener = open_model(args.model, shape, **_machine(args))
    report = bench_prefix_caching(opener, shape, repeats=1 if args.quick else args.repeats, say=_say)
    _show(report, args)
    return 0


def _quality(args: argparse.Namespace) -> int:
    if _given(args, "sensitivity"):
        return _sensitivity(args)
    if _given(args, "picture") is not None:
        raise ConfigError("--picture shows which layers break first, so it needs --sensitivity.")
    from twophase_tools.bench.quality import Variant, bench_quality, open_model, to_json
    from twophase_tools.bench.quality_probes import read_choices
    from twophase_tools.bench.quality_verdict import read_weights

    caches, schemes = _given(args, "kv_cache_dtype"), _quantizations(args)
    if caches is None:
        caches = [] if schemes else ["int8", "fp8_e4m3"]
    own = _given(args, "choices")
    report = bench_quality(
        open_model(args.model, **_machine(args)),
        [*(Variant(kv_cache_dtype=name) for name in caches), *(Variant(quantization=name) for name in schemes)],
        {bound: vars(args)[option] for option, bound in QUALITY_BOUNDS.items() if option in vars(args)},
        weights=read_weights(_given(args, "weight") or ()),
        text=_own_text(args),
        num_tokens=args.tokens,
        own=() if own is None else read_choices(read_text("--choices", own)),
        say=_say,
    )
    print(to_json(report.to_dict()) if args.json else report.to_text())
    return 0 if report.passed else 1


def _sensitivity(args: argparse.Namespace) -> int:
    judged = ("kv_cache_dtype", "weight", "choices", *QUALITY_BOUNDS)
    given = [f"--{option.replace('_', '-')}" for option in judged if option in vars(args)]
    if given:
        raise ConfigError(f"--sensitivity judges nothing: leave out {' and '.join(given)}.")
    schemes = _quantizations(args)
    if len(schemes) != 1:
        raise ConfigError(f"--sensitivity needs one scheme, such as --quantization int4; got {len(schemes)}.")
    picture = _given(args, "picture")
    if picture is not None:
        _check_picture("--picture", picture)
        _check_writable({"--picture": picture})
    from twophase_tools.bench.quality import open_model, to_json
    from twophase_tools.bench.sensitivity import bench_sensitivity

    opener = open_model(args.model, **_machine(args))
    report = bench_sensitivity(opener, *schemes, text=_own_text(args), num_tokens=args.tokens, say=_say)
    print(to_json(report.to_dict()) if args.json else report.to_text())
    if picture is not None:
        from twophase_tools.bench.sensitivity_picture import draw_sensitivity

        draw_sensitivity(report).savefig(picture, dpi=150)
        _say(f"wrote {picture}")
    return 0


def _given(args: argparse.Namespace, option: str) -> Any:
    """What was given for an option that has no default; None: nothing."""
    return vars(args).get(option)


def _quantizations(args: argparse.Namespace) -> list[str]:
    """Schemes may be separated by commas, too."""
    return [name for word in _given(args, "quantization") or () for name in word.split(",") if name]


def _own_text(args: argparse.Namespace) -> str | None:
    return None if args.text is None else read_text("--text", args.text)


def _scheduling(args: argparse.Namespace) -> int:
    from twophase_tools.bench.scheduling import measure_scheduling, to_text

    queues = (0, 100) if args.quick else (0, 1_000, 10_000, 100_000)
    timings = [measure_scheduling(num_waiting=n, num_steps=10 if args.quick else 300) for n in queues]
    print(json.dumps([asdict(timing) for timing in timings], indent=2) if args.json else to_text(timings))
    return 0


def _speculative(args: argparse.Namespace) -> int:
    config = speculative_config(args)
    assert config is not None
    from twophase_tools.bench.speculative import bench_speculative

    report = bench_speculative(
        args.model,
        config,
        **_machine(args),
        repeats=args.repeats,
        quick=args.quick,
        say=_say,
    )
    _show(report, args)
    return 0


def _tensor_parallel(args: argparse.Namespace) -> int:
    if args.size < 2:
        raise ConfigError(f"--size must be at least 2, the processes that share a model, got {args.size}.")
    if not is_rank():
        check_shares(args.model, args.size)
        return run_in_ranks(args, args.size)
    from twophase_tools.bench.tensor_parallel import bench_tensor_parallel

    report = bench_tensor_parallel(
        args.model,
        args.size,
        args.quick,
        **engine_options(args),
    )
    _show(report, args)
    return 0


def _disaggregation(args: argparse.Namespace) -> int:
    from twophase_tools.bench.disaggregation import NUM_RANKS, bench_disaggregation

    if not is_rank():
        check_shares(args.model, 1)
        return run_in_ranks(args, NUM_RANKS)
    report = bench_disaggregation(args.model, args.quick, **engine_options(args))
    if report is not None:
        _show(report, args)
    return 0


def _serve(args: argparse.Namespace) -> int:
    _check_picture("--plot", args.plot)
    _check_writable({"--perfetto": args.perfetto, "--prometheus": args.prometheus, "--plot": args.plot})
    _check_server_options(args)
    from twophase_tools.load.slo import Slo

    slo = None if args.slo_ttft is None and args.slo_tpot is None else Slo(args.slo_ttft, args.slo_tpot)
    workload = _workload(args)
    from twophase_tools.bench.serve import BLOCK_SIZE, bench_serve
    from twophase_tools.load.export import to_json

    how: dict[str, Any] = {
        "seed": args.seed,
        "duration_limit_s": args.duration_limit,
        "concurrency": args.concurrency,
        "slo": slo,
        "say": _say,
    }
    if args.url is None:
        report, run = bench_serve(args.model, engine_config(args), workload, **how)
    else:
        from twophase_tools.bench.serve_url import bench_url

        report, run = bench_url(args.url, args.model, workload, api_key=args.api_key, retries=args.retries or 0, **how)
    if args.json:
        about = {name: value for name, value in report.to_dict().items() if name != "summary"}
        print(to_json(report.summary, run.records, run.steps, BLOCK_SIZE, **about))
    else:
        print(report.to_text())
    _write_files(args, report, run)
    return 0


def _check_server_options(args: argparse.Namespace) -> None:
    """Some options are about a server, some about an engine in this process."""
    if args.url is None:
        given = [f"--{name.replace('_', '-')}" for name in ("api_key", "retries") if getattr(args, name) is not None]
        if given:
            raise ConfigError(f"{' and '.join(given)} can be given only with --url.")
        return
    engine = [f"--{name.replace('_', '-')}" for name in engine_options(args)]
    given = engine + [f"--{name}" for name in ("prometheus", "plot") if getattr(args, name) is not None]
    if given:
        raise ConfigError(f"the engine behind --url was started by others: leave out {' and '.join(given)}.")


def _http(args: argparse.Namespace) -> int:
    check_installed("bench http", "starlette", "uvicorn", extra="server")
    from twophase_tools.bench.http_cost import QUICK, bench_http

    rounds, sizes = (1, QUICK) if args.quick else (args.rounds, None)
    report = bench_http(
        args.model, engine_config(args), concurrency=args.concurrency, rounds=rounds, sizes=sizes, say=_say
    )
    _show(report, args)
    return 0


def _soak(args: argparse.Namespace) -> int:
    check_installed("bench soak", "starlette", "uvicorn", extra="server")
    from twophase_tools.bench.soak import bench_soak

    report = bench_soak(num_clients=args.clients, duration_s=args.seconds, seed=args.seed, say=_say)
    _show(report, args)
    return 0 if report.passed else 1


def _window(args: argparse.Namespace) -> int:
    from twophase_tools.bench.window import bench_window

    sizes: dict[str, Any] = {"window": 64, "num_tokens": 640, "num_steps": 4} if args.quick else {}
    asked_for = {"window": args.window, "num_sinks": args.sinks, "num_tokens": args.tokens}
    sizes |= {name: value for name, value in asked_for.items() if value is not None}
    report = bench_window(args.model, **_machine(args), **sizes, say=_say)
    _show(report, args)
    return 0


def _workload(args: argparse.Namespace) -> "Workload":
    from twophase_tools.load.replay import replay
    from twophase_tools.load.workloads import Load, in_bursts, named_workload

    load = Load(args.requests, args.rate, args.cv, args.seed)
    if args.dataset is not None:
        workload: Workload = _dataset(args, load)
    elif args.trace is None:
        workload = named_workload(args.workload, load)
    else:
        given = [f"--{name}" for name in ("rate", "cv", "requests") if getattr(args, name) is not None]
        if given:
            raise ConfigError(f"a trace says when and how many, so {' and '.join(given)} cannot be given with --trace.")
        workload = replay(args.trace)
    return workload if args.burst is None else in_bursts(workload, args.burst)


def _dataset(args: argparse.Namespace, load: "Load") -> "Workload":
    from twophase.model.tokenizer import Tokenizer
    from twophase_features.model_store.prepare import resolve_model
    from twophase_tools.load.dataset import read_dataset

    return read_dataset(args.dataset, Tokenizer.from_folder(resolve_model(args.model)).encode, load)


def _check_writable(files: dict[str, str | None]) -> None:
    """A run of an hour should not end with a file that cannot be written."""
    for option, name in files.items():
        if name is not None and (Path(name).is_dir() or not Path(name).resolve().parent.is_dir()):
            raise ConfigError(f"{option} must name a file in a folder that exists, got {name!r}.")


def _write_files(args: argparse.Namespace, report: "ServeReport", run: "ServingRun") -> None:
    if args.perfetto is not None:
        from twophase_tools.load.perfetto import to_perfetto

        Path(args.perfetto).write_text(to_perfetto(run.records, run.steps), encoding="utf-8")
    if args.prometheus is not None:
        from twophase_tools.load.prometheus import to_prometheus

        text = to_prometheus(run.records, run.steps, str(report.engine["model"]))
        Path(args.prometheus).write_text(text, encoding="utf-8")
    if args.plot is not None:
        import matplotlib

        matplotlib.use("Agg")
        from twophase_tools.load.pictures import draw_run

        draw_run(
            run.records,
            run.steps,
            title=f"{report.workload}: requests by arrival",
            token_budget=int(report.engine["max batched tokens"]),
            block_size=int(report.engine["block size"]),
            slo=report.summary.slo,
        ).savefig(args.plot, dpi=150)
    for name in (args.perfetto, args.prometheus, args.plot):
        if name is not None:
            _say(f"wrote {name}")
