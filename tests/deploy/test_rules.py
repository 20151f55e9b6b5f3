"""Every layer of bqn.nn is carried, or refused with its name and the reason."""

import pytest
import torch

import bqn
from bqn import nn
from bqn.deploy import UnpackableError, pack, pack_in_memory
from bqn.deploy.lowering import is_known
from tests.deploy.networks import assert_exact, disturb, pixels, sampled

HEAD = bqn.SoftmaxHead(4)


def fixed(*layers, head=None):
    return bqn.Network(nn.Sequential(*layers), head or HEAD).eval().mode()


def test_every_layer_has_a_rule():
    containers = (nn.Layer, nn.HiddenVariableLayer, nn.Sequential, nn.Shortcut, nn.Posterior)
    kinds = [getattr(nn, name) for name in nn.__all__]
    layers = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
    missing = [
        kind.__name__
        for kind in layers
        if kind not in containers and issubclass(kind, nn.Layer) and not is_known(kind.__new__(kind))
    ]
    assert missing == []


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.ProbPool2d(2), nn.ProbPool1d(2)])
def test_layers_that_draw_at_every_forward(layer):
    name = type(layer).__name__
    with pytest.raises(UnpackableError, match=f"^2: {name} draws anew at every forward"):
        pack_in_memory(fixed(nn.Conv2d(1, 2, 3), nn.Sign(), layer))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((nn.Linear(6, 4), nn.BatchNorm1d(4)), "the head reads what a batch norm"),
        ((nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), "^2 reads what a batch norm"),
        ((nn.Linear(6, 5), nn.Sign(), nn.Product(5), nn.Linear(5, 4)), "^3 reads what a batch norm"),
        ((nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.AvgPool2d(2)), "^2: AvgPool reads what"),
        ((nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()), "^2: Flatten reads what"),
        ((nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.BatchNorm2d(2)), "^3 stands behind a MaxPool"),
        ((nn.Linear(6, 4), torch.nn.ReLU()), "^1: a ReLU cannot be packed; known are Add, AvgPool1d"),
        ((nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Sign()), "^2: the number of channels is unknown; say what input_shape"),
        ((nn.Linear(6, 4, levels=(-1.0, 0.1, 1.0)),), "^0 has the levels -1, 0.1, 1, which lie on no common lattice"),
        ((nn.Linear(6, 4), nn.Quantize((-1.0, 0.1, 1.0))), "^1 has the levels -1, 0.1, 1"),
        (
            (nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Conv1d(6, 4, 1)),
            "^2 takes examples of 2 dimensions, but reads what is",
        ),
        ((nn.Conv1d(1, 2, 3), nn.Sign(), nn.Conv2d(2, 4, 1)), "^2 takes examples of 3 dimensions, a layer before it"),
        ((nn.Linear(2**20, 1, levels=(-16.0, 15.0)),), "^0: its sums can reach"),
        ((nn.Linear(6, 4), nn.Sign(), nn.Linear(5, 4)), "would read 4 channels, expected 5"),
        ((nn.Linear(6, 4), nn.BatchNorm1d(5), nn.Sign()), "^1 would read 4 channels, expected 5"),
    ],
)
def test_refused(layers, message):
    torch.manual_seed(0)
    with pytest.raises(UnpackableError, match=message):
        pack_in_memory(fixed(*layers))


def test_a_body_that_is_one_layer():
    assert_exact(sampled(bqn.Network(nn.Linear(9, 4), HEAD)), pixels(5, (9,)))


def test_adding_two_scaled_values():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.add = nn.Linear(6, 4), nn.Linear(6, 4), nn.Add()
            self.norm, self.other, self.sign = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Sign()

        def forward(self, x):
            return self.sign(self.add(self.norm(self.a(x)), self.other(self.b(x))))

    with pytest.raises(UnpackableError, match="add: Add of two values that are scaled each in its own way"):
        pack_in_memory(bqn.Network(Two(), HEAD).eval().mode())


def test_batch_norm_in_training():
    """`pack` looks at a copy in evaluation mode; the network itself is left as it is."""
    network = fixed(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Sign())
    network.train()
    pack_in_memory(network)
    assert network.training


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: self.layer(torch.relu(x)), "relu: the forward calls relu, which cannot be packed"),
        (lambda self, x: self.layer(x) + 1, "the forward calls add, which cannot be packed"),
        (lambda self, x: self.layer(x) if x.sum() > 0 else x, "the forward of Odd cannot be followed"),
        (lambda self, x: (self.layer(x), x), "must return one tensor"),
        (lambda self, x: self.layer(x.view(-1, 6)), "the forward calls view"),
    ],
)
def test_forwards_that_do_other_things(forward, message):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

    Odd.forward = forward
    with pytest.raises(UnpackableError, match=message):
        pack_in_memory(bqn.Network(Odd(), HEAD).eval().mode())


def test_members_of_another_architecture():
    one, two = (bqn.models.mlp(6, 4, hidden).mode() for hidden in ((5,), (7,)))
    with pytest.raises(UnpackableError, match="member 1 is of another architecture"):
        pack_in_memory([one, two])
    with pytest.raises(UnpackableError, match="member 1 is of another architecture"):
        pack_in_memory([one, bqn.models.mlp(6, 4, (5, 5)).mode()])


@pytest.mark.parametrize(
    ("one", "other"), [((-1.0, 1.0), (-0.5, 0.5)), ((-1.0, 1.0), (-2.0, 2.0)), ((-1.0, 0.0, 1.0), (-1.0, 1.0))]
)
def test_members_whose_random_thresholds_have_other_levels(one, other):
    members = [
        fixed(nn.Linear(6, 5), nn.RandomThreshold(5, (-1.0, 0.0, 1.0), levels), nn.Linear(5, 4))
        for levels in (one, other)
    ]
    with pytest.raises(UnpackableError, match="member 1 is of another architecture"):
        pack_in_memory(members)


def test_levels_that_are_one_in_float32():
    for levels in ((0.5, 0.5 + 1e-10), (1.0, 1.0 + 1e-9, 2.0)):
        net = bqn.Network(nn.Sequential(nn.Linear(6, 5), nn.Quantize(levels), nn.Linear(5, 4)), HEAD).eval()
        assert_exact(sampled(net), pixels(20, (6,)))


def test_what_is_not_a_quantized_network(tmp_path):
    net = bqn.models.mlp(6, 4, (5,))
    for wrong in (net, [net], [], [net.mode(), net]):
        with pytest.raises(ValueError, match=r"networks must come from net.sample\(\) or net.mode\(\)"):
            pack(wrong, tmp_path / "a.bqn")
    assert list(tmp_path.iterdir()) == []


def test_options_that_make_no_sense():
    classifier, regression = bqn.models.mlp(6, 4, (5,)).mode(), bqn.models.regressor(6).mode()
    scale = (torch.zeros(6), torch.ones(6))
    with pytest.raises(ValueError, match="inputs must be one of pixels, features, got 'sound'"):
        pack_in_memory(classifier, inputs="sound")
    with pytest.raises(ValueError, match="input_scale is for features"):
        pack_in_memory(classifier, input_scale=scale)
    with pytest.raises(ValueError, match="target_scale is for regression"):
        pack_in_memory(classifier, target_scale=scale)
    with pytest.raises(ValueError, match=r"input_shape|would read"):
        pack_in_memory(classifier, input_shape=(7,))
    for about in ({"x": [1]}, {"x": float("nan")}, {1: "x"}, ["x"]):
        with pytest.raises(ValueError, match="about must hold texts and numbers by name"):
            pack_in_memory(classifier, about=about)
    for shape in ((), 6, (0,), (1, 2, 3, 4), (6.5,)):
        with pytest.raises(ValueError, match=r"input_shape must be \(features,\), \(C, L\) or \(C, H, W\), got"):
            pack_in_memory(classifier, input_shape=shape)
    for wrong, message in (
        ((torch.zeros(6),), "must be a mean and a std of one number a column each"),
        ((torch.zeros(6), torch.ones(5)), "must be a mean and a std of one number a column each"),
        ((torch.zeros(6), torch.zeros(6)), "must be finite, and its std positive"),
        ((torch.zeros(6), torch.full((6,), 1e-60, dtype=torch.float64)), "must be finite, and its std positive"),
    ):
        with pytest.raises(ValueError, match=f"^input_scale {message}"):
            pack_in_memory(classifier, inputs="features", input_scale=wrong)
    with pytest.raises(ValueError, match=r"input_scale must be of input_shape, \(1, 2, 3\), got 6 features"):
        pack_in_memory(classifier, inputs="features", input_scale=scale, input_shape=(1, 2, 3))
    with pytest.raises(UnpackableError, match=r"^1: Linear would read \(5,\), expected \(6,\)"):
        pack_in_memory(classifier, inputs="features", input_scale=(torch.zeros(5), torch.ones(5)))
    with pytest.raises(ValueError, match="a class must be a text"):
        pack_in_memory(classifier, classes=["a", "b", "", "d"])
    with pytest.raises(ValueError, match="3 classes for 4 outputs"):
        pack_in_memory(classifier, classes="abc")
    with pytest.raises(ValueError, match="a regression has no classes"):
        pack_in_memory(regression, classes="abc")


def test_weights_in_another_precision():
    with pytest.raises(UnpackableError, match=r"^1: its weights are torch.float64, expected torch.float32"):
        pack_in_memory(bqn.models.mlp(6, 4, (5,)).double().mode())


def test_sums_on_their_way_beyond_32_bits():
    with pytest.raises(UnpackableError, match=r"^0: its sums can reach \d+, more than"):
        pack_in_memory(fixed(nn.Linear(2**20, 4)))


def test_statistics_that_are_not_finite():
    net = bqn.models.mlp(6, 4, (5,)).eval()
    net.body[2].running_var.fill_(float("nan"))
    with pytest.raises(UnpackableError, match=r"^3 would read NaN or infinite values"):
        pack_in_memory(net.mode())


def test_sums_that_float32_rounds():
    """Averages over three are no binary fractions: a sum of them that should be zero is not, in the float network."""
    layers = (nn.Conv1d(1, 40, 3), nn.Sign(), nn.AvgPool1d(3), nn.Flatten(), nn.Linear(120, 9), nn.Sign())
    net = bqn.Network(nn.Sequential(*layers, nn.Linear(9, 4)), HEAD).eval()
    with pytest.raises(UnpackableError, match=r"^5: in channel 0 the float network's sums lie so close to a threshold"):
        pack_in_memory(net.mode(), input_shape=(1, 11))
    # Away from ties the error has no say.
    norm = nn.BatchNorm1d(9)
    norm.running_mean.fill_(0.1234567)
    net = bqn.Network(nn.Sequential(*layers[:5], norm, nn.Sign(), nn.Linear(9, 4)), HEAD).eval()
    assert_exact([net.mode()], pixels(50, (1, 11)), input_shape=(1, 11))


def test_average_with_padding_behind_a_shift():
    layers = (nn.Conv2d(1, 3, 3), nn.AvgPool2d(2, padding=1), nn.BatchNorm2d(3), nn.Sign(), nn.Flatten())
    net = bqn.Network(nn.Sequential(*layers, nn.Linear(3 * 4 * 4, 4)), HEAD)
    assert_exact(sampled(net.eval()), pixels(9, (1, 8, 8)))
    with pytest.raises(UnpackableError, match=r"^1: AvgPool pads sums that are shifted"):
        pack_in_memory(sampled(disturb(net, (1, 8, 8))))


def test_padded_averages_of_codes_enter_a_product():
    pool = nn.AvgPool2d(2, stride=1, padding=1)
    layers = (nn.Conv2d(1, 5, 3), nn.Sign(), pool, nn.Conv2d(5, 6, 2), nn.Sign(), nn.Flatten())
    net = bqn.Network(nn.Sequential(*layers, nn.Linear(6 * 6 * 6, 4)), HEAD)
    assert_exact(sampled(net.eval()), pixels(9, (1, 8, 8)))


def test_products_without_a_quantizer_between_them():
    net = bqn.Network(nn.Sequential(nn.Linear(5, 6), nn.Sign(), nn.Linear(6, 7), nn.Linear(7, 4)), HEAD)
    assert_exact(sampled(net.eval()), pixels(9, (5,)))
    wide = bqn.Network(nn.Sequential(nn.Linear(500, 6), nn.Linear(6, 4)), HEAD).eval()
    with pytest.raises(UnpackableError, match=r"^1 would multiply integers of .* values; put a quantizer before it"):
        pack_in_memory(wide.mode())


def test_a_tensor_that_is_changed_in_place_under_two_names():
    class Body(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
            self.sign, self.many, self.flatten = nn.Sign(), nn.Quantize((-2.0, -1.0, 0.0, 1.0, 2.0)), nn.Flatten()

    def other_name(self, x):
        h = self.sign(self.a(x))
        r = h
        h += self.sign(self.b(h))
        return self.c(self.many(h + r))

    def view(self, x):
        h = self.sign(self.a(x))
        r = self.flatten(h)
        h += self.sign(self.b(h))
        return self.c(self.many(h + r))

    def twice(self, x):
        h = r = self.sign(self.a(x))
        h += self.sign(self.b(h))
        h += self.sign(self.b(h))
        return self.c(self.many(h + r))

    def alone(self, x):
        y = self.sign(self.a(x))
        h = self.sign(self.b(y))
        h += y
        h += self.sign(self.b(h))
        return self.c(self.many(h + y))

    def net(forward):
        torch.manual_seed(1)
        return bqn.Network(type("Body", (Body,), {"forward": forward})(), bqn.SoftmaxHead(6)).eval()

    for forward in (other_name, view, twice):
        with pytest.raises(UnpackableError, match=r"^iadd(_1)?: \+= changes a tensor in place that the forward reads"):
            pack_in_memory(net(forward).mode())
    assert_exact([net(alone).mode()], pixels(50, (6,)))
