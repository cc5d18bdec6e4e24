"""Answers that prove the check of exercise 5.7."""

from twophase_labs.machine.bank import right, wrong

TOKENS, DRAFTING, VERIFYING = "counts the tokens of a pass", "divides by what drafting costs", "pays for verifying"
BEST, GOES_AS = "chooses the best number", "goes as far as it may"

BY_SUM = """
def expected_tokens(alpha, num_draft):
    return sum(alpha**place for place in range(num_draft + 1))

def speed_up(alpha, num_draft, draft_cost, verify_cost=0.0):
    drafting, verifying = num_draft * draft_cost, 1 + num_draft * verify_cost
    return expected_tokens(alpha, num_draft) / (drafting + verifying)

def best_num_draft(alpha, draft_cost, verify_cost=0.0, most=16):
    speeds = [speed_up(alpha, num_draft, draft_cost, verify_cost) for num_draft in range(most + 1)]
    return speeds.index(max(speeds))
"""

# fmt: off
BANKS = {
    "5.7": (
        wrong("the drafts alone", {1: "alpha * num_draft"}, by=TOKENS),
        wrong("one and the accepted ones, as if each had a chance", {1: "1 + alpha * num_draft"}, by=TOKENS),
        wrong("drafting counts once", {2: "1 + draft_cost + num_draft * verify_cost"}, by=DRAFTING),
        wrong("verifying is free", {2: "1 + num_draft * draft_cost"}, by=VERIFYING),
        wrong("as many as possible", {4: "most"}, by=BEST),
        wrong("never all of them", "most + 1", "max(1, most)", by=BEST),
        wrong("at most 16 drafts", "most + 1", "min(most, 16) + 1", by=GOES_AS),
        wrong("a default of most = 8", "def best_num_draft(alpha, draft_cost, verify_cost=0.0, most=16",
              "def best_num_draft(alpha, draft_cost, verify_cost=0.0, most=8", by=GOES_AS),
        right("NumPy's argmax",
              {4: "np.argmax([speed_up(alpha, k, draft_cost, verify_cost) for k in range(most + 1)])"}),
        right("a sum", BY_SUM),
    ),
}
