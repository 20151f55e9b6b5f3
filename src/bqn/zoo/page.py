"""The page about the zoo, docs/zoo.md, from the cards alone.

python -m bqn.zoo.page > docs/zoo.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bqn.zoo import PRETRAINED
from bqn.zoo.card import Card

_INTRODUCTION = """\
# The zoo

Packed networks that come with the package. Each is one file of a bit a binary weight, runs on integers without torch,
and has a card; this page is written from the cards.

```console
$ bqn zoo                                   # this table
$ bqn zoo {example}                        # one card
$ bqn run {example} --data {data}          # the figures below, again
$ bqn run {example} scan-1.png scan-2.png  # predictions with their uncertainty
$ bqn export {example} --to html           # a page to draw on
```

```python
import bqn

model = bqn.load_pretrained("{example}")  # checked against the card; bqn.pretrained() lists the names
probs = model(images)  # uint8 (N, C, H, W) in, probabilities (N, K) out
```

A file of your own that has the name of an entry wins over it. Scores are those of the packed file on the test set of
its data: NLL in nats, ECE over 15 bins. *Most probable* is one network (MAP), *sampled* are several whose probabilities
are averaged; *recalibrated* networks have batch norm statistics of their own, from training examples, which was decided
on validation examples; *distilled* ones have learned the analytic prediction of the posterior that they come from, see
[deploy.md](deploy.md#distillation); *tempered* ones have their logits divided by a temperature that was fitted on
validation examples.

They are single networks: [results.md](results.md) has means over seeds. Where several had been trained for the
purpose (seed 9 of the CNNs on MNIST and Fashion-MNIST, 7 of `kmnist-cnn-mc5`), the one with the lowest NLL on
validation examples is here, else seed 0. All but three kinds are networks of the recipe `best`: `mnist-cnn` and
`mnist-cnn-mc5` were trained with a λ of 0.01 instead of 0.03, `cifar10-vgg` over 90 epochs with black squares in its
images, and those of digits by the preset.
"""

_ENDING = """\
## A new entry

`python -m bqn.zoo.build RUN --name NAME [--mode mc --samples 5] [--distill 5]` packs a run, judges the packed file
on the test set and writes both files into the package; `python -m bqn.zoo.page > docs/zoo.md` writes this page again.
"""


def render(cards: Sequence[Card]) -> str:
    """The page as Markdown; there must be at least one card."""
    example = min(cards, key=lambda card: card.size)
    parts = [_INTRODUCTION.format(example=example.name, data=example.data), _table(cards), "## Cards\n"]
    return "\n".join([*parts, *map(_section, cards), _ENDING])


def _table(cards: Sequence[Card]) -> str:
    heads = ("name", "data", "network", "networks in it", "bytes", "NLL", "error %", "ECE %")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for card in cards:
        scores = (f"{card.test['nll']:.4f}", f"{100 * card.test['error']:.2f}", f"{100 * card.test['ece']:.2f}")
        cells = (f"`{card.name}`", card.data, card.architecture.upper(), card.networks, f"{card.size:,}", *scores)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _section(card: Card) -> str:
    settings = ", ".join(f"{key} {_value(value)}" for key, value in card.training.items())
    heat = "" if card.temperature is None else f"; temperature {card.temperature:.3g}"
    draws = "" if card.draw_seed is None else f"; draws with seed {card.draw_seed}"
    return f"""\
### {card.name}

- Network: {card.architecture.upper()}, {card.weights:,} weights in {_value(card.levels)}, units in \
{_value(card.activations)}; {card.networks}.
- Data: {card.data}, {card.data_size}; licence: {card.data_licence}; source: {card.data_source}.
- Test: {int(card.test["examples"]):,} examples.
- Training: seed {card.seed}{draws}{heat}; {settings}.
- Use: {card.use}
- Limits: {card.limits}
- File: {card.size:,} bytes, packed by bqn {card.version}, sha256 `{card.sha256}`.
"""


def _value(value: object) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(map(_value, value)) + ")"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.stdout.write(render(PRETRAINED.cards()))
