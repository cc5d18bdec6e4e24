"""What the tests run in two processes: generate, and lose one of the two in the middle. Prints a line of JSON per rank.

disaggregated_script.py FOLDER RANK SIGNAL
"""

import json
import os
import signal
import sys
import time

from twophase import LLM, SamplingParams
from twophase_features.parallel.disaggregation import DecodeEngine, disaggregated
from twophase_features.parallel.peers import PeerLostError
from twophase_features.parallel.prefill_worker import PrefillWorker


def say(**what):
    print(json.dumps({"time": time.time()} | what), flush=True)


def note_worker():
    """Have the prefill side tell what it still holds, however it ends."""
    serve = PrefillWorker.serve

    def noted(self):
        error = None
        try:
            serve(self)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            say(error=error, in_use=self._engine.stats().cache.num_in_use, num_unsent=len(self._unsent))

    PrefillWorker.serve = noted


def in_step(class_, method, number, action):
    """`action()` at the start of a method's `number`-th call."""
    real, calls = getattr(class_, method), []

    def counted(self, *args):
        calls.append(1)
        if len(calls) == number:
            action()
        return real(self, *args)

    setattr(class_, method, counted)


def lose(folder, victim, number):
    def die():
        time.sleep(1)  # the sending thread goes on meanwhile: what was computed before this is on its way
        say(dying=True)
        os.kill(os.getpid(), number)

    if int(os.environ["RANK"]) == victim:
        # The second layer of the long prompt's second chunk; or the fourth token of the first prompt.
        in_step(*((PrefillWorker, "_send_layer", 4) if victim else (DecodeEngine, "step", 40)), die)
    options = {"num_kv_blocks": 64, "device": "cpu", "attention_backend": "torch", "skip_tokenizer_init": True}
    prefill = {"max_num_batched_tokens": 16, "max_num_seqs": 16}
    prompts = [{"prompt_token_ids": list(range(3, 3 + length))} for length in (12, 100)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with disaggregated(folder, step_timeout_s=4.0, prefill_options=prefill, **options) as llm:
        if llm is not None:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            end_s = time.time()
            try:
                refusal = llm.generate(prompts, params, use_tqdm=False)
            except PeerLostError as error:
                refusal = str(error)
            alone = LLM(folder, **options).generate(prompts, params, use_tqdm=False)
            say(
                time=end_s,
                ends=[each.outputs[0].finish_reason for each in outputs],
                refusal=refusal,
                is_equal=[each.outputs for each in outputs] == [each.outputs for each in alone],
                in_use=llm.engine.stats().cache.num_in_use,
                num_recomputed=llm.engine.num_recomputed,
            )


if __name__ == "__main__":
    note_worker()
    lose(sys.argv[1], int(sys.argv[2]), getattr(signal, sys.argv[3]))
