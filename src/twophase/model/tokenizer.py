"""Text to token ids and back, by the `tokenizers` library alone: importing transformers would take seconds."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import InvalidRequestError, ModelFolderError, prompt_too_long
from twophase.core.rules import items_of, read_text, shown
from twophase.model._special_text import SpecialText, texts_of
from twophase.model._token_length import TokenLength, token_length
from twophase.model.json_file import read_bounded, read_json_object

# Characters, or tokens, from which the library works on a batch: other threads run meanwhile. (For each text it would
# take longer, and begin threads, of which a process that forks is warned.)
LONG = 16_384
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MAX_TOKENIZER_BYTES, MAX_TOKENIZER_LISTS = 64 * 2**20, 2 * 10**6  # Gemma 3's has 33 MB, with 520,000 lists


@final
class Tokenizer:
    """A model folder's tokenizer. Immutable.

    Args:
        tokenizer: Encodes and decodes.
        special_tokens: Role ('bos_token', 'eos_token', 'image_token' ...) to token text.
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
            ModelFolderError: tokenizer.json is missing or unreadable, or a file beside it is not of its form.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(
                f"{path} is missing, so text cannot be turned into tokens. Give prompts as token ids with "
                "LLM(..., skip_tokenizer_init=True), or save the tokenizer there with transformers' save_pretrained."
            )
        content = read_bounded(path, MAX_TOKENIZER_BYTES, MAX_TOKENIZER_LISTS)
        try:
            tokenizer = FastTokenizer.from_buffer(content)
        except Exception as error:  # the library raises plain Exception
            raise ModelFolderError(f"{path} is not a tokenizer ({error}). Download it again.") from error
        # A file may ask for truncation or padding, which belong to training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = read_json_object(file) if (file := folder / "tokenizer_config.json").is_file() else {}
        try:
            special_tokens = _add_tokens(tokenizer, folder, config)
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelFolderError(f"{folder / 'tokenizer_config.json'}: {error}. Download it again.") from error
        return cls(tokenizer, special_tokens, _chat_template(folder, config))

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
        from twophase.model import _render  # needs jinja2

        try:
            variables = {
                **self.special_tokens,
                "messages": [_render.message(each) for each in items_of(messages)],
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
            if not variables["messages"]:
                raise ValueError("there are none")
            return read_text(_render.render(self.chat_template, variables))
        except Exception as error:  # a template is a program, and may fail in any way
            raise InvalidRequestError(
                f"The model's chat template failed on these messages: {str(error) or type(error).__name__}. "
                "Each must be a dict with 'role' and 'content'; roles must come in the order the model was trained on."
            ) from error

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._tokenizer.token_to_id(token)


def _add_tokens(tokenizer: FastTokenizer, folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Add the tokens that tokenizer.json lacks, as transformers does, and return those with a role, by role.

    Raises:
        ModelFolderError, TypeError, ValueError, AttributeError: An entry is not of the form it must have.
    """
    if config.get("split_special_tokens"):
        raise ValueError("split_special_tokens is not supported: special tokens are never split")
    entries, listed = dict(config), config.get("added_tokens_decoder")
    if listed is None:  # older folders spread the same over three files
        entries |= _read_if_there(folder / "special_tokens_map.json")
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    extra = extra or entries.get("extra_special_tokens") or entries.get("additional_special_tokens") or []
    named = {role: entries[role] for role in (*SPECIAL_ROLES, *entries) if _has_token(entries, role)}
    if isinstance(extra, dict):
        named, extra = named | extra, []
    roles = {role: _special_token(role, entry) for role, entry in named.items()}
    special = [*roles.values(), *(_special_token("extra_special_tokens", entry) for entry in _list(extra))]
    if listed is None:
        texts = {token.content for token in special}
        found = _read_if_there(folder / "added_tokens.json").items()
        by_id = {
            number: AddedToken(text, special=text in texts, normalized=text not in texts) for text, number in found
        }
    else:
        by_id = {int(number): AddedToken(**entry) for number, entry in listed.items()}
    known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    by_id = {number: token for number, token in sorted(by_id.items()) if repr(token) not in known}
    for token in by_id.values():
        token.special = token.special or token.content in {each.content for each in roles.values()}
    tokenizer.add_tokens(list(by_id.values()))
    for number, token in by_id.items():
        if (given := tokenizer.token_to_id(token.content)) != number:
            raise ValueError(
                f"the added token {shown(token.content)} must have the id {shown(number)}, but after those of "
                f"tokenizer.json it gets {given}"
            )
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in special if token.content not in added])
    return {role: token.content for role, token in roles.items()}


def _has_token(entries: Mapping[str, Any], role: str) -> bool:
    """Roles of other names are those of which the entry is a token: not add_bos_token, which is a flag."""
    entry = entries.get(role)
    return entry is not None and (role in SPECIAL_ROLES or (role.endswith("_token") and isinstance(entry, str | dict)))


def _special_token(role: str, entry: Any) -> AddedToken:
    """From its text, or a record with flags."""
    record = entry if isinstance(entry, dict) else {"content": entry}
    if not isinstance(record.get("content"), str):
        raise TypeError(f"{role} must be text, or a record with the text as 'content'; found {shown(entry)}")
    return AddedToken(**{key: value for key, value in record.items() if key != "__type"} | {"special": True})


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(
            f"extra_special_tokens must be a list of tokens or an object of named ones; found {shown(value)}"
        )
    return value


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """From files of their own (newer folders) or tokenizer_config.json: a text, or several by name."""
    files = {"default": folder / "chat_template.jinja"} if (folder / "chat_template.jinja").is_file() else {}
    files |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if files:
        return _read_template(files["default"]) if "default" in files else None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        if len(named) != len(template):
            raise _template_error(folder, template)
        template = {entry["name"]: entry.get("template") for entry in named}.get("default")
    if template is not None and not isinstance(template, str):
        raise _template_error(folder, template)
    return template


def _read_template(path: Path) -> str:
    try:
        return read_bounded(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except ValueError as error:
        raise ModelFolderError(f"{path} cannot be read as UTF-8 text ({error}). Download it again.") from error


def _template_error(folder: Path, found: Any) -> ModelFolderError:
    return ModelFolderError(
        f"{folder / 'tokenizer_config.json'}: 'chat_template' must be text, or a list of {{'name': ..., 'template': "
        f"...}}; found {shown(found)}. Download it again, or remove it, which leaves the model without `chat`."
    )
