"""Regression with error bars: what the noise explains, and what only more data would.

python examples/regression.py                    numbers
python examples/regression.py error_bars.png     and a picture (needs matplotlib)
"""

import sys

import numpy as np

from bqn.estimators import BQNRegressor, Uncertainty

NOISE = 0.2
GAP = (-0.5, 1.5)


def truth(x: np.ndarray) -> np.ndarray:
    """The function behind the noise."""
    return np.sin(2 * x) + 0.3 * x


def draw(examples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy observations everywhere between -3 and 3 but in the gap."""
    x = rng.uniform(-3, 3, 2 * examples)
    x = x[(x < GAP[0]) | (x > GAP[1])][:examples]
    return x, truth(x) + NOISE * rng.normal(size=len(x))


def main(picture: str | None = None) -> None:
    """Fit, check the error bars on new observations, and look into the gap."""
    rng = np.random.default_rng(0)
    x, y = draw(200, rng)
    x_test, y_test = draw(1000, rng)
    model = BQNRegressor(random_state=0, lam=0.1).fit(x[:, None], y)

    mean, std = model.predict(x_test[:, None], return_std=True)
    print(f"R² on {len(x_test)} new observations: {model.score(x_test[:, None], y_test):.3f}")
    for level, width in ((0.5, 0.674), (0.9, 1.645), (0.95, 1.960)):
        print(f"{level:.0%} intervals cover {np.mean(np.abs(y_test - mean) < width * std):.1%}")

    grid = np.linspace(-3, 3, 301)
    parts = model.predict_uncertainty(grid[:, None])
    inside = (grid > GAP[0]) & (grid < GAP[1])
    print(f"noise: {np.sqrt(parts.aleatoric[0]):.3f} found, {NOISE:.3f} true")
    print(f"doubt about the function: {_root_mean(parts.epistemic[~inside]):.3f} near the data")
    print(f"doubt about the function: {_root_mean(parts.epistemic[inside]):.3f} in the gap")
    if picture:
        _plot(picture, x, y, grid, model.predict(grid[:, None]), parts)
        print(f"the picture is in {picture}")


def _root_mean(variances: np.ndarray) -> float:
    return float(np.sqrt(variances.mean()))


def _plot(path: str, x: np.ndarray, y: np.ndarray, grid: np.ndarray, mean: np.ndarray, parts: Uncertainty) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    doubt, both = 2 * np.sqrt(parts.epistemic), 2 * np.sqrt(parts.epistemic + parts.aleatoric)
    axes.fill_between(grid, mean - both, mean + both, color="#cfe1f2", label="±2σ with the noise")
    axes.fill_between(grid, mean - doubt, mean + doubt, color="#7fb0d9", label="±2σ of doubt about the function")
    axes.plot(grid, mean, color="#08519c", label="prediction")
    axes.plot(grid, truth(grid), color="black", linestyle=":", label="truth")
    axes.plot(x, y, ".", color="#555555", markersize=3, label="observations")
    axes.set(xlabel="x", ylabel="y", title="A Bayesian quantized network and its error bars")
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
