"""Answers that prove the check of exercise 5.3."""

from twophase_labs.machine.bank import right, wrong

ONE, ALL, ASKS = "finds a prompt of one part", "finds all parts", "asks once for each option"
LENGTH, MACHINE = "finds parts of any length", "works on any machine"

RECURSIVE = """
def recover(ask, parts):
    if not parts:
        return []
    order = sorted((ask(option), position) for position, option in enumerate(parts[0]))
    pick = order[0][1]
    return [pick, *recover(lambda rest: ask(parts[0][pick] + rest), parts[1:])]
"""

# fmt: off
BANKS = {
    "5.3": (
        wrong("the slowest", "min(times)", "max(times)", by=ONE),
        wrong("at most 16 options", "[ask(known + option) for option in options]",
              "[ask(known + option) for option in options[:16]]", by=ONE),
        wrong("remembers nothing", "known + options[pick", "[", by=ALL),
        wrong("behind the first option of each part", "options[pick]", "options[0]", by=ALL),
        wrong("each part alone", "ask(known + option)", "ask(option)", by=ALL),
        wrong("twice each, and takes the first", "ask(known + option) for option",
              "(ask(known + o), ask(known + o))[0] for o", by=ASKS),
        wrong("cuts the parts to whole blocks", "pick = times.index(min(times))", "pass", ".append(pick",
              ".append(times.index(min(times))", "options[pick]",
              "options[found[-1]][:len(options[found[-1]]) // 16 * 16]", by=LENGTH),
        wrong("a number of seconds", "times = [ask(known + option) for option in options]", "pass",
              "times.index(min(times))", "0", "found.append",
              "for position, option in enumerate(options):\n            if ask(known + option) < 0.05:\n                pick = position\n        found.append",
              by=MACHINE),
        right("part by part, recursively", RECURSIVE),
        right("NumPy's argmin", "times.index(min(times)", "np.argmin(times"),
    ),
}
