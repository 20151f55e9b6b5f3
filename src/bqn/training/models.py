"""Which networks a config can name, with their options; a saved config builds the same network again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bqn import models
from bqn.baselines import METHODS, Plan
from bqn.levels import BINARY
from bqn.network import Network
from bqn.training.errors import ConfigError

if TYPE_CHECKING:
    from bqn.training.config import TrainConfig

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
    """A network that can be named.

    Parameters
    ----------
    task : "classification" or "regression"
    build : function of the shape of one input, the number of outputs, and the options by name
    options : the options it takes, each with its default
    """

    task: str
    build: Callable[..., Network]
    options: Mapping[str, Any]


def _mlp(input_shape: Shape, outputs: int, **options: Any) -> Network:
    return models.mlp(math.prod(input_shape), outputs, **options)


def _cnn(input_shape: Shape, outputs: int, **options: Any) -> Network:
    return models.cnn(_image(input_shape, "cnn"), outputs, **_one_hidden(options, "cnn"))


def _vgg(input_shape: Shape, outputs: int, **options: Any) -> Network:
    return models.vgg(_image(input_shape, "vgg"), outputs, **_one_hidden(options, "vgg"))


def _resnet(input_shape: Shape, outputs: int, **options: Any) -> Network:
    return models.resnet(_image(input_shape, "resnet"), outputs, **options)


def _regressor(input_shape: Shape, outputs: int, **options: Any) -> Network:
    if len(input_shape) != 1:
        raise ConfigError(f"model: regressor needs inputs of shape (features,), got {input_shape}")
    return models.regressor(input_shape[0], out_features=outputs, **options)


def _image(input_shape: Shape, model: str) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise ConfigError(f"model: {model} needs images of shape (channels, height, width), got {input_shape}")
    return input_shape[0], input_shape[1], input_shape[2]


def _one_hidden(options: dict[str, Any], model: str) -> dict[str, Any]:
    if len(options["hidden"]) != 1:
        raise ConfigError(f"hidden: {model} has one hidden layer, got {options['hidden']}")
    return {**options, "hidden": options["hidden"][0]}


_QUANTIZED: Mapping[str, Any] = {"levels": BINARY, "activations": BINARY, "init": "signal", "mean_field": False}

# Fixed: a config names an entry here and can name nothing else.
ARCHITECTURES: Mapping[str, Architecture] = {
    "mlp": Architecture("classification", _mlp, {"hidden": (512, 256), "batch_norm": True, **_QUANTIZED}),
    "cnn": Architecture(
        "classification", _cnn, {"channels": (64, 64), "hidden": (1024,), "pool_first": True, **_QUANTIZED}
    ),
    "vgg": Architecture("classification", _vgg, {"channels": (128, 256, 512), "hidden": (1024,), **_QUANTIZED}),
    "resnet": Architecture("classification", _resnet, {"channels": (64, 128, 256), "blocks": 2, **_QUANTIZED}),
    "regressor": Architecture(
        "regression", _regressor, {"hidden": (50,), "bias_levels": None, "batch_norm": False, **_QUANTIZED}
    ),
}


def method_option_names() -> frozenset[str]:
    """All options that any method has of its own."""
    return frozenset(name for method in METHODS.values() for name in method.options)


def option_names() -> frozenset[str]:
    """All options that any architecture or method takes."""
    return method_option_names() | {name for architecture in ARCHITECTURES.values() for name in architecture.options}


def options_of(method: str, model: str) -> dict[str, Any]:
    """The options of a method on an architecture, each with its default."""
    heeded = METHODS[method].model_options
    of_model = {name: value for name, value in ARCHITECTURES[model].options.items() if name in heeded}
    return {**of_model, **METHODS[method].options}


def build_model(config: TrainConfig, input_shape: Shape, outputs: int) -> Network:
    """The network that `config` describes, with the starting weights that its seed gives.

    Parameters
    ----------
    config : TrainConfig
    input_shape : shape of one input, `(C, H, W)` or `(F,)`
    outputs : int
        Classes, or columns of a regression target.
    """
    architecture = ARCHITECTURES[config.model]
    options = {name: getattr(config, name) for name in options_of(config.method, config.model)}
    shape = tuple(input_shape)

    def blank() -> Network:
        own = {name: options.get(name, default) for name, default in architecture.options.items()}
        return architecture.build(shape, outputs, **own)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        return METHODS[config.method].build(Plan(config.model, shape, outputs, config.seed, options, blank))
