"""The compiled passes on a CPU against float64 and against plain torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.log_sum_exp import _best_tilt, _tilted, tilted_log_sum_exp
from bqn.nn import Posterior
from bqn.propagate import cpu


def test_they_were_built() -> None:
    """A C compiler is part of the setting of the tests; without one everything works, but slower."""
    assert cpu.usable(torch.zeros(3))


def test_what_they_do_not_take() -> None:
    assert not cpu.usable(torch.zeros(3, dtype=torch.float64))
    assert not cpu.usable(torch.zeros(3, 2).mT)
    assert not cpu.usable(torch.zeros(3), torch.zeros(3, dtype=torch.float16))


def test_a_library_of_other_sources_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu._load() is not None
    monkeypatch.setattr(cpu, "_VERSION", 10**6)
    with pytest.warns(UserWarning, match=r"has version \d+, expected 1000000; build them again with python setup.py"):
        assert cpu._load() is None
    monkeypatch.setattr(cpu, "_ARGUMENTS", {**cpu._ARGUMENTS, "bqn_newer": []})
    with pytest.warns(UserWarning, match="undefined symbol: bqn_newer"):
        assert cpu._load() is None


def test_passes_take_as_many_arguments_as_are_told() -> None:
    """A call with others would read what is not there."""
    folder = Path(cpu.__file__).parent
    text = "".join((folder / name).read_text() for name in ("cpu_kernels.c", "cpu_cnn.c"))
    found = re.findall(r"^EXPORT (?:CLONES )?\w+ (bqn_\w+)\(([^)]*)\)", text, re.MULTILINE)
    counts = {name: 0 if given.strip() == "void" else given.count(",") + 1 for name, given in found}
    assert counts == {name: len(arguments) for name, arguments in cpu._ARGUMENTS.items()}


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 10.0, 60.0])
@pytest.mark.parametrize("count", [1, 7, 5000])
def test_tilt_and_kl_against_float64(scale: float, count: int) -> None:
    logits = (scale * torch.randn(count, 2)).requires_grad_()
    posterior = Posterior((count,)).double()
    with torch.no_grad():
        posterior.logits.copy_(logits)
    tilt, noise, kl = cpu.tilt_and_kl(logits.detach())
    odds = posterior.logits[:, 1] - posterior.logits[:, 0]
    expected, doubt = torch.tanh(0.5 * odds), 4 * torch.sigmoid(odds) * torch.sigmoid(-odds)
    assert_close(tilt.double(), expected.detach(), rtol=3e-7, atol=0)
    assert_close(noise.double(), doubt.detach(), rtol=1e-5, atol=1e-37)
    assert_close(kl.double(), posterior.kl().detach(), rtol=1e-5, atol=3e-8 * count)
    by_tilt, by_noise = torch.randn(2, count).unbind()
    for given in ((by_tilt, by_noise), (by_tilt, None), (None, by_noise), (None, None)):
        value = 0.3 * posterior.kl()
        for weight, part in zip(given, (expected, doubt), strict=True):
            value = value + (0 if weight is None else (weight * part).sum())
        (wanted,) = torch.autograd.grad(value, posterior.logits, retain_graph=True)
        got = cpu.tilt_and_kl_backward(logits.detach(), tilt, *given, 0.3)
        assert_close(got.double(), wanted, rtol=1e-4, atol=1e-6)


def levels_and_prior(count: int) -> tuple[Tensor, Tensor]:
    levels = torch.linspace(-1.5, 2.0, count)
    return levels, torch.log_softmax(torch.linspace(0, 1, count), 0)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(("count", "depth"), [(1, 2), (7, 3), (256, 5), (5001, 3), (300, cpu.MOST_LEVELS)])
def test_moments_and_kl_against_float64(scale: float, count: int, depth: int) -> None:
    levels, log_prior = levels_and_prior(depth)
    logits = scale * torch.randn(count, depth) + 3
    wide = logits.double().requires_grad_()
    log_q = torch.log_softmax(wide, -1)
    probs = log_q.exp()
    mean = probs @ levels.double()
    var = (probs * (levels.double() - mean.unsqueeze(-1)).square()).sum(-1)
    kl = (probs * (log_q - log_prior.double())).sum()
    found = cpu.moments_and_kl(logits, levels, log_prior)
    assert_close(found[0].double(), mean.detach(), rtol=1e-5, atol=1e-6)
    assert_close(found[1].double(), var.detach(), rtol=1e-5, atol=1e-6)
    assert_close(found[2].double(), kl.detach(), rtol=1e-5, atol=1e-7 * count * max(1.0, scale))
    by_mean, by_var = torch.randn(count), torch.randn(count)
    for given in ((by_mean, by_var, 0.3), (by_mean, None, 0.0), (None, by_var, 0.0), (None, None, 0.3)):
        value = given[2] * kl
        for weight, moment in ((given[0], mean), (given[1], var)):
            value = value + (0 if weight is None else (weight * moment).sum())
        (wanted,) = torch.autograd.grad(value, wide, retain_graph=True)
        got = cpu.moments_and_kl_backward(logits, levels, log_prior, *given)
        assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5)


def scores(mean: Tensor, var: Tensor) -> Tensor:
    """The mean of the sign of variables `(N,)`, as one channel of a batch norm that changes nothing."""
    column = mean.unsqueeze(-1), var.unsqueeze(-1)
    return cpu.normalized_sign(*column, (torch.zeros(1), torch.ones(1), None, None), False)[0][:, 0]


def test_erf_over_its_range() -> None:
    score = torch.linspace(-12, 12, 200_001)
    got = scores(score, torch.ones_like(score))
    wanted = torch.erf(score.double() * 0.5**0.5)
    assert float((got.double() - wanted).abs().max()) < 4e-7
    near = score.abs() < 0.5
    assert_close(got[near].double(), wanted[near], rtol=2e-6, atol=1e-9)


def test_a_nan_stays_a_nan_and_certainty_is_certain() -> None:
    nan = float("nan")
    out = scores(torch.tensor([nan, 1.0, 0.0, -1.0]), torch.tensor([1.0, nan, 0.0, 0.0]))
    assert out[:2].isnan().all()
    assert out[2:].tolist() == [1.0, -1.0]
    mean, var, kl = cpu.moments_and_kl(torch.tensor([[0.0, nan, 1.0], [0.0, 1.0, 2.0]]), *levels_and_prior(3))
    assert torch.isnan(mean).tolist() == torch.isnan(var).tolist() == [True, False]
    assert torch.isnan(kl)
    tilt, noise, kl = cpu.tilt_and_kl(torch.tensor([[0.0, nan], [0.0, 1.0]]))
    assert tilt[0].isnan()
    assert noise[0].isnan()
    assert kl.isnan()


def test_training_without_them_ends_in_the_same_place(tmp_path: Path) -> None:
    """The same steps in a process that has them switched off."""
    code = (
        "import torch, bqn, sys; torch.set_num_threads(1); torch.manual_seed(0)\n"
        "net = bqn.models.mlp(12, 3, (16, 8)); x, y = torch.randn(40, 12), torch.randint(3, (40,))\n"
        "optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)\n"
        "for _ in range(5):\n"
        "    optimizer.zero_grad(); (-net.elbo(x, y, 40, 1e-2)).backward(); optimizer.step()\n"
        "print(float(net.elbo(x, y, 40, 1e-2)))\n"
    )
    results = []
    for kernels in ("torch", ""):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"BQN_CPU_KERNELS": kernels, "PYTHONPATH": str(Path(bqn.__file__).parent.parent)},
        )
        results.append(float(done.stdout))
    assert results[0] == pytest.approx(results[1], rel=1e-4)


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("var", [0.0, 0.5, 20.0, 2000.0])
@pytest.mark.parametrize("classes", [1, 2, 10, 37])
def test_best_tilt_against_float64(spread: float, var: float, classes: int) -> None:
    """It has the lowest bound, and there the derivative by the tilt vanishes: (a - p) v = 0."""
    means, variances = spread * torch.randn(50, classes), var * torch.rand(50, classes)
    tilt = cpu.best_tilt(means, variances).double()
    wide, doubt = means.double(), variances.double()
    found, known = (_tilted(wide, doubt, each) for each in (tilt, _best_tilt(wide, doubt)))
    assert bool((found <= known + 1e-8).all())
    slope = (tilt - torch.softmax(wide + (0.5 - tilt) * doubt, -1)) * doubt
    assert_close(slope, torch.zeros_like(slope), rtol=0, atol=2e-5 * (1 + var) ** 2)


def test_best_tilt_of_nothing_and_of_what_is_no_number() -> None:
    assert cpu.best_tilt(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)
    broken = torch.tensor([[0.0, float("nan")], [1.0, 2.0]])
    assert bool(torch.isfinite(cpu.best_tilt(broken, torch.ones(2, 2))[1]).all())  # the other row is as it would be


def test_the_bound_is_the_same_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    means, variances = 4 * torch.randn(20, 10), 30 * torch.rand(20, 10)
    fast = tilted_log_sum_exp(means, variances)
    monkeypatch.setattr(cpu, "_library", None)
    assert_close(fast, tilted_log_sum_exp(means, variances), rtol=1e-6, atol=1e-5)
