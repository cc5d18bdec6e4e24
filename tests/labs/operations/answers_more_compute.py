"""Answers that prove the checks of exercises 8.16, 8.17 and 8.18."""

from twophase_labs.machine.bank import right, wrong

FIRST, AGAIN, NEXT = "takes the first accepted answer", "tries a tier again", "goes on to the next tier"
REJECTED, FALSY = "gives out nothing that was rejected", "takes an accepted answer, whatever it is"
WITHIN, CHEAPER, CALLS = "stays within the budget", "goes on where a cheaper tier fits", "makes no call too many"
PLAIN, ZERO = "is a plain share for one completion", "is 0 where none is right"
FEWER, NOTHING_BACK, COUNTS = "is 1 where fewer than k are wrong", "puts nothing back", "is right for any counts"
MANY, REFUSES = "works for thousands of completions", "refuses k below 1 or above num"
MOST, UNREAD, NOUGHT = "takes the most frequent", "lets no unreadable one vote", "counts 0 as an answer"
TIES, BEST, NONE = "decides ties by the score", "compares best scores, not sums", "says None where nothing was read"

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
SURE_WITH_K_WRONG = """
import math

def pass_at_k(num, num_right, k):
    if not 1 <= k <= num: raise ValueError('k')
    if num_right == 0: return 0.0
    if num - num_right <= k and k > 1: return 1.0
    return 1 - math.prod(max(0, num - num_right - i) / (num - i) for i in range(k))
"""
SORTED_BY_SCORE_FIRST = """
def vote(answers, scores):
    pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]
    pairs.sort(key=lambda p: -p[1])
    from collections import Counter
    counts = Counter(a for a, _ in pairs)
    return counts.most_common(1)[0][0] if counts else None
"""

# fmt: off
BANKS = {
    "8.16": (
        wrong("the answer alone", "answer, spent", "answer", by=FIRST),
        wrong("once each", "range(num_tries)", "range(1)", by=AGAIN),
        wrong("from nothing in each tier", "for _ in", "spent = 0\n        for _ in", by=NEXT),
        wrong("an empty text", "None, spent", "'', spent", by=REJECTED),
        wrong("0 is no answer", "(answer):", "(answer) and answer:", by=FALSY),
        wrong("once spent", "spent + max_tokens", "spent", by=WITHIN),
        wrong("done at the first that does not fit", ":\n                break",
              ":\n                return (None, spent)", by=CHEAPER),
        wrong("verifies twice", "(answer):", "(answer) and accepts(answer):", by=CALLS),
        right("with while", WHILE),
        right("a flat list of tries", FLAT),
    ),
    "8.17": (
        wrong("one factor short", "def pass_at_k", "import math\ndef pass_at_k", "range(k)", "range(k - 1)", by=PLAIN),
        wrong("that none is right", "1 - all_wrong", "all_wrong", by=PLAIN),
        wrong("the same denominator", "def pass_at_k", "import math\ndef pass_at_k", "num - i", "num", by=ZERO),
        wrong("the same numerator", "def pass_at_k", "import math\ndef pass_at_k",
              "max(0, num - num_right - i) / (num - i", "min(1, (num - num_right) / (num - i)", by=FEWER),
        wrong("puts back, but knows the end", "def pass_at_k", "import math\ndef pass_at_k",
              "all_wrong = 1.0\n    for i in range(k):\n        all_wrong *= max(0, num - num_right - i) / (num - i)\n    return 1 - all_wrong",
              "if num - num_right < k:\n        return 1.0\n    return 1 - (1 - num_right / num) ** k",
              by=NOTHING_BACK),
        wrong("sure with k wrong ones, of several", SURE_WITH_K_WRONG, by=COUNTS),
        wrong("combinations as floats", "def pass_at_k", "import math\ndef pass_at_k",
              "all_wrong = 1.0\n    for i in range(k):\n        all_wrong *= max(0, num - num_right - i) / (num - i)\n    return 1 - all_wrong",
              "return 1 - float(math.comb(num - num_right, k)) / float(math.comb(num, k))", by=MANY),
        wrong("k of 0 is 0", "def pass_at_k", "import math\ndef pass_at_k", "not 1 <= k <=", "k >", by=REFUSES),
        right("as the paper's code does", "def pass_at_k", "import math\ndef pass_at_k",
              "all_wrong = 1.0\n    for i in range(k):\n        all_wrong *= max(0, num - num_right - i) / (num - i)\n    return 1 - all_wrong",
              "if num - num_right < k:\n        return 1.0\n    return 1.0 - math.prod((1.0 - k / i for i in range(num - num_right + 1, num + 1)))"),
        right("whole numbers", "def pass_at_k", "import math\ndef pass_at_k",
              "all_wrong = 1.0\n    for i in range(k):\n        all_wrong *= max(0, num - num_right - i) / (num - i)\n    return 1 - all_wrong",
              "return 1 - math.comb(num - num_right, k) / math.comb(num, k)"),
    ),
    "8.18": (
        wrong("the first",
              {1: "pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]\nreturn pairs[0][0] if pairs else None"},
              by=MOST),
        wrong("the likeliest",
              {1: "pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]\nreturn max(pairs, key=lambda p: p[1])[0] if pairs else None"},
              by=MOST),
        wrong("None votes",
              {1: "read = list(answers)\nreturn max(set(read), key=lambda a: (read.count(a), max((s for b, s in zip(answers, scores) if a == b))), default=None)"},
              by=UNREAD),
        wrong("0 is none",
              {1: "read = [a for a in answers if a]\nreturn max(set(read), key=lambda a: (read.count(a), max((s for b, s in zip(answers, scores) if a == b))), default=None)"},
              by=NOUGHT),
        wrong("the middle",
              {1: "read = sorted((a for a in answers if a is not None))\nreturn read[len(read) // 2] if read else None"},
              by=TIES),
        wrong("ties by order",
              {1: "read = [a for a in answers if a is not None]\nreturn max(dict.fromkeys(read), key=read.count, default=None)"},
              by=TIES),
        wrong("ties by the sum", "best = {}",
              "pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]\n    best = {}",
              'for answer, score in zip(answers, scores, strict=True):\n        if answer is not None:\n            votes, top = best.get(answer, (0, -float("inf")))\n            best[answer] = (votes + 1, max(top, score))',
              "for a, s in pairs:\n        votes, total = best.get(a, (0, 0))\n        best[a] = (votes + 1, total + s)",
              by=BEST),
        wrong("fails on nothing",
              {1: "pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]\nread = [a for a, _ in pairs]\nreturn max(set(read), key=lambda a: (read.count(a), max((s for b, s in pairs if a == b))))"},
              by=NONE),
        right("counted twice",
              {1: "pairs = [(a, s) for a, s in zip(answers, scores) if a is not None]\nread = [a for a, _ in pairs]\nreturn max(set(read), key=lambda a: (read.count(a), max((s for b, s in pairs if a == b))), default=None)"}),
        right("sorted by score first", SORTED_BY_SCORE_FIRST),
    ),
}
