"""Cells that an effect needs, against simulated tests."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from gears.data.splits import folds
from gears.design import power


@pytest.mark.parametrize("chosen", [{}, {"power": 0.6, "level": 0.01, "control_cells": 90}])
def test_it_agrees_with_simulation(pert_data, chosen):
    """Cells are drawn from the screen's own; as many are found to differ as the power says, within 10 %."""
    screen, rng, n_repeats = pert_data.screen, np.random.default_rng(0), 1500
    table = power(screen, effect=0.25, **chosen)
    level, wanted = chosen.get("level", 0.05), chosen.get("power", 0.8)
    control_XG = screen.cells.rows(screen.control_cells)
    genes = [g for g in range(60) if 30 <= table["cells"][g] <= 400][:4]
    assert len(genes) == 4
    for gene in genes:
        cells, m = int(table["cells"][gene]), int(table["control_cells"][gene])
        values = control_XG[:, gene].astype(float)
        values = (values - values.mean()) / values.std()
        shifted = 0.25 + table["sd"][gene] * rng.choice(values, (n_repeats, cells))
        controls = table["control_sd"][gene] * rng.choice(values, (n_repeats, m))
        found = (ttest_ind(shifted, controls, axis=1, equal_var=False).pvalue < level).mean()
        assert found == pytest.approx(wanted, rel=0.1)


def test_it_takes_a_pert_data_and_bad_arguments_are_errors(pert_data):
    pd.testing.assert_frame_equal(power(pert_data, cells=37), power(pert_data.screen, cells=37))
    with pytest.raises(TypeError, match=r"expected a prepared screen, such as pert_data\.screen .*; found dict"):
        power({}, cells=37)
    assert len(list(folds(pert_data, 3))) == 3
    for arguments, message in (
        ({}, "found effect=None and cells=None; give one of them"),
        ({"effect": 0.1, "cells": 5}, "give one of them"),
        ({"effect": -0.1}, "effect is -0.1; expected a change of log expression above 0"),
        ({"cells": 1}, "cells is 1; expected a whole number of at least 2"),
        ({"cells": 9, "power": 1.0}, "power is 1.0; expected a number between 0 and 1"),
        ({"cells": 9, "power": 0.01}, "power=0.01 is not above half of level=0.05"),
    ):
        with pytest.raises(ValueError, match=message):
            power(pert_data.screen, **arguments)


def test_effect_and_cells_are_inverse_and_too_few_control_cells_no_number(pert_data):
    seen = power(pert_data.screen, cells=37, control_cells=150)
    for row in (0, 7, 30):
        back = power(pert_data.screen, effect=float(seen["effect"][row]) * (1 + 1e-9), control_cells=150)
        assert back["cells"][row] == 37
    table = power(pert_data.screen, effect=0.1, control_cells=30)
    row = int(np.flatnonzero(np.isinf(table["cells"]))[0])
    least = int(table["least_control_cells"][row])
    assert least > 30
    assert np.isinf(power(pert_data.screen, effect=0.1, control_cells=least - 1)["cells"][row])
    assert np.isfinite(power(pert_data.screen, effect=0.1, control_cells=least)["cells"][row])
