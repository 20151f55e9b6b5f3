"""What a C header declares, and the constants of the head.

Probabilities are formed by integers too: 2 to a power that is known to 2^-32, by a polynomial and a shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bqn.deploy.program import Array, Packed

_DEGREE = 7  # of the polynomial for 2^-t
_MOST_EXPONENT = 32  # 2^-32 is nothing in units of 2^-31


@dataclass(frozen=True)
class Head:
    """The lines of a header that depend on the head: parts of `embedded/heads.h`, macros, prototypes, constants."""

    parts: tuple[str, ...]
    macros: tuple[str, ...]
    prototypes: tuple[str, ...]
    constants: tuple[str, ...]


def head_of(packed: Packed, outputs: int, wide: bool) -> Head:
    """The head of a packed network that makes so many integers, of 64 bits if `wide`."""
    return _softmax(packed, outputs, wide) if packed.program.head == "softmax" else _gaussian(packed)


def _softmax(packed: Packed, outputs: int, wide: bool) -> Head:
    scales = ", ".join(f"{{{', '.join(_scale(packed, member, wide))}}}" for member in range(packed.members))
    constants = [
        "/* What one integer is worth in the exponent of 2: multiplier / 2^(32 + shift). Gaps beyond `most` are\n"
        "   infinite. */\n"
        "typedef struct {\n    uint64_t most, multiplier;\n    int32_t shift;\n} net_scale;",
        f"static const net_scale net_scales[NET_MEMBERS] = {{{scales}}};",
        f"#define NET_POLYNOMIAL {', '.join(f'{term}u' for term in _polynomial())}",
    ]
    prototypes = [
        "/* Probabilities of the classes, averaged over the members, in units of 1 / NET_ONE. */\n"
        "int net_probabilities(const NET_INPUT *given, uint32_t *probabilities);",
        "/* How many members find each class the most probable. */\n"
        "int net_votes(const NET_INPUT *given, uint16_t *votes);",
        "/* The most probable class, from 0 on. */\nint net_predict(const NET_INPUT *given);",
    ]
    if packed.program.classes:
        names = ", ".join(_text(name) for name in packed.program.classes)
        prototypes.append(f"/* Names of the classes, in UTF-8. */\nextern const char *const net_classes[{outputs}];")
        constants.append(f"const char *const net_classes[{outputs}] = {{{names}}};")
    parts = ("probabilities", "votes", "predict_one" if packed.members == 1 else "predict")
    return Head(parts, ("NET_ONE 2147483648u",), tuple(prototypes), tuple(constants))


def _scale(packed: Packed, member: int, wide: bool) -> tuple[str, str, str]:
    """`most`, `multiplier` and `shift` of a member: see `net_scale`."""
    log_scale = float(packed.array("head.log_scale", member))
    worth = Fraction(packed.program.step) * Fraction(math.exp(-log_scale)) * Fraction(math.log2(math.e))
    worth = min(worth, Fraction(2 * _MOST_EXPONENT))
    # As many bits as fit: gap * multiplier must stay below 2^64, where a gap has 32 bits, or stays below `most`.
    room = 26 if wide else 63
    shift = min(room, max(0, -math.floor(math.log2(worth)) - 1))
    most = min(math.ceil(_MOST_EXPONENT / worth), 2**54 if wide else 2**32 - 1)
    return f"UINT64_C({most})", f"UINT64_C({round(worth * 2 ** (32 + shift))})", str(shift)


def _polynomial() -> list[int]:
    """2^-t for t from 0 to 1 in units of 2^-31: powers of -t from the lowest, fitted at Chebyshev's points."""
    fit = np.polynomial.Chebyshev.interpolate(lambda t: 2.0**-t, _DEGREE, domain=[0, 1])
    powers = fit.convert(kind=np.polynomial.Polynomial).coef
    return [round(abs(float(power)) * 2**31) for power in powers]


def _gaussian(packed: Packed) -> Head:
    arrays = packed.arrays
    outputs = arrays["head.weight"].shape[1]
    shift, unit = (
        arrays[f"target.{name}"][0].astype(np.float64) if f"target.{name}" in arrays else np.full(outputs, usual)
        for name, usual in (("mean", 0.0), ("std", 1.0))
    )
    members = range(packed.members)
    noise = [np.exp(packed.array("head.log_noise", member).astype(np.float64)) * unit**2 for member in members]
    weights = [[_row(row, "f") for row in packed.array("head.weight", member)] for member in members]
    constants = [
        f"static const float net_head[NET_MEMBERS][NET_TARGETS][NET_OUTPUTS] = {_nested(weights)};",
        f"static const double net_noise[NET_MEMBERS][NET_TARGETS] = {_nested([[_row(each)] for each in noise], 1)};",
        f"static const double net_shift[NET_TARGETS] = {_row(shift)}, net_unit[NET_TARGETS] = {_row(unit)};",
    ]
    prototypes = (
        "/* Mean and variance of the prediction, in the units of the targets: NET_TARGETS numbers each. */\n"
        "int net_moments(const NET_INPUT *given, double *mean, double *variance);",
    )
    return Head(("moments",), (f"NET_TARGETS {outputs}",), prototypes, tuple(constants))


def _row(values: Array, suffix: str = "") -> str:
    return f"{{{', '.join(f'{float(value)!r}{suffix}' for value in values)}}}"


def _nested(rows: list[list[str]], depth: int = 2) -> str:
    inner = (f"{{{','.join(row)}}}" if depth == 2 else row[0] for row in rows)
    return f"{{{','.join(inner)}}}"


def _text(name: str) -> str:
    """A C string of any text: all but letters, digits and spaces as octal numbers."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in name.encode()) + '"'
