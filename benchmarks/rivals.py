"""How good are the other methods on the same data? Test scores over several seeds, one record a method, model and data.

    python benchmarks/rivals.py --data-dir DIR --device cuda --seeds 0 1 2
    python benchmarks/rivals.py --data-dir DIR --runs qnn:mlp:mnist e-qnn:cnn:mnist:epochs=50,members=5,name=five
    python benchmarks/rivals.py --table

A run is METHOD:MODEL:DATA, with further settings of `bqn.training.TrainConfig` behind another colon; what is not said
comes from the presets. `name` tells apart records of the same method, model and data. Records are written to
results/rivals/METHOD-MODEL-DATA[-NAME].json after every seed; seeds that are there with the same settings are not run
again, so the command may be stopped and repeated. `--table` prints what is there, and trains nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bqn import evaluation, training
from bqn.atomic import write_atomic
from bqn.cli._settings import parse_setting
from bqn.data import Dataset, Split, load, split_validation
from bqn.reproduction import records
from bqn.reproduction.measuring import code, hardware

HERE = Path(__file__).resolve().parent.parent
SETS = ("mnist", "fashion-mnist", "kmnist")
# What the paper's tables 1 to 3 compare with, what people use, and wide networks with published figures of their own:
# the runs of the records, each as it was made.
RUNS = (
    *(f"qnn:mlp:{data}" for data in SETS),
    *(f"qnn:cnn:{data}:epochs=20" for data in SETS),
    *(f"e-qnn:mlp:{data}:epochs=10" for data in SETS),
    *(f"e-qnn:cnn:{data}:members=5,epochs=8,name=five" for data in SETS),
    *(f"gaussian-bnn:{what}:{data}" for what in ("mlp", "cnn") for data in SETS),
    *(f"{method}:{what}:mnist" for method in ("mc-dropout", "bayesbinn") for what in ("mlp", "cnn")),
    *(f"{method}:mlp:mnist" for method in ("ensemble", "pbp", "ebp", "npn")),
    *(f"qnn:mlp:{data}:epochs=60,shift=1,name=shifted" for data in SETS),
    *(f"e-qnn:mlp:{data}:members=10,epochs=20,shift=1,name=shifted" for data in SETS),
    "gaussian-bnn:mlp:mnist:epochs=100,shift=2,threads=1,name=shifted",
    *(f"gaussian-bnn:mlp:{data}:epochs=40,shift=1,name=shifted" for data in SETS[1:]),
    *(f"{method}:mlp:mnist:epochs=40,shift=1,name=shifted" for method in ("mc-dropout", "ensemble")),
    "qnn:mlp:mnist:hidden=4096/4096/4096,epochs=30,name=wide",
    "qnn:mlp:mnist:hidden=4096/4096/4096,epochs=60,shift=1,mixed_precision=true,name=wide-shifted",
    "bayesbinn:mlp:mnist:hidden=2048/2048/2048,epochs=60,name=wide",
    "bayesbinn:mlp:mnist:hidden=2048/2048/2048,epochs=60,shift=1,name=wide-shifted",
    "qnn:vgg:cifar10:epochs=25",
    "gaussian-bnn:vgg:cifar10:epochs=10",
    "gaussian-bnn:vgg:cifar10:epochs=40,name=forty",
    "e-qnn:cnn:kmnist:members=10,epochs=20,shift=1,name=ten",
    "e-qnn:vgg:cifar10:members=5,epochs=25,mixed_precision=true",
)  # fmt: skip
FIGURES = ("nll", "error", "ece")
# Published: record, mode, who, model and data, error in %, NLL, by whom; docs/baselines.md has ours beside it
PAPER = "Su et al., table"
CURVE = "Su et al., figure"
TEN = f"{PAPER} 1, 10 members"
MENG = "Meng et al., ± 0.06"
VOTE = "`e-qnn`, 10 members"
PUBLISHED = (
    ("qnn-mlp-mnist-shifted", "map", "`qnn`", "MNIST, MLP 512-256", 4.14, 0.522, f"{PAPER} 2"),
    ("qnn-mlp-fashion-mnist-shifted", "map", "`qnn`", "Fashion-MNIST, MLP", 19.56, 2.019, f"{PAPER} 2"),
    ("qnn-mlp-kmnist-shifted", "map", "`qnn`", "KMNIST, MLP", 15.67, 2.427, f"{PAPER} 2"),
    ("qnn-cnn-mnist", "map", "`qnn`", "MNIST, CNN", 1.08, 0.497, f"{PAPER} 2"),
    ("qnn-cnn-fashion-mnist", "map", "`qnn`", "Fashion-MNIST, CNN", 14.20, 4.735, f"{PAPER} 2"),
    ("qnn-cnn-kmnist", "map", "`qnn`", "KMNIST, CNN", 3.88, 1.878, f"{PAPER} 2"),
    ("qnn-mlp-mnist-wide-shifted", "map", "`qnn`", "MNIST, MLP 3 × 4096", 1.0, None, "Courbariaux et al."),
    ("qnn-vgg-cifar10", "map", "`qnn`", "CIFAR-10, VGG", None, None, "not given"),
    ("e-qnn-mlp-mnist-shifted", "logits", VOTE, "MNIST, MLP", 3.30, 0.547, f"{PAPER} 1"),
    ("e-qnn-mlp-fashion-mnist-shifted", "logits", VOTE, "Fashion-MNIST, MLP", 17.88, 2.386, f"{PAPER} 1"),
    ("e-qnn-mlp-kmnist-shifted", "logits", VOTE, "KMNIST, MLP", 13.02, 2.529, f"{PAPER} 1"),
    ("e-qnn-cnn-mnist-five", "logits", "`e-qnn`, 5 members", "MNIST, CNN", 0.85, 0.425, TEN),
    ("e-qnn-cnn-fashion-mnist-five", "logits", "`e-qnn`, 5 members", "Fashion-MNIST, CNN", 11.49, 3.756, TEN),
    ("e-qnn-cnn-kmnist-ten", "logits", VOTE, "KMNIST, CNN", 3.02, 1.611, f"{PAPER} 1"),
    ("e-qnn-vgg-cifar10", "logits", "`e-qnn`, 5 members", "CIFAR-10, VGG", 15.92, 7.990, TEN),
    ("gaussian-bnn-mlp-mnist-shifted", "mc", "`gaussian-bnn`", "MNIST, MLP", 1.01, 0.0344, CURVE),
    ("gaussian-bnn-mlp-fashion-mnist-shifted", "mc", "`gaussian-bnn`", "Fashion-MNIST, MLP", 10.55, 0.3132, CURVE),
    ("gaussian-bnn-mlp-kmnist-shifted", "mc", "`gaussian-bnn`", "KMNIST, MLP", 4.67, 0.2175, CURVE),
    ("gaussian-bnn-cnn-mnist", "mc", "`gaussian-bnn`", "MNIST, CNN", 0.77, 0.0291, CURVE),
    ("gaussian-bnn-cnn-fashion-mnist", "mc", "`gaussian-bnn`", "Fashion-MNIST, CNN", 8.28, 0.2739, CURVE),
    ("gaussian-bnn-cnn-kmnist", "mc", "`gaussian-bnn`", "KMNIST, CNN", 2.81, 0.1911, CURVE),
    ("gaussian-bnn-vgg-cifar10", "mc", "`gaussian-bnn`", "CIFAR-10, VGG", 9.0, 0.642, CURVE),
    ("bayesbinn-mlp-mnist-wide-shifted", "map", "`bayesbinn`", "MNIST, MLP 3 × 2048", 1.14, None, MENG),
    ("bayesbinn-mlp-mnist", "map", "`bayesbinn`", "MNIST, MLP 512-256", None, None, "not given"),
    ("mc-dropout-mlp-mnist-shifted", "mc", "`mc-dropout`", "MNIST, MLP", None, None, "not given"),
    ("mc-dropout-cnn-mnist", "mc", "`mc-dropout`", "MNIST, CNN", None, None, "not given"),
    ("ensemble-mlp-mnist-shifted", "members", "`ensemble`", "MNIST, MLP", None, None, "not given"),
    ("pbp-mlp-mnist", "analytic", "`pbp`", "MNIST, MLP", None, None, "not given"),
    ("ebp-mlp-mnist", "analytic", "`ebp`", "MNIST, MLP", None, None, "not given"),
    ("npn-mlp-mnist", "analytic", "`npn`", "MNIST, MLP", None, None, "not given"),
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One record to fill: what to train, and where it is written."""

    settings: dict[str, Any]
    path: Path

    @classmethod
    def parse(cls, text: str, out: Path) -> Task:
        method, model, data, *more = text.split(":")
        pairs = [pair.split("=", 1) for part in more for pair in part.split(",")]
        given: dict[str, Any] = dict(pairs)
        suffix = f"-{given.pop('name')}" if "name" in given else ""
        given = {name: parse_setting(name, value.replace("/", ",")) for name, value in given.items()}
        return cls(
            {"method": method, "model": model, "data": data, **given}, out / f"{method}-{model}-{data}{suffix}.json"
        )

    def config(self, seed: int, device: str) -> training.TrainConfig:
        return training.TrainConfig.preset({**self.settings, "seed": seed, "device": device})


def fill(task: Task, seeds: list[int], device: str, data_dir: Path | None, samples: int, until: float) -> None:
    """Run the seeds that the record lacks, writing it after each."""
    record = _begin(task, device)
    dataset = load(task.settings["data"], data_dir)
    for seed in seeds:
        if any(row["seed"] == seed for row in record["seeds"]):
            continue
        if time.perf_counter() > until:
            print(f"{task.path.stem}, seed {seed}: not run, out of time", file=sys.stderr)
            return
        record["seeds"].append(_run(task.config(seed, device), dataset, samples))
        record["seeds"].sort(key=lambda row: row["seed"])
        record["mean"] = summarize(record["seeds"])
        write_atomic(task.path, f"{json.dumps(record, indent=1)}\n".encode())
        _print(task.path.stem, record)


def _begin(task: Task, device: str) -> dict[str, Any]:
    """The record as it is, if it is of the same settings; otherwise a new one."""
    config = json.loads(task.config(0, device).to_json())
    about = {name: config.pop(name) for name in ("method", "model", "data")}
    kept = {name: value for name, value in config.items() if name not in ("seed", "device")}
    if task.path.exists():
        known: dict[str, Any] = json.loads(task.path.read_text())
        if difference(known, task.config(0, device)) is None:
            return known
    task.path.parent.mkdir(parents=True, exist_ok=True)
    return {**about, "config": kept, **code(), "hardware": hardware(device),
            "date": str(datetime.date.today()), "seeds": []}  # fmt: skip


def difference(known: dict[str, Any], config: training.TrainConfig) -> str | None:
    """In which setting a record differs from `config`, but for the seed; None where it does not."""
    about = {name: known[name] for name in ("method", "model", "data")}
    return records.difference({"config": {**known["config"], **about, "seed": config.seed}}, config)


def _run(config: training.TrainConfig, dataset: Dataset, samples: int) -> dict[str, Any]:
    """Train and evaluate once."""
    began = time.perf_counter()
    run = training.train(config, dataset=dataset)
    seconds = time.perf_counter() - began
    held_out = _validation(config, dataset)
    began = time.perf_counter()
    scores = evaluation.evaluate(
        run.net,
        dataset.test,
        samples=samples,
        temper_on=held_out,
        prepare=run.preprocessing.input,
        target_scale=run.preprocessing.target_scale,
    )
    best = run.history.best
    return {
        "seed": config.seed,
        "epochs": len(run.history.records),
        "best_epoch": run.history.best_epoch,
        "seconds": seconds,
        "evaluation_seconds": time.perf_counter() - began,
        "parameters": sum(parameter.numel() for parameter in run.net.parameters()),
        "validation": None if best is None else {"nll": best.validation_nll, "error": best.validation_error},
        "samples": samples,
        "test": {mode: scores[mode] for mode in run.net.modes},
        "tempered": scores.get("tempered", {}),
    }


def _validation(config: training.TrainConfig, dataset: Dataset) -> Split | None:
    if not config.validation_fraction or dataset.task != "classification":
        return None
    return split_validation(dataset.train, config.validation_fraction, config.seed, True)[1]


def summarize(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    """Mean over the seeds and its standard error (None for one seed), by part, mode and figure."""
    return {
        part: {
            mode: {
                name: _mean([row[part][mode][name] for row in rows])
                for name in rows[0][part][mode]
                if all(row[part][mode][name] is not None for row in rows)
            }
            for mode in rows[0][part]
        }
        for part in ("test", "tempered")
    }


def _mean(values: list[float]) -> list[float | None]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return [mean, None]
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return [mean, math.sqrt(variance / len(values))]


def _print(name: str, record: dict[str, Any]) -> None:
    for mode, scores in record["mean"]["test"].items():
        tempered = record["mean"]["tempered"].get(mode, {}).get("nll", [math.nan])[0]
        cells = "  ".join(f"{key} {scores[key][0]:.4f}" for key in FIGURES if key in scores)
        print(f"{name:36s} {mode:8s} {len(record['seeds'])} seeds  {cells}  tempered nll {tempered:.4f}", flush=True)


def table(out: Path) -> str:
    """All records as a Markdown table, the figures that the comparison is about."""
    lines = [
        "| method | model | data | mode | seeds | epochs | error % | NLL | NLL, tempered | ECE % |",
        "|---" * 10 + "|",
    ]
    for path in sorted(out.glob("*.json")):
        record = json.loads(path.read_text())
        config, hidden = record["config"], ", ".join(map(str, record["config"]["hidden"] or ()))
        for mode, scores in record["mean"]["test"].items():
            if "error" not in scores:
                continue
            tempered = record["mean"]["tempered"].get(mode, {})
            figures = [_cell(scores["error"], 100, 2), _cell(scores["nll"], 1, 3), _cell(tempered.get("nll"), 1, 3),
                       _cell(scores["ece"], 100, 2)]  # fmt: skip
            about = [record["method"], f"{record['model']} {hidden}", record["data"], mode, str(len(record["seeds"]))]
            lines.append(f"| {' | '.join([*about, str(config['epochs']), *figures])} |")
    return "\n".join(lines)


def figures(out: Path) -> str:
    """What is published and what we reach, as a Markdown table; a figure that is not reached is marked."""
    heads = ("method", "data, model", "published error %, NLL", "by", "ours: error %", "NLL", "NLL, tempered")
    lines = [f"| {' | '.join(heads)} | epochs, seeds |", "|---" * 8 + "|"]
    for name, mode, who, what, error, nll, source in PUBLISHED:
        record = json.loads((out / f"{name}.json").read_text())
        scores, tempered = record["mean"]["test"][mode], record["mean"]["tempered"].get(mode, {})
        missed = error is not None and 100 * scores["error"][0] > error
        published = "–" if error is None else f"{error:.2f}, {'–' if nll is None else f'{nll:.3f}'}"
        ours = f"{_cell(scores['error'], 100, 2)}{' (not reached)' if missed else ''}"
        rest = (_cell(scores["nll"], 1, 3), _cell(tempered.get("nll"), 1, 3))
        effort = f"{record['config']['epochs']}, {len(record['seeds'])}"
        lines.append(f"| {' | '.join((who, what, published, source, ours, *rest, effort))} |")
    return "\n".join(lines)


def _cell(figure: list[float | None] | None, factor: float, digits: int) -> str:
    if figure is None or figure[0] is None:
        return "–"
    mean, error = figure
    return f"{factor * mean:.{digits}f}" + ("" if error is None else f" ± {factor * error:.{digits}f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="METHOD:MODEL:DATA[:SETTINGS]", help="what to run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="one run for each")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda[:N]")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--samples", type=int, default=10, help="networks drawn for the mc modes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no run after this long")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "rivals", help="folder of the records")
    parser.add_argument("--table", action="store_true", help="print the records and do nothing else")
    parser.add_argument("--figures", action="store_true", help="print them beside what is published, for the docs")
    args = parser.parse_args()
    if args.table or args.figures:
        print(table(args.out) if args.table else figures(args.out))
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    until = time.perf_counter() + args.seconds
    tasks = [Task.parse(text, args.out) for text in args.runs]
    for task in tasks:
        task.config(args.seeds[0], args.device)  # a bad setting stops everything before the work begins
    for task in tasks:
        fill(task, args.seeds, args.device, args.data_dir, args.samples, until)


if __name__ == "__main__":
    main()
