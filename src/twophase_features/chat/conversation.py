"""A conversation as the model's prompt: checked, rendered by the chat template, and encoded."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import items_of, read_text
from twophase.llm import LLM, listed
from twophase.model.tokenizer import Tokenizer
from twophase_features.chat.rendering import message, render
from twophase_features.chat.special_text import texts_of

Messages = Sequence[Mapping[str, Any]]


def prompts_of(llm: LLM, messages: Any, special_tokens_in_content: bool) -> list[dict[str, list[int]]]:
    """The prompts of one conversation, or of several, for `LLM.generate`.

    Raises:
        InvalidRequestError: There is no tokenizer; or as `token_ids`.
    """
    if llm.tokenizer is None:
        raise InvalidRequestError("chat needs the model's tokenizer, but skip_tokenizer_init=True left it out.")
    conversations = listed("messages", messages)
    if conversations and isinstance(conversations[0], Mapping):
        conversations = [conversations]
    options: dict[str, Any] = {
        "special_tokens_in_content": special_tokens_in_content,
        "max_model_len": llm.scheduler.config.max_model_len,
    }
    return [{"prompt_token_ids": token_ids(llm.tokenizer, each, **options)} for each in conversations]


def token_ids(
    tokenizer: Tokenizer,
    messages: Messages,
    add_generation_prompt: bool = True,
    *,
    special_tokens_in_content: bool = False,
    max_model_len: int | None = None,
) -> list[int]:
    """Token ids of a conversation, ready for the assistant's next turn.

    Args:
        special_tokens_in_content: The text of a special token in a message is that token, as in transformers, so it may
            end the message and begin another message in any role.
        max_model_len: Tokens that fit; None: any number.

    Raises:
        InvalidRequestError: As `render_chat`, and as `Tokenizer.encode` for the rendered text; or the vocabulary
            cannot write a special token's text in ordinary tokens.
    """
    with suppress(TypeError):  # `render_chat` reports the error
        messages = list(items_of(messages))
    texts = texts_of(messages)
    special = tokenizer.special_text
    found = special.found_in(texts)
    if special_tokens_in_content or not found:
        text = render_chat(tokenizer, messages, add_generation_prompt)
        return tokenizer.encode(text, False, max_model_len=max_model_len)
    template = partial(render_chat, tokenizer, add_generation_prompt=add_generation_prompt)
    text = special.render(messages, found, template)
    return special.ids(tokenizer.encode(text, False, max_model_len=max_model_len, by=special.tokenizer))


def render_chat(tokenizer: Tokenizer, messages: Messages, add_generation_prompt: bool = True) -> str:
    """The conversation as the model's prompt text. Messages are {'role': ..., 'content': ...}.

    Raises:
        ModelFolderError: The folder's chat template cannot be read.
        InvalidRequestError: The model has no chat template, or the template refuses these messages.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequestError("This model has no chat template; give it plain text instead of messages.")
    try:
        variables = {
            **tokenizer.special_tokens,
            "messages": [message(each) for each in items_of(messages)],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if not variables["messages"]:
            raise ValueError("there are no messages")
        return read_text(render(tokenizer.chat_template, variables))
    except Exception as error:  # a template is a program: it may fail in any way
        raise InvalidRequestError(
            f"The model's chat template failed on these messages: {str(error) or type(error).__name__}. "
            "Each must be a dict with 'role' and 'content'; roles must come in the order the model was trained on."
        ) from error
