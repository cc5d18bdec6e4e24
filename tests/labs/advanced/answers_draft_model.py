"""Answers that prove the check of exercise 5.6."""

from tests.labs.advanced.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

BEHIND, ROWS, CERTAIN, DRAWS = (
    "asks behind its own drafts",
    "gives the rows the drafts were drawn from",
    "says what a certain model says",
    "draws, and does not choose",
)
ALL_AT_ONCE = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    row = next_probs(token_ids)
    return [chance.draw(row) for _ in range(num_draft)], np.stack([row] * num_draft)
"""
IN_PLACE = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    q = []
    for _ in range(num_draft):
        q.append(next_probs(token_ids))
        token_ids.append(chance.draw(q[-1]))
    return token_ids[-num_draft:], np.stack(q)
"""
ONE_MORE = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    text, q = list(token_ids), [next_probs(list(token_ids))]
    for _ in range(num_draft):
        text.append(chance.draw(q[-1]))
        q.append(next_probs(text))
    return text[len(token_ids):], np.stack(q[:-1])
"""
ROWS_AFTER = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    text, q = list(token_ids), [next_probs(list(token_ids))]
    for _ in range(num_draft):
        text.append(chance.draw(q[-1]))
        q.append(next_probs(text))
    return text[len(token_ids):], np.stack(q[1:])
"""
WITH_A_LOOP = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    text, q = list(token_ids), None
    while len(text) < len(token_ids) + num_draft:
        row = np.asarray(next_probs(text))
        text.append(chance.draw(row))
        q = row[None] if q is None else np.concatenate([q, row[None]])
    return text[len(token_ids):], q
"""
RECURSIVELY = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    row = next_probs(token_ids)
    token = chance.draw(row)
    if num_draft == 1:
        return [token], row[None]
    drafts, rows = draft_with_model(next_probs, token_ids + [token], num_draft - 1, chance)
    return [token] + drafts, np.vstack([row, rows])
"""
FILLED = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    drafts = []
    for i in range(num_draft):
        row = next_probs([*token_ids, *drafts])
        if i == 0:
            q = np.empty((num_draft, len(row)))
        q[i] = row
        drafts = drafts + [chance.draw(row)]
    return drafts, q
"""

BANKS = opened_all(
    {
        "5.6": Bank(
            wrong=(
                Wrong("forgets its drafts", {1: "token_ids"}, BEHIND),
                Wrong("sees the drafts alone", {1: "drafts or token_ids[-1:]"}, BEHIND),
                Wrong("sees the newest draft alone", {1: "token_ids + drafts[-1:]"}, BEHIND),
                Wrong("all from one row", ALL_AT_ONCE, BEHIND),
                Wrong("writes into the text", IN_PLACE, BEHIND),
                Wrong("one call too many", ONE_MORE, BEHIND),
                Wrong("the rows behind the drafts", ROWS_AFTER, BEHIND),
                Wrong("one row too few", {4: "np.stack(q[:-1]) if len(q) > 1 else np.stack(q)"}, BEHIND),
                Wrong("a list of rows", {4: "q"}, BEHIND),
                Wrong("q of the draft alone", {4: "np.array([row[token] for row, token in zip(q, drafts)])"}, BEHIND),
                Wrong("one-hot rows, as of a lookup", {3: "np.eye(len(row))[drafts[-1]]"}, ROWS),
                Wrong("never quite 0, unlike its example", {3: "row.clip(1e-9)"}, ROWS),
                Wrong("rows in log", {3: "np.log(row)"}, ROWS),
                Wrong("the first row for all", {3: "q[0] if q else row"}, ROWS),
                Wrong("the likeliest", {2: "int(row.argmax())"}, DRAWS),
                Wrong("sharpened", {2: "chance.draw(row**2)"}, DRAWS),
                Wrong(
                    "the likeliest but for the first", {2: "int(row.argmax()) if drafts else chance.draw(row)"}, DRAWS
                ),
                Wrong("any token", {2: "chance.draw(np.ones(len(row)))"}, CERTAIN),
            ),
            right=(
                Right("on a copy of the text", WITH_A_LOOP),
                Right("recursively", RECURSIVELY),
                Right("into an array", FILLED),
            ),
        ),
    }
)
