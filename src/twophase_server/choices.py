"""Answers that are lists of choices: the format that completions and chats have in common."""

import abc
import time
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

from twophase.core.request import RequestOutput, SamplingParams
from twophase_server.answering import AnswerFormat, Part, usage
from twophase_server.endpoint import Call
from twophase_server.sampling import wants_usage


class ChoicesFormat(AnswerFormat):
    """An answer with a choice for each completion, and streams of chunks with one choice each.

    Attributes:
        prefix, kind, chunk_kind: How ids begin; `object` of an answer, and of a stream's chunks.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, call: Call, params: SamplingParams) -> None:
        super().__init__(call, params)
        self._has_usage, self._has_usage_so_far = wants_usage(call.fields)
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": call.service.model_name,
        }

    @abc.abstractmethod
    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        """A finished completion, which is a single part."""

    @abc.abstractmethod
    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        """The choices with which a stream sends a part."""

    def whole(self) -> dict[str, Any]:
        choices = [
            self.choice(index, output, part)
            for position, output in sorted(self._newest.items())
            for index, part in self.parts(position)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage(self._newest.values())}

    def pieces(self, position: int) -> Iterator[dict[str, Any]]:
        """The chunks' `usage` is null as OpenAI has it, or the usage so far as vLLM has it."""
        output = self._newest[position]
        more = {"usage": usage([output]) if self._has_usage_so_far else None} if self._has_usage else {}
        for index, part in self.parts(position):
            for choice in self.new_choices(index, output, part):
                yield {**self._head, "object": self.chunk_kind, "choices": [choice], **more}

    def last_pieces(self) -> Iterator[dict[str, Any]]:
        """The chunk with the usage, if requested."""
        if self._has_usage:
            yield {**self._head, "object": self.chunk_kind, "choices": [], "usage": usage(self._newest.values())}
