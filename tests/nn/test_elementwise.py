import torch
from torch.testing import assert_close

import bqn
from tests.nn.contract import LayerContract, assert_named_error, random_categorical


class TestAdd(LayerContract):
    input_shape = (1, 3)
    input_levels = bqn.TERNARY
    inputs = 2

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Add()


class TestProduct(LayerContract):
    input_shape = (1, 2, 2)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Product(2, levels=(-2.0, 0.5, 1.0))


class TestDropout(LayerContract):
    input_shape = (1, 4)

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Dropout(0.3)


class TestDropoutWithAZeroLevel(LayerContract):
    input_shape = (1, 3)
    input_levels = bqn.TERNARY

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Dropout(0.6)


def test_add_keeps_the_whole_support_and_can_be_quantized_again() -> None:
    a, b = random_categorical((2, 3), bqn.BINARY), random_categorical((2, 3), bqn.BINARY)
    total = bqn.nn.Add()(a, b)
    assert total.level_values == (-2.0, 0.0, 2.0)
    assert_close(total.probs[..., 1], a.probs[..., 0] * b.probs[..., 1] + a.probs[..., 1] * b.probs[..., 0])
    again = bqn.nn.Sign()(total)
    assert_close(again.probs[..., 1], total.probs[..., 1] + total.probs[..., 2])


class TestShortcut(LayerContract):
    """Around a layer with a constant result, where both branches are independent and the sum is exact."""

    input_shape = (1, 2)
    inputs = 1

    def create_layer(self) -> bqn.nn.Layer:
        return bqn.nn.Shortcut(bqn.nn.Quantize((1.0, 2.0), thresholds=(-9.0,)))  # type: ignore[return-value]


def test_shortcut_is_the_sum_of_its_input_and_its_layers() -> None:
    linear = bqn.nn.Linear(3, 3).double()
    block = bqn.nn.Shortcut(linear, bqn.nn.Sign())
    x = random_categorical((2, 3), bqn.BINARY)
    expected = bqn.nn.Add()(x, bqn.nn.Sign()(linear(x)))
    assert_close(block(x).probs, expected.probs)
    plain = bqn.nn.fix(block, lambda p: p.mode())
    value = x.mode()
    assert_close(plain(value), value + bqn.nn.Sign()(plain[0](value)))


def test_add_of_different_kinds() -> None:
    add = bqn.nn.Add()
    c = random_categorical((2, 3), bqn.BINARY)
    g = bqn.Gaussian(torch.randn(2, 3).double(), torch.rand(2, 3).double())
    t = torch.randn(2, 3).double()
    for a, b in ((c, g), (g, c)):
        total = add(a, b)
        assert_close(total.mean, c.mean + g.mean)
        assert_close(total.var, c.var + g.var)
    for belief in (c, g):
        for a, b in ((belief, t), (t, belief)):
            assert_close(add(a, b).mean, belief.mean + t)
            assert_close(add(a, b).var, belief.var)
    assert_close(add(t, t), 2 * t)


def test_product_and_dropout_on_real_values_have_the_right_moments() -> None:
    product = bqn.nn.Product(3).double()
    g = bqn.Gaussian(torch.randn(2, 3).double(), torch.rand(2, 3).double())
    w = product.weight.belief()
    second = (g.mean.square() + g.var) * (w.mean.square() + w.var)
    assert_close(product(g).mean, g.mean * w.mean)
    assert_close(product(g).var, second - (g.mean * w.mean).square())
    dropped = bqn.nn.Dropout(0.25)(g)
    assert_close(dropped.mean, 0.75 * g.mean)
    assert_close(dropped.var, 0.75 * (g.mean.square() + g.var) - (0.75 * g.mean).square())
    assert_close(bqn.nn.Dropout(0.25)(g.mean).var, 0.75 * 0.25 * g.mean.square())


def test_dropout_masks_are_drawn_at_every_forward() -> None:
    layer = bqn.nn.fix(bqn.nn.Dropout(0.5), lambda p: p.mode())
    layer.generator = torch.Generator().manual_seed(0)
    x = torch.ones(1, 1000)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert abs(first.mean().item() - 0.5) < 0.08
    layer.generator = torch.Generator().manual_seed(0)
    assert torch.equal(layer(x), first)


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: bqn.nn.Dropout(1.5), "p must lie")
    assert_named_error(lambda: bqn.nn.Add()(torch.zeros(2, 3), torch.zeros(2, 4)), "b must have the shape", "(2, 4)")
    assert_named_error(lambda: bqn.nn.Product(3)(torch.zeros(2, 4)), "x", "3 features")
