"""Answers that prove the checks of exercises 1.13, 1.14 and 1.15."""

from twophase_labs.machine.bank import right, wrong

CDF, POSSIBLE = "takes the first token whose running sum exceeds u", "never draws what is impossible"
LEAVES_ITS, TAKES_U, ADDS_IN = "leaves its inputs alone", "takes u as a share of the last sum", "adds in float64"
BEST, NUCLEUS = "keeps the likeliest token whatever p is", "keeps the tokens up to the one that crosses p"
KEEPS_ONE, SURVIVES_LARGE = "keeps one token for a tiny p", "survives large logits"
REACHED, FLAT = "stops where p is just reached", "keeps hundreds where hundreds are needed"
OUT, EACH_ROW, ALONE = "leaves out what was out already", "judges each row by itself", "leaves the logits alone"
LIMIT, STOP = "ends after max_tokens new tokens", "ends with the stop token, and keeps it"
PROMPTS, REASON = "does not stop for the prompt", "calls it a stop when the last allowed token is one"
INPUT = "leaves the prompt alone"

NORMALISED_IN_PLACE = """
def draw(probs, u):
    probs /= probs.sum(-1, keepdim=True)
    cdf = probs.double().cumsum(-1)
    return (cdf <= u[:, None] * cdf[:, -1:]).sum(-1)
"""
BISECT = """
def draw(probs, u):
    import bisect
    out = torch.empty(len(u), dtype=torch.long)
    for i in range(len(u)):
        cdf = torch.cumsum(probs[i], 0, dtype=torch.float64)
        out[i] = bisect.bisect_right(cdf.tolist(), float(u[i]) * float(cdf[-1]))
    return out
"""
ASCENDING_WITHOUT_THE_LAST = """
ordered, order = logits.sort(-1)
sums = ordered.softmax(-1).cumsum(-1)
drop = sums <= 1 - p
return torch.full_like(logits, -math.inf).scatter(-1, order, ordered.masked_fill(drop, -math.inf))
"""
NO_MAXIMUM_SUBTRACTED = """
ordered, order = logits.sort(-1, descending=True)
probs = ordered.exp() / ordered.exp().sum(-1, keepdim=True)
drop = probs.cumsum(-1) - probs >= p
return torch.full_like(logits, -math.inf).scatter(-1, order, ordered.masked_fill(drop, -math.inf))
"""
IN_PLACE = """
def keep_top_p(logits, p):
    def drop(mask):
        return logits.masked_fill(mask, -math.inf)

    probs = logits.softmax(-1)
    ordered = probs.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    lowest = ordered.masked_fill(before >= p, 1.0).amin(-1, keepdim=True)
    return logits.masked_fill_(probs < lowest, -math.inf)
"""
SCATTERS_THE_MASK_BACK = """
ordered, order = logits.sort(-1, descending=True)
probs = ordered.softmax(-1)
dropped = probs.cumsum(-1) - probs >= p
return logits.masked_fill(dropped.scatter(-1, order, dropped), -math.inf)
"""
LENGTH_WINS = """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    ids, reason = list(prompt_ids), None
    while reason is None:
        token = next_token(ids)
        ids.append(token)
        if len(ids) - len(prompt_ids) >= max_tokens:
            reason = "length"
        elif token in stop_ids:
            reason = "stop"
    return ids[len(prompt_ids) :], reason
"""
A_FOR_LOOP = """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    output = []
    for _ in range(max_tokens):
        output.append(next_token([*prompt_ids, *output]))
        if output[-1] in stop_ids:
            return output, "stop"
    return output, "length"
"""
RECURSION = """
def complete(next_token, prompt_ids, stop_ids, max_tokens):
    token = next_token(list(prompt_ids))
    if token in stop_ids:
        return [token], 'stop'
    if max_tokens == 1:
        return [token], 'length'
    rest, reason = complete(next_token, [*prompt_ids, token], stop_ids, max_tokens - 1)
    return [token, *rest], reason
"""

# fmt: off
BANKS = {
    "1.13": (
        wrong("no running sum", {1: "probs.double()"}, by=CDF),
        wrong("a share of the first sum", ":, -1:", ":, :1", by=CDF),
        wrong("looks at 256 tokens", {1: "probs[:, :256].double().cumsum(-1)"}, by=CDF),
        wrong("compares in float32", "target = u[:, None] * cdf[:, -1:]\n    return (cdf <= target).sum(-1)",
              "return (cdf.float() <= (u[:, None] * cdf[:, -1:]).float()).sum(-1).clamp(max=probs.shape[-1] - 1)",
              by=POSSIBLE),
        wrong("normalised in place", NORMALISED_IN_PLACE, by=LEAVES_ITS),
        wrong("u itself", "u[:, None]", "u[:, None] + 0", by=TAKES_U),
        wrong("takes the last sum for 1", "u[:, None] * cdf[:, -1:]", "u[:, None]", by=TAKES_U),
        wrong("running sums in float32", ".double()", "", by=ADDS_IN),
        right("numpy argmax of bool",
              "cdf = probs.double().cumsum(-1)\n    target = u[:, None] * cdf[:, -1:]\n    return (cdf <= target).sum(-1)",
              "cdf = np.cumsum(probs.numpy().astype(np.float64), axis=1)\n    return torch.from_numpy(np.argmax(cdf > u.numpy()[:, None] * cdf[:, -1:], axis=1))"),
        right("bisect", BISECT),
    ),
    "1.14": (
        wrong("sums over the batch", ".sort(-1", ".sort(0", by=BEST),
        wrong("p as a threshold for each token", "probs < lowest", "probs < p", by=NUCLEUS),
        wrong("ascending without the last kept", {1: ASCENDING_WITHOUT_THE_LAST}, by=KEEPS_ONE),
        wrong("no maximum subtracted", {1: NO_MAXIMUM_SUBTRACTED}, by=SURVIVES_LARGE),
        wrong("keeps one more where p is just reached", "before >= p", "before > p", by=REACHED),
        wrong("the 64 likeliest only", ".sort(-1, descending=True", ".topk(min(64, probs.shape[-1])", by=FLAT),
        wrong("NaN where a token was out", "probs = logits.softmax(-1)",
              "def drop(mask):\n        return logits.masked_fill(mask, -math.inf)\n    probs = logits.softmax(-1)",
              "logits.masked_fill(probs < lowest, -math.inf)", "drop(probs < lowest) + 0 * logits", by=OUT),
        wrong("one threshold for the batch", "probs < lowest", "probs < lowest.max()", by=EACH_ROW),
        wrong("in place", IN_PLACE, by=ALONE),
        right("scatters the mask back", {1: SCATTERS_THE_MASK_BACK}),
        right("sum of the likelier, pairwise",
              {1: "probs = logits.softmax(-1)\nlikelier = (probs[:, None, :] * (probs[:, None, :] > probs[:, :, None])).sum(-1)\nreturn torch.where(likelier < p, logits, -math.inf)"}),
    ),
    "1.15": (
        wrong("forgets the token", {1: "ids[-1:]"}, by=LIMIT),
        wrong("no stop ids means token 0", {2: "token in (stop_ids or {0})"}, by=LIMIT),
        wrong("at most 256", {3: "len(ids) - len(prompt_ids) >= min(max_tokens, 256)"}, by=LIMIT),
        wrong("never stops early", {2: "False"}, by=STOP),
        wrong("token 0 never stops", {2: "token and token in stop_ids"}, by=STOP),
        wrong("stops for what the prompt holds", {2: "any(i in stop_ids for i in ids)"}, by=PROMPTS),
        wrong("length wins", LENGTH_WINS, by=REASON),
        wrong("writes into the prompt", "ids, reason = list(prompt_ids), None",
              "ids, reason, start = (prompt_ids, None, len(prompt_ids))", "len(ids) - len(prompt_ids)",
              "len(ids) - start", "len(prompt_ids) :", "start :", by=INPUT),
        right("a for loop", A_FOR_LOOP),
        right("recursion", RECURSION),
    ),
}
