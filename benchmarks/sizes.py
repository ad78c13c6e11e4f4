"""What is simulated for each size of the comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A screen and how much of each stage is run.

    Attributes
    ----------
    simulation
        Options of :func:`gears.simulate.simulated_screen`.
    go_genes
        Annotated genes of the GO graph that is timed.
    steps
        Training steps that are timed.
    predictions, published_predictions
        Conditions predicted, and how many of them by the published package (time is then scaled up).
    model
        Whether networks are compared at this size. The graph of 5,000 nodes alone takes the
        published package about ten minutes, so these stages are read at the default size.
    rounds
        Repetitions of the stages before training, in alternation; the median counts.
    """

    simulation: dict
    go_genes: int
    steps: int
    predictions: int = 100
    published_predictions: int = 100
    model: bool = True
    rounds: int = 1


SIZES = {
    "small": Size(
        {"n_genes": 200, "n_singles": 25, "n_pairs": 15, "cells_per_condition": 20, "n_control": 100},
        go_genes=200,
        steps=10,
        predictions=20,
        published_predictions=20,
    ),
    "default": Size(
        {"n_genes": 1000, "n_singles": 100, "n_pairs": 60, "cells_per_condition": 25, "n_control": 400},
        go_genes=2000,
        steps=20,
        rounds=2,
    ),
    "full": Size(
        {"n_genes": 5000, "n_singles": 100, "n_pairs": 50, "cells_per_condition": 60, "n_control": 1000},
        go_genes=2000,
        steps=5,
        published_predictions=10,
        model=False,
    ),
}
