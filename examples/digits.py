"""Train a Bayesian quantized network on the 8 × 8 digits of scikit-learn and evaluate it in its three modes."""

import time

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import bqn

EPOCHS, BATCH, LAM = 40, 100, 1e-3


def main() -> None:
    """Train, evaluate, and compare with a logistic regression on the same split."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more would not speed up so small a network
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

    net = bqn.models.mlp(in_features=64, classes=10, hidden=(256, 128))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    weights = sum(posterior.shape.numel() for _, posterior in net.posteriors())
    print(f"Training {weights:,} binary weights on {len(x)} digits, {EPOCHS} epochs:")
    started = time.perf_counter()
    for epoch in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            terms = net.elbo_terms(x[batch], y[batch], data_size=len(x), lam=LAM)
            (-terms.value).backward()
            optimizer.step()
        schedule.step()
        if epoch % 10 == 9:
            seconds = time.perf_counter() - started
            print(f"  epoch {epoch + 1:2d}  ELBO {terms.value.item():7.3f}  {seconds:4.1f} s")

    rows = [
        ("analytic: one pass of beliefs", net.predict(x_test)),
        ("MC: 5 sampled 1-bit networks", net.predict(x_test, "mc", generator=torch.Generator().manual_seed(0))),
        ("MAP: the most probable 1-bit network", net.predict(x_test, "map")),
        ("logistic regression, for comparison", _logistic_regression(x, y, x_test)),
    ]
    print(f"\n{'On ' + str(len(x_test)) + ' held-out digits':38s}{'NLL':>8s}{'error':>9s}{'ECE':>9s}")
    for name, probs in rows:
        nll, error, ece = (metric(probs, y_test) for metric in (bqn.metrics.nll, bqn.metrics.error, bqn.metrics.ece))
        print(f"{name:38s}{nll:8.3f}{error:9.2%}{ece:9.2%}")
    print(f"\nEach 1-bit network packs into {weights / 8 / 1024:.1f} kB; the posterior over them takes 64 times that.")


def _logistic_regression(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor) -> torch.Tensor:
    model = LogisticRegression(max_iter=5000).fit(x, y)
    return torch.as_tensor(model.predict_proba(x_test))


if __name__ == "__main__":
    main()
