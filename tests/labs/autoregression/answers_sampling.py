"""Answers that prove the checks of exercises 1.13 to 1.15."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

CDF, POSSIBLE, OFTEN = (
    "takes the first token whose running sum exceeds u",
    "never draws what is impossible",
    "draws each token as often as its probability",
)
BEST, NUCLEUS, REACHED, FLAT, OUT, EACH_ROW, P_ONE, ALONE = (
    "keeps the likeliest token whatever p is",
    "keeps the tokens up to the one that crosses p",
    "stops where p is just reached",
    "keeps hundreds where hundreds are needed",
    "leaves out what was out already",
    "judges each row by itself",
    "keeps everything for p = 1",
    "leaves the logits alone",
)
LIMIT, STOP, PROMPTS, REASON, INPUT = (
    "ends after max_tokens new tokens",
    "ends with the stop token, and keeps it",
    "does not stop for the prompt",
    "calls it a stop when the last allowed token is one",
    "leaves the prompt alone",
)


def loop(body: str, *, before: str = "ids, reason = list(prompt_ids), None", result: str = "") -> str:
    """A whole answer to 1.15 around the body of its loop."""
    lines = body.strip().split("\n")
    result = result or "ids[len(prompt_ids) :], reason"
    return "\n".join(
        [
            "def complete(next_token, prompt_ids, stop_ids, max_tokens):",
            f"    {before}",
            "    while reason is None:",
            *(f"        {line}" for line in lines),
            f"    return {result}",
            "",
        ]
    )


def nucleus(
    ordered: str = "probs.sort(-1, descending=True).values",
    before: str = "ordered.cumsum(-1) - ordered",
    dropped: str = "before >= p",
    result: str = "drop(probs < lowest)",
) -> str:
    """A whole answer to 1.14 with one of its expressions replaced."""
    return f"""
def keep_top_p(logits, p):
    def drop(mask):
        return logits.masked_fill(mask, -math.inf)

    probs = logits.softmax(-1)
    ordered = {ordered}
    before = {before}
    lowest = ordered.masked_fill({dropped}, 1.0).amin(-1, keepdim=True)
    return {result}
"""


def best(num_tokens: int) -> str:
    return f"probs.topk(min({num_tokens}, probs.shape[-1])).values"


def rounded(dtype: str) -> str:
    return f"(ordered.{dtype}().cumsum(-1) - ordered.{dtype}()).float()"


BANKS = {
    "1.13": Bank(
        wrong=(
            Wrong("the likeliest token", {3: "probs.argmax(-1)"}, rejected_by=CDF),
            Wrong("the next token", {3: "(cdf <= target).sum(-1) + 1"}, rejected_by=CDF),
            Wrong("no running sum", {1: "probs.double()"}, rejected_by=CDF),
            Wrong("sums over the batch", {1: "probs.double().cumsum(0)"}, rejected_by=CDF),
            Wrong("from the other end", {3: "(cdf > target).sum(-1)"}, rejected_by=CDF),
            Wrong("u = 0 hits token 0", {3: "(cdf < target).sum(-1)"}, rejected_by=POSSIBLE),
            Wrong(
                "sorts first, and forgets to go back",
                {1: "probs.double().sort(-1, descending=True).values.cumsum(-1)"},
                rejected_by=CDF,
            ),
            Wrong("u itself", {2: "u[:, None] + 0 * cdf[:, -1:]"}, rejected_by="takes u as a share of the last sum"),
            Wrong("a share of the first sum", {2: "u[:, None] * cdf[:, :1]"}, rejected_by=CDF),
            Wrong(
                "draws with a random number of its own",
                "def draw(probs, u):\n    return torch.multinomial(probs, 1).squeeze(-1)\n",
                rejected_by=CDF,
            ),
            Wrong(
                "keeps an axis too many",
                {3: "(cdf <= target).sum(-1, keepdim=True)"},
                rejected_by=CDF,
            ),
        ),
        right=(
            Right("searches the sorted sums", {3: "torch.searchsorted(cdf, target, right=True).squeeze(-1)"}),
            Right("the first that is larger", {3: "(cdf > target).int().argmax(-1)"}),
            Right(
                "a loop in Python",
                "def draw(probs, u):\n"
                "    tokens = []\n"
                "    for row, fraction in zip(probs.double().tolist(), u.tolist()):\n"
                "        left, last = fraction * sum(row), None\n"
                "        for token, p in enumerate(row):\n"
                "            if p > 0:\n"
                "                last = token\n"
                "            left -= p\n"
                "            if left < 0:\n"
                "                break\n"
                "        tokens.append(last)\n"
                "    return torch.tensor(tokens)\n",
            ),
        ),
    ),
    "1.14": Bank(
        wrong=(
            Wrong("drops the token that reaches p", nucleus(before="ordered.cumsum(-1)"), rejected_by=BEST),
            Wrong(
                "drops the one that reaches p, but for the best",
                nucleus(before="torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(-1)[:, 1:]], -1)"),
                rejected_by=NUCLEUS,
            ),
            Wrong(
                "keeps one more", nucleus(before="ordered.cumsum(-1) - ordered - ordered.roll(1, -1)"), rejected_by=BEST
            ),
            Wrong("keeps one more where p is just reached", nucleus(dropped="before > p"), rejected_by=REACHED),
            Wrong("sums in the order of the vocabulary", nucleus(ordered="probs"), rejected_by=BEST),
            Wrong("the unlikeliest first", nucleus(ordered="probs.sort(-1).values"), rejected_by=BEST),
            Wrong("sums logits", nucleus(ordered="logits.sort(-1, descending=True).values"), rejected_by=BEST),
            Wrong("p as a threshold for each token", nucleus(result="drop(probs < p)"), rejected_by=NUCLEUS),
            Wrong("zero instead of -inf", nucleus(result="logits.masked_fill(probs < lowest, 0.0)"), rejected_by=BEST),
            Wrong("gives back probabilities", nucleus(result="drop(probs < lowest).softmax(-1)"), rejected_by=BEST),
            Wrong("the mask in sorted order", nucleus(result="drop(before >= p)"), rejected_by=BEST),
            Wrong("one threshold for the batch", nucleus(result="drop(probs < lowest.max())"), rejected_by=EACH_ROW),
            Wrong("sums over the batch", nucleus(ordered="probs.sort(0, descending=True).values"), rejected_by=BEST),
            Wrong("in place", nucleus(result="logits.masked_fill_(probs < lowest, -math.inf)"), rejected_by=ALONE),
            Wrong("the 64 likeliest only", nucleus(ordered=best(64)), rejected_by=FLAT),
            Wrong("the 256 likeliest only", nucleus(ordered=best(256)), rejected_by=FLAT),
            Wrong("half-precision sums", nucleus(before=rounded("half")), rejected_by=FLAT),
            Wrong("sums in bfloat16", nucleus(before=rounded("bfloat16")), rejected_by=NUCLEUS),
            Wrong("NaN where a token was out", nucleus(result="drop(probs < lowest) + 0 * logits"), rejected_by=OUT),
        ),
        right=(
            Right("by a threshold", nucleus()),
            Right("where", nucleus(result="torch.where(probs >= lowest, logits, -math.inf)")),
            Right(
                "scatters the mask back",
                "def keep_top_p(logits, p):\n"
                "    ordered, order = logits.sort(-1, descending=True)\n"
                "    probs = ordered.softmax(-1)\n"
                "    dropped = probs.cumsum(-1) - probs >= p\n"
                "    return logits.masked_fill(dropped.scatter(-1, order, dropped), -math.inf)\n",
            ),
            Right(
                "row by row",
                "def keep_top_p(logits, p):\n"
                "    out = torch.full_like(logits, -math.inf)\n"
                "    for row, kept in zip(logits, out):\n"
                "        mass = 0.0\n"
                "        probs = row.softmax(-1)\n"
                "        for token in row.argsort(descending=True).tolist():\n"
                "            kept[token] = row[token]\n"
                "            mass += float(probs[token])\n"
                "            if mass >= p:\n"
                "                break\n"
                "    return out\n",
            ),
            Right(
                "NumPy",
                "def keep_top_p(logits, p):\n"
                "    probs = logits.double().softmax(-1).numpy()\n"
                "    order = np.argsort(-probs, axis=-1)\n"
                "    ordered = np.take_along_axis(probs, order, -1)\n"
                "    stays = np.cumsum(ordered, -1) - ordered < p\n"
                "    kept = np.zeros_like(stays)\n"
                "    np.put_along_axis(kept, order, stays, -1)\n"
                "    return torch.where(torch.from_numpy(kept), logits, -math.inf)\n",
            ),
        ),
    ),
    "1.15": Bank(
        wrong=(
            Wrong("counts the prompt", {3: "len(ids) >= max_tokens"}, rejected_by=LIMIT),
            Wrong("one too many", {3: "len(ids) - len(prompt_ids) > max_tokens"}, rejected_by=LIMIT),
            Wrong("one too few", {3: "len(ids) - len(prompt_ids) >= max_tokens - 1"}, rejected_by=LIMIT),
            Wrong("never stops early", {2: "False"}, rejected_by=STOP),
            Wrong("stops for what the prompt holds", {2: "any(i in stop_ids for i in ids)"}, rejected_by=PROMPTS),
            Wrong("only the smallest stop id", {2: "token in sorted(stop_ids)[:1]"}, rejected_by=STOP),
            Wrong(
                "looks before it appends",
                loop(
                    "token = next_token(ids)\n"
                    "if token in stop_ids:\n"
                    '    reason = "stop"\n'
                    "    break\n"
                    "ids.append(token)\n"
                    "if len(ids) - len(prompt_ids) >= max_tokens:\n"
                    '    reason = "length"'
                ),
                rejected_by=STOP,
            ),
            Wrong(
                "length wins",
                loop(
                    "token = next_token(ids)\n"
                    "ids.append(token)\n"
                    "if len(ids) - len(prompt_ids) >= max_tokens:\n"
                    '    reason = "length"\n'
                    "elif token in stop_ids:\n"
                    '    reason = "stop"'
                ),
                rejected_by=REASON,
            ),
            Wrong(
                "writes into the prompt",
                loop(
                    "token = next_token(ids)\n"
                    "ids.append(token)\n"
                    "if token in stop_ids:\n"
                    '    reason = "stop"\n'
                    "elif len(ids) - start >= max_tokens:\n"
                    '    reason = "length"',
                    before="ids, reason, start = prompt_ids, None, len(prompt_ids)",
                    result="ids[start:], reason",
                ),
                rejected_by=INPUT,
            ),
            Wrong("forgets the token", {1: "ids[-1:]"}, rejected_by=LIMIT),
        ),
        right=(
            Right("looks at the last id", {2: "ids[-1] in stop_ids"}),
            Right("adds lists", {1: "ids.extend([token])"}),
            Right(
                "a for loop",
                "def complete(next_token, prompt_ids, stop_ids, max_tokens):\n"
                "    output = []\n"
                "    for _ in range(max_tokens):\n"
                "        output.append(next_token([*prompt_ids, *output]))\n"
                "        if output[-1] in stop_ids:\n"
                '            return output, "stop"\n'
                '    return output, "length"\n',
            ),
        ),
    ),
}
