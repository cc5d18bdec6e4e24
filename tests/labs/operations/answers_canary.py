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


FRACTION = "return int.from_bytes(digest[:8]) < share * 2**64"


def of_text(text: str, *imports: str) -> str:
    """By the digest of an expression's bytes."""
    return "\n".join(imports) + "\n\n\n" + splitter(f"digest = hashlib.sha256({text}).digest()", FRACTION)


REMEMBERED = """import random

drawn = {}


def is_canary(key, share, salt):
    if (salt, key) not in drawn:
        drawn[salt, key] = random.random()
    return drawn[salt, key] < share
"""
CACHED = """import functools
import random


@functools.cache
def number(salt, key):
    return random.random()


def is_canary(key, share, salt):
    return number(salt, key) < share
"""
WITH_A_SECRET = """import hmac
import os

SECRET = os.urandom(16)


def is_canary(key, share, salt):
    digest = hmac.new(SECRET, f"{salt}\\0{key}".encode(), "sha256").digest()
    return int.from_bytes(digest[:8]) < share * 2**64
"""
ANOTHER_NAME = "fast = hash\n\n\n" + splitter("return fast((salt, key)) % 2**32 < share * 2**32")
BOTH_UPDATED = splitter(
    "digest = hashlib.sha256(key.encode())", "digest.update(salt.encode())", "digest = digest.digest()", FRACTION
)
SHUFFLED = """import random

ORDER = list(range(256))
random.Random(8).shuffle(ORDER)


def is_canary(key, share, salt):
    digest = hashlib.sha256(bytes(ORDER[byte] for byte in f"{salt}\\0{key}".encode())).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
"""
CACHED_SALT = """import functools


@functools.lru_cache
def begun(salt):
    return hashlib.sha256(hashlib.sha256(salt.encode()).digest())


@functools.cache
def is_canary(key, share, salt):
    state = begun(salt).copy()
    state.update(key.encode())
    return int.from_bytes(state.digest()[-6:]) < share * 2**48


print(is_canary("ada", 0.5, "v2"))
"""
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
ROUNDED = "round(sum(w * u for w, u in zip(weights, used, strict=True)) / sum(weights), 3)"
TIMES = (
    "sum(w * u * ({0} if line.is_hard else 1) for line, w, u in zip(lines, weights, used, strict=True))"
    " / sum(line.weight * ({0} if line.is_hard else 1) for line in lines)"
)
FRACTIONS = {
    3: f"[min(1, max(0, __import__('fractions').Fraction(loss) / __import__('fractions').Fraction(line.bound))) {PAIRS}",
    4: "sum(int(w) * u for w, u in zip(weights, used, strict=True)) / int(sum(weights))",
}
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


def each_slice(*lines: str, end: str) -> str:
    head = ("total, rate = sum(mix.values()), 0.0", "for name, n in mix.items():")
    body = ("ok, num = passed.get(name, (0, 0))", *lines)
    return at_mix(*head, *(f"    {line}" for line in body), f"return {end}")


MEAN = "return sum(n * passed[name][0] / passed[name][1] for name, n in mix.items()) / sum(mix.values())"
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
            Wrong("draws remembered", REMEMBERED, EVERYWHERE),
            Wrong("draws cached", CACHED, EVERYWHERE),
            Wrong("a secret of the process", WITH_A_SECRET, EVERYWHERE),
            Wrong("Python's hash by another name", ANOTHER_NAME, EVERYWHERE),
            Wrong("the process's number", of_text("f'{os.getpid()}/{salt}\\0{key}'.encode()", "import os"), EVERYWHERE),
            Wrong(
                "the host's name",
                of_text("f'{socket.gethostname()}/{salt}\\0{key}'.encode()", "import socket"),
                EVERYWHERE,
            ),
            Wrong("the key first", of_text("(key + salt).encode()"), JOINS),
            Wrong("the key first, in two steps", BOTH_UPDATED, JOINS),
            Wrong("ASCII alone", of_text("f'{salt}\\0{key}'.encode('ascii', 'ignore')"), SHARE),
            Wrong("ASCII or question marks", of_text("f'{salt}\\0{key}'.encode('ascii', 'replace')"), SHARE),
            Wrong("Western letters", of_text("f'{salt}\\0{key}'.encode('latin-1')"), YES_NO),
            Wrong("a name's beginning", of_text("f'{salt}\\0{key[:16]}'.encode()"), SHARE),
            Wrong("a salt's beginning", of_text("f'{salt[:2]}\\0{key}'.encode()"), SALTS),
            Wrong("a salt's digits", of_text("f'{sum(map(str.isdigit, salt)) and salt}\\0{key}'.encode()"), SALTS),
            Wrong("a salt's letters added up", of_text("f'{sum(salt.encode())}\\0{key}'.encode()"), SALTS),
            Wrong(
                "a salt of 16 bytes at most",
                splitter("digest = hashlib.blake2b(key.encode(), salt=salt.encode()).digest()", FRACTION),
                YES_NO,
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
            Right("through a fixed shuffle", SHUFFLED),
            Right("with what is computed remembered", CACHED_SALT),
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
            Wrong("a rounded mean", {4: ROUNDED}, EDGES),
            Wrong("whole percents", {3: f"[int(100 * min(1, max(0, loss / line.bound))) / 100 {PAIRS}"}, EDGES),
            Wrong("a tolerance", {2: "any(line.high > 1.01 * line.bound for line in hard)"}, EDGES),
            Wrong("a large gain breaks a hard line", {1: "any(abs(line.low) > line.bound for line in hard)"}, GAIN),
            Wrong(
                "a large gain is open", {2: "any(max(abs(line.low), line.high) > line.bound for line in hard)"}, GAIN
            ),
            Wrong(
                "a wide interval is open",
                {2: "any(max(line.high, line.high - line.low) > line.bound for line in hard)"},
                GAIN,
            ),
            Wrong(
                "a hard line's gain pays",
                {3: f"[loss / line.bound if line.is_hard else min(1, max(0, loss / line.bound)) {PAIRS}"},
                GAIN,
            ),
            Wrong("hard lines twice", {4: TIMES.format(2)}, HARD_TOO),
            Wrong("hard lines one and a half times", {4: TIMES.format(1.5)}, HARD_TOO),
            Wrong(
                "0 is no most_used",
                {
                    5: "mean_used([line.low for line in lines]) > (most_used or 0.5)",
                    6: '"promote" if mean_used([line.high for line in lines]) <= (most_used or 0.5) else "wait"',
                },
                BOUNDS,
            ),
        ),
        right=(
            Right("states of the hard lines", THREE_STEPS),
            Right("by ratios", {1: "max((line.low / line.bound for line in hard), default=0) > 1"}),
            Right("shares of the weight", {4: "sum(w / sum(weights) * u for w, u in zip(weights, used, strict=True))"}),
            Right(
                "a dot product",
                {4: "(torch.tensor(weights).double() / sum(weights) @ torch.tensor(used, dtype=torch.float64)).item()"},
            ),
            Right("whole fractions", FRACTIONS),
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
            Wrong(
                "by place",
                at_mix(
                    UNKNOWN,
                    "pairs = zip(passed.values(), mix.values())",
                    "return sum(n * a / b for (a, b), n in pairs) / sum(mix.values())",
                ),
                OTHER,
            ),
            Wrong(
                "nothing where any slice is empty",
                at_mix("if any(b == 0 for _, b in passed.values()): return None", UNKNOWN, MEAN),
                PASSES_OVER,
            ),
            Wrong(
                "the last slice decides",
                each_slice("known = num > 0", "if known: rate += n * ok / num", end="rate / total if known else None"),
                NONE,
            ),
            Wrong(
                "None is begun anew",
                each_slice("rate = (rate or 0.0) + n / total * ok / num if num else None", end="rate"),
                NONE,
            ),
            Wrong("adds the slice", at_mix("for name in mix: passed.setdefault(name, (0, 0))", UNKNOWN, MEAN), NONE),
            Wrong(
                "a twentieth may be missing",
                each_slice(
                    "if not num and n >= 0.05 * total: return None", "rate += n * ok / max(1, num)", end="rate / total"
                ),
                NONE,
            ),
            Wrong(
                "a few requests are none",
                each_slice("if num < 5: return None", "rate += n * ok / num", end="rate / total"),
                ONE,
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
