"""Layers that carry beliefs, each with a posterior over its quantized weights where it has any."""

from bqn.nn._activation import Quantize, RandomThreshold, Sign
from bqn.nn._conv import Conv1d, Conv2d
from bqn.nn._elementwise import Add, Dropout, Product, Shortcut
from bqn.nn._layer import Draws, HiddenVariableLayer, Layer, draw, drawn, fix, set_generator
from bqn.nn._linear import Linear
from bqn.nn._norm import BatchNorm1d, BatchNorm2d, recalibrate
from bqn.nn._pool import AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d, ProbPool1d, ProbPool2d
from bqn.nn._posterior import DEFAULT_RHO, Posterior, Weight, belief_of, computed_once
from bqn.nn._shapes import Flatten, Sequential

__all__ = [
    "DEFAULT_RHO",
    "Add",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "Draws",
    "Dropout",
    "Flatten",
    "HiddenVariableLayer",
    "Layer",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "Posterior",
    "ProbPool1d",
    "ProbPool2d",
    "Product",
    "Quantize",
    "RandomThreshold",
    "Sequential",
    "Shortcut",
    "Sign",
    "Weight",
    "belief_of",
    "computed_once",
    "draw",
    "drawn",
    "fix",
    "recalibrate",
    "set_generator",
]
