"""Answers that prove the check of exercise 1.3."""

from twophase_labs.machine.exercise import Bank, Right, Wrong


def loop(
    choose: str = "logits[-1].argmax()",
    append: str = "torch.cat([ids, next_id[None]])",
    ended: str = "next_id == eos_id",
    passes: str = "range(num_new)",
    read: str = "ids",
) -> str:
    """A whole answer with one of its expressions replaced."""
    return f"""
def greedy(model, ids, num_new, eos_id):
    for _ in {passes}:
        logits = model({read}[None]).logits[0]
        next_id = {choose}
        ids = {append}
        if {ended}:
            break
    return ids
"""


ONE_TOO_FEW = """
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new - 1):
        next_id = model(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids
"""
STOPS_BEFORE_APPENDING = """
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new):
        next_id = model(ids[None]).logits[0, -1].argmax()
        if next_id == eos_id:
            break
        ids = torch.cat([ids, next_id[None]])
    return ids
"""
ALWAYS_READS_THE_PROMPT = """
def greedy(model, ids, num_new, eos_id):
    text = ids
    for _ in range(num_new):
        next_id = model(ids[None]).logits[0, -1].argmax()
        text = torch.cat([text, next_id[None]])
        if next_id == eos_id:
            break
    return text
"""
IN_PLACE = """
def greedy(model, ids, num_new, eos_id):
    num_prompt = len(ids)
    ids.resize_(num_prompt + num_new)
    for at in range(num_prompt, num_prompt + num_new):
        ids[at] = model(ids[None, :at]).logits[0, -1].argmax()
        if ids[at] == eos_id:
            return ids[: at + 1]
    return ids
"""
RETURNS_NOTHING = """
def greedy(model, ids, num_new, eos_id):
    for _ in range(num_new):
        next_id = model(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
"""
A_LIST = """
def greedy(model, ids, num_new, eos_id):
    text = ids.tolist()
    while len(text) < len(ids) + num_new:
        text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        if text[-1] == eos_id:
            break
    return torch.tensor(text)
"""
WITH_A_CACHE = """
def greedy(model, ids, num_new, eos_id):
    out = model(ids[None], use_cache=True)
    for turn in range(num_new):
        next_id = out.logits[0, -1].topk(1).indices
        ids = torch.cat([ids, next_id])
        if next_id == eos_id or turn == num_new - 1:
            break
        out = model(next_id[None], past_key_values=out.past_key_values)
    return ids
"""

STOPS_AT_ONCE = """
def greedy(model, ids, num_new, eos_id):
    end = len(ids) + num_new
    while len(ids) < end and ids[-1] != eos_id:
        ids = torch.cat([ids, model(ids[None]).logits[0, -1:].argmax(-1)])
    return ids
"""
BANKS = {
    "1.3": Bank(
        wrong=(
            Wrong("returns nothing", RETURNS_NOTHING, "returns the prompt and the new tokens"),
            Wrong("only the new token stays", loop(append="next_id[None]"), "returns the prompt and the new tokens"),
            Wrong(
                "puts it in front",
                loop(append="torch.cat([next_id[None], ids])"),
                "returns the prompt and the new tokens",
            ),
            Wrong("never ends", loop(passes="iter(int, 1)"), "returns the prompt and the new tokens"),
            Wrong("one pass too few", ONE_TOO_FEW, "returns the prompt and the new tokens"),
            Wrong("one token at least", loop(passes="range(max(num_new, 1))"), "returns the prompt and the new tokens"),
            Wrong("appends a logit", loop(choose="logits[-1].max()"), "returns the prompt and the new tokens"),
            Wrong("the first row", loop(choose="logits[0].argmax()"), "picks the likeliest next token"),
            Wrong("the likeliest position", loop(choose="logits[:, -1].argmax()"), "picks the likeliest next token"),
            Wrong("the largest of all rows", loop(choose="logits.argmax() % 100"), "picks the likeliest next token"),
            Wrong("the least likely", loop(choose="logits[-1].argmin()"), "picks the likeliest next token"),
            Wrong("always reads the prompt only", ALWAYS_READS_THE_PROMPT, "matches transformers token for token"),
            Wrong("reads the last 16 tokens only", loop(read="ids[-16:]"), "matches transformers token for token"),
            Wrong(
                "at most 32 new tokens", loop(passes="range(min(num_new, 32))"), "matches transformers token for token"
            ),
            Wrong("never stops early", loop(ended="False"), "stops after the end token"),
            Wrong("keeps the end token out", STOPS_BEFORE_APPENDING, "stops after the end token"),
            Wrong(
                "looks for the end token in the whole text", loop(ended="eos_id in ids"), "stops after the end token"
            ),
            Wrong("looks for it in front of the last", loop(ended="eos_id in ids[:-1]"), "stops after the end token"),
            Wrong("end token 0 is none", loop(ended="eos_id and next_id == eos_id"), "does what its examples say"),
            Wrong(
                "at most 64 new tokens", loop(passes="range(min(num_new, 64))"), "matches transformers token for token"
            ),
            Wrong("an end token of the prompt stops it", STOPS_AT_ONCE, "stops after the end token"),
            Wrong("in place", IN_PLACE, "leaves the prompt alone"),
        ),
        right=(
            Right("a list of numbers", A_LIST),
            Right("with transformers' own cache", WITH_A_CACHE),
            Right("the last row by softmax", loop(choose="logits.softmax(-1)[-1].argmax()")),
        ),
    ),
}
