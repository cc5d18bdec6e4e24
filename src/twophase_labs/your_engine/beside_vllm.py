"""Four requests through vLLM and through a learner's engine: what each scheduler decides, step by step.

Where `make vllm` has built an environment with vLLM, its scheduler is asked now; elsewhere the steps are those that it
took when they were recorded (`python -m twophase_labs.your_engine.beside_vllm` records them anew).
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from twophase import LLM, SamplingParams
from twophase.core.errors import TwophaseError
from twophase_features.model_store.prepare import default_model_dir
from twophase_labs.machine.lab import Workbook

HERE = Path(__file__).parent
RECORDED, SCRIPT = HERE / "vllm_steps.json", HERE / "vllm_steps.py"
TIMEOUT_S = 600
LIMITS = {
    "max_num_batched_tokens": 64, "max_num_seqs": 3, "block_size": 32, "max_model_len": 512,
    "enable_prefix_caching": True,
}  # fmt: skip
# Where in vLLM a learner's part has its counterpart.
PLACES = {
    "own_write": ("v1/attention/ops/triton_reshape_and_cache_flash.py", "def reshape_and_cache_kernel_flash("),
    "own_prefill": ("v1/attention/ops/triton_unified_attention.py", "def kernel_unified_attention("),
    "merge_splits": ("v1/attention/ops/triton_unified_attention.py", "def reduce_segments("),
    "DecodesFirst": ("v1/core/sched/scheduler.py", "def schedule("),
    "block_hashes": ("v1/core/kv_cache_utils.py", "def hash_block_tokens("),
    "PrefixStore": ("v1/core/block_pool.py", "class BlockPool"),
    "names_to_ask": ("v1/core/kv_cache_manager.py", "def get_computed_blocks("),
    "ngram_draft": ("v1/spec_decode/ngram_proposer.py", "def _find_longest_matched_ngram_and_propose_tokens("),
    "verify": ("v1/sample/rejection_sampler.py", "def rejection_sample("),
    "allowed_ids": ("v1/structured_output/backend_guidance.py", "def fill_bitmask("),
}


class NoVllmError(TwophaseError):
    """vLLM could not be run; the message says why."""


@dataclass(frozen=True)
class Steps:
    """What a scheduler decided.

    Attributes:
        who: Whose scheduler.
        when: The version that took the steps, and when.
        steps: Tokens that each step computed, by request.
        hits: Prompt tokens found in the prefix cache, by request.
        tokens: Ids written, by request.
        places: For vLLM, (file, line) of each of `PLACES`.
    """

    who: str
    when: str
    steps: tuple[Mapping[str, int], ...]
    hits: Mapping[str, int]
    tokens: Mapping[str, tuple[int, ...]]
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def requests() -> tuple[dict[str, Any], ...]:
    """A and B come first; two steps later C, whose prompt begins with A's first 64 tokens, and D."""
    rng = random.Random(9)

    def ids(count: int) -> list[int]:
        return [rng.randrange(1000, 9000) for _ in range(count)]

    document = ids(100)
    return (
        {"id": "A", "token_ids": document, "max_tokens": 6, "arrives": 0},
        {"id": "B", "token_ids": ids(40), "max_tokens": 8, "arrives": 0},
        {"id": "C", "token_ids": document[:64] + ids(20), "max_tokens": 4, "arrives": 2},
        {"id": "D", "token_ids": ids(30), "max_tokens": 5, "arrives": 2},
    )


def through(llm: LLM, who: str) -> Steps:
    """The requests through an engine of this workbook."""
    engine, waiting, ended, first = llm.engine, list(requests()), dict[str, Any](), llm.engine.stats().num_steps
    while waiting or engine.has_unfinished_requests():
        for request in [one for one in waiting if one["arrives"] <= engine.stats().num_steps - first]:
            waiting.remove(request)
            params = SamplingParams(temperature=0, max_tokens=request["max_tokens"], ignore_eos=True)
            engine.add_request(request["id"], {"prompt_token_ids": request["token_ids"]}, params)
        ended.update({output.request_id: output for output in engine.step() if output.finished})
    steps = tuple({chunk[0]: chunk[3] for chunk in step.chunks} for step in engine.trace if step.step >= first)
    hits = {name: output.metrics.num_cached_tokens for name, output in ended.items()}
    tokens = {name: tuple(output.outputs[0].token_ids) for name, output in ended.items()}
    return Steps(who, "now", steps, hits, tokens)


@cache
def vllm_steps() -> Steps:
    """vLLM's, taken now where `make vllm` was run, else as recorded."""
    if python().exists():
        return _steps(_run(), "now")
    found = json.loads(RECORDED.read_text())
    return _steps(found, f"recorded on {found['date']}")


def python() -> Path:
    """The interpreter of the environment that `make vllm` builds."""
    return Workbook.find().root / ".venv-vllm" / "bin" / "python"


def _steps(found: Mapping[str, Any], when: str) -> Steps:
    return Steps(
        "vLLM",
        f"{found['version']}, {when}",
        tuple(found["steps"]),
        found["hits"],
        {name: tuple(ids) for name, ids in found["tokens"].items()},
        {name: (file, line) for name, (file, line) in found["places"].items()},
    )


def _run() -> dict[str, Any]:
    """Raises NoVllmError with the last line of what it said."""
    job = {"model": str(default_model_dir()), "limits": LIMITS, "requests": requests(), "places": PLACES}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    try:
        done = subprocess.run(
            [python(), SCRIPT],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise NoVllmError(f"vLLM had not served four requests after {TIMEOUT_S} s.") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NoVllmError(f"vLLM failed: {said[-1]}. Remove {python().parents[1]} to go on with the recorded steps.")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(*schedules: Steps) -> str:
    """A line a step: the tokens of each request, schedule beside schedule."""
    names = [request["id"] for request in requests()]
    width = 6 * len(names)
    lines = ["step  " + "   ".join(f"{one.who:{width}}" for one in schedules).rstrip()]
    lines.append("      " + "   ".join("".join(f"{name:>6}" for name in names) for _ in schedules))
    for step in range(max(len(one.steps) for one in schedules)):
        cells = [one.steps[step] if step < len(one.steps) else {} for one in schedules]
        rows = ("".join(f"{cell.get(name) or '.':>6}" for name in names) for cell in cells)
        lines.append(f"{step:4}  " + "   ".join(rows))
    return "\n".join(lines)


def main() -> int:
    if not python().exists():
        print("no environment with vLLM: run `make vllm`", file=sys.stderr)
        return 1
    found = _run() | {"date": datetime.now(UTC).date().isoformat()}
    RECORDED.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
