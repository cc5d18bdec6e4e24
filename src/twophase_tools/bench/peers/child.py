"""What runs under a contender's interpreter: `python child.py ADAPTER SETTINGS` loads a model and generates on request.

Lines of JSON on standard input and output, for which nothing but the standard library is needed:

    out  {"versions": {...}}                                  the model is loaded
    in   {"prompts": [[...], ...], "output_lens": [...]}      a run: request i generates exactly output_lens[i] tokens
    out  {"elapsed_s": ..., "ttft_s": [...], "token_ids": [[...], ...], "peak_memory_bytes": ...}
    out  {"missing": "..."} or {"error": "..."}               instead, at any time; the process ends

It ends at the end of its input, so it never outlives the process that started it. While it waits it blocks in a read.
"""

import contextlib
import json
import os
import platform
import sys
import time
from importlib import import_module, metadata
from typing import Any, TextIO


def main(adapter: str, settings: dict[str, Any]) -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # for this file alone
    os.dup2(2, 1)  # what libraries print goes to standard error
    try:
        module = import_module(adapter)
    except Exception as error:  # of the wrong version of something else, say
        _say(answers, {"missing": f"{type(error).__name__}: {error}"})
        return 1
    sys.path.pop(0)  # this folder: its names should not stand before anyone's
    imported_bytes = _resident_bytes("VmRSS")  # code is not the engine's memory
    try:
        engine = module.Engine(settings)
        _say(answers, {"versions": _versions(module.PACKAGES)})
        _serve(engine, answers, imported_bytes)
    except Exception as error:
        _say(answers, {"error": f"{type(error).__name__}: {error}"})
        raise
    return 0


def _serve(engine: Any, answers: TextIO, imported_bytes: int | None) -> None:
    for line in sys.stdin:
        task = json.loads(line)
        start_s = time.perf_counter()
        first_token_s, token_ids = engine.run(task["prompts"], task["output_lens"])
        elapsed_s = time.perf_counter() - start_s
        answer = {
            "elapsed_s": elapsed_s,
            "ttft_s": [at_s - start_s for at_s in first_token_s],
            "token_ids": token_ids,
            "peak_memory_bytes": _peak_bytes(imported_bytes),
        }
        _say(answers, answer)


def _peak_bytes(imported_bytes: int | None) -> int | None:
    """On a GPU what torch allocated; else what was resident beyond the imports."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    peak_bytes = _resident_bytes("VmHWM")
    return None if peak_bytes is None or imported_bytes is None else peak_bytes - imported_bytes


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    versions = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {**versions, "Python": platform.python_version()}


def _resident_bytes(field: str) -> int | None:
    """VmRSS (now) or VmHWM (peak) of this process (proc(5)); None where there is no /proc."""
    try:
        with open("/proc/self/status") as file:
            kib = [line.split()[1] for line in file if line.startswith(f"{field}:")]
    except OSError:
        return None
    return int(kib[0]) * 1024 if kib else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
