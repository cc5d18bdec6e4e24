# ruff: noqa: E402, F811
# %% [markdown]
# ## 8. A new version, and a few who try it
# <!-- minutes: 25 + 5 -->
#
# A smaller window for attention frees memory, weights of 4 bits make steps shorter, a new policy cuts the queue. Each
# has passed its tests. How does it get to all requests without harm to any? In three stages: a **gate** on fixed tasks
# (`twophase bench quality`, lab 6), **shadow traffic** (the same prompts on both engines, and only the old one's
# answers are sent), and a **canary** (the new one answers a small share).

# %% [markdown]
# **Think first.** Two engines answer the same prompts greedily, and one text in five differs. Is the new one worse?
# What would you have to look at to tell?

# %%
from twophase_labs.operations import shadow

for variant in shadow.VARIANTS:
    print(shadow.shadow(variant).line)

# %% [markdown]
# Forty prompts of four kinds, each judged by what it asks for: the right sum, the fact that stands in the text, a JSON
# object with the order's quantity. (`int4` rounds the weights onto a grid of 4 bits, `int4_g64_sym` onto a coarser one;
# the window keeps 320 keys and 4 sinks.) Where do the window's texts differ?

# %%
before, candidate = shadow.shadow("as it is"), shadow.shadow("window of 320")
for name in shadow.SLICES:
    for one, other in shadow.differing(before, candidate, name)[:2]:
        print(f"{name}: {one!r} became {other!r}")

# %% [markdown]
# **Read the result.** "The same text" is a sensitive alarm and a poor judge: a text may differ and still be right. What
# an answer is for decides, in four layers, each cheaper to check than the next: its **format** (does it parse), its
# **task** (is the sum right), **safety** (is what should be refused refused, and nothing else; lab 6 counts both), and
# the **business** (does a support case end without a person; days later, and from real traffic alone). And look at the
# window's line by slice: three kinds of prompts do not see the difference, because they are shorter than the window.
# The fourth kind loses facts that stand further back, and it is one prompt in five here; in most traffic it is rarer.
#
# ### Who tries it?
#
# The canary serves live requests, so a client sees what it says. A conversation should not change its model between two
# messages, and a tenant's cached prefixes should stay useful. So the side is chosen by *tenant*, by arithmetic that
# every front end can do alone: hash the tenant to a number in [0, 1), and compare it with the share.

# %% [markdown]
# <!-- card 8.10 -->
# Write the splitter. All properties below follow from one idea: a key's number must depend on nothing but the salt and
# the key.


# %% tags=["setup"]
import hashlib


# %% tags=["exercise:8.10"]
def is_canary(key, share, salt):
    """Whether the requests with this key are the canary's: True or False.

    key: text, such as a tenant's name. share: of all keys, a probability in [0, 1]; 0 is none, 1 is all. salt: the name
    of the rollout: another one chooses other keys, independently. The answer is the same in every process and on every
    machine. When the share grows, keys that are the canary's remain so. Shares may be as small as 0.001.

    >>> [is_canary(key, 0.0, "v2") for key in ("ada", "bob", "eve")]
    [False, False, False]
    >>> is_canary("ada", 1.0, "v2"), is_canary("ada", 0.5, "v2") == is_canary("ada", 0.5, "v2")
    (True, True)
    """
    # BEGIN SOLUTION: True or False
    digest = hashlib.sha256(f"{salt}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
    # END SOLUTION


# %%
check("8.10")

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import canary_traffic

is_canary = use("8.10")
known = canary_traffic.tenants()
asked = canary_traffic.requests(20_000)
for share in (0.05, 0.1, 0.2):
    of_tenants = sum(is_canary(tenant, share, "window") for tenant, _ in known) / len(known)
    of_requests = sum(is_canary(tenant, share, "window") for tenant, _ in asked) / len(asked)
    print(f"share {share:.0%}: {of_tenants:.1%} of the tenants are the canary's, {of_requests:.1%} of the requests")

# %% [markdown]
# **Read the result.** Of very many keys a hash takes just its share; of 2,000 tenants, who differ in how much they
# send, it takes what chance gives. The share of *requests* has to be measured, and the two sides do not serve the same
# mix (*Going further* repairs that).
#
# ### When has one seen enough?
#
# Every number from a canary is an estimate. Nine of ten answers right is a rate of 90 %, give or take much; with more
# requests the interval narrows (Wilson's; 95 of 100 such intervals hold the true rate):

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import canary_gate

for num in (10, 100, 1000, 10_000):
    low, high = canary_gate.wilson(num * 9 // 10, num)
    print(f"{num * 9 // 10:5,} of {num:6,}: [{low:.1%}, {high:.1%}]")

# %% [markdown]
# So a verdict has three values: promote, roll back, and **wait, too few requests to tell**. A percentile fits the same
# frame: "p99 TTFT is within its SLO" says that at most 1 % of the requests are later, and that is a rate.
#
# Lines of two kinds meet in the verdict. Some may not break whatever else improves: a slice that loses its answers,
# JSON that no longer parses, refusals. They have **hard bounds, and come first**. The others are weighed: a millisecond
# against a point of quality is a decision about the service, written down as weights *before* the canary starts.

# %% [markdown]
# <!-- card 8.11 -->
# A `Line` has the interval of what is lost, `low` to `high`, its `bound` (what may be lost, positive), a `weight`, and
# `is_hard`. Below 0 something has become better; that is no loss, and pays for none.
#
# 1. If a hard line is surely broken (all of its interval above its bound), roll back.
# 2. If one is not surely kept (some of its interval above its bound), wait.
# 3. Of its bound a line uses loss / bound, kept between 0 and 1. Take the weighted mean over *all* lines, with every
#    `low` and with every `high`: if even the first is above `most_used`, roll back; if the second is at most that,
#    promote.
# 4. Else wait.


# %% tags=["exercise:8.11"]
def decide(lines, most_used=0.5):
    """'promote', 'roll back' or 'wait'."""
    hard = [line for line in lines if line.is_hard]
    if any(line.low > line.bound for line in hard):  # SOLUTION: is a hard line surely broken?
        return "roll back"
    if any(line.high > line.bound for line in hard):  # SOLUTION: is one not surely kept?
        return "wait"

    def mean_used(losses):
        used = [
            min(1, max(0, loss / line.bound)) for line, loss in zip(lines, losses, strict=True)
        ]  # SOLUTION: of each line's bound, in [0, 1]
        weights = [line.weight for line in lines]
        return sum(w * u for w, u in zip(weights, used, strict=True)) / sum(weights)  # SOLUTION: the weighted mean

    if mean_used([line.low for line in lines]) > most_used:  # SOLUTION: is even the best case too much?
        return "roll back"
    return "promote" if mean_used([line.high for line in lines]) <= most_used else "wait"  # SOLUTION: promote or wait


# %%
check("8.11")

# %% [markdown]
# **Three canaries, judged twice.** Traffic is simulated: 2,000 tenants, one in twenty-five with long texts; what
# passes, passes as often as in the shadow above. Your splitter gives the canary a fifth of the tenants, and your
# verdict is asked again and again: with one hard line for all answers, and with one for each slice.

# %%
decide = use("8.11")
looks = (500, 1000, 2000, 5000, 10_000, 20_000, 40_000)
base = canary_traffic.rates_of(shadow.shadow("as it is").by_slice)
seen = {}
for variant in ("as it is", "window of 320", "int4_g64_sym"):
    rates = {"before": base, "canary": canary_traffic.rates_of(shadow.shadow(variant).by_slice)}
    seen[variant] = canary_traffic.play(is_canary, rates, looks, share=0.2, salt="window")
    for by_slice in (False, True):
        verdicts = [decide(canary_traffic.lines_of(look, by_slice=by_slice)) for look in seen[variant]]
        print(f"{variant:<14}{'each slice' if by_slice else 'all answers':<12}", " · ".join(verdicts))

# %% [markdown]
# What is the first of them still waiting for after 5,000 requests, a fifth of them the canary's? And how does the
# window's canary look in all answers, in a slice that fits into the window, and in the one that does not?

# %%
for line in canary_traffic.lines_of(seen["as it is"][looks.index(5000)], by_slice=True):
    print(line)

# %%
from twophase_labs.operations import choice_pictures

window = {look.num_requests: look for look in seen["window of 320"]}
of_all = {num: canary_traffic.lines_of(look, by_slice=False) for num, look in window.items()}
of_slices = {num: canary_traffic.lines_of(look, by_slice=True) for num, look in window.items()}
both = {num: [*of_all[num], *of_slices[num]] for num in window}
choice_pictures.draw_looks(both, ["answers", "facts, short text", "facts, long text"])

# %% [markdown]
# **Read the result.** The candidate of the first two lines is the same engine as before, and judged slice by slice it
# takes many requests until nothing is open: the rarest slice, and the rarest event, decide when. The window's loss in
# all answers stays within its bound, because few requests are long; judged by all answers alone, it waits, and in the
# end may pass. Its slice is broken, and a line of its own says so while the other is still open. All answers together
# can hide any slice that is small enough: slice by what you change (prompt and completion length, hit or miss in the
# prefix cache, guided or free, speculative or not, tenant, pool), and give each slice its bound.

# %% [markdown]
# ### Looking often
#
# A verdict that is asked again after each 100 requests has many chances to be unlucky. Here both sides are the same
# engine, 2,000 times over, with twenty looks each. How many are rolled back?

# %%
# NBVAL_CHECK_OUTPUT
alarms = canary_traffic.false_alarms()
for rule, rate in alarms.items():
    print(f"{rate:6.1%}  {rule}")

# %% [markdown]
# **Read the result.** "More than two points worse" on the dashboard rolls back half of all canaries that are as good as
# what they replace. An interval that misleads in 2.2 % of the cases at one look does so in 11.5 % at one of *twenty*. A
# canary that will be looked at twenty times needs a stricter interval at each look (the last line divides the error by
# twenty, the simplest rule). The verdict above is less easily fooled: it rolls back only if the whole interval is
# beyond a *bound*, not beyond 0.

# %% [markdown]
# > **In production, 2026.** Istio [mirrors](https://istio.io/docs/tasks/traffic-management/mirroring) a percentage of
# > live requests out of band (`mirrorPercentage`), and throws the answers away: to compare them, log both sides.
# > nginx's [`split_clients`](https://www.nginx.org/docs/http/ngx_http_split_clients_module.html) is your splitter, with
# > MurmurHash2 over 32 bits; weights on a route, in contrast, mostly draw for each request anew. Argo Rollouts ends an
# > [analysis](https://argoproj.github.io/argo-rollouts/features/analysis/) as `Successful`, `Failed` or `Inconclusive`,
# > and pauses on the last. A shadow doubles the load: on an H100 it needs a second engine with its own K/V pool, and
# > its prefix cache is as cold as the share of traffic that it sees.
#
# **Takeaway.** By two points on a dashboard, half of all equal canaries look worse within twenty looks; by an interval
# for twenty looks, one in a hundred does.

# %% [markdown]
# ### Going further: another mix
#
# Tenants stay on their side, so the canary may have more of the easy slices than the rest, and look better in the mean
# while it is worse in each slice (Simpson's paradox). Compare at *one* mix: the baseline's.

# %% [markdown]
# <!-- card 8.60 -->
# Write what the canary's rate would be if its slices were as frequent as in `mix`.


# %% tags=["exercise:8.60"]
def rate_at_mix(passed, mix):
    """The rate at which requests would pass if they came in this mix; None where that cannot be known.

    passed: for each slice (passed, requests). mix: for each slice, how many requests of it the other side has served. A
    slice of the mix without any request in `passed` leaves the rate unknown.

    >>> rate_at_mix({"short": (90, 100), "long": (5, 10)}, {"short": 50, "long": 50})
    0.7
    >>> rate_at_mix({"short": (90, 100)}, {"short": 50, "long": 50}) is None
    True
    """
    # BEGIN SOLUTION: a mean over the slices of the mix
    total, rate = sum(mix.values()), 0.0
    for name, count in mix.items():
        num_passed, num = passed.get(name, (0, 0))
        if num == 0:
            return None
        rate += count / total * num_passed / num
    return rate
    # END SOLUTION


# %%
check("8.60")

# %%
rate_at_mix = use("8.60")
look = seen["int4_g64_sym"][-1]
mix = {name: num for name, (_, num) in look.before.counts.items()}
(old, old_num), (new, new_num) = look.before.total, look.canary.total
print(f"before {old / old_num:.1%}, canary {new / new_num:.1%}; ", end="")
print(f"the canary at the other side's mix: {rate_at_mix(look.canary.counts, mix):.1%}")

# %% [markdown]
# ## 9. Spending more on an answer
# <!-- minutes: 26 + 5 -->
#
# So far every technique made the *same* answer cheaper. The opposite is for sale, too: ask again, ask for the steps,
# search, check, and choose. This is called **test-time scaling**. It is no kin of speculative decoding, which spends
# compute to get the same answer sooner: here more compute should give another, better answer, and later.
#
# SmolLM2 adds three one-digit numbers, at once or in steps, after three worked examples:

# %%
from twophase_labs.operations import more_samples

for way in more_samples.MAX_TOKENS:
    print(more_samples.prompt(more_samples.sums()[0], way).splitlines()[-1] + more_samples.greedy(way)[0].text)
for way in more_samples.MAX_TOKENS:
    print(more_samples.of_one(f"greedy, {way}", more_samples.greedy(way)).line)

# %% [markdown]
# **Think first.** Say that a way is right in fewer than half of the tasks. Eight completions of each task are drawn at
# temperature 0.7. When will the answer that most of them give be better than one of them? And when will it be worse?

# %% [markdown]
# ### What is in the samples
#
# The first question about several completions is whether a right one is among them at all: **pass@k**, the probability
# that at least one of k is right. From n completions of a task with c right ones it is estimated by counting, for all
# ways to choose k of the n, how many contain a right one (arXiv:2107.03374, equation 1):
#
# $$\text{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}$$

# %% [markdown]
# <!-- card 8.12 -->
# Write the estimator. The obvious $1 - (1 - c/n)^k$ is biased: it may draw the same completion twice.


# %% tags=["exercise:8.12"]
def pass_at_k(num, num_right, k):
    """The probability, in [0, 1], that k of these `num` completions, drawn without putting back, have a right one.

    num_right of them are right. Thousands of completions are as good as eight: nothing may overflow.

    Raises:
        ValueError: k is below 1 or above num.

    >>> pass_at_k(4, 1, 2)
    0.5
    >>> pass_at_k(16, 3, 1), pass_at_k(16, 14, 3), pass_at_k(16, 0, 5)
    (0.1875, 1.0, 0.0)
    """
    # BEGIN SOLUTION: a product of k factors, and what it leaves
    if not 1 <= k <= num:
        raise ValueError(f"k must be in [1, {num}], got {k}")
    all_wrong = 1.0
    for i in range(k):
        all_wrong *= max(0, num - num_right - i) / (num - i)
    return 1 - all_wrong
    # END SOLUTION


# %%
check("8.12")

# %%
pass_at_k = use("8.12")
n = more_samples.NUM_COMPLETIONS
for way in more_samples.MAX_TOKENS:
    right = more_samples.num_right(way)
    shares = [sum(pass_at_k(n, c, k) for c in right) / len(right) for k in (1, 2, 4, n)]
    print(f"{way}: pass@1, 2, 4, {n}:", ", ".join(f"{share:.0%}" for share in shares))
    first, later = more_samples.plurality_is_right(way)
    print(f"   a right answer is drawn for {later} of {len(right)} tasks, and is the most frequent one in {first}")

# %% [markdown]
# **Read the result.** The right answers are there: in both ways, many more tasks have one among eight completions than
# are answered rightly by one. What is left is to choose, and that is the hard half.
#
# ### Ways to choose
#
# - **Best of n by likelihood**: the completion with the highest mean log-probability. (By the *sum*, short ones win.)
# - **Self-consistency** (arXiv:2203.11171): read each completion's answer, and take the most frequent one. Where paths
#   to a wrong answer differ and those to the right one meet, votes find it.
# - **Beam search**: no samples, but a search for the likeliest text; the engine's beams share blocks (lab 3).
# - **A verifier**: something that tells a right answer from a wrong one, and is cheaper than producing one: tests for
#   code, a schema, a query that runs, a proof checker, a trained model. Here: are all equations in it right
#   (`adds_up`)? A second one also asks whether they are the task's (`is_derived`).

# %%
from collections import Counter


def most_frequent(task, samples):
    counts = Counter(s.value for s in samples if s.value is not None)
    return counts.most_common(1)[0][0] if counts else None


def likeliest(task, samples):
    return max(samples, key=lambda s: s.score).value


adds_up = more_samples.first_accepted(lambda task, text: more_samples.adds_up(text))
is_derived = more_samples.first_accepted(more_samples.is_derived)

# %%
ways = {
    "at once: most frequent": (most_frequent, "at once"),
    "in steps: most frequent": (most_frequent, "in steps"),
    "in steps: likeliest": (likeliest, "in steps"),
    "in steps: first that adds up": (adds_up, "in steps"),
    "in steps: first that is derived": (is_derived, "in steps"),
}
curves = {
    name: [more_samples.accuracy(name, choose, way, k) for k in (1, 2, 4, n)] for name, (choose, way) in ways.items()
}
points = [more_samples.of_one(f"greedy, {way}", more_samples.greedy(way)) for way in more_samples.MAX_TOKENS]
points += [more_samples.of_one(f"4 beams, {way}", more_samples.beams(way), 4) for way in more_samples.MAX_TOKENS]
for line in [*points, *(found[-1] for found in curves.values())]:
    print(line.line)

# %%
choice_pictures.draw_accuracy(curves, points)

# %% [markdown]
# **Read the result.** Only twenty-four tasks: look at the intervals before you believe a difference.
#
# - **At once, votes hardly help.** A task's answers come from one distribution, and the most frequent one is wrong for
#   more than half of the tasks, as counted above; more samples only make it surer. Votes lift the tasks in which the
#   model is right *more often than it makes any one mistake*, and fix the mistake in the others.
# - **Depth against breadth.** One answer in steps takes as many tokens as five or six at once, and is right far more
#   often. Here tokens are better spent in a row than side by side. The price is time: a row of tokens takes as many
#   decode steps, tokens side by side take one together.
# - **The likeliest is not the rightest.** Likelihood and beams end far below what pass@8 says is there: they look for
#   what the model finds probable, and its mistakes are probable to it. (In open-ended texts the likeliest is worse:
#   flat and repetitive. Beams serve translation or transcription, where the one right text is nearly the likeliest.)
# - **A verifier turns samples into accuracy**, as far as right ones are drawn. It may refuse all of them, and then
#   there is no answer: with one completion the verifiers' curves begin below the others. How good are the two?

# %%
for name, accepts in {
    "adds up": lambda task, text: more_samples.adds_up(text),
    "is derived": more_samples.is_derived,
}.items():
    accepted = [
        s.value == task.result
        for task, samples in zip(more_samples.sums(), more_samples.completions("in steps"), strict=True)
        for s in samples
        if accepts(task, s.text)
    ]
    print(f"{name}: accepts {len(accepted)} completions, {sum(accepted)} of them right")

# %% [markdown]
# Equations that hold may be others than the task's. Every further sample is also a search for a verifier's mistakes:
# what it accepts wrongly bounds what sampling can reach. The second verifier accepts fewer, and no wrong one.

# %% [markdown]
# ### What it costs
#
# Several completions of a prompt are one request: the prompt is computed once, its blocks are shared, and in a decode
# step all rows use the same read of the weights. Time per step with so many completions, on this machine, one thread:

# %%
for num, ms in more_samples.step_times().items():
    print(f"{num:2} completions: {ms:6.1f} ms a step, {ms / num:6.1f} ms for each token")

# %% [markdown]
# **In tokens, eight cost eight times as much; in time, at low load, much less**: by roofline, a GPU's step of one
# sequence reads the weights just as a step of eight does. At full load there is no idle arithmetic, and every row takes
# the place of another request's. Then the tokens are the price, and the question is: eight completions, or a model of
# eight times the size? That needs the larger model's accuracy on your task; measure both, at equal cost.
#
# ### Stop when it is good enough
#
# Most requests are easy. With a verifier one need not draw eight for all of them: try the cheap way, check, and spend
# more only where it failed. The same loop is a **tiered path** of models: small, large, person.

# %% [markdown]
# <!-- card 8.13 -->
# Write the loop. It has a budget, and never gives out what the verifier rejected.


# %% tags=["exercise:8.13"]
def answer_within(tiers, accepts, budget):
    """The first answer that the verifier accepts, and the tokens spent on all tries: (answer, tokens).

    tiers: a list of (ask, num_tries, max_tokens), cheap ones first. `ask()` returns (answer, tokens used), at most
    max_tokens. A tier is asked up to num_tries times, then the next. accepts(answer) is the verifier: True or False.
    budget: tokens to spend in all; a try begins only if its max_tokens fit into what is left, and a tier that does not
    fit is passed over for the next. Where nothing is accepted the answer is None.

    >>> short, long = (lambda: ("5", 3)), (lambda: ("2 + 2 = 4", 9))
    >>> answer_within([(short, 2, 4), (long, 1, 20)], lambda text: text.endswith("4"), budget=100)
    ('2 + 2 = 4', 15)
    >>> answer_within([(short, 2, 4), (long, 1, 20)], lambda text: text.endswith("4"), budget=25)
    (None, 6)
    """
    # BEGIN SOLUTION: two loops, and where nothing was accepted (None, tokens)
    spent = 0
    for ask, num_tries, max_tokens in tiers:
        for _ in range(num_tries):
            if spent + max_tokens > budget:
                break
            answer, num_tokens = ask()
            spent += num_tokens
            if accepts(answer):
                return answer, spent
    return None, spent
    # END SOLUTION


# %%
check("8.13")

# %% [markdown]
# **With the completions from above.** First one greedy answer in steps, then up to eight drawn ones, verified by
# `is_derived`; against drawing eight for every task.

# %%
answer_within = use("8.13")
for budget in (30, 60, 120, 240):
    num_right = spent = 0
    for number, task in enumerate(more_samples.sums()):
        tiers = more_samples.tiers_of(number)
        answer, tokens = answer_within(tiers, lambda s, task=task: more_samples.is_derived(task, s.text), budget)
        num_right += answer is not None and answer.value == task.result
        spent += tokens
    num = len(more_samples.sums())
    print(
        f"at most {budget:3} tokens: {num_right} of {num} answered, all verified, {spent / num:5.1f} tokens on average"
    )
print(f"eight for each: {curves['in steps: first that is derived'][-1].tokens:5.1f} tokens")

# %% [markdown]
# **Read the result.** The mean is far below the budget, since only hard tasks use it up. The tries of a tier come one
# after the other, which costs time; asking for two or four at once in each tier buys it back with tokens.

# %%
from twophase import selection
from twophase_labs.kit.open_engine import show_source

show_source(selection.first_accepted, first="params, budget =")

# %% [markdown]
# **In the engine** the loop is `first_accepted`, beside `best_of` and `vote` (`twophase generate --best-of 8` chooses
# by likelihood). It asks for `round_size` completions at a time. What do rounds cost, compared with your loop, and what
# do they save? (They may draw some completions behind the accepted one; but the steps of a round are taken together.)

# %% [markdown]
# ### Other ways, in short
#
# - **Critique and revise**: the model reads its answer and writes it anew. It helps where finding a mistake is easier
#   than avoiding it, and a model of this size does not find its own. Without outside evidence (a test, a tool) larger
#   ones often change right answers into wrong ones, too (arXiv:2310.01798).
# - **Process rewards and tree search**: a verifier that scores *steps* can stop a path at its first wrong equation, and
#   spend the tokens on others (arXiv:2305.20050). `adds_up` on a half-finished text would be one. Trees share prefixes,
#   which is what forks and the prefix cache are for.
# - **Why not always?** What is feared decides. If being *wrong* is the fear (a sum, a query, code), verify, and refuse.
#   If being *flat* is (a story, a slogan), sample warmer and let a person choose; no vote, no likeliest text.

# %% [markdown]
# > **In production, 2026.** vLLM has `n` in
# > [`SamplingParams`](https://docs.vllm.ai/en/v0.15.0/api/vllm/sampling_params/), and beam search as a method of its
# > own with `BeamSearchParams(beam_width, max_tokens, length_penalty)`; `best_of` went with its [first
# > engine](https://docs.vllm.ai/en/stable/usage/v1_guide/), so choosing is the client's business: ask for `logprobs`
# > and `n`. Reasoning models move depth into the model: their long thoughts are decode, and a budget on tokens
# > (`max_tokens`) is the first thing to set. By roofline, a step of Llama-3-8B on an otherwise idle H100 takes 6 ms for
# > eight completions as for one; among 256 sequences, they take eight places.
#
# **Takeaway.** One answer in steps, of some 22 tokens, was right more often than the vote of eight at once, of some 4
# each; and of the ways to choose among eight, a verifier came nearest to the pass@8 that none can exceed.

# %% [markdown]
# ### Going further: a vote with ties
#
# `most_frequent` above decides ties by luck. A better vote uses what else is known of the completions.

# %% [markdown]
# <!-- card 8.61 -->
# Write the vote.


# %% tags=["exercise:8.61"]
def vote(answers, scores):
    """The most frequent answer; among equals, the one whose best completion has the highest score.

    answers: one for each completion, read from its tokens; None where none was found, and these do not vote. scores:
    its mean log-probability, in nats. None if nothing was read.

    >>> vote([12, 15, 12, None], [-1.0, -0.2, -0.9, -0.1])
    12
    >>> vote([12, 15], [-1.0, -0.2]), vote([None], [-1.0])
    (15, None)
    """
    # BEGIN SOLUTION: the largest by votes, then by best score
    best = {}
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            votes, top = best.get(answer, (0, -float("inf")))
            best[answer] = (votes + 1, max(top, score))
    return max(best, key=best.get, default=None)
    # END SOLUTION


# %%
check("8.61")

# %%
vote = use("8.61")
for way in more_samples.MAX_TOKENS:
    for k in (2, n):
        chosen = {
            "by luck": most_frequent,
            "by score": lambda task, s: vote([x.value for x in s], [x.score for x in s]),
        }
        rates = {name: more_samples.accuracy(name, choose, way, k).rate for name, choose in chosen.items()}
        print(f"{way}, {k} completions:", ", ".join(f"ties {name} {rate:.0%}" for name, rate in rates.items()))

# %% [markdown]
# ## 10. Choosing by the bottleneck
# <!-- minutes: 9 -->
#
# "Which engine is the fastest?" has no answer; "what do my requests wait for?" has one. Below are five services on one
# H100 (by roofline, not run here; `host` is an assumption of 1.5 ms a step that nothing hides). A request's prompt has
# tokens that were seen before and new ones; the weights and the host's work of a step are shared by its batch.

# %%
# NBVAL_CHECK_OUTPUT
from twophase_labs.operations import bottlenecks

for service in bottlenecks.SERVICES:
    print(f"{service.name:<11} prompt {service.seen:5,} + {service.new:6,}, completion {service.out:5,}", end="")
    print(f" tokens, {service.batch} at a time, {service.num_weights / 1e9:.2f} billion weights")
print()
print(bottlenecks.table())

# %%
choice_pictures.draw_parts(bottlenecks.SERVICES)

# %% [markdown]
# <!-- card 8.14 -->
# Which improvement lets one GPU serve most requests more? **a** a prefix cache: of tokens seen before, a tenth is still
# computed · **b** weights in 4 bits: their bytes fall to 0.28 · **c** steps planned ahead, graphs: a tenth of `host` is
# left · **d** K/V in 8 bits: half of `K/V` · **e** weights and activations in fp8: half of `weights`, and prompts in
# 0.55 of their time


# %% tags=["exercise:8.14"]
answer_8_14 = {
    "agents": "a",  # SOLUTION: a letter
    "chat": "b",  # SOLUTION: a letter
    "completion": "c",  # SOLUTION: a letter
    "documents": "d",  # SOLUTION: a letter
    "labels": "e",  # SOLUTION: a letter
}

# %%
check("8.14")

# %%
# NBVAL_CHECK_OUTPUT
print(bottlenecks.gains())

# %% [markdown]
# **Read the result.** Each improvement is the best one somewhere, and worth next to nothing elsewhere. An improvement
# can win no more than the part it touches (Amdahl): so the profile comes first, the framework second.
#
# **Four questions**, in this order. *What do my requests wait for?* Measure: TTFT in its terms, hit rate, batch, step
# time against its roof. *Which hardware, and may it change?* *What has the model that is unusual* (experts, windows,
# adapters, guided output), and is it supported today? *Who will run it*, and which metrics do they need?
#
# | | made for | look here first when |
# |---|---|---|
# | **vLLM** | many models on many kinds of hardware | one engine should serve all of it |
# | **SGLang** | prompts that share prefixes, structured output | agents, long common prefixes |
# | **TensorRT-LLM** | NVIDIA's GPUs, their newest number formats | the hardware is fixed, and steps count most |
# | **llama.cpp** | any one machine: CPUs, laptops, GGUF files | few requests at a time, little memory |
# | **TGI** | in maintenance mode | you run it already: plan to move |
#
# **The cheapest thing to try, by setting.** Prompts with common beginnings: order them so that the common part comes
# first. A late first token: a chunk size that fits (lab 4). Little memory: K/V in 8 bits behind the gate. One sequence
# at a time: weights in 4 bits, then a draft (lab 5). Mostly prompts: fp8 arithmetic. Output that code reads: a grammar
# in place of retries. Compress, or take a smaller model? Lab 6 answers by bits and by what the gate says.

# %% [markdown]
# > **In production, 2026.** Much of the difference is a default. Prefix caching is on in all three: vLLM (off with
# > `--no-enable-prefix-caching`), [SGLang](https://docs.sglang.io/advanced_features/server_arguments.html)
# > (`--disable-radix-cache`),
# > [TensorRT-LLM](https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html) (`enable_block_reuse`).
# > vLLM hides the host's work by [async scheduling](https://github.com/OpenBMB/UltraRAG/pull/259) since 0.14 (off with
# > `--no-async-scheduling`), SGLang by its overlap scheduler (`--disable-overlap-schedule`). K/V in 8 bits is
# > `--kv-cache-dtype fp8` or `fp8_e4m3`. TensorRT-LLM's default backend is
# > [PyTorch](https://www.mintlify.com/NVIDIA/TensorRT-LLM/concepts/backends) now; its compiled engines are legacy.
# > TGI's own [documentation](https://huggingface.co/docs/text-generation-inference/en/index.md) recommends vLLM and
# > SGLang, and llama.cpp locally, whose [aim](https://build.opensuse.org/package/show/science:machinelearning/llamacpp)
# > is minimal setup on a wide variety of hardware.
#
# **Takeaway.** The same prefix cache lets one GPU serve 2.41 times as many agents' requests and no more chats; weights
# in 4 bits 2.27 times as many chats, and 1.09 times as many agents' requests.
