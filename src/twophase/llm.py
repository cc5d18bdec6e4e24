"""`LLM`: a model folder opened for generation. Names follow vLLM's class of the same name."""

import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from twophase.assembly import assemble
from twophase.config import DEFAULT_MODEL, EngineConfig, configured
from twophase.core.errors import EngineDeadError, InvalidRequestError, TwophaseError
from twophase.core.request import RequestOutput, SamplingParams
from twophase.core.rules import items_of, shown
from twophase.doors import feature
from twophase.engine.engine import uninterrupted
from twophase.engine.prompts import Prompt

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
        config: Every option of the engine.
        model_dir, model_config: The model's folder, and the whole model's sizes, also where several ranks share it.
        tokenizer: None with `skip_tokenizer_init`.
        model, kv_cache: This process's part of the model, and its pages.
        engine, scheduler, runner: The engine serves requests, the scheduler plans its steps, the runner runs them.

    Raises:
        ModelFolderError: The model is missing, broken or not supported.
        ConfigError: An invalid option, or two options that exclude each other (see `twophase_features.pairs`).
        TypeError: There is no such option.
        BackendUnavailableError: The attention backend asked for cannot run here.
        PeerLostError: One of the processes did not join.
        SystemExit: In the other processes of a tensor-parallel model, when rank 0 has closed.
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, config: EngineConfig | None = None, **options: Any) -> None:
        self.config = configured(config, options)
        parts = assemble(str(model), self.config)
        self.model_dir, self.model_config, self.tokenizer = parts.folder, parts.model_config, parts.tokenizer
        self.model, self.kv_cache, self.runner = parts.model, parts.kv_cache, parts.runner
        self.scheduler, self.engine = parts.scheduler, parts.engine
        self._pid = os.getpid()
        self._lending = threading.Lock()
        self._why_not: str | None = None  # the reason why its engine cannot be used
        self._close = weakref.finalize(self, self.runner.close)  # at the latest when the interpreter ends
        self._ids = itertools.count()
        self._latest: dict[str, RequestOutput | None] = {}  # outputs of the requests that a caller is waiting for

    def close(self) -> None:
        """End the other processes of a tensor-parallel model; later requests fail. May be called again."""
        self._close()

    def lend(self) -> None:
        """Give the engine to an AsyncLLM: this LLM refuses requests until `take_back`. Raises as `generate`; and
        InvalidRequestError if there are unfinished requests."""
        with self._lending:
            self._check_usable()
            if self.engine.has_unfinished_requests():
                raise InvalidRequestError("the LLM has unfinished requests; finish or abort them first.")
            self._why_not = "an AsyncLLM runs this LLM's engine: send requests to it, or `close` it first."

    def take_back(self, why_not: str | None = None) -> None:
        """The AsyncLLM returns the engine; `why_not` is the reason why this LLM cannot use the engine either."""
        self._why_not = why_not

    def _check_usable(self) -> None:
        if os.getpid() != self._pid and (self.kv_cache.device.type != "cpu" or self.config.tensor_parallel_size > 1):
            raise EngineDeadError(
                "this process is a fork of the process that opened the model, and cannot use its GPU or other "
                "ranks. Start it with multiprocessing's 'spawn', and open the model in it."
            )
        if self._why_not is not None:
            raise InvalidRequestError(self._why_not)

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
        fails while it runs raises nothing: its finish reason is 'error'.

        Args:
            prompts: Text, {"prompt": ...} or {"prompt_token_ids": [...]}, one or several; several may also be lists of
                token ids, [[ids], [ids]]. A mapping may also have a "cache_salt" (prefixes are shared only between
                requests with the same salt) and a "tenant" (for `FairPolicy`).
            sampling_params: One for all prompts, or one for each.
            use_tqdm: Show a progress bar when it takes longer than two seconds.

        Raises:
            InvalidRequestError: A request could never be served (then no request is run), or an AsyncLLM runs the
                engine.
            EngineDeadError: This process is a fork of the process that opened the model on a GPU or with several ranks.
        """
        self._check_usable()
        several = _listed("prompts", prompts, (str, Mapping))
        params: list[Any] = [None] * len(several)
        if sampling_params is not None:
            params = _listed("sampling_params", sampling_params, SamplingParams)
            params *= len(several) if isinstance(sampling_params, SamplingParams) else 1
        if len(params) != len(several):
            raise InvalidRequestError(
                f"sampling_params must be one for all prompts or one for each, got {len(params)} for {len(several)}."
            )
        request_ids = [self._new_id() for _ in several]
        try:
            for request_id, prompt, each in zip(request_ids, several, params, strict=True):
                self.engine.add_request(request_id, prompt, each, stream=False)
            return self._wait_for(request_ids, use_tqdm)
        finally:
            self._forget(request_ids)

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: Any, use_tqdm: bool = True) -> list[Any]:
        """Search for the likeliest completions of each prompt; a `BeamSearchOutput` for each, in their order.

        Args:
            params: `BeamSearchParams`.

        Raises:
            InvalidRequestError: As `generate`.
        """
        self._check_usable()
        found: list[Any] = feature("beam_search.search").search(
            self, _listed("prompts", prompts, (str, Mapping)), params, use_tqdm
        )
        return found

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        special_tokens_in_content: bool = False,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several: `generate` on prompts rendered by the model's chat template.

        Args:
            messages: [{"role": "user", "content": "..."}, ...], or a list of such lists.
            special_tokens_in_content: Whether the text of a special token in a message is that token; see
                `twophase_features.chat.conversation.token_ids`.

        Raises:
            InvalidRequestError: There is no tokenizer or no chat template; or as `generate`.
            ModelFolderError: The chat template cannot be read.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("chat needs the model's tokenizer, but skip_tokenizer_init=True left it out.")
        conversations = _listed("messages", messages)
        if conversations and isinstance(conversations[0], Mapping):
            conversations = [conversations]
        options: dict[str, Any] = {
            "special_tokens_in_content": special_tokens_in_content,
            "max_model_len": self.scheduler.config.max_model_len,
        }
        prompts = [{"prompt_token_ids": self.tokenizer.apply_chat_template(each, **options)} for each in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Continue one prompt, yielding the text piece by piece; joined, the pieces are `generate`'s text.

        The request is added at the first `next`, and aborted when the iterator is closed early. Several streams may be
        read alternately.

        Raises:
            InvalidRequestError: As `generate`; or more than one completion is asked for.
            GenerationError: The request failed while it ran.
        """
        self._check_usable()
        params = SamplingParams() if sampling_params is None else sampling_params
        if isinstance(params, SamplingParams) and params.n != 1:
            raise InvalidRequestError(f"a stream has one completion, so n must be 1, got {params.n}; use generate.")
        request_id = self._new_id()
        num_shown = 0
        try:
            self.engine.add_request(request_id, prompt, params)
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
        finally:
            self._forget([request_id])

    def _new_id(self) -> str:
        request_id = str(next(self._ids))
        self._latest[request_id] = None
        return request_id

    def _step(self) -> None:
        # Outputs are cumulative, so the latest is enough, and any caller may run a step for all.
        for output in self.engine.step():
            if output.request_id in self._latest:
                self._latest[output.request_id] = output
        if self.engine.idle_s:
            time.sleep(self.engine.idle_s)

    def _wait_for(self, request_ids: Sequence[str], use_tqdm: bool) -> list[RequestOutput]:
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
        return [output for id_ in request_ids if (output := self._latest[id_]) is not None]

    @uninterrupted()
    def _forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)
            self._latest.pop(request_id, None)


def _listed(name: str, value: Any, one: type | tuple[type, ...] = ()) -> list[Any]:
    """`value` as a list; a bare `one` becomes a one-element list. Raises InvalidRequestError for a non-iterable."""
    if isinstance(value, one):
        return [value]
    try:
        return list(items_of(value))
    except TypeError as error:
        raise InvalidRequestError(f"{name} must be one or a list of several, got {shown(value)}.") from error
