"""This engine under the clock, all requests handed over at once. Imported by `child`."""

import time
from typing import Any

import twophase  # noqa: F401  (before torch: it says how long OpenMP's threads spin)

# isort: split
import torch

from twophase.core.request import SamplingParams
from twophase.llm import LLM

PACKAGES = ("twophase", "torch")
BLOCK_SIZE = 16


class Engine:
    """A loaded model. Prefix caching is off, because the same prompts come again in every repetition."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["num_threads"])
        self._llm = LLM(
            settings["folder"],
            device=settings["device"],
            dtype=settings["dtype"],
            attention_backend=settings["backend"],
            quantization=settings["quantization"],
            block_size=BLOCK_SIZE,
            num_kv_blocks=sum(-(-length // BLOCK_SIZE) for length in settings["lengths"]),  # nothing is preempted
            max_num_batched_tokens=settings["step_tokens"],
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
        )

    def run(self, prompts: list[list[int]], output_lens: list[int]) -> tuple[list[float], list[list[int]]]:
        """When each request's first token was there, and its tokens."""
        start_s = time.perf_counter()
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in output_lens]
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        first_token_s = [start_s + (output.metrics.ttft_s or 0.0) for output in outputs]
        return first_token_s, [list(output.outputs[0].token_ids) for output in outputs]
