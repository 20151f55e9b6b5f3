"""Which settings are worth it? Single runs beside each other on validation examples, as a record under results/tuning.

    python benchmarks/tuning.py --model cnn --data mnist --round 6 --device cuda \\
        --runs plain "turned: turn=10, zoom=0.1" "half-mode: drawn_epochs=40, mode_share=0.5"

A run is a name and, behind a colon, the settings of `bqn.training.TrainConfig` in which it differs from the recipe
`best` of that model and data set; what that has of its own is undone by name ("turn=0"). All of them train side by
side; the test set plays no part. The record is MODEL-ROUND.json; runs that it has already, of other data sets or by
other names, stay in it, if they are of the same recipe, seed, code and hardware. A round that is finished
is counted in `_ROUNDS` of `bqn.reproduction.tuning` and in words in `reproduction/pages/tuning.md`, and then
`bqn reproduce page` shows it.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bqn.atomic import write_atomic
from bqn.cli._settings import parse_setting
from bqn.reproduction import Cell, measuring, recipes, tuning
from bqn.training import DivergedError, Run, load_data
from bqn.training.replicas import train_together

ROOT = Path(__file__).resolve().parent.parent
FIXED = ("model", "data", "seed", "device")  # arguments of their own
ABOUT = {
    "what": "tuning runs: one network a setting, judged on validation examples (10 % of the training set)",
    "units": "scores: NLL in 1e-3 nats and error in percent, five networks for mc; entropy: share of the largest",
}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a run, and what it changes."""
    name, _, changes = text.partition(":")
    pairs = [pair.partition("=") for pair in changes.split(",") if pair.strip()]
    settings = {}
    for key, equals, value in pairs:
        key = key.strip()
        if not equals or key in FIXED:
            raise SystemExit(f"tuning: a run is NAME: SETTING=VALUE, …, without {', '.join(FIXED)}; got {text!r}")
        settings[key] = parse_setting(key, value.strip())
    return name.strip(), settings


def entry(data: str, name: str, settings: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """A run as the record has it, from its validation scores by mode, its entropy, best epoch and curve."""
    scores = {
        mode: [round(1e3 * each["nll"], 1), round(100 * each["error"], 2)] for mode, each in run["validation"].items()
    }
    return {
        "data": data,
        "name": name,
        "settings": settings,
        "scores": scores,
        "entropy": round(run["entropy"], 3),
        "best_epoch": run["best_epoch"],
        "curve": run["curve"],
    }


def runs_so_far(path: Path, head: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a record that is begun: what its head says must hold for the new ones too."""
    if not path.exists():
        return []
    known = tuning.read(path)
    for name in ("seed", "settings", "code", "hardware"):
        if known[name] != head[name]:
            raise SystemExit(f"tuning: {path} is of {name} {known[name]}, asked for is {head[name]}; begin a new round")
    return list(known["runs"])


def merged(known: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All runs; of those that have the same data set and name the new one."""
    new = {(run["data"], run["name"]) for run in runs}
    return [*(run for run in known if (run["data"], run["name"]) not in new), *runs]


def judged(run: Run, dataset: Any) -> dict[str, Any]:
    return {
        **measuring.judge(run, dataset, test=False),
        "entropy": measuring.entropy_share(run.net),
        "best_epoch": run.history.best_epoch,
        "curve": measuring.thin([record.to_dict() for record in run.history.records]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=("mlp", "cnn", "vgg"), help="architecture of a recipe")
    parser.add_argument("--data", required=True, help="name of the data set")
    parser.add_argument("--round", type=int, required=True, help="number of the record")
    parser.add_argument("--runs", nargs="+", required=True, metavar="NAME[: SETTING=VALUE, …]", help="what to compare")
    parser.add_argument("--seed", type=int, default=0, help="of all runs (default: 0)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda[:N]")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets (default: $BQN_DATA)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/tuning", help="folder of the records")
    args = parser.parse_args()
    common, own = recipes.RECIPES["best"][args.model], recipes.RECIPES["best"].get((args.model, args.data), {})
    asked = {name: {**own, **changes} for name, changes in map(parse, args.runs)}
    if len(asked) < len(args.runs):
        raise SystemExit("tuning: --runs must have different names")
    recipe = Cell(args.model, args.data, seed=args.seed).config(args.device)
    configs = [replace(recipe, **settings) for settings in asked.values()]
    path = args.out / f"{args.model}-{args.round}.json"
    code = measuring.code()
    head = {
        **ABOUT,
        "architecture": args.model,
        "round": args.round,
        "seed": args.seed,
        "hardware": measuring.hardware(args.device),
        "date": str(datetime.date.today()),
        "code": f"made with commit {code['code']:.7}{', changed since' if 'code_changed' in code else ''}",
        "settings": json.loads(json.dumps(dict(common))),
    }
    known = runs_so_far(path, head)
    args.out.mkdir(parents=True, exist_ok=True)
    dataset = load_data(configs[0], args.data_dir)
    found = train_together(configs, dataset, report=lambda index, record: print(list(asked)[index], record, flush=True))
    runs = []
    for (name, settings), run in zip(asked.items(), found, strict=True):
        if isinstance(run, DivergedError):
            print(f"{name} failed: {run}", flush=True)
            continue
        runs.append(entry(args.data, name, settings, judged(run, dataset)))
        print(name, runs[-1]["scores"], flush=True)
    document = {**head, "runs": merged(known, runs)}
    write_atomic(path, f"{json.dumps(document, indent=1)}\n".encode())


if __name__ == "__main__":
    main()
