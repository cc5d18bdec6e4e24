"""Text to token ids and back, by the `tokenizers` library alone: importing transformers would take seconds."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import InvalidRequestError, ModelFolderError, prompt_too_long
from twophase.core.rules import items_of, read_text, shown
from twophase.model._special_text import SpecialText, texts_of
from twophase.model._token_length import TokenLength, token_length
from twophase.model.config import read_json_object

# Characters, or tokens, from which the library works on a batch: other threads run meanwhile. (For each text it would
# take longer, and begin threads, of which a process that forks is warned.)
LONG = 16_384
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


@final
class Tokenizer:
    """A model folder's tokenizer. Immutable.

    Args:
        tokenizer: Encodes and decodes.
        special_tokens: Role ('bos_token', 'eos_token' ...) to token text.
        chat_template: The Jinja template that turns messages into a prompt, or None.
    """

    def __init__(self, tokenizer: FastTokenizer, special_tokens: Mapping[str, str], chat_template: str | None) -> None:
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self.vocab_size = tokenizer.get_vocab_size()

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, and the special tokens and chat template beside it.

        Raises:
            ModelFolderError: tokenizer.json is missing or unreadable.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(
                f"{path} is missing, so text cannot be turned into tokens. Give prompts as token ids with "
                "LLM(..., skip_tokenizer_init=True), or save the tokenizer there with transformers' save_pretrained."
            )
        try:
            tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ModelFolderError(f"{path} is not a tokenizer ({error}). Download it again.") from error
        # A file may ask for truncation or padding, which belong to training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = read_json_object(file) if (file := folder / "tokenizer_config.json").is_file() else {}
        return cls(tokenizer, _special_tokens(folder, config), _chat_template(folder, config))

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of("eos_token")

    @cached_property
    def token_length(self) -> TokenLength | None:
        """How much of a text one token can stand for; None: no bound is known."""
        return token_length(self._tokenizer)

    @cached_property
    def _specials(self) -> list[AddedToken]:
        """The longest first, for one may begin as another does."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return sorted((token for token in added if token.special), key=lambda token: -len(token.content))

    @cached_property
    def special_text(self) -> SpecialText:
        return SpecialText(self._tokenizer, self._specials)

    def encode(self, text: str, add_special_tokens: bool = True, *, max_model_len: int | None = None) -> list[int]:
        """Token ids; special tokens written out in the text are recognised. Some models add a begin-of-text token.

        Raises:
            InvalidRequestError: It is no prompt for a context of `max_model_len`, by its length or when encoded.
        """
        return self._ids(self._tokenizer, text, add_special_tokens, max_model_len)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text; bytes that are no whole character come out as U+FFFD."""
        if len(ids) < LONG:
            return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self._tokenizer.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def to_json(self) -> str:
        """The text of a tokenizer.json, for other libraries."""
        return self._tokenizer.to_str()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        special_tokens_in_content: bool = False,
        max_model_len: int | None = None,
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn.

        Args:
            special_tokens_in_content: The text of a special token in a message is that token, as in transformers, so
                it may end the message and begin another in any role.

        Raises:
            InvalidRequestError: As `render_chat`, and as `encode` for what it renders and the messages' texts; or the
                vocabulary cannot write a special token's text.
        """
        with suppress(TypeError):  # `render_chat` says what is wrong
            messages = list(items_of(messages))
        texts = texts_of(messages)
        self._require_room("".join(texts), max_model_len)
        found = [each.content for each in self._specials if any(each.content in text for text in texts)]
        if special_tokens_in_content or not found:
            return self.encode(self.render_chat(messages, add_generation_prompt), False, max_model_len=max_model_len)
        special = self.special_text
        text = special.render(messages, found, lambda hidden: self.render_chat(hidden, add_generation_prompt))
        return special.ids(self._ids(special.tokenizer, text, False, max_model_len))

    def _ids(
        self, tokenizer: FastTokenizer, text: str, add_special_tokens: bool, max_model_len: int | None
    ) -> list[int]:
        self._require_room(text, max_model_len)
        if len(text) < LONG:
            encoding = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if max_model_len is not None and len(encoding) >= max_model_len:  # before they become Python's
            raise prompt_too_long(f"{len(encoding)} tokens", max_model_len)
        return encoding.ids

    def _require_room(self, text: str, max_model_len: int | None) -> None:
        """Raises InvalidRequestError for a text whose length tells that it does not fit."""
        if max_model_len is None or len(text) < max_model_len or self.token_length is None:
            return
        least = self.token_length.least_tokens(text)
        if least >= max_model_len:
            raise prompt_too_long(f"{len(text)} characters, so {least} tokens or more", max_model_len)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model's prompt text. Messages are {'role': ..., 'content': ...}.

        Raises:
            InvalidRequestError: The model has no chat template, or the template refuses these messages.
        """
        if self.chat_template is None:
            raise InvalidRequestError("This model has no chat template; give it plain text instead of messages.")
        sandbox = _sandbox()
        try:
            text = sandbox.from_string(self.chat_template).render(
                messages=list(items_of(messages)),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
            )
            return read_text(text)
        except Exception as error:  # a template is a program, and may fail in any way
            raise InvalidRequestError(
                f"The model's chat template failed on these messages: {str(error) or type(error).__name__}. "
                "Each must be a dict with 'role' and 'content'; roles must come in the order the model was trained on."
            ) from error

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._tokenizer.token_to_id(token)


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    path = folder / "special_tokens_map.json"
    entries = (read_json_object(path) if path.is_file() else {}) | dict(config)
    # An entry is the text, or a record with the text in it.
    texts = {
        role: entry.get("content") if isinstance(entry := entries.get(role), dict) else entry for role in SPECIAL_ROLES
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """From chat_template.jinja (newer folders) or tokenizer_config.json: a text, or several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFolderError(f"{path} cannot be read as UTF-8 text ({error}). Download it again.") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        if len(named) != len(template):
            raise _template_error(folder, template)
        template = {entry["name"]: entry.get("template") for entry in named}.get("default")
    if template is not None and not isinstance(template, str):
        raise _template_error(folder, template)
    return template


def _template_error(folder: Path, found: Any) -> ModelFolderError:
    return ModelFolderError(
        f"{folder / 'tokenizer_config.json'}: 'chat_template' must be text, or a list of {{'name': ..., 'template': "
        f"...}}; found {shown(found)}. Download it again, or remove it, which leaves the model without `chat`."
    )


def _sandbox() -> Any:
    """Jinja as chat templates expect it (transformers' documentation, 'Writing a chat template').

    Sandboxed and immutable, because a template comes with a model, from anywhere.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return sandbox
