"""Answers that prove the checks of exercises 8.13, 8.14 and 8.15."""

from twophase_labs.machine.bank import right, wrong

YES_NO, ENDS, STAYS = "says True or False", "takes nobody at 0 and everybody at 1", "keeps a key on its side"
EVERYWHERE, SHARE, GROWS = "is the same in another process", "takes its share", "only grows"
SALTS, JOINS, GOOD = "draws anew for each salt", "keeps salt and key apart", "promotes what is good"
HARD, OPEN_HARD, WEIGHS = "rolls back if a hard line is broken", "waits while a hard line is open", "weighs its lines"
ALONE, GAIN, HARD_TOO = "lets a soft line break alone", "takes a gain for no loss", "has hard lines in the mean, too"
OPEN_MEAN, BOUNDS = "waits while the mean is open", "takes the bounds it is given"
EDGES, ONE, SAME = "lets what is at the bound pass", "has the rate of one slice", "keeps a rate at its own mix"
OTHER, PASSES_OVER = "follows the other mix", "passes over slices that the mix has not"
NONE = "says None where it knows nothing"

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
WITH_AN_EXCEPTION = """
try:
    return sum((n * passed[s][0] / passed[s][1] for s, n in mix.items())) / sum(mix.values())
except (KeyError, ZeroDivisionError):
    return None
"""
A_PRODUCT_OF_TWO = """
def rate_at_mix(passed, mix):
    pairs = [passed.get(name, (0, 0)) for name in mix]
    if 0 in [num for _, num in pairs]: return None
    rates = [ok / num for ok, num in pairs]
    return sum(n * rate for n, rate in zip(mix.values(), rates)) / sum(mix.values())
"""

# fmt: off
BANKS = {
    "8.13": (
        wrong("a salt of 16 bytes at most", '.sha256(f"{salt}\\0{key}"', ".blake2b(key.encode(), salt=salt", by=YES_NO),
        wrong("rounded up", "int.from_bytes(digest[:8]) < share * 2**64", "digest[0] / 255 <= share", by=ENDS),
        wrong("a draw each time", {1: "import random\nreturn random.random() < share"}, by=STAYS),
        wrong("Python's hash", {1: "return hash((salt, key)) % 2 ** 32 < share * 2 ** 32"}, by=EVERYWHERE),
        wrong("a name's beginning", 'f"{salt}\\0{key}"', "f'{salt}\\x00{key[:16]}'", by=SHARE),
        wrong("the share in the hash", 'f"{salt}\\0{key}"', "f'{salt}\\x00{key}\\x00{share}'", by=GROWS),
        wrong("no salt", 'f"{salt}\\0{key}"', "key", by=SALTS),
        wrong("one after the other", 'f"{salt}\\0{key}"', "(salt + key)", by=JOINS),
        right("blake2 with a key",
              {1: "digest = hashlib.blake2b(key.encode(), key=hashlib.md5(salt.encode()).digest()).hexdigest()\nreturn int(digest, 16) / 16 ** len(digest) < share"}),
        right("a generator seeded with the pair",
              {1: "import random\nreturn random.Random(repr((salt, key))).random() < share"}),
        right("a fraction of the digest",
              {1: "digest = hashlib.md5(f'{len(salt)}:{salt}{key}'.encode()).digest()\nreturn int.from_bytes(digest[:6], 'little') / 2 ** 48 < share"}),
    ),
    "8.14": (
        wrong("promotes last", {6: '"wait"'}, by=GOOD),
        wrong("hard lines are weighed", {1: "False", 2: "False"}, by=HARD),
        wrong("a hard line's high decides", {1: "any(line.high > line.bound for line in hard)"}, by=OPEN_HARD),
        wrong("never rolls back by its mean", {5: "False"}, by=WEIGHS),
        wrong("all lines are hard", {1: "any(line.low > line.bound for line in lines)"}, by=ALONE),
        wrong("a large gain breaks a hard line", {1: "any(abs(line.low) > line.bound for line in hard)"}, by=GAIN),
        wrong("soft lines alone", "min(1, max(0, loss / line.bound))",
              "0 if line.is_hard else min(1, max(0, loss / line.bound))", by=HARD_TOO),
        wrong("by the worst case", {5: "mean_used([line.high for line in lines]) > most_used"}, by=OPEN_MEAN),
        wrong("in the line's own unit", "loss / line.bound", "loss", by=BOUNDS),
        wrong("a tolerance", {2: "any(line.high > 1.01 * line.bound for line in hard)"}, by=EDGES),
        right("states of the hard lines", THREE_STEPS),
        right("a dot product",
              {4: "(torch.tensor(weights).double() / sum(weights) @ torch.tensor(used, dtype=torch.float64)).item()"}),
    ),
    "8.15": (
        wrong("a count",
              {1: "if any((passed.get(name, (0, 0))[1] == 0 for name in mix)):\n    return None\nreturn sum((count * passed[name][0] / passed[name][1] for name, count in mix.items()))"},
              by=ONE),
        wrong("a rate of 0 is unknown",
              {1: "if any((passed.get(name, (0, 0))[1] == 0 for name in mix)):\n    return None\nreturn sum((n * passed[name][0] / passed[name][1] for name, n in mix.items())) / sum(mix.values()) or None"},
              by=ONE),
        wrong("the mean over slices",
              {1: "rates = [a / b for a, b in passed.values() if b]\nreturn sum(rates) / len(rates)"}, by=SAME),
        wrong("the plain rate",
              {1: "return sum((a for a, _ in passed.values())) / sum((b for _, b in passed.values()))"}, by=OTHER),
        wrong("asks for each slice",
              {1: "if any((passed.get(name, (0, 0))[1] == 0 for name in mix)):\n    return None\nreturn sum((mix[name] * a / b for name, (a, b) in passed.items())) / sum(mix.values())"},
              by=PASSES_OVER),
        wrong("the slices of its own",
              {1: "if any((b == 0 for _, b in passed.values())) or set(mix) - set(passed):\n    return None\nreturn sum((mix.get(name, 1) / sum(mix.values()) * a / b for name, (a, b) in passed.items()))"},
              by=PASSES_OVER),
        wrong("a missing slice alone",
              {1: "if any((name not in passed for name in mix)):\n    return None\nreturn sum((n * passed[s][0] / max(1, passed[s][1]) for s, n in mix.items())) / sum(mix.values())"},
              by=NONE),
        wrong("none right where none came",
              {1: "total = sum(mix.values())\npairs = [(count, *passed.get(name, (0, 0))) for name, count in mix.items()]\nreturn sum((count / total * (a / b if b else 0) for count, a, b in pairs))"},
              by=NONE),
        right("with an exception", {1: WITH_AN_EXCEPTION}),
        right("a product of two lists", A_PRODUCT_OF_TWO),
    ),
}
