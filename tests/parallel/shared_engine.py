"""Run by each rank: serve the requests described in argv[1], lose a rank if asked to, print what came of it as JSON."""

import json
import os
import signal
import sys
import time
from pathlib import Path

if '"checked": true' in sys.argv[-1]:  # the shapes and types of everything; takes three seconds of each rank
    from tests.enforced_types import enforce_types

    enforce_types("twophase", "twophase_features")

from twophase import LLM, SamplingParams
from twophase_features.parallel.peers import Peers


def lose_rank(folder: Path, how: str, after: int, method: str = "all_reduce") -> None:
    """This process dies, or falls silent, in the middle of a step: at its all-reduce number `after`, say."""
    original, calls = getattr(Peers, method), []

    def call(self, *args, **options):
        calls.append(args)
        if len(calls) == after:
            (folder / "lost_at").write_text(str(time.time()))
            os.kill(os.getpid(), getattr(signal, how))
        return original(self, *args, **options)

    setattr(Peers, method, call)


def serve(llm: LLM, batches) -> list:
    """Each batch of [prompt token ids, sampling parameters] is served together, one batch after the other."""
    results = []
    for batch in batches:
        prompts = [{"prompt_token_ids": ids} for ids, _ in batch]
        outputs = llm.generate(prompts, [SamplingParams(**params) for _, params in batch], use_tqdm=False)
        results.append(
            [[[list(each.token_ids), each.finish_reason, each.error] for each in output.outputs] for output in outputs]
        )
    return results


def stats_of(llm: LLM) -> dict:
    stats = llm.engine.stats()
    return {
        "in_use": stats.cache.num_in_use,
        "hits": stats.cache.num_hit_tokens,
        "preemptions": stats.num_preemptions,
        "swapped_in": sum(step.blocks_loaded for step in llm.engine.trace),
        "steps": stats.num_steps,
    }


def main(job: dict) -> int:
    folder, rank = Path(job["folder"]), int(os.environ["RANK"])
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    if job["lose"] and rank == int(os.environ["WORLD_SIZE"]) - 1:
        lose_rank(folder, *job["lose"])
    with LLM(**job["options"], skip_tokenizer_init=True) as llm:
        results = serve(llm, job["batches"])
        noticed_at = time.time()
        sums = llm.runner.traffic["all_reduce"]
        print(json.dumps({
            "results": results, "stats": stats_of(llm), "noticed_at": noticed_at,
            "num_all_reduces": sums.num_calls, "all_reduce_bytes": sums.num_bytes,
            "traffic": {name: [each.num_calls, each.num_bytes] for name, each in llm.runner.traffic.items()},
        }))  # fmt: skip
    return 5 if job["lose"] else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
