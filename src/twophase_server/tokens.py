"""POST /tokenize and /detokenize, as vLLM has them."""

import asyncio

from starlette.responses import JSONResponse, Response

from twophase.core.rules import Rule
from twophase_server.endpoint import Call, Endpoint
from twophase_server.errors import invalid
from twophase_server.fields import ANY_TEXT, FLAG, NAME, TOKEN_ID, Field, Table, read_ints
from twophase_server.messages import MESSAGES, read_messages
from twophase_server.tools import CHAT_TOOLS, read_tools

_FLAGS = ("special_tokens_in_content", "add_special_tokens", "add_generation_prompt", "return_token_strs")
_IDS = Field(
    Rule("a list of token ids, whole numbers >= 0", read_ints, lambda ids: min(ids, default=0) >= 0),
    {"type": "array", "items": TOKEN_ID},
)
_TOKENIZE = Table(
    {
        "model": NAME,
        "prompt": ANY_TEXT,
        "messages": MESSAGES.outer,
        "tools": CHAT_TOOLS,
        **dict.fromkeys(_FLAGS, FLAG),
    }
)


async def _tokenize(call: Call) -> Response:
    service, fields = call.service, call.fields
    if ("prompt" in fields) == ("messages" in fields):
        raise invalid("exactly one of prompt and messages must be given.", "prompt")
    if "prompt" in fields:
        tokens = await service.encode(fields["prompt"], fields.get("add_special_tokens", True))
    else:
        tools = read_tools(fields).prompt
        tokens = await service.render(fields, lambda: read_messages(fields["messages"], tools))
    texts = None
    if fields.get("return_token_strs"):
        texts = await asyncio.to_thread(lambda: [service.token_texts.of(token_id) for token_id in tokens])
    found = {"count": len(tokens), "max_model_len": service.max_model_len, "tokens": tokens, "token_strs": texts}
    return JSONResponse(found)


async def _detokenize(call: Call) -> Response:
    service, fields = call.service, call.fields
    tokenizer, tokens = service.tokenizer, fields["tokens"]
    most, highest = service.max_model_len, max(tokens, default=0)
    if len(tokens) > most:
        raise invalid(f"tokens must be at most {most}, as many as the context has, got {len(tokens)}.", "tokens")
    if highest >= tokenizer.vocab_size:
        raise invalid(f"tokens must be in the vocabulary, [0, {tokenizer.vocab_size}), got {highest}.", "tokens")
    return JSONResponse({"prompt": await asyncio.to_thread(tokenizer.decode, tokens, False)})


tokenize = Endpoint(_tokenize, _TOKENIZE, generates=False)
detokenize = Endpoint(_detokenize, Table({"model": NAME, "tokens": _IDS}, required=("tokens",)), generates=False)
