"""Answers that prove the checks of exercises 8.17, 8.16 and 8.18."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

PLAIN, ZERO, ALL, FEWER, NOTHING_BACK, COUNTS, MANY, REFUSES = (
    "is a plain share for one completion",
    "is 0 where none is right",
    "is 1 where all are right",
    "is 1 where fewer than k are wrong",
    "puts nothing back",
    "is right for any counts",
    "works for thousands of completions",
    "refuses k below 1 or above num",
)
REFUSE = "if not 1 <= k <= num: raise ValueError('k')"


def estimator(*lines: str, refuse: bool = True) -> str:
    body = "\n".join(f"    {line}" for line in ((REFUSE,) if refuse else ()) + lines)
    return f"import math\n\n\ndef pass_at_k(num, num_right, k):\n{body}\n"


PRODUCT = "return 1 - math.prod(max(0, num - num_right - i) / (num - i) for i in range(k))"


def refusing_late(*lines: str) -> str:
    return estimator(*lines, REFUSE, PRODUCT, refuse=False)


LOOP = ("all_wrong = 1.0", "for i in range(k):")

FIRST, AGAIN, NEXT, WITHIN, USED, CHEAPER, REJECTED, CALLS, TIERS, FALSY = (
    "takes the first accepted answer",
    "tries a tier again",
    "goes on to the next tier",
    "stays within the budget",
    "counts what was used",
    "goes on where a cheaper tier fits",
    "gives out nothing that was rejected",
    "makes no call too many",
    "is right for any tiers",
    "takes an accepted answer, whatever it is",
)
WITHIN_SOURCE = """
def answer_within(tiers, accepts, budget):
    spent = 0
    for ask, num_tries, max_tokens in tiers:
        for _ in range(num_tries):
            if spent + max_tokens > budget:
                break
            answer, num_tokens = ask()
            spent += num_tokens
            if accepts(answer):
                return answer, spent
    return None, spent
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = WITHIN_SOURCE
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


ACCEPTS, SPENDS = "            if accepts", "            spent += num_tokens"
AT_LEAST_ONE = """
def answer_within(tiers, accepts, budget):
    spent = 0
    for ask, num_tries, max_tokens in tiers:
        tries = 0
        while spent + max_tokens <= budget:
            answer, num_tokens = ask()
            spent, tries = spent + num_tokens, tries + 1
            if accepts(answer):
                return answer, spent
            if tries >= num_tries:
                break
    return None, spent
"""
FLAT = """
def answer_within(tiers, accepts, budget):
    left = budget
    tries = [(ask, most) for ask, num, most in tiers for _ in range(num)]
    for ask, most in tries:
        if most <= left:
            answer, used = ask()
            left -= used
            if accepts(answer):
                return answer, budget - left
    return None, budget - left
"""
WHILE = """
def answer_within(tiers, accepts, budget):
    total = 0
    for tier in tiers:
        left = tier[1]
        while left > 0 and budget - total >= tier[2]:
            found = tier[0]()
            total, left = total + found[1], left - 1
            if accepts(found[0]):
                return (found[0], total)
    return (None, total)
"""
ALL_THEN_CHECK = """
def answer_within(tiers, accepts, budget):
    spent = 0
    for ask, num_tries, max_tokens in tiers:
        answers = []
        for _ in range(num_tries):
            if spent + max_tokens > budget:
                break
            answer, num_tokens = ask()
            spent += num_tokens
            answers.append(answer)
        for answer in answers:
            if accepts(answer):
                return answer, spent
    return None, spent
"""

MOST, UNREAD, NOUGHT, TIES, BEST, NONE, VOTES = (
    "takes the most frequent",
    "lets no unreadable one vote",
    "counts 0 as an answer",
    "decides ties by the score",
    "compares best scores, not sums",
    "says None where nothing was read",
    "is right for any votes",
)


def voting(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"def vote(answers, scores):\n{body}\n"


def largest(by: str, *before: str) -> str:
    """The largest by (votes, best score) with another expression for these; `r` are the answers read."""
    best = "max((s for b, s in pairs if a == b), default=None)"
    return voting(READ, "import math", "r = [a for a, _ in pairs]", *before,
                  f"return max(dict.fromkeys(r), key=lambda a: {by.replace('BEST', best)}, default=None)")  # fmt: skip


def begun_at(least: str) -> str:
    return voting(READ, "best = {}", "for a, s in pairs:", f"    n, top = best.get(a, (0, {least}))",
                  "    best[a] = (n + 1, max(top, s))", "return max(best, key=best.get, default=None)")  # fmt: skip


def among(num: int) -> str:
    """The best of those that a Counter puts first."""
    first = f"first = Counter(r).most_common({num})"
    return largest("(r.count(a), a in dict(first), BEST)", "from collections import Counter", first)


BY_SCORE = ("if not pairs: return None", "r = [a for a, _ in pairs]", "top = max(map(r.count, r))")
READ = "pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]"

BANKS = {
    "8.17": Bank(
        wrong=(
            Wrong("puts back", estimator("return 1 - (1 - num_right / num) ** k"), FEWER),
            Wrong(
                "puts back, but knows the end",
                estimator("if num - num_right < k: return 1.0", "return 1 - (1 - num_right / num) ** k"),
                NOTHING_BACK,
            ),
            Wrong("the share of right ones", estimator("return num_right / num"), FEWER),
            Wrong("pass to the k", estimator("return math.comb(num_right, k) / math.comb(num, k)"), FEWER),
            Wrong("that none is right", estimator("return math.comb(num - num_right, k) / math.comb(num, k)"), PLAIN),
            Wrong(
                "one factor short",
                estimator(
                    *(LOOP[0], "for i in range(k - 1):"),
                    "    all_wrong *= max(0, num - num_right - i) / (num - i)",
                    "return 1 - all_wrong",
                ),
                PLAIN,
            ),
            Wrong(
                "the same denominator",
                estimator(*LOOP, "    all_wrong *= max(0, num - num_right - i) / num", "return 1 - all_wrong"),
                ZERO,
            ),
            Wrong(
                "the same numerator",
                estimator(*LOOP, "    all_wrong *= min(1, (num - num_right) / (num - i))", "return 1 - all_wrong"),
                FEWER,
            ),
            Wrong(
                "factorials as floats",
                estimator(
                    "f = lambda n: float(math.factorial(n))",
                    "if num - num_right < k: return 1.0",
                    "return 1 - f(num - num_right) * f(num - k) / f(num - num_right - k) / f(num)",
                ),
                MANY,
            ),
            Wrong(
                "combinations as floats",
                estimator("return 1 - float(math.comb(num - num_right, k)) / float(math.comb(num, k))"),
                MANY,
            ),
            Wrong(
                "any k",
                estimator(
                    *LOOP,
                    "    all_wrong *= max(0, num - num_right - i) / max(1, num - i)",
                    "return 1 - all_wrong",
                    refuse=False,
                ),
                REFUSES,
            ),
            Wrong(
                "k of 0 is 0",
                estimator(
                    "if k > num: raise ValueError('k')",
                    *LOOP,
                    "    all_wrong *= max(0, num - num_right - i) / (num - i)",
                    "return 1 - all_wrong",
                    refuse=False,
                ),
                REFUSES,
            ),
            Wrong(
                "all right in any case",
                estimator(
                    "if num - num_right < k: return 1.0",
                    REFUSE,
                    *LOOP,
                    "    all_wrong *= (num - num_right - i) / (num - i)",
                    "return 1 - all_wrong",
                    refuse=False,
                ),
                REFUSES,
            ),
            Wrong(
                "sure with k wrong ones",
                estimator("if num_right == 0: return 0.0", "if num - num_right <= k: return 1.0", PRODUCT),
                PLAIN,
            ),
            Wrong(
                "sure with k wrong ones, of several",
                estimator("if num_right == 0: return 0.0", "if num - num_right <= k and k > 1: return 1.0", PRODUCT),
                COUNTS,
            ),
            Wrong("a share of none", refusing_late("if k == 1: return num_right / num"), REFUSES),
            Wrong("of no completions none is right", refusing_late("if num == 0: return 0.0"), REFUSES),
            Wrong("none right in any case", refusing_late("if num_right == 0: return 0.0"), REFUSES),
            Wrong("all of them right in any case", refusing_late("if num_right == num: return 1.0"), REFUSES),
            Wrong(
                "none right, of not too many",
                refusing_late("if k > num: raise ValueError('k')", "if num_right == 0: return 0.0"),
                REFUSES,
            ),
            Wrong(
                "all right, of not too many",
                refusing_late("if k > num: raise ValueError('k')", "if num_right == num: return 1.0"),
                REFUSES,
            ),
            Wrong(
                "none right, of one at least",
                refusing_late("if k < 1: raise ValueError('k')", "if num_right == 0: return 0.0"),
                REFUSES,
            ),
        ),
        right=(
            Right(
                "a zero stays",
                estimator(*LOOP, "    all_wrong *= (num - num_right - i) / (num - i)", "return 1 - all_wrong"),
            ),
            Right("whole numbers", estimator("return 1 - math.comb(num - num_right, k) / math.comb(num, k)")),
            Right(
                "logarithms",
                estimator(
                    "wrong = num - num_right",
                    "if wrong < k: return 1.0",
                    "if wrong == num: return 0.0",
                    "logs = sum(math.log1p(-num_right / (num - i)) for i in range(k))",
                    "return -math.expm1(logs)",
                ),
            ),
            Right(
                "as the paper's code does",
                estimator(
                    "if num - num_right < k: return 1.0",
                    "return 1.0 - math.prod(1.0 - k / i for i in range(num - num_right + 1, num + 1))",
                ),
            ),
        ),
    ),
    "8.16": Bank(
        wrong=(
            Wrong("0 is no answer", edited(("if accepts(answer):", "if accepts(answer) and answer:")), FALSY),
            Wrong("the answer alone", edited(("return answer, spent", "return answer")), FIRST),
            Wrong("the last one's tokens", edited(("return answer, spent", "return answer, num_tokens")), AGAIN),
            Wrong("once each", edited(("range(num_tries)", "range(1)")), AGAIN),
            Wrong("the first tier only", edited(("    return None, spent", "        return None, spent")), NEXT),
            Wrong(
                "from nothing in each tier",
                edited(
                    (
                        "    for ask, num_tries, max_tokens in tiers:",
                        "    for ask, num_tries, max_tokens in tiers:\n        spent = 0",
                    )
                ),
                NEXT,
            ),
            Wrong("the reserve counts", edited(("spent += num_tokens", "spent += max_tokens")), FIRST),
            Wrong(
                "rejected ones are free",
                edited(
                    ("            spent += num_tokens\n", ""),
                    ("return answer, spent", "return answer, spent + num_tokens"),
                ),
                AGAIN,
            ),
            Wrong("once spent", edited(("if spent + max_tokens > budget", "if spent > budget")), WITHIN),
            Wrong("one less", edited(("spent + max_tokens > budget", "spent + max_tokens >= budget")), WITHIN),
            Wrong(
                "after the fact",
                edited(
                    (
                        "            if accepts",
                        "            if spent > budget:\n                break\n            if accepts",
                    ),
                    ("if spent + max_tokens > budget", "if False"),
                ),
                WITHIN,
            ),
            Wrong(
                "reserved for all tries at once",
                edited(("spent + max_tokens > budget", "spent + num_tries * max_tokens > budget")),
                WITHIN,
            ),
            Wrong(
                "done at the first that does not fit",
                edited(("                break", "                return None, spent")),
                CHEAPER,
            ),
            Wrong(
                "the last answer",
                edited(
                    ("    spent = 0", "    answer, spent = None, 0"), ("return None, spent", "return answer, spent")
                ),
                REJECTED,
            ),
            Wrong("an empty text", edited(("return None, spent", "return '', spent")), REJECTED),
            Wrong("asks all, then verifies", ALL_THEN_CHECK, FIRST),
            Wrong(
                "verifies twice",
                edited(("            if accepts(answer):", "            if accepts(answer) and accepts(answer):")),
                CALLS,
            ),
            Wrong(
                "asks once more",
                edited(
                    (
                        "                return answer, spent",
                        "                ask()\n                return answer, spent",
                    )
                ),
                CALLS,
            ),
            Wrong(
                "the same again ends a tier",
                edited(
                    ("        for _ in", "        last = None\n        for _ in"),
                    (
                        ACCEPTS,
                        f"            if answer == last:\n                break\n            last = answer\n{ACCEPTS}",
                    ),
                ),
                AGAIN,
            ),
            Wrong(
                "what was rejected once ends a tier",
                edited(
                    ("    spent = 0", "    spent, bad = 0, []"),
                    (
                        ACCEPTS,
                        f"            if answer in bad:\n                break\n            bad.append(answer)\n{ACCEPTS}",
                    ),
                ),
                AGAIN,
            ),
            Wrong(
                "the same again is free",
                edited(
                    ("    spent = 0", "    spent, seen = 0, []"),
                    (
                        SPENDS,
                        f"            if answer in seen:\n                continue\n            seen.append(answer)\n{SPENDS}",
                    ),
                ),
                AGAIN,
            ),
            Wrong("at least one try", edited(("range(num_tries)", "range(max(1, num_tries))")), NEXT),
            Wrong("one try before it counts", AT_LEAST_ONE, NEXT),
            Wrong(
                "takes tiers away",
                edited(
                    (
                        "for ask, num_tries, max_tokens in tiers:",
                        "while tiers:\n        ask, num_tries, max_tokens = tiers.pop(0)",
                    )
                ),
                FIRST,
            ),
            Wrong(
                "sorts tiers",
                edited(("    spent = 0", "    tiers.sort(key=lambda tier: -tier[2])\n    spent = 0")),
                FIRST,
            ),
            Wrong("nothing at the budget's end", edited(("if accepts(", "if spent < budget and accepts(")), WITHIN),
            Wrong(
                "an empty list is no answer",
                edited(("if accepts(answer):", "if accepts(answer) and answer != []:")),
                FALSY,
            ),
            Wrong(
                "without spaces",
                edited(("if accepts(answer):", "if accepts(answer.strip() if isinstance(answer, str) else answer):")),
                FALSY,
            ),
        ),
        right=(Right("a flat list of tries", FLAT), Right("with while", WHILE)),
    ),
    "8.18": Bank(
        wrong=(
            Wrong("the likeliest", voting(READ, "return max(pairs, key=lambda p: p[1])[0] if pairs else None"), MOST),
            Wrong("the first", voting(READ, "return pairs[0][0] if pairs else None"), MOST),
            Wrong(
                "the middle",
                voting(
                    "read = sorted(a for a in answers if a is not None)",
                    "return read[len(read) // 2] if read else None",
                ),
                TIES,
            ),
            Wrong(
                "None votes",
                voting(
                    "read = list(answers)",
                    "return max(set(read), key=lambda a: (read.count(a), max(s for b, s in zip(answers, scores) if a == b)), default=None)",
                ),
                UNREAD,
            ),
            Wrong(
                "0 is none",
                voting(
                    "read = [a for a in answers if a]",
                    "return max(set(read), key=lambda a: (read.count(a), max(s for b, s in zip(answers, scores) if a == b)), default=None)",
                ),
                NOUGHT,
            ),
            Wrong(
                "ties by order",
                voting(
                    "read = [a for a in answers if a is not None]",
                    "return max(dict.fromkeys(read), key=read.count, default=None)",
                ),
                TIES,
            ),
            Wrong(
                "ties by the sum",
                voting(
                    READ,
                    "best = {}",
                    "for a, s in pairs:",
                    "    votes, total = best.get(a, (0, 0))",
                    "    best[a] = (votes + 1, total + s)",
                    "return max(best, key=best.get, default=None)",
                ),
                BEST,
            ),
            Wrong(
                "ties by the worst",
                voting(
                    READ,
                    "best = {}",
                    "for a, s in pairs:",
                    "    votes, low = best.get(a, (0, 0))",
                    "    best[a] = (votes + 1, min(low, s))",
                    "return max(best, key=best.get, default=None)",
                ),
                BEST,
            ),
            Wrong(
                "ties by the last",
                voting(
                    READ,
                    "best = {}",
                    "for a, s in pairs:",
                    "    best[a] = (best.get(a, (0, 0))[0] + 1, s)",
                    "return max(best, key=best.get, default=None)",
                ),
                TIES,
            ),
            Wrong(
                "fails on nothing",
                voting(
                    READ,
                    "read = [a for a, _ in pairs]",
                    "return max(set(read), key=lambda a: (read.count(a), max(s for b, s in pairs if a == b)))",
                ),
                NONE,
            ),
            Wrong(
                "weighed by probability",
                voting(
                    READ,
                    "import math",
                    "total = {}",
                    "for a, s in pairs:",
                    "    total[a] = total.get(a, 0) + math.exp(s)",
                    "return max(total, key=total.get, default=None)",
                ),
                MOST,
            ),
            Wrong(
                "answers by score",
                voting(
                    READ,
                    *BY_SCORE,
                    "by_score = {s: a for a, s in pairs}",
                    "return by_score[max(s for a, s in pairs if r.count(a) == top)]",
                ),
                MOST,
            ),
            Wrong(
                "the first of that score",
                voting(
                    READ,
                    *BY_SCORE,
                    "best = max(s for a, s in pairs if r.count(a) == top)",
                    "return answers[scores.index(best)]",
                ),
                MOST,
            ),
            Wrong("votes and a tenth of the score", largest("r.count(a) + BEST / 10"), MOST),
            Wrong("votes and a hundredth of the score", largest("r.count(a) + BEST / 100"), MOST),
            Wrong("votes and a thousandth of the score", largest("r.count(a) + BEST / 1000"), MOST),
            Wrong("votes and a probability", largest("r.count(a) + math.exp(BEST)"), TIES),
            Wrong("ties by the probability", largest("(r.count(a), math.exp(BEST))"), TIES),
            Wrong("ties by a rounded score", largest("(r.count(a), round(BEST, 2))"), TIES),
            Wrong(
                "ties by the sum of probabilities",
                largest("(r.count(a), sum(math.exp(s) for b, s in pairs if a == b))"),
                TIES,
            ),
            Wrong(
                "ties by the logarithm of that sum",
                largest("(r.count(a), BEST + math.log(sum(math.exp(s - BEST) for b, s in pairs if a == b)))"),
                BEST,
            ),
            Wrong(
                "0.0 is no best score",
                voting(
                    READ,
                    "best, votes = {}, {}",
                    "for a, s in pairs:",
                    "    votes[a] = votes.get(a, 0) + 1",
                    "    best[a] = max(best.get(a) or -float('inf'), s)",
                    "return max(votes, key=lambda a: (votes[a], best[a]), default=None)",
                ),
                TIES,
            ),
            *(Wrong(f"nothing below {least}", begun_at(least), TIES) for least in ("-10.0", "-100.0", "-1e3")),
            *(Wrong(f"the first {num} alone", among(num), TIES) for num in (2, 3, 4)),
            Wrong(
                "the very same object",
                voting(
                    READ,
                    "count = lambda a: sum(a is b for b, _ in pairs)",
                    "return max(pairs, key=lambda p: (count(p[0]), p[1]))[0] if pairs else None",
                ),
                MOST,
            ),
            Wrong(
                "scores out of step",
                voting(
                    "r = [a for a in answers if a is not None]",
                    "pairs = list(zip(r, scores))",
                    "return max(set(r), key=lambda a: (r.count(a), max(s for b, s in pairs if a == b)), default=None)",
                ),
                UNREAD,
            ),
            Wrong(
                "an empty text is none",
                voting(
                    "pairs = [(a, s) for a, s in zip(answers, scores) if a or a == 0]",
                    "r = [a for a, _ in pairs]",
                    "return max(set(r), key=lambda a: (r.count(a), max(s for b, s in pairs if a == b)), default=None)",
                ),
                NOUGHT,
            ),
        ),
        right=(
            Right(
                "counted twice",
                voting(
                    READ,
                    "read = [a for a, _ in pairs]",
                    "return max(set(read), key=lambda a: (read.count(a), max(s for b, s in pairs if a == b)), default=None)",
                ),
            ),
            Right(
                "sorted by score first",
                voting(
                    READ,
                    "pairs.sort(key=lambda p: -p[1])",
                    "from collections import Counter",
                    "counts = Counter(a for a, _ in pairs)",
                    "return counts.most_common(1)[0][0] if counts else None",
                ),
            ),
        ),
    ),
}
