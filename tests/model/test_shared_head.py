"""The head in training: begins as the prior alone, members are independent, and it predicts as the saved one does."""

import numpy as np
import torch

from gears.model.layers import SharedHead
from gears.priors._head import LIMIT, NAMES, Head

CENTRE, SPREAD = np.linspace(-1, 1, len(NAMES)), np.linspace(0.5, 2, len(NAMES))


def head_of(n_members: int = 3) -> SharedHead:
    return SharedHead(CENTRE, SPREAD, n_members, limit=LIMIT).double()


def inputs_of(seed: int = 0) -> torch.Tensor:
    # some inputs lie beyond the limit
    return 9 * torch.randn(2, 5, len(NAMES), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_it_begins_with_no_change_and_alike_in_a_process_with_another_default_type():
    expected = head_of()
    assert not expected(inputs_of()).any()
    torch.set_default_dtype(torch.float64)
    try:
        found = head_of()
    finally:
        torch.set_default_dtype(torch.float32)
    for parameter, other in zip(expected.parameters(), found.parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_members_do_not_touch_each_other_and_predict_as_the_saved_head_does():
    head = head_of()
    head(inputs_of())[1].sum().backward()
    for parameter in head.parameters():
        assert not parameter.grad[[0, 2]].any()
    assert head.weights[-1].grad[1].any()
    head, generator = head_of(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    saved = Head(None, CENTRE, SPREAD, head.layers_of(2), 1.0, 1.0, 1.0)
    expected = head(inputs_of())[2].detach().numpy()
    np.testing.assert_allclose(saved.of_inputs(inputs_of().numpy()), expected, rtol=1e-6)
