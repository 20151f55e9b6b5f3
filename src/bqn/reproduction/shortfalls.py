"""What the recipe `best` does not reach, by how much, and what was tried: a table by records, and words by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bqn.reproduction import paper, records, rivals, tables
from bqn.reproduction.quotes import quoted

# The columns of a mode, of which the best counts.
_COLUMNS = {
    "analytic": ("analytic",),
    "mc": ("mc", "mc_recalibrated", "mc_distilled"),
    "map": ("map", "map_recalibrated", "map_distilled"),
}
_LABELS = {**tables.MODES, **tables.DISTILLED}
_FIGURES = {"nll": "NLL", "error": "error"}
_LIMIT = {"nll": "{:g}", "error": "{:.2f}"}
_UNIT = {"nll": 1e3, "error": 100.0}

# By architecture and data; shown where an aim is missed. `{METHOD}` stands for the error of our run of a rival.
TRIED: Mapping[tuple[str, str], str] = {
    ("cnn", "mnist"): (
        "The errors are 57 to 69 of 10,000 images where the aims are 50 and 60; real weights in the same layers have "
        "{gaussian-bnn} (Gaussian BNN) and {mc-dropout} % (MC dropout), by one seed each. Tried, on validation "
        "examples, single runs over 40 epochs: turns and sizes, which the recipe has (MC-5 and MAP gain NLL there, "
        "errors hardly; on the test set every mode gains both over the recipe before, 18.1 / 0.65 in the analytic "
        "prediction); beside them networks drawn in every step, the mode in half of them (MAP, recalibrated, 21.4 / "
        "0.58, MC-5 is no better), with a black square too (worse), or in steps that alternate (as the recipe). "
        "By ten seeds, a λ of 0.01 instead of 0.03: the analytic prediction loses a little, MAP gains without "
        "recalibration, and MAP, distilled, is no better ([below](#figure-nll-and-error-against-λ)). A learning rate "
        "of 0.01 has 18.2 / 0.50 in the analytic prediction, between two runs of seed 0 at 0.03, 17.3 / 0.45 and "
        "[[cnn-mnist/best validation analytic 0]], so it decides nothing, but its MAP is of use without "
        "recalibration, 28.4 / 0.83. More seeds of it, with a λ of 0.01 too, and more than 40 epochs have not been "
        "tried."
    ),
    ("cnn", "fashion-mnist"): (
        "[[cnn-fashion-mnist/best test analytic brief]] misses by a hundredth of a percentage point, where seeds "
        "differ by 0.16. Turns and sizes lose here, and a black square loses in the analytic prediction. The recipe "
        "`paper` at a larger λ has no worse an analytic prediction, by one seed, "
        "[[cnn-fashion-mnist/paper-lam-0.001 test analytic brief]] at 0.001 and "
        "[[cnn-fashion-mnist/paper-lam-0.002 test analytic brief]] at 0.002, but sampled networks do not follow it: "
        "MC-5, recalibrated, has [[cnn-fashion-mnist/paper-lam-0.001 test mc_recalibrated brief]] and "
        "[[cnn-fashion-mnist/paper-lam-0.002 test mc_recalibrated brief]]."
    ),
    ("cnn", "kmnist"): (
        "NLL meets the aims, in MC-5 and MAP once distilled; errors of the analytic prediction and of MC-5 do not. "
        "What lowers the one moves the other less: turns and sizes together with drawn networks, which the recipe "
        "has, took the analytic prediction from 120.2 / 2.99 to [[cnn-kmnist/best test analytic brief]]. Real "
        "weights in the same layers have {gaussian-bnn} % (Gaussian BNN, one seed). A black square beside all that "
        "has the lowest NLL of all runs on validation examples, 28.7 / 0.97, and a higher error; with a λ of 0.1, "
        "without drawn networks, it is worse in both. A learning rate of 0.01 and more than 40 epochs have not been "
        "tried here."
    ),
    ("vgg", "cifar10"): (
        "The largest gap. Real weights in the same layers do not reach 9 % either with us: {gaussian-bnn} % "
        "(Gaussian BNN, one seed, 10 epochs; 40 are no better). What narrowed the gap is in the recipe: a start that "
        "lets the signal through and neighbouring positions that err together (all modes), units that err together "
        "(MC-5 and MAP, at a cost to the analytic prediction), and above all networks drawn in every step (all "
        "modes). What did not: λ below zero in the end (in short runs, before the rest was known), steps that "
        "alternate (MAP gains, the others lose), the mode in half of the steps (MAP gains; by itself the analytic "
        "prediction loses, no record), distillation that is longer or slower (another 6 % of MAP's NLL, no record), a "
        "λ of 0.003 (MAP gains, [[vgg-cifar10/best-lam-0.003 test map_recalibrated brief]] recalibrated, the others "
        "lose) or 0.03 (all lose). "
        "A black square overfits less and asks for more epochs than 80; more have not been tried. A binary network "
        "without a posterior has {qnn} % (one seed, 25 epochs), ahead of our MAP, which is the mode that is furthest "
        "from its aim."
    ),
}
_RIVALS = {"gaussian-bnn": "mc", "mc-dropout": "mc", "qnn": "map"}  # and the mode of each


def shortfalls(out: Path) -> str:
    """Aims that no column of their table meets and what was tried, by network.

    The words are about the records that come with the project: those about a network are left out where a figure that
    they quote has no record.
    """
    rows, networks = [], []
    for network in paper.NETWORKS:
        missed = [row for mode in _COLUMNS for row in _missed(out, network, mode)]
        rows += [[tables.title(*network), *row] for row in missed]
        if missed:
            networks.append(network)
    if not rows:
        return "Every aim that has been measured is met by a column of its table."
    heads = ("", "mode", "figure", "aim", "reached", "over by")
    words = {network: _tried(out, network) for network in networks if network in TRIED}
    tried = [f"- **{tables.title(*name)}.** {text}" for name, text in words.items() if tables.MISSING not in text]
    return "\n\n".join(filter(None, (tables.markdown(heads, rows), "\n".join(tried))))


def _missed(out: Path, network: tuple[str, str], mode: str) -> list[list[str]]:
    documents, limits = records.seeds(*network, "best", out), tables.aim_limits(*network, mode)
    found = []
    for name, word in _FIGURES.items():
        columns = {each: records.figure(documents, "test", each, name) for each in _COLUMNS[mode]}
        measured = {each: figure for each, figure in columns.items() if figure is not None}
        if not measured:
            continue
        best, figure = min(measured.items(), key=lambda column: column[1].mean)
        failed = tables.lost(documents, best)
        if failed or tables.shown(figure, name, limits[name]).endswith(tables.SHORT):
            shown = tables.shown(figure, name)
            over = f"{100 * (_UNIT[name] * figure.mean / limits[name] - 1):.1f} %"
            reached = ", ".join(filter(None, (f"{shown} ({figure.seeds})", failed)))
            found.append([_LABELS[best], word, _LIMIT[name].format(limits[name]), reached, over])
    return found


def _tried(out: Path, network: tuple[str, str]) -> str:
    text = quoted(TRIED[network], out)
    for method, mode in _RIVALS.items():
        record = rivals.read(out, method, *network, mode) if f"{{{method}}}" in text else None
        error = None if record is None else records.figure(record.seeds, "test", mode, "error")
        text = text.replace(f"{{{method}}}", tables.shown(error, "error"))
    return text
