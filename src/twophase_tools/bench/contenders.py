"""Who is compared by `bench engine` in its own process: this engine, and transformers' `generate` used in its two
natural ways. Others come from `peers`.

All get the same weights, dtype and threads, generate greedily and ignore end-of-text.
"""

import abc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from twophase.core.request import SamplingParams
from twophase_tools.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """What a contender is to run with.

    Attributes:
        device, dtype: Resolved names, 'cpu' and 'float32', never 'auto'.
        backend: Of this engine's attention.
        quantization: Of the linear layers, in the contender's own words; None: the weights are plain.
    """

    folder: str
    device: str
    dtype: str
    backend: str
    num_threads: int
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over a workload, timed from its start.

    Attributes:
        ttft_s: When each request's first token was there.
        token_ids: The generated tokens of each request.
        peak_memory_bytes: Of a contender that has a process of its own, until now; None: to be measured apart.
    """

    elapsed_s: float
    ttft_s: tuple[float, ...]
    token_ids: tuple[tuple[int, ...], ...]
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """About a contender that has a process of its own.

    Attributes:
        versions: Package -> version.
        waiting_cpu: The share of a core that its threads used while others ran.
    """

    name: str
    versions: dict[str, str]
    waiting_cpu: float


class Contender(abc.ABC):
    """A loaded model that can run workloads, one at a time, any number of times."""

    @abc.abstractmethod
    def run(self, workload: Workload) -> Run:
        """Generate everything."""

    def peer_record(self) -> PeerRecord | None:
        """Of a contender in a process of its own, until now."""
        return None

    def close(self) -> None:  # noqa: B027  (most have nothing to do)
        """Give back what would outlive the object."""


class LocalContender(Contender):
    """One that runs in this process."""

    name: str

    def run(self, workload: Workload) -> Run:
        """Generate everything; the device has finished when this returns."""
        start_s = time.perf_counter()
        ttft_s, token_ids = self._generate(workload, start_s)
        _synchronize(self.device)
        return Run(time.perf_counter() - start_s, ttft_s, token_ids)

    def __init__(self, setup: Setup) -> None:
        self.device = torch.device(setup.device)
        torch.set_num_threads(setup.num_threads)

    @abc.abstractmethod
    def _generate(self, workload: Workload, start_s: float) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]]:
        """First-token times relative to `start_s`, and tokens, by request."""


class Twophase(LocalContender):
    """This engine, all requests handed over at once.

    Prefix caching is off, because the same prompts come again in every repetition; the pool has room for all.
    """

    name = "twophase"

    def __init__(self, setup: Setup, workload: Workload) -> None:
        super().__init__(setup)
        from twophase.llm import LLM

        block_size = 16
        quantised: dict[str, Any] = {} if setup.quantization is None else {"quantization": setup.quantization}
        self.llm = LLM(
            setup.folder,
            device=setup.device,
            dtype=setup.dtype,
            attention_backend=setup.backend,
            block_size=block_size,
            num_kv_blocks=workload.num_blocks(block_size),
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            **quantised,
        )

    def _generate(self, workload: Workload, start_s: float) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]]:
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in workload.output_lens]
        prompts = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return (
            tuple(output.metrics.ttft_s or 0.0 for output in outputs),
            tuple(output.outputs[0].token_ids for output in outputs),
        )


class TransformersBatch(LocalContender):
    """One `generate` call: prompts padded on the left, everyone generates to the longest, the surplus is discarded."""

    name = "transformers, one batch"

    def __init__(self, setup: Setup, workload: Workload) -> None:
        super().__init__(setup)
        self.model = load_transformers(setup)

    def _generate(self, workload: Workload, start_s: float) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]]:
        first_token_s, rows = _generate_batch(self.model, workload.prompts, max(workload.output_lens))
        tokens = tuple(tuple(row[:n]) for row, n in zip(rows, workload.output_lens, strict=True))
        return (first_token_s - start_s,) * len(rows), tokens


class TransformersSequential(LocalContender):
    """One `generate` call per request, in order; a request's first token waits for all before it."""

    name = "transformers, one by one"

    def __init__(self, setup: Setup, workload: Workload) -> None:
        super().__init__(setup)
        self.model = load_transformers(setup)

    def _generate(self, workload: Workload, start_s: float) -> tuple[tuple[float, ...], tuple[tuple[int, ...], ...]]:
        ttft_s, tokens = [], []
        for prompt, num_tokens in zip(workload.prompts, workload.output_lens, strict=True):
            first_token_s, rows = _generate_batch(self.model, (prompt,), num_tokens)
            ttft_s.append(first_token_s - start_s)
            tokens.append(tuple(rows[0]))
        return tuple(ttft_s), tuple(tokens)


CONTENDERS: dict[str, Any] = {
    contender.name: contender for contender in (Twophase, TransformersBatch, TransformersSequential)
}


def load_transformers(setup: Setup) -> Any:
    """The same folder in transformers, set to greedy generation that never stops early."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        Path(setup.folder), dtype=getattr(torch, setup.dtype), local_files_only=True
    )
    model = model.to(setup.device).eval()
    # On the model itself: `generate` fills what a call leaves as None from here, end-of-text included.
    model.generation_config = transformers.GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)
    return model


def _generate_batch(model: Any, prompts: tuple[tuple[int, ...], ...], num_tokens: int) -> tuple[float, list[list[int]]]:
    """Clock time of the first token, and `num_tokens` new tokens per prompt."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    clock = _FirstTokenClock(model.device)
    with torch.inference_mode():
        out = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=num_tokens,
            stopping_criteria=[clock],
        )
    assert clock.first_token_s is not None
    return clock.first_token_s, out[:, longest:].tolist()


class _FirstTokenClock:
    """A stopping criterion that never stops: `generate` calls it after every token, and it notes the first time."""

    def __init__(self, device: torch.device) -> None:
        self.first_token_s: float | None = None
        self._device = device

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        if self.first_token_s is None:
            _synchronize(self._device)
            self.first_token_s = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
