"""Text to token ids and back, by the `tokenizers` library alone: importing transformers would take seconds.

A folder has tokenizer.json, and beside it lists of special tokens.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from twophase.core.errors import ModelFolderError, prompt_too_long
from twophase.core.rules import shown
from twophase.doors import feature
from twophase.model.json_file import read_bounded, read_json_object

# Characters, or tokens, from which the library is given a batch: it then lets other threads run. (For short texts a
# batch takes longer, and it starts threads, about which a process that forks is warned.)
LONG = 16_384
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MAX_TOKENIZER_BYTES, MAX_TOKENIZER_LISTS = 64 * 2**20, 2 * 10**6  # Gemma 3's has 33 MB, with 520,000 lists


@final
class Tokenizer:
    """A model folder's tokenizer. Immutable.

    Args:
        fast: The library's tokenizer.
        special_tokens: Role ('bos_token', 'eos_token', 'image_token' ...) to token text.
        folder: The folder with the chat template; None: no chat template.
    """

    def __init__(self, fast: FastTokenizer, special_tokens: Mapping[str, str], folder: Path | None = None) -> None:
        self.fast, self.special_tokens, self._folder = fast, dict(special_tokens), folder
        self.vocab_size = fast.get_vocab_size()

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read a model folder. Raises ModelFolderError if tokenizer.json or a file beside it cannot be used."""
        return cls(*read_tokenizer(folder), folder)

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of("eos_token")

    def _id_of(self, role: str) -> int | None:
        return self.fast.token_to_id(self.special_tokens[role]) if role in self.special_tokens else None

    @cached_property
    def token_length(self) -> Any:
        """The bound on characters per token (twophase_features.token_length.TokenLength); None: unknown."""
        return feature("token_length").token_length(self.fast)

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_model_len: int | None = None,
        by: FastTokenizer | None = None,
    ) -> list[int]:
        """Token ids; special tokens written out in the text are recognised. Some models add a begin-of-text token.

        `by` is another vocabulary to use (`SpecialText.tokenizer`). Raises InvalidRequestError for a text that does not
        fit into `max_model_len` tokens.
        """
        self.require_room(text, max_model_len)
        fast = by or self.fast
        if len(text) < LONG:
            encoding = fast.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if max_model_len is not None and len(encoding) >= max_model_len:  # before the ids become Python ints
            raise prompt_too_long(f"{len(encoding)} tokens", max_model_len)
        return encoding.ids

    def require_room(self, text: str, max_model_len: int | None) -> None:
        """Raises InvalidRequestError for a text whose length already shows that it does not fit."""
        if max_model_len is None or len(text) < max_model_len or self.token_length is None:
            return
        least = self.token_length.least_tokens(text)
        if least >= max_model_len:
            raise prompt_too_long(f"{len(text)} characters, so {least} tokens or more", max_model_len)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text; bytes that are not a whole character become U+FFFD."""
        if len(ids) < LONG:
            return self.fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self.fast.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def to_json(self) -> str:
        """The text of a tokenizer.json, for other libraries."""
        return self.fast.to_str()

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja template that turns messages into a prompt. Raises ModelFolderError if it cannot be read."""
        return None if self._folder is None else feature("chat.template").read_template(self._folder)

    @cached_property
    def special_text(self) -> Any:
        """The `SpecialText` of this vocabulary."""
        return feature("chat.special_text").SpecialText(self.fast)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model's prompt text; see `twophase_features.chat.conversation.render_chat`."""
        return feature("chat.conversation").render_chat(self, messages, add_generation_prompt)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **options: Any
    ) -> list[int]:
        """Token ids of a conversation; see `twophase_features.chat.conversation.token_ids`."""
        return feature("chat.conversation").token_ids(self, messages, add_generation_prompt, **options)


def read_tokenizer(folder: Path) -> tuple[FastTokenizer, dict[str, str]]:
    """The tokenizer, and role ('bos_token', 'image_token' ...) to token text.

    Raises:
        ModelFolderError: tokenizer.json is missing or unreadable, or a file beside it does not have its form.
    """
    path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
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
    try:
        return tokenizer, _add_tokens(tokenizer, folder, _read_if_there(config_path))
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelFolderError(f"{config_path}: {error}. Download it again.") from error


def _add_tokens(tokenizer: FastTokenizer, folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Add the tokens that tokenizer.json lacks, as transformers does; returns role to token text.

    `config` is the content of tokenizer_config.json. Raises what wrong entries cause, which `read_tokenizer` reports.
    """
    if config.get("split_special_tokens"):
        raise ValueError("split_special_tokens is not supported: special tokens are never split")
    entries, listed = dict(config), config.get("added_tokens_decoder")
    if listed is None:  # older folders spread the same entries over three files
        entries |= _read_if_there(folder / "special_tokens_map.json")
    names = ("extra_special_tokens", "additional_special_tokens")
    extra: Any = next((source[name] for source in (config, entries) for name in names if source.get(name)), [])
    if not isinstance(extra, list | dict):
        raise TypeError(f"extra_special_tokens must be a list or an object of tokens; found {shown(extra)}")
    named = {role: entries[role] for role in (*SPECIAL_ROLES, *entries) if _has_token(entries, role)}
    if isinstance(extra, dict):
        named, extra = named | extra, []
    roles = {role: _special_token(role, entry) for role, entry in named.items()}
    special = [*roles.values(), *(_special_token("extra_special_tokens", entry) for entry in extra)]
    if listed is None:
        texts = {token.content for token in special}
        found = _read_if_there(folder / "added_tokens.json").items()
        by_id = {id_: AddedToken(text, special=text in texts, normalized=text not in texts) for text, id_ in found}
    else:
        by_id = {int(id_): AddedToken(**entry) for id_, entry in listed.items()}
    known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    by_id = {id_: token for id_, token in sorted(by_id.items()) if repr(token) not in known}
    for token in by_id.values():
        token.special = token.special or token.content in {each.content for each in roles.values()}
    tokenizer.add_tokens(list(by_id.values()))
    for id_, token in by_id.items():
        if (given := tokenizer.token_to_id(token.content)) != id_:
            raise ValueError(
                f"the added token {shown(token.content)} must have the id {shown(id_)}, but after the tokens of "
                f"tokenizer.json it gets {given}"
            )
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in special if token.content not in added])
    return {role: token.content for role, token in roles.items()}


def _has_token(entries: Mapping[str, Any], role: str) -> bool:
    """Whether the entry is a token with a role; add_bos_token, for example, is a flag."""
    entry = entries.get(role)
    return entry is not None and (role in SPECIAL_ROLES or (role.endswith("_token") and isinstance(entry, str | dict)))


def _special_token(role: str, entry: Any) -> AddedToken:
    """From its text, or a record with the text and flags."""
    record = entry if isinstance(entry, dict) else {"content": entry}
    if not isinstance(record.get("content"), str):
        raise TypeError(f"{role} must be text, or a record with the text as 'content'; found {shown(entry)}")
    return AddedToken(**{key: value for key, value in record.items() if key != "__type"} | {"special": True})


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
