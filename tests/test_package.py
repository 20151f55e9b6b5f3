"""The package itself: what it shows of itself, and when it imports what."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bqn

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_dir_lists_the_public_names_and_no_others():
    listed = dir(bqn)
    assert {*bqn.__all__, "BQNClassifier", "BQNRegressor"} == set(listed)
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(listed)


def test_listing_imports_nothing():
    program = "import sys, bqn; dir(bqn); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_packed_network_says_what_it_is():
    model = bqn.load_pretrained("digits-mlp-mc5", "numpy")
    assert repr(model) == "PackedModel(digits, mlp; 5 networks; pixels 1×8×8; 10 classes; kernels numpy)"


@pytest.mark.parametrize(
    ("picture", "name", "size"), [("digit-8.png", "digits-mlp", 8), ("digit-28.png", "mnist-mlp-mc5", 28)]
)
def test_the_example_pictures_show_a_three(picture, name, size):
    pixels = np.asarray(Image.open(EXAMPLES / picture))
    assert (pixels.shape, pixels.dtype) == ((size, size), "uint8")
    probabilities = bqn.load_pretrained(name)(pixels[None, None])[0]
    assert probabilities.argmax() == 3
    assert probabilities[3] > 0.9
