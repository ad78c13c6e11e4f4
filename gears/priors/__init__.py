"""The Gaussian-process prior: what is predicted for a condition before a network is trained.

An additive Gaussian process over perturbed genes whose weights maximise the evidence; see ``docs/concepts.md``.
"""

from gears.priors._data import PriorData
from gears.priors._fit import FittedPrior, fit_prior
from gears.priors._kernels import GeneSimilarity
from gears.priors._prior import GenePrior
from gears.priors._source import go_similarity, prior_of

__all__ = [
    "FittedPrior", "GenePrior", "GeneSimilarity", "PriorData", "fit_prior", "go_similarity", "prior_of",
]  # fmt: skip
