"""`LLM`: a model folder opened for generation. Names follow vLLM's class of the same name."""

import itertools
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from twophase.assembly import assemble
from twophase.config import DEFAULT_MODEL, EngineConfig, configured
from twophase.core.errors import InvalidRequestError, TwophaseError
from twophase.core.request import RequestOutput, SamplingParams
from twophase.core.rules import items_of, shown
from twophase.doors import feature
from twophase.engine.engine import uninterrupted
from twophase.engine.request_state import Prompt

PROGRESS_DELAY_S = 2.0  # short batches need no progress bar

Message = Mapping[str, Any]


class GenerationError(TwophaseError):
    """A streamed request ended with an error; a stream of text cannot show it."""


@final
class LLM:
    """A model, its tokenizer, its cache and an engine, ready for use. Not thread-safe.

    Args:
        model: The built-in default, a local Hugging Face folder, or a hub id.
        config: The engine's options; None: the defaults.
        options: Fields of `EngineConfig`, in place of `config`'s.

    Attributes:
        model_dir, model_config: The model's folder, and its config: of the whole model, also under tensor parallelism.
        tokenizer: None with `skip_tokenizer_init`.
        model, kv_cache: This process's part of the model, and its K/V cache.
        engine, scheduler, runner: The engine serves requests, the scheduler plans its steps, the runner runs them.
        refusal: Why every request is refused, for example because an `AsyncLLM` runs the engine. None: serving.

    Raises:
        ModelFolderError: The model is missing, broken or not supported.
        ConfigError, TypeError: An invalid option, or two that exclude each other; an unknown one.
        BackendUnavailableError: The attention backend asked for cannot run here.
        PeerLostError: A rank did not join.
        SystemExit: On the other ranks of a tensor-parallel model, after rank 0 has closed.
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, config: EngineConfig | None = None, **options: Any) -> None:
        self.config = configured(config, options)
        parts = assemble(str(model), self.config)
        self.model_dir, self.model_config, self.tokenizer = parts.model_dir, parts.model_config, parts.tokenizer
        self.model, self.kv_cache, self.runner = parts.model, parts.kv_cache, parts.runner
        self.scheduler, self.engine = parts.scheduler, parts.engine
        self.refusal: str | None = None
        self._close = weakref.finalize(self, self.runner.close)  # at the latest when the interpreter ends
        self._ids = itertools.count()
        self._latest: dict[str, RequestOutput | None] = {}  # newest outputs of this object's requests

    def close(self) -> None:
        """End the other ranks of a tensor-parallel model, whose requests fail from then on. May be called again."""
        self._close()

    def check_usable(self) -> None:
        """Raises InvalidRequestError if every request would be refused."""
        if self.refusal is not None:
            raise InvalidRequestError(self.refusal)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt; outputs are in the order of the prompts.

        On any exception, Ctrl-C included, these requests are aborted and the engine can be used again. A request that
        fails while it runs raises no exception: its finish reason is 'error'. Raises InvalidRequestError, and runs no
        request, if one could never be served.

        Args:
            prompts: Text, {"prompt": ...} or {"prompt_token_ids": [...]}, one or several; several may also be lists of
                token ids, [[ids], [ids]]. A mapping may also have a "cache_salt" (prefixes are shared only between
                requests with the same salt) and a "tenant" (for `FairPolicy`).
            sampling_params: One for all prompts, or one for each.
            use_tqdm: Show a progress bar when it takes longer than two seconds.
        """
        self.check_usable()
        several = listed("prompts", prompts, (str, Mapping))
        is_one = sampling_params is None or isinstance(sampling_params, SamplingParams)
        params: Any = [sampling_params] * len(several) if is_one else listed("sampling_params", sampling_params)
        if len(params) != len(several):
            raise InvalidRequestError(
                f"sampling_params must be one for all prompts or one for each, got {len(params)} for {len(several)}."
            )
        with self._requests(len(several)) as request_ids:
            for request_id, prompt, each in zip(request_ids, several, params, strict=True):
                self.engine.add_request(request_id, prompt, each, stream=False)
            self._finish(request_ids, use_tqdm)
            return [output for id_ in request_ids if (output := self._latest[id_]) is not None]

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: Any, use_tqdm: bool = True) -> list[Any]:
        """Search for the likeliest completions of each prompt; returns a `BeamSearchOutput` per prompt, in order.
        `params` is `BeamSearchParams`. Raises as `generate`."""
        self.check_usable()
        several = listed("prompts", prompts, (str, Mapping))
        return feature("beam_search.search").search(self, several, params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        special_tokens_in_content: bool = False,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several: `generate` on prompts rendered by the model's chat template. Raises as
        `generate`, and InvalidRequestError or ModelFolderError without a tokenizer or a readable chat template.

        Args:
            messages: [{"role": "user", "content": "..."}, ...], or a list of such lists.
            special_tokens_in_content: Whether the text of a special token in a message is that token.
        """
        prompts = feature("chat.conversation").prompts_of(self, messages, special_tokens_in_content)
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Continue one prompt, yielding the text piece by piece; joined, the pieces are `generate`'s text.

        The request is added at the first `next`, and aborted when the iterator is closed early. Several streams may be
        read alternately. Raises InvalidRequestError as `generate`, or for n > 1; GenerationError if the request fails.
        """
        self.check_usable()
        params = SamplingParams() if sampling_params is None else sampling_params
        if isinstance(params, SamplingParams) and params.n != 1:
            raise InvalidRequestError(f"a stream has one completion, so n must be 1, got {params.n}; use generate.")
        with self._requests(1) as (request_id,):
            self.engine.add_request(request_id, prompt, params)
            num_shown = 0
            while True:
                output = self._latest[request_id]
                if output is not None:
                    completion = output.outputs[0]
                    if len(completion.text) > num_shown:
                        yield completion.text[num_shown:]
                        num_shown = len(completion.text)
                    if completion.finish_reason == "error":
                        raise GenerationError(f"the request failed: {completion.error}")
                    if output.finished:
                        return
                self._step()

    @contextmanager
    def _requests(self, count: int) -> Iterator[list[str]]:
        """Ids for new requests, whose outputs `_step` keeps in `_latest`; at the end, unfinished ones are aborted."""
        request_ids = [str(next(self._ids)) for _ in range(count)]
        self._latest |= dict.fromkeys(request_ids)
        try:
            yield request_ids
        finally:
            with uninterrupted():
                for request_id in request_ids:
                    self.engine.abort(request_id)
                    self._latest.pop(request_id, None)

    def _step(self) -> None:
        # Outputs are cumulative, so the latest is enough, and alternating streams may run each other's steps.
        for output in self.engine.step():
            if output.request_id in self._latest:
                self._latest[output.request_id] = output
        if self.engine.idle_s:
            time.sleep(self.engine.idle_s)

    def _finish(self, request_ids: Sequence[str], use_tqdm: bool) -> None:
        from tqdm import tqdm

        num_tokens, waiting = 0, set(request_ids)
        look = {"unit": "req", "delay": PROGRESS_DELAY_S, "mininterval": 0.5, "disable": not use_tqdm}
        with tqdm(total=len(request_ids), **look) as bar:
            while waiting:
                self._step()
                ended = [output for id_ in waiting if (output := self._latest[id_]) is not None and output.finished]
                waiting -= {output.request_id for output in ended}
                num_tokens += sum(len(completion.token_ids) for output in ended for completion in output.outputs)
                bar.set_postfix_str(f"{num_tokens} tokens", refresh=False)
                bar.update(len(ended))


def listed(name: str, value: Any, one: type | tuple[type, ...] = ()) -> list[Any]:
    """`value` as a list; a bare `one` becomes a one-element list. Raises InvalidRequestError for a non-iterable."""
    if isinstance(value, one):
        return [value]
    try:
        return list(items_of(value))
    except TypeError as error:
        raise InvalidRequestError(f"{name} must be one or a list of several, got {shown(value)}.") from error
