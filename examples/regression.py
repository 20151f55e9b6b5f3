"""Regression with error bars: what is noise, and what only more data would tell.

Numbers: python examples/regression.py
And a picture (needs matplotlib): python examples/regression.py error_bars.png
"""

import sys

import numpy as np

from bqn.estimators import BQNRegressor

NOISE = 0.2


def truth(x: np.ndarray) -> np.ndarray:
    """The function behind the noise."""
    return np.sin(2 * x) + 0.3 * x


def draw(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy observations: one feature `(count, 1)` between -3 and 3, and the target `(count,)`."""
    x = rng.uniform(-3, 3, count)
    return x[:, None], truth(x) + NOISE * rng.normal(size=count)


def main(picture: str | None = None) -> None:
    """Fit to more and more observations, and check the error bars on new ones."""
    rng = np.random.default_rng(0)
    X_test, y_test = draw(1000, rng)
    models = {}
    print(f"observations      R²   90% intervals cover   noise ({NOISE:.2f} is true)   doubt about the function")
    for count in (100, 300, 1000):
        X, y = draw(count, rng)
        models[count] = model = BQNRegressor(random_state=0).fit(X, y)
        mean, std = model.predict(X_test, return_std=True)
        covered = np.mean(np.abs(y_test - mean) < 1.645 * std)
        noise, doubt = (np.sqrt(part.mean()) for part in model.predict_uncertainty(X_test))
        print(f"{count:12d}{model.score(X_test, y_test):8.3f}{covered:17.1%}{noise:18.3f}{doubt:24.3f}")
    if picture:
        _plot(picture, models, X_test[:200], y_test[:200])
        print(f"\nthe picture is in {picture}")


def _plot(path: str, models: dict[int, BQNRegressor], X: np.ndarray, y: np.ndarray) -> None:
    from matplotlib.figure import Figure

    grid = np.linspace(-3.2, 3.2, 321)
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, (count, model) in zip(figure.subplots(1, len(models), sharey=True), models.items(), strict=True):
        mean = model.predict(grid[:, None])
        noise, doubt = model.predict_uncertainty(grid[:, None])
        for variance, color, label in ((noise + doubt, "#cfe1f2", "with the noise"), (doubt, "#7fb0d9", "doubt alone")):
            width = 2 * np.sqrt(variance)
            axes.fill_between(grid, mean - width, mean + width, color=color, label=f"±2σ {label}")
        axes.plot(grid, mean, color="#08519c", label="prediction")
        axes.plot(grid, truth(grid), color="black", linestyle=":", label="truth")
        axes.plot(X[:, 0], y, ".", color="#555555", markersize=3, label="new observations")
        axes.set(xlabel="x", title=f"after {count} observations")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
