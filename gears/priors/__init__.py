"""What closed form knows of a condition before a network is trained.

An additive Gaussian process over perturbed genes whose weights maximise the evidence; see
``docs/prior.md``.
"""

from gears.priors.context_prior import ContextPrior, Prior, read_prior
from gears.priors.data import PriorData
from gears.priors.fit import FittedPrior, fit_prior
from gears.priors.gene_prior import GenePrior
from gears.priors.kernels import GeneSimilarity
from gears.priors.screen import go_similarity, judge, mean_of, means_without, prior_data

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
