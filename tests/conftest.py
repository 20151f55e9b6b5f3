"""Settings for all tests: one thread a process (the runner starts one process a core), reproducible hypothesis."""

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("ci")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not torch.cuda.is_available():  # read by Triton when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The CPU, and the GPU where there is one: `make test-gpu` runs that part."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
