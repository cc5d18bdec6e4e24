"""Answers that prove the check of exercise 5.7."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

TOKENS, CERTAIN, DRAFTING, VERIFYING, BEST, OFF = (
    "counts the tokens of a pass",
    "knows what certainty gives",
    "divides by what drafting costs",
    "pays for verifying",
    "chooses the best number",
    "switches itself off",
)
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
STEP_BY_STEP = """
def expected_tokens(alpha, num_draft):
    return 1 if num_draft == 0 else 1 + alpha * expected_tokens(alpha, num_draft - 1)


def speed_up(alpha, num_draft, draft_cost, verify_cost=0.0):
    return expected_tokens(alpha, num_draft) / (1 + num_draft * (draft_cost + verify_cost))


def best_num_draft(alpha, draft_cost, verify_cost=0.0, most=16):
    best = 0
    for num_draft in range(1, most + 1):
        if speed_up(alpha, num_draft, draft_cost, verify_cost) > speed_up(alpha, best, draft_cost, verify_cost):
            best = num_draft
    return best
"""

BANKS = {
    "5.7": Bank(
        wrong=(
            Wrong("the drafts alone", {1: "alpha * num_draft"}, TOKENS),
            Wrong("one and the accepted ones, as if each had a chance", {1: "1 + alpha * num_draft"}, TOKENS),
            Wrong("without the last token", {1: "(1 - alpha**num_draft) / (1 - alpha)"}, TOKENS),
            Wrong("drafting counts once", {2: "1 + draft_cost + num_draft * verify_cost"}, DRAFTING),
            Wrong("the bonus token is drafted, too", {2: "1 + (num_draft + 1) * (draft_cost + verify_cost)"}, DRAFTING),
            Wrong("only what is accepted costs", {2: "1 + alpha * num_draft * (draft_cost + verify_cost)"}, DRAFTING),
            Wrong("verifying is free", {2: "1 + num_draft * draft_cost"}, VERIFYING),
            Wrong("upside down", {3: "pass_cost / expected_tokens(alpha, num_draft)"}, DRAFTING),
            Wrong("as many as possible", {4: "most"}, BEST),
            Wrong(
                "as if guesses were free", {4: "max(range(most + 1), key=lambda k: expected_tokens(alpha, k))"}, BEST
            ),
            Wrong(
                "at least one",
                {4: "max(range(1, most + 1), key=lambda k: speed_up(alpha, k, draft_cost, verify_cost))"},
                BEST,
            ),
        ),
        right=(
            Right("a sum", BY_SUM),
            Right("one draft more", STEP_BY_STEP),
        ),
    ),
}
