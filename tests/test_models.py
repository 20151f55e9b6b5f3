import pytest
import torch

import bqn


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY, bqn.QUATERNARY])
@pytest.mark.parametrize("activations", [bqn.BINARY, bqn.TERNARY])
def test_every_model_has_three_modes_and_finite_gradients(levels, activations) -> None:  # type: ignore[no-untyped-def]
    options = {"levels": levels, "activations": activations}
    image = torch.randn(2, 3, 16, 16)
    cases = [
        (bqn.models.mlp(12, 4, hidden=(9, 7), **options), torch.randn(2, 12)),
        (bqn.models.mlp(12, 4, hidden=(9,), batch_norm=False, init="xavier", **options), torch.randn(2, 12)),
        (bqn.models.cnn((3, 16, 16), 4, (4, 5), 8, **options), image),
        (bqn.models.cnn((3, 16, 16), 4, (4, 5), 8, pool_first=False, **options), image),
        (bqn.models.vgg((3, 16, 16), 4, (4, 5, 6), 8, **options), image),
        (bqn.models.resnet((3, 16, 16), 4, (4, 5), blocks=1, **options), image),
    ]
    for net, x in cases:
        for mode in ("analytic", "mc", "map"):
            assert net.predict(x, mode, samples=2).shape == (2, 4)
        net.elbo(x, torch.tensor([0, 3]), 2, 1.0).backward()
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in net.parameters())
    for more in ({"bias_levels": (-2.0, 0.0, 2.0)}, {"batch_norm": True}):
        regressor = bqn.models.regressor(5, hidden=(6, 4), **more, **options)
        for mode in ("analytic", "mc", "map"):
            assert regressor.predict(torch.randn(3, 5), mode).mean.shape == (3, 1)
        regressor.elbo(torch.randn(3, 5), torch.randn(3, 1), 3, 1.0).backward()
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in regressor.parameters())


def test_shapes_of_the_paper() -> None:
    count = {
        name: sum(p.shape.numel() for _, p in net.posteriors())
        for name, net in {
            "mlp": bqn.models.mlp(784, 10, batch_norm=False),
            "cnn": bqn.models.cnn((1, 28, 28), 10),
            "vgg": bqn.models.vgg((3, 32, 32), 10),
            "regressor": bqn.models.regressor(13),
        }.items()
    }
    assert count["mlp"] == 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10
    assert count["cnn"] == 25 * 64 + 25 * 64 * 64 + 49 * 64 * 1024 + 1024 * 10 + 10
    assert count["vgg"] == 9 * (3 * 128 + 128 * 128 + 128 * 256 + 256 * 256 + 256 * 512 + 512 * 512) + 16 * 512 * 1024 + 1024 * 10 + 10  # noqa: E501  # fmt: skip
    assert count["regressor"] == 13 * 50 + 50
