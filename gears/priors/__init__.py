"""The Gaussian-process prior: what is predicted for a condition before a network is trained.

An additive Gaussian process over perturbed genes whose weights maximise the evidence; see ``docs/prior.md``.
"""

from gears.priors.fit import FittedPrior, PriorData, fit_prior
from gears.priors.kernels import GeneSimilarity
from gears.priors.prior import ContextPrior, GenePrior, Prior, read_prior
from gears.priors.source import go_similarity, prior_of

__all__ = [
    "ContextPrior", "FittedPrior", "GenePrior", "GeneSimilarity", "Prior", "PriorData", "fit_prior", "go_similarity",
    "prior_of", "read_prior",
]  # fmt: skip
