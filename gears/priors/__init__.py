"""What closed form knows of a condition before a network is trained.

An additive Gaussian process over perturbed genes whose weights maximise the evidence; see
``docs/prior.md``.
"""

from gears.priors.fit import FittedPrior, PriorData, fit_prior
from gears.priors.kernels import GeneSimilarity
from gears.priors.prior import ContextPrior, GenePrior, Prior, read_prior
from gears.priors.source import go_similarity, judge, mean_of, means_without, prior_data

__all__ = [
    "ContextPrior",
    "FittedPrior",
    "GenePrior",
    "GeneSimilarity",
    "Prior",
    "PriorData",
    "fit_prior",
    "go_similarity",
    "judge",
    "mean_of",
    "means_without",
    "prior_data",
    "read_prior",
]
