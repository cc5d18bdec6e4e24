"""Edits of the solved answers of canaries and several completions that change nothing, with the reason."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "8.10": {
        "return int.from_bytes(digest[:8]) < share * 2 ** 64 -> return int.from_bytes(digest[:8]) <= share * 2 ** 64": (
            "a digest that begins with just this number is one in 2**64"
        ),
    },
    "8.12": {
        "all_wrong *= max(0, num - num_right - i) / (num - i) -> all_wrong *= (num - num_right - i) / (num - i)": (
            "before a factor is negative, one is 0, and the product stays 0"
        ),
        "all_wrong *= max(0, num - num_right - i) / (num - i) -> all_wrong *= max(-1, num - num_right - i) / (num - i)": (
            "before a factor is negative, one is 0, and the product stays 0"
        ),
    },
    "8.60": {
        "num_passed, num = passed.get(name, (0, 0)) -> num_passed, num = passed.get(name, (-1, 0))": (
            "of a slice without requests only their number is used"
        ),
        "num_passed, num = passed.get(name, (0, 0)) -> num_passed, num = passed.get(name, (1, 0))": (
            "of a slice without requests only their number is used"
        ),
    },
    "8.61": {
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
