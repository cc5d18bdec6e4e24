"""Answers that prove the check of exercise 1.3."""

from twophase_labs.machine.bank import right, wrong

RETURNS_THE, PICKS_THE = "returns the prompt and the new tokens", "picks the likeliest next token"
MATCHES_TRANSFORMERS, STOPS_AFTER = "matches transformers token for token", "stops after the end token"
DOES_WHAT, STARTS_ANEW = "does what its examples say", "starts anew in each call"
TAKES_ONE, INPUT = "takes one pass per new token", "leaves the prompt alone"

PASS_TOO_MANY = """for _ in range(num_new):
        next_id = model(ids[None]).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id[None]])
        if next_id == eos_id:
            break
    return ids"""
PASS_TOO_MANY_2 = """T = len(ids)
    while True:
        logits = model(ids[None]).logits
        if len(ids) == T + num_new or (len(ids) > T and ids[-1] == eos_id):
            return ids
        ids = torch.cat([ids, logits[0, -1:].argmax(-1)])"""
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
RECURSION = """
def greedy(model, ids, num_new, eos_id):
    if num_new == 0:
        return ids
    token = model(ids.unsqueeze(0)).logits[0][-1].max(-1).indices
    longer = torch.cat((ids, token.view(1)))
    return longer if token.item() == eos_id else greedy(model, longer, num_new - 1, eos_id)
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

# fmt: off
BANKS = {
    "1.3": (
        wrong("appends a logit", "next_id = model(ids[None]).logits[0, -1].argmax",
              "logits = model(ids[None]).logits[0]\n        next_id = logits[-1].max", by=RETURNS_THE),
        wrong("the first row", "next_id = model(ids[None]).logits[0, -1]",
              "logits = model(ids[None]).logits[0]\n        next_id = logits[0]", by=PICKS_THE),
        wrong("reads the last 16 tokens only", "next_id = model(ids[None]).logits[0, -1]",
              "logits = model(ids[-16:][None]).logits[0]\n        next_id = logits[-1]", by=MATCHES_TRANSFORMERS),
        wrong("never stops early", "next_id = model(ids[None]).logits[0, -1]",
              "logits = model(ids[None]).logits[0]\n        next_id = logits[-1]", "next_id == eos_id", "False",
              by=STOPS_AFTER),
        wrong("end token 0 is none", "next_id = model(ids[None]).logits[0, -1]",
              "logits = model(ids[None]).logits[0]\n        next_id = logits[-1]", "next_id == eos_id",
              "eos_id and next_id == eos_id", by=DOES_WHAT),
        wrong("remembers", "def greedy", "kept = {}\ndef greedy", "next_id = model(ids[None]).logits[0, -1].argmax()",
              "key = tuple(ids.tolist())\n        if key not in kept:\n            kept[key] = model(ids[None]).logits[0, -1].argmax()\n        next_id = kept[key]",
              by=STARTS_ANEW),
        wrong("pass too many", PASS_TOO_MANY, PASS_TOO_MANY_2, by=TAKES_ONE),
        wrong("in place", IN_PLACE, by=INPUT),
        right("recursion", RECURSION),
        right("a list of numbers", A_LIST),
    ),
}
