# %% [markdown]
# # A demonstration lab
#
# <!-- map -->
# <!-- opening minutes: 5 -->

# %% tags=["setup"]
import torch

from twophase_labs import ____, check, measured, use

SCALE = 2.0

# %% [markdown]
# ## 1. Means of `x` (running)
# <!-- minutes: 14 -->
#
# <!-- card 1.1 -->
# The mean of all values up to and including each position, along the last axis.


# %% tags=["exercise:1.1"]
def running_mean(x):
    totals = x.cumsum(-1)  # SOLUTION: the sum up to each position
    counts = torch.arange(1, x.shape[-1] + 1)  # SOLUTION `1, x.shape[-1] + 1`: from, to
    return totals / counts


# %%
check("1.1")

# %% [markdown]
# <!-- card 1.2 -->
# What does a running mean cost per new value, if the last total is kept? (a) T (b) 1 (c) T squared

# %% tags=["exercise:1.2"]
answer_1_2 = "b"  # SOLUTION: one letter

# %%
check("1.2")

# %% [markdown]
# <!-- card 1.3 -->
# Each value without the running mean, times `SCALE`.


# %% tags=["exercise:1.3"]
def centred(x):
    """The difference at each of T positions.

    >>> centred(torch.tensor([2.0, 4.0])).tolist()
    [0.0, 2.0]
    >>> centred(torch.ones(1)).tolist()
    [0.0]
    """
    # BEGIN SOLUTION: subtract the running mean and scale
    # a remark
    mean = running_mean(x)
    return SCALE * (x - mean)
    # END SOLUTION


# %%
check("1.3")

# %% [markdown]
# **Takeaway.** One pass of 100 additions.
#
# > **In production, 2026.** A box of words
# > with a [source](https://a.b/c).
#
# ## 2. Cost
# <!-- minutes: 6 + 9 -->
#
# <!-- card 1.4 -->
# How many additions do 100 means cost when each starts afresh? Guess before you run the cell below.
#
# **Takeaway.** Two steps.

# %% tags=["exercise:1.4"]
guess_1_4 = 5000  # SOLUTION: your guess

# %%
check("1.4")

# %%
additions = sum(range(1, 101))
use("1.1")(torch.ones(3))
measured("1.4", additions)

# %% [markdown]
# <!-- card 1.5 -->
# Match each line to what it does: (a) adds up, (b) divides, (c) nothing.

# %% tags=["exercise:1.5"]
answer_1_5 = {
    "cumsum": "a",  # SOLUTION: a letter
    "div": "b",  # SOLUTION: a letter
}

# %% tags=["exercise:1.6"]
answer_1_6 = 128  # SOLUTION: bytes


# %% tags=["exercise:1.7"]
def on_device(x):
    return x.cuda()  # SOLUTION: x on the GPU


# %% tags=["exercise:1.8"]
class Counter:
    def __init__(self, start):
        self.value = start  # SOLUTION: where to begin

    def step(self):
        self.value += 1  # SOLUTION: by how much
        return self.value


# %% [markdown] tags=["solution"]
# Only those who open `labsolutions` read this.
