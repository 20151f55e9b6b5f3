"""The tables of docs/speed.md, from the records.

    python benchmarks/speed_tables.py [--check]

Writes what stands between `<!-- name -->` and `<!-- end -->` in the page anew. With `--check` it writes nothing, and
fails if something would change.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bqn.atomic import write_atomic

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/speed.md"
Rows = list[dict[str, Any]]


def pair(rows: Rows) -> str:
    known = {"passes": "plain passes", "kernels": "fused passes", "pair": "fused products", "uncentred": "uncentred",
             "implicit": "implicit gemm"}  # fmt: skip
    forms = {form: name for form, name in known.items() if any(form in row["share"] for row in rows)}
    lines = [f"| layer | pass | floor, ms | {' | '.join(forms.values())} |", "|---|---|---|" + "---|" * len(forms)]
    for row in rows:
        cells = [f"{row['share'][form]:.0%}".replace("%", " %") if form in row["share"] else "" for form in forms]
        lines.append(f"| {row['what']} | {row['pass']} | {row['ms']['floor']:.4f} | {' | '.join(cells)} |")
    errors = [part for row in rows for pairs in row.get("error", {}).values() for part in pairs]
    if errors:
        lines += ["", f"Relative error of means and variances against float64: at most {max(errors):.2%}."]
    return "\n".join(lines)


def matrix_products(rows: Rows) -> str:
    """Without convolutions, of which there is a later record."""
    return pair([row for row in rows if "×" not in row["what"]])


KINDS = {
    "products": r"nvjet_|cutlass|xmma|splitKreduce|_forward_kernel",
    "over weights": r"_(round|weights|by_weight)_kernel",
    "over inputs": r"_(inputs|by_input)_kernel",
    "sums": r"at::native::reduce_kernel|_sums_kernel",
    "rest": r"finish_kernel|Memset|elementwise_kernel|avg_pool2d",
}


def _by_kind(kernels: Rows) -> tuple[str, dict[str, float]]:
    """The form of a layer, and its microseconds by what the kernels do.

    Fused products end as a pass would, and their kernels have the names of passes.
    """
    fused = any(row["kernel"] == "_forward_kernel" for row in kernels)
    times = dict.fromkeys(KINDS, 0.0)
    for row in kernels:
        name = row["kernel"]
        found = [kind for kind, pattern in KINDS.items() if re.search(pattern, name)]
        if len(found) != 1:
            raise SystemExit(f"speed_tables: what is the kernel {name} for?")
        product = fused and name.lstrip("_") in ("by_input_kernel", "by_weight_kernel", "finish_kernel")
        times["products" if product else found[0]] += row["us"]
    return "fused products" if fused else "fused passes", times


def pair_profile(rows: Rows) -> str:
    """The layers that miss 70 % with backward."""
    heads = ["layer", "form", "floor, µs", *KINDS, "all of ours", "floor / all", "kernels"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    both = {(row["what"], row["form"]): row["kernels"] for row in rows if row["pass"] == "forward and backward"}
    count = {key: sum(kernel["times"] for kernel in kernels) for key, kernels in both.items()}
    for what in dict.fromkeys(what for what, _ in both):
        floor = sum(row["us"] for row in both[what, "floor"])
        form, times = _by_kind(both[what, "ours"])
        whole = sum(times.values())
        if floor < 0.7 * whole:
            cells = " | ".join(f"{time:.1f}" if time else "–" for time in (floor, *times.values(), whole))
            lines.append(f"| {what} | {form} | {cells} | {100 * floor / whole:.0f} % | {count[what, 'ours']:.0f} |")
    return "\n".join(lines)


def rivals(rows: Rows) -> str:
    """What the kernels of a step take beside what it takes."""
    names = {"plain": "plain network, recorded", "torchbnn": "torchbnn", "bayesian_torch": "bayesian-torch"}
    lines = ["| step | kernels | products, ms | optimizer | other | all kernels | whole step | without a kernel |",
             "|---" * 8 + "|"]  # fmt: skip
    for row in rows:
        times = {kind: value / 1e3 for kind, value in row["us"].items() if kind != "fused"}
        busy = sum(times.values())
        cells = " | ".join(f"{time:.2f}" for time in (*times.values(), busy, row["ms"]))
        lines.append(f"| {row['model'].upper()}, {row['batch']}, {names[row['network']]} | {row['kernels']:.0f} | "
                     f"{cells} | {max(0.0, 1 - busy / row['ms']):.0%} |".replace("%", " %"))  # fmt: skip
    return "\n".join(lines)


def memory(rows: Rows) -> str:
    """Megabytes, in parentheses times the plain network, of all forms that the record has."""
    forms = {"plain": "plain", "ours": "ours", "compiled": "compiled", "frugal": "compiled, frugal"}
    columns = [(kind, form) for kind in ("kept", "peak") for form in forms if kind in rows[0].get(form, {})]
    heads = ["network", "batch", "precision", *(f"{kind}: {forms[form]}" for kind, form in columns)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row["what"].upper(), str(row["batch"]), row["precision"]]
        for kind, form in columns:
            times = "" if form == "plain" else f" ({row[form][kind] / row['plain'][kind]:.2f}×)"
            cells.append(f"{row[form][kind] / 1e6:.1f}{times}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def memory_profile(rows: Rows) -> str:
    """The peaks, and what holds most at that moment, by file of the package."""
    lines = [
        "| network | precision | peak: plain, MB | ours, MB | ratio | held by ours, MB, by file |",
        "|---" * 6 + "|",
    ]
    plain = {(row["what"], row["precision"]): row["peak"] for row in rows if row["network"] == "plain"}
    for row in rows:
        if row["network"] == "plain":
            continue
        files: dict[str, float] = {}
        for each in row["places"]:
            file = each["place"].split(":")[0]
            files[file] = files.get(file, 0.0) + each["bytes"] / 1e6
        most = sorted(files.items(), key=lambda item: -item[1])[:6]
        held = ", ".join(f"{file.removesuffix('.py')} {size:.0f}" for file, size in most)
        whole = plain[row["what"], row["precision"]]
        lines.append(f"| {row['what'].upper()} | {row['precision']} | {whole / 1e6:.1f} | {row['peak'] / 1e6:.1f} | "
                     f"{row['peak'] / whole:.2f} | {held} |")  # fmt: skip
    return "\n".join(lines)


def cost(rows: Rows) -> str:
    lines = []
    for axis in dict.fromkeys(row["axis"] for row in rows):
        mine = [row for row in rows if row["axis"] == axis]
        first, last = mine[0], mine[-1]
        lines.append(
            f"![step by {axis}](figures/cost-{axis}.svg)\n\n{axis} {first['value']} to {last['value']}: "
            f"{first['ours']:.2f} to {last['ours']:.2f} ms, floor {first['floor']:.2f} to {last['floor']:.2f} ms.\n"
        )
    return "\n".join(lines).rstrip()


FORMS = {
    "plain": "plain network, bf16",
    "torchbnn": "torchbnn, bf16, launched one by one",
    "bayesian_torch": "bayesian-torch, bf16, launched one by one",
    "tf32": "ours, TF32",
    "bf16 passes": "ours, bf16, plain passes",
    "bf16 kernels": "ours, bf16, kernels",
    "bf16 compiled": "ours, bf16, compiled",
    "bf16 compiled, drawn": "ours, bf16, compiled, with a drawn network",
    "bf16 compiled, frugal": "ours, bf16, compiled, frugal",
}


def steps(rows: Rows) -> str:
    """A column a network and batch; eight side by side, which are measured at batch 100, below."""
    times = {}
    for row in rows:
        if match := re.fullmatch(r"training step, (\w+), batch (\d+), (.+)", row["what"]):
            times[f"{match[1].upper()}, {match[2]}", FORMS[match[3]]] = f"{row['ours']:.2f} ({row['ratio']:.1f}×)"
        elif match := re.fullmatch(r"replicas, (\w+), 8, bf16 (.+)", row["what"]):
            times[f"{match[1].upper()}, 100", f"eight side by side, {match[2]}, each"] = f"{row['ours']:.2f}"
    columns, forms = (list(dict.fromkeys(key[part] for key in times)) for part in (0, 1))
    lines = [f"| step | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for form in sorted(forms, key=lambda form: "side by side" in form):
        lines.append(f"| {form} | {' | '.join(times.get((column, form), '–') for column in columns)} |")
    return "\n".join(lines)


COMPILED_FORMS = {
    "plain": "plain network, bf16",
    "windows": "max pooling of windows side by side, as before",
    "default": "as it is: max pooling of tiles in their place",
    "far": "formed again also far from where it was formed first",
    "aggressive": "formed again wherever it is done element by element",
    "pointwise": "more shapes of kernels tried",
}


def compiled_forms(rows: Rows) -> str:
    """Steps of the VGG by form, and what the kernels of each take; beside them replicas of the CNN."""
    found = {(row["form"], row["model"]): row for row in rows}
    plain = found["plain", "vgg"]["ms"]
    kinds = ("products", "fused", "optimizer", "other")
    heads = ["form", "VGG, ms", "times plain", *(f"{kind}, ms" for kind in kinds), "kernels", "eight CNNs, each, ms"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for form, name in COMPILED_FORMS.items():
        row, beside = found[form, "vgg"], found.get((form, "cnn"))
        cells = [f"{row['ms']:.2f}", f"{row['ms'] / plain:.2f}"]
        cells += [f"{row['us'][kind] / 1e3:.2f}" if "us" in row else "–" for kind in kinds]
        cells.append(f"{row['kernels']:.0f}" if "kernels" in row else "–")
        cells.append(f"{beside['ms'] / beside['replicas']:.3f}" if beside else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], unit: float, digits: int) -> str:
    mean = f"{unit * statistics.mean(values):.{digits}f}"
    return f"{mean} ± {unit * statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def variance_precision(rows: Rows) -> str:
    """By network and precision: errors of the variances of a trained network, its scores, and those of training so."""
    lines = [
        "| network, data | operands of the variance | variances off by, layer by layer | NLL / error | trained so |",
        "|---" * 5 + "|",
    ]
    training = {(row["model"], row["data"], row["precision"]): row for row in rows if row["what"] == "training"}
    for row in rows:
        if row["what"] != "layers":
            continue
        errors = ", ".join(f"{100 * value:.1f}" for value in row["errors"].values())
        other = training[row["model"], row["data"], row["precision"]]
        trained = f"{_spread(other['nll'], 1e3, 1)} / {_spread(other['error'], 100, 2)}"
        lines.append(f"| {row['model'].upper()}, {row['data']} | {row['precision']} | {errors} % | "
                     f"{1e3 * row['nll']:.1f} / {100 * row['error']:.2f} | {trained} |")  # fmt: skip
    return "\n".join(lines)


def precision(rows: Rows) -> str:
    modes = {"analytic": "analytic", "mc_recalibrated": "MC-5", "map_recalibrated": "MAP"}
    lines = [f"| network, data, epochs | seeds | precision | {' | '.join(modes.values())} |", "|---" * 6 + "|"]
    keys = [(row["model"], row["data"], row["epochs"], row["precision"]) for row in rows]
    for key in dict.fromkeys(keys):
        model, data, epochs, kind = key
        mine = [row["validation"] for row, its in zip(rows, keys, strict=True) if its == key]
        cells = []
        for mode in modes:
            nll, error = ([scores[mode][name] for scores in mine] for name in ("nll", "error"))
            cells.append(f"{_spread(nll, 1e3, 1)} / {_spread(error, 100, 2)}")
        name = {"half": "bfloat16", "full": "float32"}[kind]
        lines.append(f"| {model.upper()}, {data}, {epochs} | {len(mine)} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Rows], str]] = {
    "gpu_step": steps,
    "gpu_step_100": steps,
    "gpu_step_512": steps,
    "gpu_step_cnn_512": steps,
    "compiled_forms": compiled_forms,
    "precision": precision,
    "precision_vgg": precision,
    "variance_precision": variance_precision,
    "pair_of_products": matrix_products,
    "pair_of_convolutions": pair,
    "levels_products": pair,
    "implicit_gemm": pair,
    "pair_of_products_profile": pair_profile,
    "pair_of_convolutions_profile": pair_profile,
    "rivals_profile": rivals,
    "memory": memory,
    "memory_mlp": memory,
    "memory_compiled": memory,
    "memory_profile": memory_profile,
    "cost": cost,
}


def filled(page: str) -> str:
    """The page with all its tables as the records have them."""
    for name, table in TABLES.items():
        record = ROOT / f"results/benchmarks/{name}.json"
        body = "No record yet."
        if record.exists():
            found = json.loads(record.read_text())
            body = f"{table(found['rows'])}\n\n({found['hardware']}, {found['date']}.)"
        page, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}",
            page, flags=re.DOTALL,
        )  # fmt: skip
        if count != 1:
            raise SystemExit(f"speed_tables: {PAGE} must have one place for the table {name}, found {count}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    page = PAGE.read_text()
    if not args.check:
        write_atomic(PAGE, filled(page).encode())
    elif filled(page) != page:
        raise SystemExit("speed_tables: docs/speed.md is not what the records say; run benchmarks/speed_tables.py")


if __name__ == "__main__":
    main()
