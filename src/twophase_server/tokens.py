"""POST /tokenize and /detokenize, as vLLM has them."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from twophase.core.rules import TEXT, Rule, items_of, whole_number
from twophase_server.body import json_response
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, read_fields, read_object
from twophase_server.messages import MESSAGES, read_messages
from twophase_server.sampling import NAME
from twophase_server.service import service_of

_TOKEN_ID = whole_number(at_least=0)
_TOKENIZE_RULES = {
    "model": NAME,
    "prompt": TEXT,
    "messages": MESSAGES,
    "add_special_tokens": FLAG,
    "add_generation_prompt": FLAG,
    "return_token_strs": FLAG,
}
_DETOKENIZE_RULES = {
    "model": NAME,
    "tokens": Rule(
        "a list of token ids, whole numbers >= 0", lambda value: [_TOKEN_ID.read(x) for x in items_of(value)]
    ),
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
            messages = read_messages(fields["messages"])
            tokens = await service.render(messages, fields.get("add_generation_prompt", True))
        texts = [service.token_texts.of(token_id) for token_id in tokens] if fields.get("return_token_strs") else None
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
        wrong = next((token_id for token_id in tokens if token_id >= tokenizer.vocab_size), None)
        if wrong is not None:
            raise invalid(f"tokens must be in the vocabulary, [0, {tokenizer.vocab_size}), got {wrong}.", "tokens")
        return json_response({"prompt": await asyncio.to_thread(tokenizer.decode, tokens, False)})
    finally:
        lease.end()
