# %% [markdown]
# # Lab 6: compression

# %% tags=["setup"]
import torch
import torch.nn.functional as F

from twophase_labs import ____, check, hint, measured, reference, reveal, use

torch.set_num_threads(1)

# %% [markdown]
# ## 2. Round to nearest
# <!-- minutes: 22 -->


# %% tags=["setup"]
def dequantize(codes, scales, minima):
    """float32 [O, I]: what codes [O, I], with a scale and a minimum for each group [O, G], stand for."""
    groups = codes.float().unflatten(1, (scales.shape[1], -1))
    return (groups * scales[..., None] + minima[..., None]).flatten(1)


# %% [markdown]
# <!-- card 6.2 -->
# Write the other direction.


# %% tags=["exercise:6.2"]
def quantize(weight, bits, group_size):
    """Round a weight [O, I] to `bits` bits (8 at most), in groups of `group_size` neighbouring inputs of a row.

    Returns codes, uint8 [O, I], 0 to 2 ** bits - 1; scales and minima, float32 [O, G], G = I / group_size. The values
    that codes stand for are spaced evenly from the group's smallest weight (code 0) to its largest (the last code), and
    each weight gets the nearest. A group of equal weights comes back as it is. group_size divides I.

    >>> quantize(torch.tensor([[-1.0, 0.1, 2.0, 0.9]]), bits=2, group_size=4)
    (tensor([[0, 1, 3, 2]], dtype=torch.uint8), tensor([[1.]]), tensor([[-1.]]))
    >>> dequantize(*quantize(torch.tensor([[0.0, 3.0, 5.0, 5.0]]), bits=1, group_size=2))
    tensor([[0., 3., 5., 5.]])
    """
    # BEGIN SOLUTION: codes, scales, minima
    groups = weight.float().unflatten(1, (-1, group_size))
    minima, maxima = groups.amin(-1), groups.amax(-1)
    scales = (maxima - minima) / (2**bits - 1)
    steps = torch.where(scales > 0, scales, 1)  # of a constant group all codes are 0, whatever divides them
    codes = ((groups - minima[..., None]) / steps[..., None]).round()
    return codes.flatten(1).to(torch.uint8), scales, minima
    # END SOLUTION


# %%
check("6.2")
