"""The forms of kernels' tensors: shapes, strides, dtypes, devices."""

import pytest
import torch

from twophase_kernels.arguments import FLOATS, check_arguments, check_forms

HERE = "cuda" if torch.cuda.is_available() else "cpu"


def test_sizes():
    x = torch.zeros(4, 3, 16)
    assert check_forms({"S": 5}, x=(x, "T H D", FLOATS), y=(x[..., :8], "T H | 8", torch.float32), z=(None, "Q", ())) == {
        "S": 5, "T": 4, "H": 3, "D": 16
    }  # fmt: skip
    check_forms(x=(x[:, :1], "T | 1 D", FLOATS), y=(x[:0, :, :8], "0 H K", FLOATS))


@pytest.mark.parametrize(
    ("tensor", "form", "message"),
    [
        (
            torch.zeros(4, 2),
            "T",
            r"x must be contiguous float32 \[T=4\], got torch.float32 \[4, 2\] with strides \(2, 1\)",
        ),
        (torch.zeros(4).half(), "T", r"contiguous float32 \[T=4\], got torch.float16"),
        (torch.zeros(4, 3), "T 2", r"\[T=4, 2\], got torch.float32 \[4, 3\]"),
        (torch.zeros(2, 3), "N N", r"\[N, N\]"),
        (torch.zeros(8)[::2], "T", "contiguous float32"),
        (torch.zeros(2, 4).T, "T | N", r"x must be float32 \[T=4, N\], contiguous from N on, got .*strides \(1, 4\)"),
    ],
)
def test_refuses(tensor, form, message):
    with pytest.raises(ValueError, match=message):
        check_forms({"T": 4}, x=(tensor, form, torch.float32))


def test_devices():
    pytest.importorskip("triton", reason="not run here: no triton")
    x = torch.zeros(1, device=HERE)
    check_arguments(x=(x, "T", FLOATS), nothing=(None, "T", FLOATS), y=(x, "T", FLOATS))
    with pytest.raises(ValueError, match=f"y must be where x is \\({HERE}"):
        check_arguments(x=(x, "T", FLOATS), y=(torch.zeros(1, device="meta"), "T", FLOATS))
    with pytest.raises(ValueError, match="put every tensor on the"):
        check_arguments(x=(torch.zeros(1, device="cpu" if HERE == "cuda" else "meta"), "T", FLOATS))
