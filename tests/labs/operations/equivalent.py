"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "8.5": {
        "def __init__(self, threshold, for_s, keep_firing_s=0.0): -> def __init__(self, threshold, for_s, keep_firing_s=-1.0):": (
            "no time is less than 0 s ago, nor less than -1 s"
        ),
    },
    "8.4": {
        "if len(there) < 2: -> if min(len(there), 64) < 2:": "fewer than two is fewer than two, however many are counted",
    },
    "8.8": {
        "return known[len(known) // 2] if known else 0.0 -> return known[min(len(known), 64) // 2] if known else 0.0": (
            "a window has fewer than 64 samples"
        ),
        "return (samples[-1][part] - samples[0][part]) / rose if rose else 0.0 -> return (samples[-2][part] - samples[0][part]) / rose if rose else 0.0": (
            "one sample of a minute more or less: no diagnosis may hang on it"
        ),
        "rose = samples[-1][whole] - samples[0][whole] -> rose = samples[-2][whole] - samples[0][whole]": (
            "one sample of a minute more or less: no diagnosis may hang on it"
        ),
        "known = sorted((sample[name] for sample in samples if sample[name] is not None)) -> known = sorted((sample[name] for sample in samples if sample[name]))": (
            "a time or a share of exactly 0 is no median here"
        ),
        "if usual(window, 'kv_usage') > max(0.85, usual(healthy, 'kv_usage')): -> if usual(window, 'kv_usage') > 0.85:": (
            "where the bound lies is the learner's choice; no healthy hour is above 0.85"
        ),
        "if usual(window, 'kv_usage') > max(0.85, usual(healthy, 'kv_usage')): -> if usual(window, 'kv_usage') >= max(0.85, usual(healthy, 'kv_usage')):": (
            "where the bound lies is the learner's choice"
        ),
        "if share(window, *invalid) > share(healthy, *invalid) + 0.2: -> if share(window, *invalid) >= share(healthy, *invalid) + 0.2:": (
            "where the bound lies is the learner's choice"
        ),
        "return known[len(known) // 2] if known else 0.0 -> return known[len(known) // 3] if known else 0.0": (
            "another middle value is as good against one odd sample"
        ),
        "if usual(window, 'itl_p99_s') > 1.5 * usual(healthy, 'itl_p99_s'): -> if usual(window, 'itl_p99_s') > 2.5 * usual(healthy, 'itl_p99_s'):": (
            "where the bound lies is the learner's choice"
        ),
    },
    "8.9": {
        "for name in list(taken): -> for name in taken:": "the loop goes over the list before it; `taken` is bound anew",
    },
    "8.10": {
        "elif self.calm_s is None: -> elif not self.calm_s:": "differs at second 0 alone, where the level is 0",
        "elif is_calm and now_s - self.calm_s >= 10 and (self.level > 0): -> elif is_calm and now_s - self.calm_s >= 9 and (self.level > 0):": (
            "with a look a second, one who counts looks and one who counts seconds differ by one; both are accepted"
        ),
        "if now_s - self.raised_s >= 2 and self.level < 4: -> if now_s - self.raised_s > 2 and self.level < 4:": (
            "a rung may come two to five seconds after the one before"
        ),
    },
    "8.11": {
        "keys = start * count + count * (count + 1) // 2 -> keys = start * count + count * (count + 1) / 2": (
            "count * (count + 1) is even"
        ),
    },
    "8.13": {
        "return int.from_bytes(digest[:8]) < share * 2 ** 64 -> return int.from_bytes(digest[:8]) <= share * 2 ** 64": (
            "a digest that begins with just this number is one in 2**64"
        ),
    },
    "8.17": {
        "all_wrong *= max(0, num - num_right - i) / (num - i) -> all_wrong *= (num - num_right - i) / (num - i)": (
            "before a factor is negative, one is 0, and the product stays 0"
        ),
        "all_wrong *= max(0, num - num_right - i) / (num - i) -> all_wrong *= max(-1, num - num_right - i) / (num - i)": (
            "before a factor is negative, one is 0, and the product stays 0"
        ),
    },
    "8.15": {
        "num_passed, num = passed.get(name, (0, 0)) -> num_passed, num = passed.get(name, (-1, 0))": (
            "of a slice without requests only their number is used"
        ),
        "num_passed, num = passed.get(name, (0, 0)) -> num_passed, num = passed.get(name, (1, 0))": (
            "of a slice without requests only their number is used"
        ),
    },
    "8.18": {
        "votes, top = best.get(answer, (0, -float('inf'))) -> votes, top = best.get(answer, (1, -float('inf')))": (
            "every answer has a vote more"
        ),
        "votes, top = best.get(answer, (0, -float('inf'))) -> votes, top = best.get(answer, (-1, -float('inf')))": (
            "every answer has a vote less"
        ),
        "best[answer] = (votes + 1, max(top, score)) -> best[answer] = (votes + 2, max(top, score))": (
            "every vote counts twice"
        ),
    },
}
