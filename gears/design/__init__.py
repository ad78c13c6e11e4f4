"""What to do next in the lab: which perturbations to measure, what they probably show, and with how many cells.

Functions of a model take a trained PerturbationModel, GEARS or Ensemble first and return a DataFrame. Probabilities are
those of the model alone.
"""

from gears.design._candidates import all_pairs
from gears.design._interactions import interactions_table
from gears.design.hits import hits
from gears.design.power import power
from gears.design.reverse import change_between, reverse
from gears.design.suggest import suggest

__all__ = ["all_pairs", "change_between", "hits", "interactions_table", "power", "reverse", "suggest"]


def __dir__() -> list[str]:
    return __all__
