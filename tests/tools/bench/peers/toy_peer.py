"""A peer that needs no model: `settings` say how it behaves. Runs under another interpreter, beside the real ones."""

import os
import sys
import time

if error := os.environ.get("TOY_FAILS"):
    raise {"ImportError": ImportError, "RuntimeError": RuntimeError}[error]("no toy")

PACKAGES = ("pip",)


class Engine:
    def __init__(self, settings):
        self.settings = settings
        print("a library that prints to standard output")
        self._do(settings.get("loading"))

    def run(self, prompts, output_lens):
        if len(prompts) == self.settings.get("only_for"):
            self._do(self.settings.get("running"))
        print("once more")
        first_token_s = [time.perf_counter()] * len(prompts)
        return first_token_s, [[sum(prompt)] * n for prompt, n in zip(prompts, output_lens, strict=True)]

    def _do(self, what):
        if what == "die":
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if what == "raise":
            raise ValueError("does not fit")
