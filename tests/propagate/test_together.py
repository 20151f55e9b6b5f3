"""Common noise beside the variance of independent inputs."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from bqn.propagate import together


def test_common_noise_leaves_a_share_of_the_variance() -> None:
    var = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    noise = torch.tensor([0.5, -1.9, -9.0], requires_grad=True)
    total = together.with_common_noise(var, (None, noise))
    assert_close(total, torch.tensor([1.5, 0.2, 0.3]))
    total.backward(torch.tensor([1.0, 2.0, 3.0]))
    assert var.grad is not None
    assert noise.grad is not None
    assert_close(var.grad, torch.tensor([1.0, 0.2, 0.3]))
    assert_close(noise.grad, torch.tensor([1.0, 0.0, 0.0]))
    assert together.with_common_noise(var, (None,)) is var
