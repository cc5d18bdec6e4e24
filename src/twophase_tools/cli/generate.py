"""`twophase generate PROMPT`: text as it comes on a terminal, all at once in a pipe, or one JSON object."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from twophase.config import EngineConfig
from twophase.core.errors import InvalidRequestError
from twophase.core.request import CompletionOutput, RequestOutput, SamplingParams
from twophase_features.beam_search.params import BeamSearchOutput, BeamSearchParams
from twophase_features.pairs import check_pairs
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_tools.cli.arguments import add_model, add_options, read_standard_input, read_text, text, whole
from twophase_tools.cli.engine_options import (
    add_engine_options,
    add_fields,
    add_speculative_options,
    engine_options,
    given,
    speculative_config,
)
from twophase_tools.cli.ranks import check_shares, is_rank, run_in_ranks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from twophase.engine.request_state import Prompt
    from twophase.llm import LLM

DEFAULTS = {"max_tokens": 64, "temperature": 0.0}  # where they are not those of `SamplingParams`
_SAMPLING = "sampling."
SHOWN = ("index", "text", "token_ids", "finish_reason", "stop_reason", "error", "cumulative_logprob")  # of a completion


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("generate", help="continue a prompt")
    add_options(parser, ("prompt", text, "PROMPT", "the text to continue; '-' reads it from standard input", None))
    parser.add_argument("--chat", action="store_true", help="send it as a user's message through the chat template")
    options = parser.add_argument_group("model and machine")
    add_model(options)
    add_engine_options(
        options, "attention_backend", "device", "dtype", "quantization", "sliding_window", "num_attention_sinks",
        "tensor_parallel_size", "enable_expert_parallel",
    )  # fmt: skip
    options.add_argument(
        "--disaggregate",
        action="store_true",
        help="compute the prompt in one process and the tokens after the first in another, started here likewise",
    )
    add_speculative_options(options, default=None)
    sampling = parser.add_argument_group("sampling")
    names = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop")
    add_fields(sampling, SamplingParams, *names, prefix=_SAMPLING, **DEFAULTS)
    several = sampling.add_mutually_exclusive_group()
    add_fields(several, SamplingParams, "n", prefix=_SAMPLING)
    add_options(
        several,
        ("--beam-width", whole(1, 100_000), "N", "the N likeliest completions that N beams find", None),
        ("--best-of", whole(1, 100_000), "N", "of N completions the one whose tokens are likeliest", None),
    )
    guided = parser.add_argument_group("the form of the text").add_mutually_exclusive_group()
    guided.add_argument("--json-schema", metavar="FILE", help="JSON that this JSON Schema accepts")
    guided.add_argument("--regex", type=text, metavar="R", help="text that matches R as a whole")
    guided.add_argument(
        "--choice", type=text, action="append", metavar="TEXT", help="TEXT, or another choice; repeatable"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object instead of text")
    output.add_argument(
        "--stream", action="store_true", help="print text as it comes, also when standard output is no terminal"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Generate and print; 1 if a completion ended in an error, or was cut before it had the form asked for.

    Raises:
        TwophaseError: An option, the model or the prompt cannot be used; says why.
    """
    options = DEFAULTS | given(args, _SAMPLING) | {"structured_outputs": _structured_outputs(args)}
    if several := args.beam_width or args.best_of:
        options["n"] = several
    params = SamplingParams(**options, logprobs=None if args.best_of is None else 0)
    if args.stream and params.n != 1:
        raise InvalidRequestError(
            f"--stream shows one completion as it comes, got {params.n} with --n, --beam-width or --best-of; leave out "
            f"one of the two."
        )
    if args.best_of is not None and not params.temperature:
        raise InvalidRequestError(
            "--best-of chooses among draws, and --temperature 0 draws the same N times; raise it."
        )
    beams = None if args.beam_width is None else _beam_search_params(args, params)
    config = _config(args, params.n)
    num_ranks = 2 if args.disaggregate else config.tensor_parallel_size
    if num_ranks > 1 and not is_rank():
        check_shares(args.model, config.tensor_parallel_size, config.enable_expert_parallel)
        return run_in_ranks(args, num_ranks)
    text = _read_prompt(args.prompt) if num_ranks == 1 or os.environ["RANK"] == "0" else ""
    with _open(args, config) as llm:
        return 0 if llm is None else _generate(llm, text, params, beams, args)


def _beam_search_params(args: argparse.Namespace, params: SamplingParams) -> BeamSearchParams:
    for wrong, why in (
        (params.stop, "--stop: beams are compared token by token, and a stop string ends a text between them"),
        (params.structured_outputs, "--json-schema, --regex or --choice: it has no form"),
    ):
        if wrong:
            raise InvalidRequestError(f"--beam-width does not go with {why}; leave out one of the two.")
    return BeamSearchParams(beam_width=args.beam_width, max_tokens=params.max_tokens, temperature=params.temperature)


def _likeliest(completions: Sequence[CompletionOutput]) -> CompletionOutput:
    """The one with the highest log-probability per token; a failed one only if all failed."""
    usable = [each for each in completions if each.error is None] or completions
    return max(usable, key=lambda each: (each.cumulative_logprob or 0.0) / max(1, len(each.token_ids)))


def _generate(
    llm: "LLM", text: str, params: SamplingParams, beams: BeamSearchParams | None, args: argparse.Namespace
) -> int:
    prompt = _through_chat_template(llm, text) if args.chat else text
    # A stream cannot take back what turns out to be cut off, so a guided text is not streamed unasked.
    wants_stream = args.stream or (sys.stdout.isatty() and params.structured_outputs is None)
    if wants_stream and not args.json and params.n == 1:
        return _stream(llm, prompt, params)
    if beams is None:
        output = llm.generate(prompt, params, use_tqdm=False)[0]
    else:
        output = _as_request(llm.beam_search(prompt, beams, use_tqdm=False)[0])
    if args.best_of is not None:
        output = replace(output, outputs=(_likeliest(output.outputs),))
    if args.json:
        print(json.dumps(to_dict(output, llm, prompt=text)))
    else:
        _print_completions(output)
    complaints = [said for completion in output.outputs if (said := _complaint(completion, params)) is not None]
    for said in complaints:
        print(f"twophase: {said}", file=sys.stderr)
    return 1 if complaints else 0


def _as_request(found: BeamSearchOutput) -> RequestOutput:
    """What a beam search found, as a request's completions."""
    completions = tuple(
        CompletionOutput(
            index,
            each.text,
            each.tokens,
            finish_reason=each.finish_reason,
            stop_reason=each.stop_reason,
            error=each.error,
            cumulative_logprob=each.cum_logprob,
        )
        for index, each in enumerate(found.sequences)
    )
    return RequestOutput("0", found.prompt, found.prompt_token_ids, completions, True, found.metrics)


def _complaint(completion: CompletionOutput, params: SamplingParams) -> str | None:
    """What there is to say of a completion that is not what was asked for."""
    if completion.error is not None:
        return f"completion {completion.index} failed: {completion.error}"
    if params.structured_outputs is not None and completion.finish_reason == "length":
        return (
            f"completion {completion.index} was cut by --max-tokens {params.max_tokens} or the context limit, so it "
            f"may be incomplete; allow more tokens"
        )
    return None


def _read_prompt(prompt: str) -> str:
    # The newline that ends a line of input is not part of the text: it would change the tokens.
    return read_standard_input().removesuffix("\n") if prompt == "-" else prompt


def _structured_outputs(args: argparse.Namespace) -> StructuredOutputs | None:
    if args.json_schema is not None:
        return StructuredOutputs(json=read_text("--json-schema", args.json_schema))
    if args.regex is not None:
        return StructuredOutputs(regex=args.regex)
    return None if args.choice is None else StructuredOutputs(choice=args.choice)


def _config(args: argparse.Namespace, num_completions: int) -> EngineConfig:
    """The engine that is asked for. Raises ConfigError for one that cannot be."""
    # Nobody else is coming: a pool for these sequences is enough.
    limits: dict[str, Any] = {"max_num_seqs": num_completions, "speculative_config": speculative_config(args)}
    config = EngineConfig(**engine_options(args), **limits)
    check_pairs(config, also=("disaggregated",) if args.disaggregate else ())
    return config


def _open(args: argparse.Namespace, config: EngineConfig) -> "AbstractContextManager[LLM | None]":
    """The model; None in a process that computes prompts for another's."""
    if args.disaggregate:
        from twophase_features.parallel.disaggregation import disaggregated

        return disaggregated(args.model, config=config)
    from twophase.llm import LLM

    return LLM(args.model, config)


def _through_chat_template(llm: "LLM", text: str) -> "Prompt":
    assert llm.tokenizer is not None
    return {"prompt_token_ids": llm.tokenizer.apply_chat_template([{"role": "user", "content": text}])}


def _stream(llm: "LLM", prompt: "Prompt", params: SamplingParams) -> int:
    for piece in llm.stream(prompt, params):
        print(piece, end="", flush=True)
    print()
    return 0


def _print_completions(output: RequestOutput) -> None:
    for completion in output.outputs:
        if len(output.outputs) > 1:
            print(f"--- {completion.index} ({completion.finish_reason})")
        print(completion.text)


def to_dict(output: RequestOutput, llm: "LLM", prompt: str) -> dict[str, object]:
    """What `--json` prints: the ids and text of each completion, when things happened, and what computed them.

    Times in seconds: instants on a clock of this process, and the durations derived from them.
    """
    metrics = output.metrics
    durations = {"ttft_s": metrics.ttft_s, "tpot_s": metrics.tpot_s, "latency_s": metrics.latency_s}
    return {
        "prompt": prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [{name: getattr(completion, name) for name in SHOWN} for completion in output.outputs],
        "metrics": durations | asdict(metrics),
        "model": str(llm.model_dir),
        "backend": llm.model.backend.name,
        "device": str(llm.kv_cache.device),
        "dtype": str(llm.kv_cache.spec.dtype).removeprefix("torch."),
    }
