"""Run in an environment that has vLLM: serve some requests there, and print what its scheduler decided in each step.

    python vllm_steps.py < job.json

The job: {"model": folder, "limits": {...}, "requests": [{"id", "token_ids", "max_tokens", "arrives"}], "places": {name:
[file, definition]}}, `arrives` in steps. The last line printed is {"version", "steps": [{request: tokens}], "hits":
{request: tokens}, "tokens": {request: [ids]}, "places": {name: [file, line]}}. Nothing of this workbook is imported.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.load(sys.stdin)
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    vllm: Any = importlib.import_module("vllm")
    llm = vllm.LLM(
        model=job["model"], dtype="float32", enforce_eager=True, async_scheduling=False, seed=0, **job["limits"]
    )
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    steps, hits = list[dict[str, int]](), dict[str, int]()
    schedule = scheduler.schedule

    def noted(*args: Any, **options: Any) -> Any:
        plan = schedule(*args, **options)
        if plan.num_scheduled_tokens:
            # vLLM adds a suffix of its own to a request's id.
            steps.append({_own_id(i): count for i, count in plan.num_scheduled_tokens.items()})
        for new in plan.scheduled_new_reqs:
            hits[_own_id(new.req_id)] = new.num_computed_tokens
        return plan

    scheduler.schedule = noted
    waiting, tokens = list(job["requests"]), dict[str, list[int]]()
    while waiting or engine.has_unfinished_requests():
        for request in [one for one in waiting if one["arrives"] <= len(steps)]:
            waiting.remove(request)
            params = vllm.SamplingParams(temperature=0, max_tokens=request["max_tokens"], ignore_eos=True)
            engine.add_request(request["id"], {"prompt_token_ids": request["token_ids"]}, params)
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
    places = {name: [file, _line_of(file, definition)] for name, (file, definition) in job["places"].items()}
    found = {"version": vllm.__version__, "steps": steps, "hits": hits, "tokens": tokens, "places": places}
    print(json.dumps(found))


def _line_of(file: str, definition: str) -> int:
    """The line on which a file of vLLM begins a definition, from 1; 0 if it does not."""
    package: Any = importlib.import_module("vllm")
    lines = (Path(package.__file__).parent / file).read_text().splitlines()
    return next((n for n, line in enumerate(lines, start=1) if line.strip().startswith(definition)), 0)


def _own_id(request_id: str) -> str:
    return request_id.partition("-")[0]


if __name__ == "__main__":
    main()
