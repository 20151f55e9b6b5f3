import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from bqn.propagate.windows import output_size, windows

pair = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(pair, pair, st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(1, 2), st.integers(1, 2)))
def test_windows_equal_torch_unfold(kernel, stride, padding, dilation) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(2, 3, 7, 8)
    height, width = (output_size(x.shape[2 + i], kernel[i], stride[i], padding[i], dilation[i]) for i in range(2))
    expected = F.unfold(x, kernel, dilation, padding, stride).reshape(2, 3, -1, height, width).movedim(2, -1)
    assert_close(windows(x, kernel, stride, padding, dilation), expected)
    carried = torch.stack((x, 2 * x), -1)
    result = windows(carried, kernel, stride, padding, dilation, trailing=1)
    assert_close(result, torch.stack((expected, 2 * expected), -1))


def test_fill_and_one_dimension() -> None:
    x = torch.arange(4.0).reshape(1, 1, 4)
    result = windows(x, (3,), (2,), (1,), fill=-9.0)
    assert_close(result, torch.tensor([[[[-9.0, 0, 1], [1, 2, 3]]]]))
