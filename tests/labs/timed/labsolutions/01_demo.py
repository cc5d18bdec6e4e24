# %% [markdown]
# # A demonstration lab with minutes
#
# <!-- map -->

# %% tags=["setup"]
import torch

from twophase_labs import ____, check, measured, use

SCALE = 2.0

# %% [markdown]
# ## 1. Means
# <!-- minutes: 12 -->
#
# <!-- card 1.1 -->
# How many additions do 100 means cost when each starts afresh?

# %% tags=["exercise:1.1"]
guess_1_1 = 5000  # SOLUTION: your guess

# %%
check("1.1")

# %% [markdown]
# <!-- card 1.2 -->
# The mean of all values up to and including each position, along the last axis.


# %% tags=["exercise:1.2"]
def running_mean(x):
    """The mean up to each position, for x of shape [T].

    >>> running_mean(torch.tensor([2.0, 4.0])).tolist()
    [2.0, 3.0]
    >>> running_mean(torch.ones(1)).tolist()
    [1.0]
    """
    # BEGIN SOLUTION: the means
    # a remark
    totals = x.cumsum(-1)
    return totals / torch.arange(1, x.shape[-1] + 1)
    # END SOLUTION


# %%
running_mean = use("1.2")
measured("1.1", sum(range(1, 101)))

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
    return SCALE * (x - running_mean(x))
    # END SOLUTION


# %% [markdown]
# **Takeaway.** One pass of 100 additions.
#
# > **In production, 2026.** A box of words
# > with a [source](https://a.b/c).
#
# ## 2. State
# <!-- minutes: 5 -->
#
# <!-- card 1.4 -->
#
# **Takeaway.** Two steps.


# %% tags=["exercise:1.4"]
class Counter:
    def __init__(self, start):
        self.value = start  # SOLUTION: where to begin

    def step(self):
        self.value += 1  # SOLUTION: by how much
        return self.value


# %% tags=["exercise:1.5"]
answer_1_5 = "b"  # SOLUTION: one letter

# %% tags=["exercise:1.6"]
answer_1_6 = 128  # SOLUTION: a number
