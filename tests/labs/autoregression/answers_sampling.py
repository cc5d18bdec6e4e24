"""Answers that prove the checks of section 1.10."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

CDF, POSSIBLE, OFTEN = (
    "takes the first token whose running sum exceeds u",
    "never draws what is impossible",
    "draws each token as often as its probability",
)
POWER, FINITE, ALONE = (
    "raises probabilities to the power 1/T",
    "stays finite for large logits",
    "leaves the logits alone",
)
BEST_K, TIES, LARGE_K = (
    "keeps the k likeliest of each row",
    "keeps what is tied with the k-th",
    "keeps everything when k is large",
)
BEST, NUCLEUS, EACH_ROW, P_ONE = (
    "keeps the likeliest token whatever p is",
    "keeps the tokens up to the one that crosses p",
    "judges each row by itself",
    "keeps everything for p = 1",
)
LIKELY, MIN_ONE, MIN_ZERO = (
    "keeps what has min_p times the best probability",
    "keeps the best token for min_p = 1",
    "keeps everything for min_p = 0",
)
LIMIT, STOP, PROMPTS, REASON, INPUT = (
    "ends after max_tokens new tokens",
    "ends with the stop token, and keeps it",
    "does not stop for the prompt",
    "calls it a stop when the last allowed token is one",
    "leaves the prompt alone",
)


def loop(body: str, *, before: str = "ids, reason = list(prompt_ids), None", result: str = "") -> str:
    """A whole answer to 1.26 around the body of its loop."""
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


BANKS = {
    "1.20": Bank(
        wrong=(
            Wrong("the likeliest token", {2: "probs.argmax(-1)"}, rejected_by=CDF),
            Wrong("the next token", {2: "(cdf <= target).sum(-1) + 1"}, rejected_by=CDF),
            Wrong("no running sum", {1: "probs.double()"}, rejected_by=CDF),
            Wrong("sums over the batch", {1: "probs.double().cumsum(0)"}, rejected_by=CDF),
            Wrong("from the other end", {2: "(cdf > target).sum(-1)"}, rejected_by=CDF),
            Wrong("u = 0 hits token 0", {2: "(cdf < target).sum(-1)"}, rejected_by=POSSIBLE),
            Wrong(
                "sorts first, and forgets to go back",
                {1: "probs.double().sort(-1, descending=True).values.cumsum(-1)"},
                rejected_by=CDF,
            ),
            Wrong(
                "draws with a random number of its own",
                "def draw(probs, u):\n    return torch.multinomial(probs, 1).squeeze(-1)\n",
                rejected_by=CDF,
            ),
            Wrong(
                "keeps an axis too many",
                {2: "(cdf <= target).sum(-1, keepdim=True)"},
                rejected_by=CDF,
            ),
        ),
        right=(
            Right("searches the sorted sums", {2: "torch.searchsorted(cdf, target, right=True).squeeze(-1)"}),
            Right("the first that is larger", {2: "(cdf > target).int().argmax(-1)"}),
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
    "1.21": Bank(
        wrong=(
            Wrong("multiplies", {1: "logits * temperature"}, rejected_by=POWER),
            Wrong("softmax first", {1: "logits.softmax(-1) / temperature"}, rejected_by=POWER),
            Wrong("gives back probabilities", {1: "(logits / temperature).softmax(-1)"}, rejected_by=POWER),
            Wrong("adds", {1: "logits + temperature"}, rejected_by=POWER),
            Wrong("over the batch", {1: "(logits / temperature).log_softmax(0)"}, rejected_by=POWER),
            Wrong("by way of exp", {1: "(logits.exp() ** (1 / temperature)).log()"}, rejected_by=FINITE),
            Wrong("in place", {1: "logits.div_(temperature)"}, rejected_by=ALONE),
        ),
        right=(
            Right("log-probabilities, scaled", {1: "logits.log_softmax(-1) / temperature"}),
            Right("relative to the best", {1: "(logits - logits.amax(-1, keepdim=True)) * (1 / temperature)"}),
        ),
    ),
    "1.23": Bank(
        wrong=(
            Wrong("drops the k-th too", {2: "logits.masked_fill(logits <= lowest, -math.inf)"}, rejected_by=BEST_K),
            Wrong("zero instead of -inf", {2: "logits.masked_fill(logits < lowest, 0.0)"}, rejected_by=BEST_K),
            Wrong(
                "one threshold for the batch", {1: "logits.flatten().topk(min(k, logits.shape[-1])).values[-1]"}, BEST_K
            ),
            Wrong(
                "the best one's logit", {1: "logits.topk(min(k, logits.shape[-1])).values[:, :1]"}, rejected_by=BEST_K
            ),
            Wrong("keeps the worst", {2: "logits.masked_fill(logits > lowest, -math.inf)"}, rejected_by=BEST_K),
            Wrong("only the k logits", {2: "logits.topk(min(k, logits.shape[-1])).values"}, rejected_by=BEST_K),
            Wrong(
                "exactly k, ties or not",
                {
                    2: "torch.full_like(logits, -math.inf).scatter(1, logits.topk(min(k, logits.shape[-1])).indices,"
                    " logits.topk(min(k, logits.shape[-1])).values)"
                },
                rejected_by=TIES,
            ),
            Wrong("k beyond the vocabulary", {1: "logits.topk(k).values[:, -1:]"}, rejected_by=LARGE_K),
            Wrong("in place", {2: "logits.masked_fill_(logits < lowest, -math.inf)"}, rejected_by=ALONE),
        ),
        right=(
            Right("sorts", {1: "logits.sort(-1, descending=True).values[:, :k][:, -1:]"}),
            Right("where", {2: "torch.where(logits >= lowest, logits, -math.inf)"}),
            Right("a very low number", {2: "logits.masked_fill(logits < lowest, -1e30)"}),
        ),
    ),
    "1.24": Bank(
        wrong=(
            Wrong(
                "drops the token that crosses p",
                {2: "ordered.cumsum(-1)"},
                rejected_by=BEST,
            ),
            Wrong(
                "drops the one that crosses, but for the best",
                {2: "torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(-1)[:, 1:]], -1)"},
                rejected_by=NUCLEUS,
            ),
            Wrong("keeps one more", {2: "ordered.cumsum(-1) - ordered - ordered.roll(1, -1)"}, rejected_by=BEST),
            Wrong("sums in the order of the vocabulary", {1: "probs"}, rejected_by=BEST),
            Wrong("the unlikeliest first", {1: "probs.sort(-1).values"}, rejected_by=BEST),
            Wrong("sums logits", {1: "logits.sort(-1, descending=True).values"}, rejected_by=BEST),
            Wrong(
                "p as a threshold for each token", {3: "logits.masked_fill(probs < p, -math.inf)"}, rejected_by=NUCLEUS
            ),
            Wrong("zero instead of -inf", {3: "logits.masked_fill(probs < lowest, 0.0)"}, rejected_by=BEST),
            Wrong(
                "the mask in sorted order",
                {3: "logits.masked_fill(before >= p, -math.inf)"},
                rejected_by=BEST,
            ),
            Wrong(
                "one threshold for the batch",
                {3: "logits.masked_fill(probs < lowest.max(), -math.inf)"},
                rejected_by=EACH_ROW,
            ),
            Wrong("in place", {3: "logits.masked_fill_(probs < lowest, -math.inf)"}, rejected_by=ALONE),
        ),
        right=(
            Right("where", {3: "torch.where(probs >= lowest, logits, -math.inf)"}),
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
        ),
    ),
    "1.25": Bank(
        wrong=(
            Wrong("an absolute threshold", {1: "min_p"}, rejected_by=LIKELY),
            Wrong("times the best logit", {1: "min_p * logits.amax(-1, keepdim=True)"}, rejected_by=LIKELY),
            Wrong("one minus", {1: "(1 - min_p) * probs.amax(-1, keepdim=True)"}, rejected_by=LIKELY),
            Wrong("beside the average", {1: "min_p * probs.mean(-1, keepdim=True)"}, rejected_by=LIKELY),
            Wrong("beside the best of the batch", {1: "min_p * probs.max()"}, rejected_by=EACH_ROW),
            Wrong("compares logits", {2: "logits.masked_fill(logits < threshold, -math.inf)"}, rejected_by=LIKELY),
            Wrong("zero instead of -inf", {2: "logits.masked_fill(probs < threshold, 0.0)"}, rejected_by=LIKELY),
            Wrong("more likely than, not as likely", {2: "logits.masked_fill(probs <= threshold, -math.inf)"}, MIN_ONE),
            Wrong(
                "log(0)",
                "def keep_min_p(logits, min_p):\n"
                "    lowest = logits.amax(-1, keepdim=True) + math.log(min_p)\n"
                "    return logits.masked_fill(logits < lowest, -math.inf)\n",
                rejected_by=MIN_ZERO,
            ),
            Wrong("in place", {2: "logits.masked_fill_(probs < threshold, -math.inf)"}, rejected_by=ALONE),
        ),
        right=(
            Right(
                "in log space",
                "def keep_min_p(logits, min_p):\n"
                "    lowest = logits.amax(-1, keepdim=True) + torch.tensor(min_p).log()\n"
                "    return torch.where(logits < lowest, -math.inf, logits)\n",
            ),
            Right("the largest by max", {1: "probs.max(-1, keepdim=True).values * min_p"}),
        ),
    ),
    "1.26": Bank(
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
