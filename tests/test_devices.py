"""The same network on every device: in float32, with whatever kernels the device has, against float64 on the CPU."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.data import augment, to_input

TERNARY = (-1.0, 0.0, 1.0)
IMAGE = (2, 8, 8)
NETWORKS: dict[str, Callable[[], bqn.Network]] = {
    "mlp": lambda: bqn.models.mlp(math.prod(IMAGE), 3, (20, 10)),
    "mlp, ternary weights": lambda: bqn.models.mlp(math.prod(IMAGE), 3, (20,), levels=TERNARY),
    "mlp, ternary activations": lambda: bqn.models.mlp(math.prod(IMAGE), 3, (20, 20), activations=TERNARY),
    "cnn": lambda: bqn.models.cnn(IMAGE, 3, (8, 8), 16),
    "cnn, pooled last": lambda: bqn.models.cnn(IMAGE, 3, (8, 8), 16, pool_first=False),
    "vgg": lambda: bqn.models.vgg(IMAGE, 3, (8, 8), 16),
    "resnet": lambda: bqn.models.resnet(IMAGE, 3, (8, 8), 1),
}


def examples(count: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, *IMAGE), generator=generator, dtype=torch.uint8)
    return to_input(x), torch.randint(3, (count,), generator=generator)


def gradients(net: bqn.Network, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    value = net.elbo(x, y, 1000, 1e-2)
    return value.detach(), list(torch.autograd.grad(value, list(net.parameters())))


@pytest.fixture(params=NETWORKS)
def net(request: pytest.FixtureRequest) -> bqn.Network:
    return NETWORKS[request.param]()


@pytest.fixture(autouse=True)
def _full_products():
    """TF32 off: it is what a run switches on, and not what is asked here."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def test_objective_and_gradients(net: bqn.Network, device: str) -> None:
    """Two steps of statistics, so that what batch norm remembers is compared too."""
    x, y = examples()
    wide, here = copy.deepcopy(net).double(), net.to(device)
    for _ in range(2):
        truth, wanted = gradients(wide, x.double(), y)
        value, got = gradients(here, x.to(device), y.to(device))
    assert_close(value.cpu().double(), truth, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(got, wanted, strict=True):
        gap = (ours.cpu().double() - theirs).norm() / theirs.norm().clamp_min(1e-3)
        assert float(gap) < 1e-3
    for (name, ours), theirs in zip(here.named_buffers(), wide.buffers(), strict=True):
        assert_close(ours.cpu(), theirs.to(ours.dtype), rtol=1e-4, atol=1e-4, msg=name)


def test_predictions(net: bqn.Network, device: str) -> None:
    """All three modes; a draw is made on the CPU, where both sides can make it."""
    x, y = examples()
    with torch.no_grad():
        net.elbo(x, y, 1000, 1e-2)
    net.eval()
    wide, here = copy.deepcopy(net).double(), copy.deepcopy(net).to(device)
    assert_close(here.predict(x.to(device)).cpu().double(), wide.predict(x.double()), rtol=1e-3, atol=1e-4)
    for drawn in (net.mode(), net.sample(torch.Generator().manual_seed(1))):
        moved = copy.deepcopy(drawn).to(device)
        assert torch.equal(moved(x.to(device)).cpu().argmax(-1), drawn(x).argmax(-1))


def test_draws_with_a_generator_of_the_device(net: bqn.Network, device: str) -> None:
    x, _ = examples()
    here = net.to(device).eval()
    first, again, other = (
        here.predict(x.to(device), "mc", 3, torch.Generator(device).manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert_close(first, again)
    assert not torch.equal(first, other)
    assert_close(first.sum(-1).cpu(), torch.ones(len(x)))


def test_regression(device: str) -> None:
    net = bqn.models.regressor(4, (30,))
    x, y = torch.randn(20, 4), torch.randn(20, 1)
    wide, here = copy.deepcopy(net).double(), net.to(device)
    truth, wanted = gradients(wide, x.double(), y.double())
    value, got = gradients(here, x.to(device), y.to(device))
    assert_close(value.cpu().double(), truth, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(got, wanted, strict=True):
        assert_close(ours.cpu().double(), theirs, rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(here.predict(x.to(device)), wide.predict(x.double()), strict=True):
        assert_close(ours.cpu().double(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["contract", "fft", "clt"])
def test_sums(method: str, device: str) -> None:
    layer = bqn.nn.Linear(6, 4, method=method).double()
    x = bqn.Categorical(torch.softmax(torch.randn(5, 6, 2, dtype=torch.float64), -1), bqn.BINARY)
    moved = bqn.Categorical(x.probs.to(device), bqn.BINARY)
    ours, theirs = copy.deepcopy(layer).to(device)(moved), layer(x)
    assert_close(ours.mean.cpu(), theirs.mean)
    assert_close(ours.var.cpu(), theirs.var)


def test_augmentation_stays_on_the_device(device: str) -> None:
    images = torch.randint(256, (6, 1, 5, 5), dtype=torch.uint8, device=device)
    moved = augment(images, 1, True, torch.Generator(device).manual_seed(0), turn=10, zoom=0.1, cutout=2)
    assert moved.device.type == device
    assert moved.shape == images.shape
    assert torch.equal(augment(images, 0, False, torch.Generator(device)), images)
