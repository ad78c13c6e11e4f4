"""The loss functions of cell-gears against its own values and loops over labels."""

import numpy as np
import pytest
import torch

from gears.utils import loss_fct, uncertainty_loss_fct

PERTS = ["A+ctrl", "ctrl", "A+B", "A+ctrl", "A+B", "A+ctrl"]
FILTER = {"A+ctrl": np.array([0, 2, 3]), "A+B": np.array([1, 4])}


@pytest.fixture
def drawn():
    """Prediction, observation, log-variance, (6, 5), and control mean, (5,)."""
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(*shape, generator=generator) for shape in ((6, 5), (6, 5), (6, 5), (5,))]


def test_they_give_the_values_of_cell_gears(drawn):
    """Recorded with cell-gears 0.1.2 and these numbers."""
    pred, y, logvar, ctrl = drawn
    loss = loss_fct(pred, y, PERTS, ctrl=ctrl, direction_lambda=0.1, dict_filter=FILTER)
    assert loss.item() == pytest.approx(0.2764715254306793, rel=1e-6)
    loss = uncertainty_loss_fct(pred, logvar, y, PERTS, 0.3, ctrl, 0.1, FILTER)
    assert loss.item() == pytest.approx(0.28714635968208313, rel=1e-6)


def test_without_a_filter_every_gene_counts_and_directions_are_from_0(drawn):
    pred, y, _, _ = drawn
    pred = (pred - 0.5).requires_grad_()
    loss = loss_fct(pred, y, PERTS, direction_lambda=0.2)
    of_label = []
    for label in set(PERTS):
        rows = [row for row, one in enumerate(PERTS) if one == label]
        error, signs = pred[rows] - y[rows], y[rows].sign() - pred[rows].detach().sign()
        of_label.append((error**4 + 0.2 * signs**2).mean())
    assert loss.item() == pytest.approx(torch.stack(of_label).mean().item(), rel=1e-6)
    loss.backward()
    assert (pred.grad != 0).all()
