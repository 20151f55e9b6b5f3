"""Temperature scaling: the known optimum is found, and nothing but confidence changes."""

import pytest
import torch

from bqn.tempering import fit_temperature, temper


@pytest.mark.parametrize("wanted", [0.1, 0.7, 1.0, 3.0, 40.0])
def test_finds_the_temperature_that_made_the_labels(wanted):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * wanted * torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(logits / wanted, -1), 1, generator=generator).squeeze(-1)
    assert fit_temperature(torch.log_softmax(logits, -1), y) == pytest.approx(wanted, rel=0.05)


def test_is_the_best_of_all():
    generator = torch.Generator().manual_seed(1)
    logits, y = 5 * torch.randn(50, 3, generator=generator), torch.randint(3, (50,), generator=generator)

    def nll(temperature):
        return -temper(logits.double(), temperature).log().gather(1, y.unsqueeze(1)).mean()

    best = fit_temperature(logits, y)
    assert all(nll(best) <= nll(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))


def test_logits_too_far_apart_for_float32():
    logits = torch.tensor([[0.0, 500.0], [500.0, 0.0], [0.0, 500.0]], dtype=torch.float64)
    temperature = fit_temperature(torch.log_softmax(logits, -1), torch.tensor([1, 0, 0]))
    probs = temper(logits, temperature)  # two of three right, so two thirds is the best confidence
    assert probs.amax(-1).tolist() == pytest.approx([2 / 3] * 3, abs=1e-3)
    assert probs.argmax(-1).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("log_probs", "y", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "log_probs must have shape"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), "log_probs must have shape"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels from 0 to 2"),
        (torch.tensor([[torch.nan, 0.0]]), torch.tensor([1]), "log_probs must hold no NaN .*, got a mean NLL of nan"),
        (torch.tensor([[0.0, torch.inf]]), torch.tensor([1]), "log_probs must hold no NaN .*, got a mean NLL of nan"),
        (torch.tensor([[-torch.inf, 0.0]]), torch.tensor([0]), "log_probs .* no label .* zero, got a mean NLL of inf"),
    ],
)
def test_bad_input(log_probs, y, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(log_probs, y)


def test_classes_of_probability_zero_that_are_no_labels():
    log_probs, y = torch.tensor([[0.0, -1.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 0])
    impossible = torch.cat([log_probs, torch.full((3, 1), -torch.inf)], 1)
    assert fit_temperature(impossible, y) == pytest.approx(fit_temperature(log_probs, y), rel=1e-6)


def test_several_networks_are_tempered_alike_and_judged_together():
    generator = torch.Generator().manual_seed(2)
    logits, y = 4 * torch.randn(3, 80, 5, generator=generator), torch.randint(5, (80,), generator=generator)
    assert fit_temperature(logits[:1], y) == fit_temperature(logits[0], y)

    def nll(temperature):
        return -temper(logits.double(), temperature).mean(0).log().gather(1, y.unsqueeze(1)).mean()

    best = fit_temperature(logits, y)
    assert all(nll(best) <= nll(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))
