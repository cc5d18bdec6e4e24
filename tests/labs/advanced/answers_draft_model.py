"""Answers that prove the check of exercise 5.6."""

from twophase_labs.machine.bank import right, wrong

BEHIND, ROWS = "asks behind its own drafts", "gives the rows the drafts were drawn from"
CERTAIN, DRAWS = "says what a certain model says", "draws, and does not choose"

RECURSIVELY = """
def draft_with_model(next_probs, token_ids, num_draft, chance):
    row = next_probs(token_ids)
    token = chance.draw(row)
    if num_draft == 1:
        return [token], row[None]
    drafts, rows = draft_with_model(next_probs, token_ids + [token], num_draft - 1, chance)
    return [token] + drafts, np.vstack([row, rows])
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

# fmt: off
BANKS = {
    "5.6": (
        wrong("a list of rows", "np.stack(q)", "q", by=BEHIND),
        wrong("forgets its drafts", "token_ids + drafts", "token_ids", by=BEHIND),
        wrong("one row too few", "np.stack", "np.stack(q[:-1]) if len(q) > 1 else np.stack", by=BEHIND),
        wrong("q of the draft alone", ".stack(q", ".array([row[token] for row, token in zip(q, drafts)]", by=BEHIND),
        wrong("all from one row",
              {1: "row = next_probs(token_ids)\nreturn ([chance.draw(row) for _ in range(num_draft)], np.stack([row] * num_draft))"},
              by=BEHIND),
        wrong("rows in log", "q.append(row)", "q.append(np.log(row))", by=ROWS),
        wrong("any token", "drafts.append(chance.draw(row))", "drafts.append(chance.draw(np.ones(len(row))))",
              by=CERTAIN),
        wrong("the likeliest", "drafts.append(chance.draw(row))", "drafts.append(int(row.argmax()))", by=DRAWS),
        right("recursively", RECURSIVELY),
        right("on a copy of the text", WITH_A_LOOP),
    ),
}
