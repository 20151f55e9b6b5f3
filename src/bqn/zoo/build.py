"""Make an entry of the zoo from a run: pack it, judge the packed file on the test set, write it with its card.

    python -m bqn.zoo.build runs/mnist-cnn --name mnist-cnn --temper
    python -m bqn.zoo.build runs/mnist-cnn --name mnist-cnn-mc5 --mode mc --samples 5 --distill 5

Whether the networks get batch norm statistics of their own is decided on the run's validation examples, unless
`--recalibrate yes` or `no` says it; distilled ones have them anyway. The test set is touched once, by the file that is
written. Afterwards write the page again:

    python -m bqn.zoo.page > docs/zoo.md
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bqn.training
from bqn._version import __version__
from bqn.atomic import write_atomic
from bqn.data import Dataset, Split, available
from bqn.deploy import network
from bqn.deploy.container import to_bytes
from bqn.deploy.inspection import describe
from bqn.deploy.model import PackedModel
from bqn.deploy.program import Packed
from bqn.deploy.runs import MODES, pack_run
from bqn.training import Run, load_data, load_run, own_parts
from bqn.zoo import PRETRAINED
from bqn.zoo.card import NAME, SCORES, Card

MOST_BYTES = 2_200_000  # of a file: five sampled networks of the paper's CNN have room in it
# Settings that say where the run took place, or that the card has elsewhere.
_ELSEWHERE = ("data", "model", "seed", "device", "threads", "checkpoint_every", "compile", "levels", "activations")

USE = (
    "Trying packed networks, their exporters and their uncertainty; teaching; comparing with published figures on "
    "{data}. Not for decisions about people."
)
LIMITS = (
    "It knows the {classes} classes of {data} and nothing else: an image of anything else gets one of them too, at "
    "best with high entropy. It takes images as the set has them, of that size, polarity and framing. {doubt}"
)
_SINGLE = "A single network cannot doubt itself: all its uncertainty is aleatoric, and a packed MC file tells more."
_SEVERAL = "Its epistemic uncertainty rests on {samples} sampled networks, a coarse estimate."


def build(
    folder: Path,
    name: str,
    mode: str = "map",
    *,
    samples: int = 5,
    seed: int = 0,
    recalibrate: bool | None = None,
    temper: bool = False,
    distill: int = 0,
    data_dir: Path | None = None,
    device: str = "cpu",
    out: Path = PRETRAINED.folder,
) -> Card:
    """Pack a run and write `<name>.bqn` and `<name>.json` into the folder `out`.

    Parameters
    ----------
    folder : folder of the run, of a classifier on a named data set
    name : lower-case letters and digits, with hyphens between them
    mode, samples, seed : as for `bqn.deploy.runs.pack_run`
    recalibrate : bool or None
        Whether each network gets batch norm statistics of its own. None: whatever has the lower NLL on the run's
        validation examples.
    temper : bool
        Whether to fit a temperature on the run's validation examples.
    distill : int
        For so many epochs the networks learn the analytic prediction first, see `bqn.training.distill`.
    data_dir : where named data sets lie
    device : where networks are drawn and recalibrated
    """
    if NAME.fullmatch(name) is None:
        raise ValueError(f"name must be lower-case letters and digits with hyphens between them, got {name!r}")
    run = load_run(folder, device=device)
    dataset = load_data(run.config, data_dir)
    training, validation = own_parts(folder, run.config, dataset)
    if dataset.task != "classification":
        raise ValueError(f"folder must hold the run of a classifier, {folder} is for {dataset.task}")

    if distill < 0:
        raise ValueError(f"distill must be a number of epochs, got {distill}")
    if distill and recalibrate:
        raise ValueError("recalibrate is not for distill, which ends with statistics from training data anyway")
    if temper and validation is None:
        raise ValueError("the run has no validation examples to fit a temperature on")
    held_out = validation if temper else None

    def packed(again: bool) -> Packed:
        reference = training.x if again else None
        return pack_run(run, mode, samples=samples, seed=seed, recalibrate_on=reference, temper_on=held_out)

    if distill:
        made = bqn.training.distill(run, training, validation, mode=mode, samples=samples, seed=seed, epochs=distill)
        chosen = pack_run(run, mode, temper_on=held_out, distilled=made)
    else:
        chosen = _better([packed(False), packed(True)], validation) if recalibrate is None else packed(recalibrate)
    content = to_bytes(chosen)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{name} would take {len(content):,} bytes, a file of the zoo has at most {MOST_BYTES:,}")
    card = _card(name, run, dataset, chosen, content)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"{name}.bqn", content)
    write_atomic(out / f"{name}.json", card.to_json().encode())
    return card


def _better(candidates: Sequence[Packed], validation: Split | None) -> Packed:
    if validation is None:
        raise ValueError("the run has no validation examples to decide on: say whether to recalibrate")
    return min(candidates, key=lambda packed: network.evaluate(PackedModel(packed), validation)["nll"])


def _card(name: str, run: Run, dataset: Dataset, packed: Packed, content: bytes) -> Card:
    config = run.config
    scores = network.evaluate(PackedModel(packed), dataset.test)
    facts = describe(packed)
    settings: dict[str, Any] = json.loads(config.to_json())
    info = next((info for info in available() if info.name == config.data), None)
    if info is None:
        raise ValueError(f"the run must be on a named data set, whose source and licence are known, got {config.data}")
    doubt = _SINGLE if packed.members == 1 else _SEVERAL.format(samples=packed.members)
    return Card(
        name=name,
        data=config.data,
        data_size=info.size,
        data_licence=info.licence,
        data_source=info.source,
        architecture=config.model,
        mode=str(packed.about["mode"]),
        samples=packed.members,
        recalibrated=bool(packed.about["recalibrated"]),
        distilled=bool(packed.about["distilled"]),
        temperature=packed.about["temperature"],
        levels=settings["levels"],
        activations=settings["activations"],
        weights=facts["weights"],
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        test={"examples": len(dataset.test), **{score: scores[score] for score in SCORES}},
        training=_that_count(settings),
        seed=config.seed,
        draw_seed=packed.about["seed"],
        version=__version__,
        use=USE.format(data=config.data),
        limits=LIMITS.format(classes=len(dataset.classes), data=config.data, doubt=doubt),
    )


def _that_count(settings: dict[str, Any]) -> dict[str, Any]:
    """Those settings of a run that made it what it is."""
    idle = {"lr_decay": settings["lr_schedule"] != "exponential", "lam_end": settings["lam_schedule"] != "decay"}
    idle |= dict.fromkeys(("warm_up_epochs", "warm_up_lam"), settings["lam_schedule"] != "warm-up")
    return {
        key: value
        for key, value in settings.items()
        if value is not None and key not in _ELSEWHERE and not idle.get(key, False)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, print one line."""
    parser = argparse.ArgumentParser(
        prog="python -m bqn.zoo.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, made by bqn train")
    parser.add_argument("--name", required=True, help="for example mnist-cnn-mc5")
    parser.add_argument("--mode", choices=MODES, default="map", help="the most probable network, or sampled ones")
    parser.add_argument("--samples", type=int, default=5, help="how many sampled ones (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default: 0)")
    parser.add_argument("--recalibrate", choices=("auto", "yes", "no"), default="auto", help="default: auto")
    parser.add_argument("--temper", action="store_true", help="fit a temperature on the run's validation examples")
    parser.add_argument("--distill", type=int, default=0, metavar="EPOCHS", help="learn the analytic prediction first")
    parser.add_argument("--data-dir", type=Path, help="where named data sets lie (default: $BQN_DATA)")
    parser.add_argument("--device", default="cpu", help="where networks are drawn and recalibrated (default: cpu)")
    parser.add_argument("--out", type=Path, default=PRETRAINED.folder, help="default: into the package")
    given = parser.parse_args(arguments)
    try:
        card = build(
            given.run,
            given.name,
            given.mode,
            samples=given.samples,
            seed=given.seed,
            recalibrate={"auto": None, "yes": True, "no": False}[given.recalibrate],
            temper=given.temper,
            distill=given.distill,
            data_dir=given.data_dir,
            device=given.device,
            out=given.out,
        )
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    scores = ", ".join(f"{score} {card.test[score]:.4f}" for score in SCORES)
    print(f"{given.out / card.name}.bqn: {card.size:,} bytes, {card.networks}; test {scores}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
