"""The steps that are profiled: prompts alone, decodes alone, or both in one step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM

KINDS = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class StepShape:
    """What is in a step.

    Attributes:
        kind: 'prefill', prompts alone; 'decode', one token each; 'mixed', decodes with prompts beside them.
        batch: Requests; in a mixed step half of them, rounded up, decode.
        prompt_lens: Tokens of their prompts, dealt out in turns.

    Raises:
        ConfigError: A step that cannot be.
    """

    kind: str = "decode"
    batch: int = 8
    prompt_lens: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"a step is {', '.join(KINDS)}, got {self.kind!r}.")
        least = 2 if self.kind == "mixed" else 1
        if self.batch < least:
            raise ConfigError(f"a {self.kind} step needs at least {least} requests, got {self.batch}; raise --batch.")
        if not self.prompt_lens or min(self.prompt_lens) < 1:
            raise ConfigError(f"prompts have at least 1 token, got {', '.join(map(str, self.prompt_lens)) or 'none'}.")

    @property
    def num_prompts(self) -> int:
        """Requests whose prompts are computed in the step."""
        return {"prefill": self.batch, "decode": 0, "mixed": self.batch // 2}[self.kind]

    @property
    def num_decodes(self) -> int:
        return self.batch - self.num_prompts


@final
class Steps:
    """Brings an engine to just before a step of a shape, as often as is asked.

    The decodes go on from step to step; prompts are new ones each time, none of which the prefix cache can know.
    """

    def __init__(self, llm: LLM, shape: StepShape, seed: int = 0) -> None:
        self._llm, self._shape = llm, shape
        self._random = random.Random(seed)
        self._decoding: tuple[str, ...] = ()
        self._beside: tuple[str, ...] = ()
        self._num_requests = 0

    def arrange(self) -> None:
        """The next `engine.step` is of the shape.

        Raises:
            InvalidRequestError: The model's context or the pool is too small for a prompt.
        """
        engine = self._llm.engine
        if not self._decoding:
            self._decoding = self._add(self._shape.num_decodes)
            started: set[str] = set()
            while not started.issuperset(self._decoding):
                started |= {output.request_id for output in engine.step() if output.outputs[0].token_ids}
        self._beside = self._add(self._shape.num_prompts)

    def done(self) -> None:
        """The step has been made: was it of the shape? Its prompts are not gone on with.

        Raises:
            ConfigError: No, because of a limit of the engine.
        """
        step = self._llm.engine.trace[-1]
        decoded = {request_id for request_id, *_ in step.chunks[: step.num_decodes + step.num_verifying]}
        prompts = {request_id for request_id, *_ in step.chunks} - decoded
        if decoded != set(self._decoding) or bool(prompts) != bool(self._beside):
            raise ConfigError(
                f"the step decoded {len(decoded)} sequences and computed {len(prompts)} prompts, but a "
                f"{self._shape.kind} step of {self._shape.batch} was asked for; raise --max-num-batched-tokens or "
                f"--num-kv-blocks, or lower --batch or --steps."
            )
        self._abort(self._beside)
        self._beside = ()

    def close(self) -> None:
        """The engine is idle again."""
        self._abort(self._decoding + self._beside)
        self._decoding = self._beside = ()

    def _add(self, num_requests: int) -> tuple[str, ...]:
        return tuple(self._add_one(self._shape.prompt_lens) for _ in range(num_requests))

    def _add_one(self, lens: Sequence[int]) -> str:
        request_id = f"profiled-{self._num_requests}"
        num_tokens = lens[self._num_requests % len(lens)]
        self._num_requests += 1
        token_ids = self._random.choices(range(self._llm.model_config.vocab_size), k=num_tokens)
        # As many tokens as the context has room for: a decode should last.
        room = max(1, self._llm.scheduler.config.max_model_len - num_tokens)
        params = SamplingParams(temperature=0.0, max_tokens=room, ignore_eos=True)
        self._llm.engine.add_request(request_id, {"prompt_token_ids": token_ids}, params)
        return request_id

    def _abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._llm.engine.abort(request_id)
