"""POST /tokenize and /detokenize, as vLLM has them."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from twophase.core.rules import TEXT, Rule
from twophase_server.body import json_response
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, NAME, read_fields, read_ints, read_object
from twophase_server.messages import MESSAGES
from twophase_server.service import service_of


def _read_ids(value: Any) -> list[int]:
    found = read_ints(value)
    if min(found, default=0) < 0:
        raise ValueError
    return found


_TOKENIZE_RULES = {
    "model": NAME,
    "prompt": TEXT,
    "messages": MESSAGES,
    "special_tokens_in_content": FLAG,
    "add_special_tokens": FLAG,
    "add_generation_prompt": FLAG,
    "return_token_strs": FLAG,
}
_DETOKENIZE_RULES = {
    "model": NAME,
    "tokens": Rule("a list of token ids, whole numbers >= 0", _read_ids),
}


async def tokenize(request: Request) -> Response:
    service = service_of(request)
    lease = service.enter(request)
    try:
        fields = read_fields(await read_object(request, service.settings.max_body_bytes), _TOKENIZE_RULES)
        service.require_model(fields.get("model"))
        if ("prompt" in fields) == ("messages" in fields):
            raise invalid("exactly one of prompt and messages must be given.", "prompt")
        if "prompt" in fields:
            tokens = await service.encode(fields["prompt"], fields.get("add_special_tokens", True))
        else:
            tokens = await service.render(fields)
        texts = None
        if fields.get("return_token_strs"):
            texts = await asyncio.to_thread(lambda: [service.token_texts.of(token_id) for token_id in tokens])
        found = {"count": len(tokens), "max_model_len": service.max_model_len, "tokens": tokens, "token_strs": texts}
        return json_response(found)
    finally:
        lease.end()


async def detokenize(request: Request) -> Response:
    service = service_of(request)
    lease = service.enter(request)
    try:
        fields = read_fields(await read_object(request, service.settings.max_body_bytes), _DETOKENIZE_RULES)
        service.require_model(fields.get("model"))
        if "tokens" not in fields:
            raise invalid("tokens is missing.", "tokens")
        tokenizer, tokens = service.llm.tokenizer, fields["tokens"]
        if tokenizer is None:
            raise invalid("there is no tokenizer here (skip_tokenizer_init), so there is no text.")
        most, highest = service.max_model_len, max(tokens, default=0)
        if len(tokens) > most:
            raise invalid(f"tokens must be at most {most}, as many as the context has, got {len(tokens)}.", "tokens")
        if highest >= tokenizer.vocab_size:
            raise invalid(f"tokens must be in the vocabulary, [0, {tokenizer.vocab_size}), got {highest}.", "tokens")
        return json_response({"prompt": await asyncio.to_thread(tokenizer.decode, tokens, False)})
    finally:
        lease.end()
