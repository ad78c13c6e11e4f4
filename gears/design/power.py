"""How many cells show an effect of given size, from a screen's own variances.

The change of a gene's mean is tested against 0 by Welch's test (two-sided; its normal limit). With n cells of the
condition of variance v, m control cells of variance u, and z the normal quantiles of the level and the power,

    error^2 = v / n + u / m,      effect = (z(1 - level / 2) + z(power)) error,

solved for the effect or for n. Below :data:`EXACT_BELOW` cells the variance itself is known badly: there the sum of
quantiles is the noncentrality with which a t of Welch's degrees of freedom reaches its critical value with the wanted
power.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import nctdtrinc, ndtri, stdtrit

from gears.core._messages import brief
from gears.core._numbers import is_number, plain_number, whole_number
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen._statistics import variance_within
from gears.gears import GEARS, AnyModel

EXACT_BELOW = 15
"""Cells of a condition below which the t distribution replaces its normal limit."""


def power(
    screen: PreparedScreen | AnyModel,
    *,
    effect: float | None = None,
    cells: int | None = None,
    control_cells: int | None = None,
    power: float = 0.8,
    level: float = 0.05,
) -> pd.DataFrame:
    """Cells per condition needed to see an effect of given size, or the size that given cells show, for each gene.

    Parameters
    ----------
    screen
        A model with its screen, or a prepared screen (``pert_data.screen``), whose variances are used.
    effect
        Absolute change of mean log expression to be seen.
    cells
        Cells of the condition; give either `effect` or `cells`.
    control_cells
        Control cells; those of the screen when None.
    power
        Probability of seeing it.
    level
        Two-sided level of the test of one gene; divide it by the number of genes to test all of them.

    Returns
    -------
    pd.DataFrame
        One row per gene: ``gene``, ``control_mean``, ``sd`` and ``control_sd`` of a cell's log expression in perturbed
        and control cells, ``effect``, ``cells`` (whole; infinite where there are too few control cells for any number),
        ``control_cells``, and ``least_control_cells``, the number below which no number of cells suffices. For a screen
        with several settings one row per gene and setting, with ``context`` and ``perturbation_type`` first.

    Raises
    ------
    ValueError
        Both or none of `effect` and `cells`, or a value out of range.
    """
    if (effect is None) == (cells is None):
        msg = f"found effect={effect} and cells={cells}; give one of them, the other is computed"
        raise ValueError(msg)
    for name, value in (("power", power), ("level", level)):
        if not is_number(plain_number(value)) or not 0 < value < 1:
            msg = f"{name} is {brief(value)}; expected a number between 0 and 1"
            raise ValueError(msg)
    quantile = float(ndtri(1 - level / 2) + ndtri(power))
    if quantile <= 0:
        msg = f"power={power} is not above half of level={level}, which chance alone gives; raise it"
        raise ValueError(msg)
    model = getattr(screen, "gears", screen)
    screen = PreparedScreen.of(model._need_data("power") if isinstance(model, GEARS) else screen)
    tables = []
    for view in screen.settings:
        tables.append(_of_setting(view, effect, cells, control_cells, quantile, power, level))
        if len(screen.settings) > 1:
            tables[-1].insert(0, "context", view.context)
            tables[-1].insert(1, "perturbation_type", view.kind)
    return pd.concat(tables, ignore_index=True)


def _of_setting(
    screen: PreparedScreen,
    effect: float | None,
    cells: int | None,
    control_cells: int | None,
    quantile: float,
    power: float,
    level: float,
) -> pd.DataFrame:
    """The table of :func:`power` for one setting; `quantile` is the sum of those of level and power."""
    statistics, control = screen.statistics, screen.control_id
    n_control = statistics.n[control] if control_cells is None else whole_number("control_cells", control_cells)
    variance_G = variance_within(statistics, np.flatnonzero(~statistics.is_control))
    control_variance_G = variance_within(statistics, np.array([control]))
    table = pd.DataFrame(
        {
            "gene": screen.gene_names,
            "control_mean": np.asarray(statistics.mean[control], dtype=np.float64),
            "sd": np.sqrt(variance_G),
            "control_sd": np.sqrt(control_variance_G),
        }
    )
    if cells is None:
        size = plain_number(effect)
        if not is_number(size) or size <= 0:
            msg = f"effect is {effect!r}; expected a change of log expression above 0"
            raise ValueError(msg)
        effect_G = np.full(len(table), size)
        left_G = (size / quantile) ** 2 - control_variance_G / n_control
        exact_G = np.divide(variance_G, left_G, out=np.full(len(table), np.inf), where=left_G > 0)
        cells_G = np.maximum(np.ceil(exact_G), EXACT_BELOW)
        for n in range(EXACT_BELOW - 1, 1, -1):  # the smallest number that suffices is set last
            needed_G = _noncentrality(variance_G / n, control_variance_G / n_control, n, n_control, level, power)
            is_enough_G = needed_G * np.sqrt(variance_G / n + control_variance_G / n_control) <= size
            cells_G = np.where(is_enough_G, n, cells_G)
    else:
        cells_G = np.full(len(table), float(whole_number("cells", cells, least=2)))
        error_G = np.sqrt(variance_G / cells_G + control_variance_G / n_control)
        n = int(cells_G[0]) if len(cells_G) else EXACT_BELOW
        if n < EXACT_BELOW:
            needed_G = _noncentrality(variance_G / n, control_variance_G / n_control, n, n_control, level, power)
            effect_G = needed_G * error_G
        else:
            effect_G = quantile * error_G
    least_G = np.divide(control_variance_G * quantile**2, effect_G**2, out=np.zeros(len(table)), where=effect_G > 0)
    return table.assign(
        effect=effect_G, cells=cells_G, control_cells=int(n_control), least_control_cells=np.floor(least_G) + 1
    )


def _noncentrality(
    square_G: np.ndarray, control_square_G: np.ndarray, n: int, n_control: float, level: float, power: float
) -> np.ndarray:
    """Effect in standard errors that Welch's test sees with the power, (G,), from the squared errors of both means."""
    total_G = square_G + control_square_G
    parts_G = square_G**2 / (n - 1) + control_square_G**2 / max(n_control - 1, 1)
    freedom_G = np.divide(total_G**2, parts_G, out=np.full(len(total_G), 1e6), where=parts_G > 0)
    return np.asarray(nctdtrinc(freedom_G, 1 - power, stdtrit(freedom_G, 1 - level / 2)))
