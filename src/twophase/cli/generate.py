"""`twophase generate PROMPT`: text as it comes on a terminal, all at once in a pipe, or one JSON object."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from twophase.core.errors import InvalidRequestError
from twophase.core.outputs import RequestMetrics, RequestOutput
from twophase.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from twophase.engine.llm import LLM
    from twophase.engine.prompts import Prompt


def run(args: argparse.Namespace) -> int:
    """Generate and print; 1 if a completion ended in an error.

    Raises:
        TwophaseError: An option, the model or the prompt cannot be used; says why.
    """
    params = SamplingParams(
        n=args.n,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
    )
    if args.stream and args.n != 1:
        raise InvalidRequestError(f"--stream shows one completion, got --n {args.n}; leave out one of the two.")
    text = _read_prompt(args.prompt)
    llm = _open(args)
    prompt = _through_chat_template(llm, text) if args.chat else text
    if (args.stream or sys.stdout.isatty()) and not args.json and params.n == 1:
        return _stream(llm, prompt, params)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    if args.json:
        print(json.dumps(to_dict(output, llm, prompt=text)))
    else:
        _print_completions(output)
    for completion in output.outputs:
        if completion.error is not None:
            print(f"twophase: completion {completion.index} failed: {completion.error}", file=sys.stderr)
    return 1 if any(completion.finish_reason == "error" for completion in output.outputs) else 0


def _read_prompt(prompt: str) -> str:
    # The newline that ends a line of input is not part of the text: it would change the tokens.
    return sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt


def _open(args: argparse.Namespace) -> "LLM":
    from twophase.engine.llm import LLM

    return LLM(
        args.model,
        device=args.device,
        dtype=args.dtype,
        attention_backend=args.backend,
        max_num_seqs=args.n,  # nobody else is coming: a pool for these sequences is enough
    )


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
    """What `--json` prints: the ids and text of each completion, when things happened, and what computed them."""
    return {
        "prompt": prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [
            {
                "index": completion.index,
                "text": completion.text,
                "token_ids": completion.token_ids,
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
                "error": completion.error,
            }
            for completion in output.outputs
        ],
        "metrics": _metrics_dict(output.metrics),
        "model": str(llm.model_dir),
        "backend": llm.model.backend.name,
        "device": str(llm.kv_cache.device),
        "dtype": str(llm.kv_cache.spec.dtype).removeprefix("torch."),
    }


def _metrics_dict(metrics: RequestMetrics) -> dict[str, object]:
    """Times in seconds: instants on a clock of this process, and the durations derived from them."""
    derived = {"ttft_s": metrics.ttft_s, "tpot_s": metrics.tpot_s, "latency_s": metrics.latency_s}
    return derived | asdict(metrics)
