"""Answers that prove the checks of exercises 8.13, 8.14 and 8.15."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

YES_NO, ENDS, STAYS, EVERYWHERE, SHARE, GROWS, SALTS, JOINS = (
    "says True or False",
    "takes nobody at 0 and everybody at 1",
    "keeps a key on its side",
    "is the same in another process",
    "takes its share",
    "only grows",
    "draws anew for each salt",
    "keeps salt and key apart",
)


def splitter(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"def is_canary(key, share, salt):\n{body}\n"


DIGEST = "digest = hashlib.sha256(f'{salt}\\0{key}'.encode()).digest()"
TABLE = """
chosen = {}


def is_canary(key, share, salt):
    if share in (0, 1):
        return share == 1
    if (key, salt, share) not in chosen:
        every = round(1 / share)
        chosen[key, salt, share] = len(chosen) % every == 0
    return chosen[key, salt, share]
"""

GOOD, HARD, OPEN_HARD, ALONE, CAP, GAIN, WEIGHS, HARD_TOO, OPEN_MEAN, BOUNDS, EDGES, ANY = (
    "promotes what is good",
    "rolls back if a hard line is broken",
    "waits while a hard line is open",
    "lets a soft line break alone",
    "counts a line as 1 at most",
    "takes a gain for no loss",
    "weighs its lines",
    "has hard lines in the mean, too",
    "waits while the mean is open",
    "takes the bounds it is given",
    "lets what is at the bound pass",
    "judges any canary",
)
PAIRS = "for line, loss in zip(lines, losses, strict=True)]"
THREE_STEPS = """
def decide(lines, most_used=0.5):
    states = {line.is_hard and (2 if line.low > line.bound else 1 if line.high > line.bound else 0) for line in lines}
    if 2 in states:
        return "roll back"
    total = sum(line.weight for line in lines)
    best = sum(line.weight / total * sorted((0, line.low / line.bound, 1))[1] for line in lines)
    worst = sum(line.weight / total * sorted((0, line.high / line.bound, 1))[1] for line in lines)
    if any(state is not False and state == 1 for state in states):
        return "wait"
    if best > most_used:
        return "roll back"
    if worst > most_used:
        return "wait"
    return "promote"
"""
MEAN_FIRST = """
def decide(lines, most_used=0.5):
    def mean_used(losses):
        used = [line.weight * min(1, max(0, loss / line.bound)) for line, loss in zip(lines, losses, strict=True)]
        return sum(used) / sum(line.weight for line in lines)

    if mean_used([line.low for line in lines]) > most_used:
        return "roll back"
    hard = [line for line in lines if line.is_hard]
    if any(line.low > line.bound for line in hard):
        return "roll back"
    if any(line.high > line.bound for line in hard):
        return "wait"
    return "promote" if mean_used([line.high for line in lines]) <= most_used else "wait"
"""
FIXED_HALF = """
def decide(lines, most_used=0.5):
    hard = [line for line in lines if line.is_hard]
    if any(line.low > line.bound for line in hard):
        return "roll back"
    if any(line.high > line.bound for line in hard):
        return "wait"

    def mean_used(losses):
        used = [line.weight * min(1, max(0, loss / line.bound)) for line, loss in zip(lines, losses, strict=True)]
        return sum(used) / sum(line.weight for line in lines)

    if mean_used([line.low for line in lines]) > 0.5:
        return "roll back"
    return "promote" if mean_used([line.high for line in lines]) <= 0.5 else "wait"
"""

ONE, SAME, OTHER, PASSES_OVER, NONE, MIX = (
    "has the rate of one slice",
    "keeps a rate at its own mix",
    "follows the other mix",
    "passes over slices that the mix has not",
    "says None where it knows nothing",
    "is right for any mix",
)


def at_mix(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"def rate_at_mix(passed, mix):\n{body}\n"


UNKNOWN = "if any(passed.get(name, (0, 0))[1] == 0 for name in mix): return None"

BANKS = {
    "8.13": Bank(
        wrong=(
            Wrong("a number", splitter(DIGEST, "return int.from_bytes(digest[:8]) / 2**64"), YES_NO),
            Wrong("one or nothing", splitter(DIGEST, "return int(int.from_bytes(digest[:8]) < share * 2**64)"), YES_NO),
            Wrong(
                "rounded up",
                splitter(DIGEST, "return digest[0] / 255 <= share"),
                ENDS,
            ),
            Wrong("never all", splitter(DIGEST, "return int.from_bytes(digest[:8]) < share * 2**63"), ENDS),
            Wrong("a draw each time", splitter("import random", "return random.random() < share"), STAYS),
            Wrong("Python's hash", splitter("return hash((salt, key)) % 2**32 < share * 2**32"), EVERYWHERE),
            Wrong(
                "Python's hash of one text",
                splitter("return hash(f'{salt}/{key}') % 10**9 < share * 10**9"),
                EVERYWHERE,
            ),
            Wrong(
                "a hundred buckets", splitter(DIGEST, "return int.from_bytes(digest[:8]) % 100 < share * 100"), SHARE
            ),
            Wrong(
                "rounded to thousandths",
                splitter(DIGEST, "return round(int.from_bytes(digest[:8]) / 2**64 % 1, 3) < share or share == 1"),
                SHARE,
            ),
            Wrong("letters added up", splitter("return sum(map(ord, f'{salt}/{key}')) % 1000 < share * 1000"), SHARE),
            Wrong("a first byte", splitter(DIGEST, "return digest[0] < share * 256"), SHARE),
            Wrong("by the key's end", splitter("return (ord(key[-1]) * 37 % 100 if key else 0) < share * 100"), SHARE),
            Wrong(
                "the share in the hash",
                splitter(
                    "digest = hashlib.sha256(f'{salt}\\0{key}\\0{share}'.encode()).digest()",
                    "return int.from_bytes(digest[:8]) < share * 2**64",
                ),
                GROWS,
            ),
            Wrong("every n-th tenant", TABLE, GROWS),
            Wrong(
                "no salt",
                splitter(
                    "digest = hashlib.sha256(key.encode()).digest()",
                    "return int.from_bytes(digest[:8]) < share * 2**64",
                ),
                SALTS,
            ),
            Wrong(
                "the salt, turned round",
                splitter(
                    "digest = hashlib.sha256(key.encode()).digest()",
                    "number = (int.from_bytes(digest[:8]) + len(salt) * 2**60) % 2**64",
                    "return number < share * 2**64",
                ),
                SALTS,
            ),
            Wrong(
                "one after the other",
                splitter(
                    "digest = hashlib.sha256((salt + key).encode()).digest()",
                    "return int.from_bytes(digest[:8]) < share * 2**64",
                ),
                JOINS,
            ),
        ),
        right=(
            Right(
                "blake2 with a key",
                splitter(
                    "digest = hashlib.blake2b(key.encode(), key=hashlib.md5(salt.encode()).digest()).hexdigest()",
                    "return int(digest, 16) / 16**len(digest) < share",
                ),
            ),
            Right(
                "a generator seeded with the pair",
                splitter("import random", "return random.Random(repr((salt, key))).random() < share"),
            ),
            Right(
                "a fraction of the digest",
                splitter(
                    "digest = hashlib.md5(f'{len(salt)}:{salt}{key}'.encode()).digest()",
                    "return int.from_bytes(digest[:6], 'little') / 2**48 < share",
                ),
            ),
        ),
    ),
    "8.14": Bank(
        wrong=(
            Wrong("promotes last", {6: '"wait"'}, GOOD),
            Wrong(
                "the wrong way round",
                {6: '"wait" if mean_used([line.high for line in lines]) <= most_used else "promote"'},
                GOOD,
            ),
            Wrong("hard lines are weighed", {1: "False", 2: "False"}, HARD),
            Wrong("the mean of hard lines", {1: "sum(line.low - line.bound for line in hard) > 0"}, HARD),
            Wrong("all hard lines", {1: "hard and all(line.low > line.bound for line in hard)"}, HARD),
            Wrong("by a point", {2: "any((line.low + line.high) / 2 > line.bound for line in hard)"}, OPEN_HARD),
            Wrong("a hard line's high decides", {1: "any(line.high > line.bound for line in hard)"}, OPEN_HARD),
            Wrong("the mean first", MEAN_FIRST, OPEN_HARD),
            Wrong("all lines are hard", {1: "any(line.low > line.bound for line in lines)"}, ALONE),
            Wrong("uncapped", {3: f"[max(0, loss / line.bound) {PAIRS}"}, ALONE),
            Wrong("gains pay", {3: f"[min(1, loss / line.bound) {PAIRS}"}, GAIN),
            Wrong(
                "gains count as losses",
                {3: f"[min(1, abs(loss / line.bound)) {PAIRS}"},
                GAIN,
            ),
            Wrong("unweighed", {4: "sum(used) / len(used)"}, WEIGHS),
            Wrong("the worst line", {4: "max(used)"}, WEIGHS),
            Wrong("a sum", {4: "sum(w * u for w, u in zip(weights, used, strict=True))"}, WEIGHS),
            Wrong(
                "soft lines alone",
                {3: f"[0 if line.is_hard else min(1, max(0, loss / line.bound)) {PAIRS}"},
                HARD_TOO,
            ),
            Wrong("never rolls back by its mean", {5: "False"}, WEIGHS),
            Wrong("by the worst case", {5: "mean_used([line.high for line in lines]) > most_used"}, OPEN_MEAN),
            Wrong(
                "by the best case",
                {6: '"promote" if mean_used([line.low for line in lines]) <= most_used else "wait"'},
                OPEN_MEAN,
            ),
            Wrong(
                "in the line's own unit",
                {3: f"[min(1, max(0, loss)) {PAIRS}"},
                BOUNDS,
            ),
            Wrong("half, always", FIXED_HALF, BOUNDS),
            Wrong("broken at the bound", {1: "any(line.low >= line.bound for line in hard)"}, EDGES),
            Wrong("open at the bound", {2: "any(line.high >= line.bound for line in hard)"}, EDGES),
            Wrong("too much at most_used", {5: "mean_used([line.low for line in lines]) >= most_used"}, EDGES),
            Wrong(
                "below most_used",
                {6: '"promote" if mean_used([line.high for line in lines]) < most_used else "wait"'},
                EDGES,
            ),
        ),
        right=(
            Right("states of the hard lines", THREE_STEPS),
            Right("by ratios", {1: "max((line.low / line.bound for line in hard), default=0) > 1"}),
        ),
    ),
    "8.15": Bank(
        wrong=(
            Wrong(
                "a rate of 0 is unknown",
                at_mix(
                    UNKNOWN,
                    "return sum(n * passed[name][0] / passed[name][1] for name, n in mix.items()) / sum(mix.values()) or None",
                ),
                ONE,
            ),
            Wrong(
                "the plain rate",
                at_mix("return sum(a for a, _ in passed.values()) / sum(b for _, b in passed.values())"),
                OTHER,
            ),
            Wrong(
                "the mean over slices",
                at_mix("rates = [a / b for a, b in passed.values() if b]", "return sum(rates) / len(rates)"),
                SAME,
            ),
            Wrong(
                "a count",
                at_mix(UNKNOWN, "return sum(count * passed[name][0] / passed[name][1] for name, count in mix.items())"),
                ONE,
            ),
            Wrong(
                "the slices of its own",
                at_mix(
                    "if any(b == 0 for _, b in passed.values()) or set(mix) - set(passed): return None",
                    "return sum(mix.get(name, 1) / sum(mix.values()) * a / b for name, (a, b) in passed.items())",
                ),
                PASSES_OVER,
            ),
            Wrong(
                "asks for each slice",
                at_mix(UNKNOWN, "return sum(mix[name] * a / b for name, (a, b) in passed.items()) / sum(mix.values())"),
                PASSES_OVER,
            ),
            Wrong(
                "none right where none came",
                at_mix(
                    "total = sum(mix.values())",
                    "pairs = [(count, *passed.get(name, (0, 0))) for name, count in mix.items()]",
                    "return sum(count / total * (a / b if b else 0) for count, a, b in pairs)",
                ),
                NONE,
            ),
            Wrong(
                "leaves out what it has not",
                at_mix(
                    "known = {name: count for name, count in mix.items() if passed.get(name, (0, 0))[1]}",
                    "return sum(n * passed[s][0] / passed[s][1] for s, n in known.items()) / sum(known.values())",
                ),
                NONE,
            ),
            Wrong(
                "a missing slice alone",
                at_mix(
                    "if any(name not in passed for name in mix): return None",
                    "return sum(n * passed[s][0] / max(1, passed[s][1]) for s, n in mix.items()) / sum(mix.values())",
                ),
                NONE,
            ),
        ),
        right=(
            Right(
                "a product of two lists",
                at_mix(
                    "pairs = [passed.get(name, (0, 0)) for name in mix]",
                    "if 0 in [num for _, num in pairs]: return None",
                    "rates = [ok / num for ok, num in pairs]",
                    "return sum(n * rate for n, rate in zip(mix.values(), rates)) / sum(mix.values())",
                ),
            ),
            Right(
                "with an exception",
                at_mix(
                    "try:",
                    "    return sum(n * passed[s][0] / passed[s][1] for s, n in mix.items()) / sum(mix.values())",
                    "except (KeyError, ZeroDivisionError):",
                    "    return None",
                ),
            ),
        ),
    ),
}
