"""What a compiler makes of the gradients, and whether it is believed. Its place is taken by functions that go wrong."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from bqn.data import Split
from bqn.objective import ElboTerms
from bqn.propagate import cpu
from bqn.training import build_model, compiler, graph
from bqn.training.distillation import Pupil
from bqn.training.loop import Trainer
from tests.training import tiny

Change = Callable[[str, Tensor], Tensor]


@pytest.fixture
def _forgetting() -> Iterator[None]:
    yield
    torch.compiler.reset()


def trainer_of(**values: object) -> Trainer:
    config = tiny.config(compile=True, **values)
    return Trainer(build_model(config, (1, 6, 6), 3), tiny.images(), None, config, torch.device("cpu"))


def compile_as(trainer: Trainer, change: Change) -> list[ElboTerms]:
    """Let "compiled" gradients be a function of the right ones; returns the list of all that is computed so."""
    made: list[ElboTerms] = []

    def objective(*arguments: object, **options: str) -> ElboTerms:
        terms = trainer.net.elbo_terms(*arguments, **options)
        names, parameters = zip(*trainer.net.named_parameters(), strict=True)
        gradients = torch.autograd.grad(terms.value, parameters)
        slopes = [
            ((parameter - parameter.detach()) * change(name, gradient)).sum()
            for name, parameter, gradient in zip(names, parameters, gradients, strict=True)
        ]
        made.append(terms._replace(value=terms.value.detach() + torch.stack(slopes).sum()))
        return made[-1]

    trainer.objectives.__dict__["_compiled"] = {"analytic": objective}
    return made


def check(*trainers: Trainer) -> None:
    schedules = [graph.Schedule(trainer) for trainer in trainers]
    for trainer, schedule in zip(trainers, schedules, strict=True):
        trainer.net.train()
        schedule.begin(trainer, trainer.state.draw_order(len(trainer.x)))
    graph.check_compiler(trainers, schedules, schedules[0].sizes[0])


def noisy(size: float) -> Change:
    generator = torch.Generator().manual_seed(0)
    return lambda name, gradient: gradient * (1 + size * torch.randn(gradient.shape, generator=generator))


@pytest.mark.parametrize("lost", ["body.1.weight.logits", "body.4.bias.logits"])
def test_a_vanished_gradient_is_seen(lost: str) -> None:
    trainer = trainer_of()
    norms: dict[str, float] = {}

    def vanish(name: str, gradient: Tensor) -> Tensor:
        norms[name] = float(gradient.norm())
        return gradient * 0 if name == lost else gradient

    compile_as(trainer, vanish)
    with pytest.warns(UserWarning, match=f"changes the gradient of {lost} by 100%, so the steps are not compiled"):
        check(trainer)
    assert not trainer.compiles
    if lost == "body.4.bias.logits":  # of the gradient as a whole it is next to nothing
        assert 0 < norms[lost] < 0.01 * math.hypot(*norms.values())


@pytest.mark.parametrize(
    ("change", "mixed_precision"),
    [
        (lambda name, gradient: gradient, False),
        (lambda name, gradient: gradient.bfloat16().float(), False),
        (noisy(0.03), False),
        (noisy(0.1), True),
    ],
    ids=["right", "rounded", "noisy", "noisy, in half precision"],
)
def test_rounding_is_no_mistake(change: Change, mixed_precision: bool) -> None:
    trainer = trainer_of(mixed_precision=mixed_precision)
    made = compile_as(trainer, change)
    check(trainer)
    assert trainer.compiles
    assert len(made) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (noisy(0.2), "by [12].%"),
        (lambda name, gradient: -gradient, "by 200%"),
        (lambda name, gradient: gradient / 0, "beyond all measure"),
    ],
    ids=["noisy", "backwards", "not finite"],
)
def test_mistakes_are_named(change: Change, words: str) -> None:
    trainer = trainer_of()
    compile_as(trainer, change)
    with pytest.warns(UserWarning, match=f"compile: torch.compile of torch .* changes the gradient of .* {words}, so"):
        check(trainer)
    assert not trainer.compiles


def test_signs_that_rounding_decides_are_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, trusted in ((0.5, True), (1.0, False)):
        trainer = trainer_of()
        monkeypatch.setattr(trainer.net, "modes", ("map",))
        compile_as(trainer, noisy(size))
        with nullcontext() if trusted else pytest.warns(UserWarning, match="so the steps are not compiled"):
            check(trainer)
        assert trainer.compiles is trusted


def test_numbers_that_are_not_finite_anyway_are_left_to_the_guard() -> None:
    trainer = trainer_of()
    compile_as(trainer, lambda name, gradient: gradient)
    with torch.no_grad():
        trainer.net.body[1].weight.logits[0, 0] = math.nan
    check(trainer)
    assert trainer.compiles


def test_what_is_zero_but_for_rounding() -> None:
    plain = {"scale": torch.tensor(-2.0), "weight": torch.full((100,), 1e-5), "zero": torch.zeros(10)}
    assert compiler.largest_change(plain, plain) == ("", 0)
    dust = {**plain, "zero": torch.full((10,), 1e-8)}
    assert compiler.largest_change(dust, plain) == ("", 0)
    assert compiler.largest_change({**plain, "zero": torch.full((10,), 1e-4)}, plain) == ("zero", math.inf)
    assert compiler.largest_change({**plain, "weight": torch.zeros(100)}, plain) == ("weight", pytest.approx(1))
    assert compiler.largest_change(plain, dust) == ("", 0)
    assert compiler.largest_change(plain, {**plain, "zero": torch.full((10,), math.inf)}) is None


def test_one_run_decides_for_all_of_its_architecture() -> None:
    trainers = [trainer_of(seed=0), trainer_of(seed=1), trainer_of(hidden=(5,)), trainer_of(seed=2)]
    made = [compile_as(trainer, lambda name, gradient: gradient) for trainer in trainers]
    made[2] = compile_as(trainers[2], lambda name, gradient: 2 * gradient)
    with pytest.warns(UserWarning, match="by 100%") as warned:
        check(*trainers)
    assert len(warned) == 1
    assert [trainer.compiles for trainer in trainers] == [True, True, False, True]
    assert [len(each) for each in made] == [1, 0, 1, 0]


def test_the_verdict_for_one_architecture_is_for_all_its_runs() -> None:
    trainers = [trainer_of(seed=seed) for seed in range(3)]
    for trainer in trainers:
        compile_as(trainer, lambda name, gradient: 2 * gradient)
    with pytest.warns(UserWarning, match="by 100%") as warned:
        check(*trainers)
    assert len(warned) == 1
    assert not any(trainer.compiles for trainer in trainers)


def test_what_a_step_trains_makes_a_program_of_its_own() -> None:
    asked = []

    def gradients(trainer: Trainer) -> dict[str, Tensor]:
        asked.append((trainer.step_kind, trainer.compiles))
        return {"weight": torch.ones(2)}

    alone = trainer_of(epochs=2, drawn_epochs=2, drawn_alone=1)
    alone.state.position = 1
    frugal = trainer_of(epochs=2, checkpoint_activations=True)
    compiler.check([*(trainer_of(epochs=2, drawn_epochs=count) for count in (0, 2)), alone, frugal], gradients)
    kinds = ("analytic", "both", "drawn", "analytic")
    assert asked == [(kind, compiles) for kind in kinds for compiles in (True, False)]


def test_looking_leaves_the_generators_alone() -> None:
    trainer = trainer_of(shift=1, flip=True)
    before = trainer.state.augmentation.get_state()
    compile_as(trainer, lambda name, gradient: gradient)
    check(trainer)
    assert trainer.compiles  # so both have seen the same images
    assert torch.equal(trainer.state.augmentation.get_state(), before)


@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.usefixtures("_forgetting")
def test_a_network_that_cannot_be_followed_is_not_compiled() -> None:
    trainer = trainer_of()

    def leave(module: object, arguments: object, output: object) -> None:
        torch._dynamo.graph_break()

    trainer.net.body[1].register_forward_hook(leave)
    with pytest.warns(UserWarning, match="cannot follow this network .*, so the steps are not compiled"):
        check(trainer)
    assert not trainer.compiles


class Scaled(torch.nn.Module):
    """The least that can be compiled, in many sizes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def elbo_terms(self, x: Tensor) -> ElboTerms:
        total = (self.weight * x).sum()
        return ElboTerms(total, total, total)


@pytest.mark.usefixtures("_forgetting")
@pytest.mark.parametrize("frugal", [False, True])
def test_no_number_of_architectures_is_too_many(frugal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler would give up in silence after eight, and the check would find plain gradients right."""
    graphs: list[object] = []

    def backend(traced: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., object]:
        graphs.append(traced)
        return traced.forward

    plain_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **options: plain_compile(*args, backend=backend, **options))
    for number in range(10):
        for _ in range(2):  # the second is like the first, and takes what was made for it
            compiler.compiled(Scaled(number + 2).elbo_terms, frugal)(torch.tensor(3.0))
        assert len(graphs) == number + 1
    compiler.compiled(Scaled(2).elbo_terms, not frugal)(torch.tensor(3.0))  # which is not the same
    assert len(graphs) == 11


def test_a_run_compiles_only_what_is_recorded() -> None:
    """On a CPU nothing is recorded, so nothing is compiled either."""
    trainer = trainer_of(epochs=1)
    made = compile_as(trainer, lambda name, gradient: gradient)
    trainer.run(None, None)
    assert made == []


FOLLOWED = {
    "mlp": ("mlp", {"hidden": (12, 8)}, (1, 6, 6)),
    "cnn": ("cnn", {"channels": (4, 4), "hidden": (8,), "mixed_precision": True}, (1, 12, 12)),
    "cnn, drawn alone": ("cnn", {"channels": (4, 4), "hidden": (8,), "drawn_alone": 1}, (1, 12, 12)),
    "vgg": ("vgg", {"channels": (4, 8), "hidden": (8,), "mixed_precision": True}, (3, 16, 16)),
    "mlp, frugal": ("mlp", {"hidden": (12, 8), "checkpoint_activations": True}, (1, 6, 6)),
    "mlp, levels": ("mlp", {"hidden": (48, 32), "levels": "ternary", "mixed_precision": True}, (1, 6, 6)),
    "cnn, distilled": ("cnn", {"channels": (4, 4), "hidden": (8,), "mixed_precision": True}, (1, 12, 12)),
}


@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.usefixtures("_forgetting")
@pytest.mark.parametrize("name", FOLLOWED)
def test_the_compiler_follows_every_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a step that it cannot follow is made without it; only the last part, which is the compiler's
    own, is left out. Versions of torch differ in what they follow: 2.11 no object with `__slots__` that is called."""
    model, options, shape = FOLLOWED[name]
    monkeypatch.setattr(cpu, "_library", None)  # the passes of a CPU are none that a GPU has
    plain_compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **each: plain_compile(f, backend="aot_eager", **each))
    distilled = name.endswith("distilled")
    drawn = {} if distilled else {"drawn_epochs": 1, "mode_share": 0.5}
    config = tiny.config(model=model, compile=True, **drawn, **options)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (16, *shape), generator=generator, dtype=torch.uint8)
    images = Split(x, torch.randint(3, (16,), generator=generator))
    net = build_model(config, shape, 3)
    trainer = Trainer(Pupil(net.eval()) if distilled else net, images, None, config, torch.device("cpu"))
    trainer.state.position = config.drawn_alone  # the first step of these is analytic, which "cnn" has in its half
    with trainer.at_work():
        check(trainer)
    assert trainer.compiles
