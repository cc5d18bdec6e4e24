"""transformers' `generate` under the clock, used in its two natural ways. Imported by `child`.

One batch: prompts padded on the left, everyone generates to the longest, the surplus is discarded. One by one: a call
per request, in order; a request's first token waits for all before it.
"""

import time
from importlib import import_module
from typing import Any

import torch

transformers: Any = import_module("transformers")
import_module("transformers.models.llama.modeling_llama")  # code is not the model's memory

PACKAGES = ("transformers", "torch")


class Engine:
    """The model, set to greedy generation that never stops early."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["num_threads"])
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        dtype = getattr(torch, settings["dtype"])
        model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["folder"], dtype=dtype, local_files_only=True
        )
        self._model = model.to(settings["device"]).eval()
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=False, eos_token_id=None, pad_token_id=0
        )
        self._is_batch = settings["is_batch"]

    def run(self, prompts: list[list[int]], output_lens: list[int]) -> tuple[list[float], list[list[int]]]:
        """When each request's first token was there, and its tokens."""
        if self._is_batch:
            first_s, rows = self._generate(prompts, max(output_lens))
            return [first_s] * len(rows), [row[:n] for row, n in zip(rows, output_lens, strict=True)]
        found = [self._generate([prompt], n) for prompt, n in zip(prompts, output_lens, strict=True)]
        return [first_s for first_s, _ in found], [rows[0] for _, rows in found]

    def _generate(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, list[list[int]]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        first_s: list[float] = []

        def note_time(input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
            """A stopping criterion that never stops: it is called after every token."""
            if not first_s:
                self._synchronize()
                first_s.append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

        device = self._model.device
        with torch.inference_mode():
            out = self._model.generate(
                ids.to(device), attention_mask=mask.to(device), max_new_tokens=num_tokens, stopping_criteria=[note_time]
            )
        self._synchronize()
        return first_s[0], out[:, longest:].tolist()

    def _synchronize(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize()
