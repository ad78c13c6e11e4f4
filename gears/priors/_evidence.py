"""Weights of covariances that maximise the evidence (the marginal likelihood of a Gaussian process).

With the G genes as independent draws over C conditions, A = sum_k w_k K_k the covariance and S = Y Y' / G the second
moments of the changes Y (C, G), minus the log-evidence per gene is, up to a constant,

    f(log w) = 1/2 log det A + 1/2 trace(A^-1 S),    df / d log w_k = 1/2 w_k sum((A^-1 - A^-1 S A^-1) * K_k)

S is computed once, so that a step costs C^3 whatever the number of genes; the gradient of all weights needs one
inverse. Weights are optimised as logarithms, which keeps them positive, and relative to the mean squared change, which
makes the start and the bounds independent of the screen's scale. A further similarity is taken to have no weight unless
the evidence says otherwise: its logarithm is drawn to the lower bound. The kernels, (C, C) each, are kept: there are
few of them, and C is at most :data:`MOST_CONDITIONS`. The plain version differentiates f numerically
(``tests/priors``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from gears.core._progress import progress

MOST_CONDITIONS = 300
"""With more conditions a fixed sample of this size is used: the weights hardly depend on the others."""
_START, _NUGGET_START = 0.2, 0.05
_LOW, _HIGH = -9.0, 4.0
_NOISE_BOUNDS = (-0.7, 1.5)  # log; the sampling noise is known except for correlations between cells
_NOISE_SD = 0.1  # of that logarithm about the known noise: with equal cell numbers noise and own effects look alike
_PRIOR_SD = 12.0  # of the logarithms: keeps weights finite that the data do not determine
_FURTHER_SD = 6.0  # likewise of further similarities, about no weight: one needs to raise the evidence by 1 per gene


@dataclass(frozen=True)
class EvidenceWeights:
    """Variances of the parts of a change, in units of squared expression."""

    kernels: Mapping[str, float]  # variance of each covariance by its name
    noise: float  # factor of the known sampling noise
    nugget: float
    """Variance that no covariance explains, for every condition. It is none unless combinations or settings show that
    what a condition does is not what its genes do elsewhere: in a screen of singles the two are the same."""
    multiple: float  # additional variance of conditions of several genes: departures from additivity

    def unexplained(self, size_C: np.ndarray) -> np.ndarray:
        """Variance of each condition beside kernels and sampling noise, (C,)."""
        return self.nugget + self.multiple * (size_C > 1)


def sample(n_conditions: int, most: int = MOST_CONDITIONS) -> np.ndarray:
    """Rows of all conditions, or of a fixed sample of `most`, ascending."""
    if n_conditions <= most:
        return np.arange(n_conditions)
    draw = np.random.Generator(np.random.Philox(key=n_conditions))
    return np.sort(draw.permutation(n_conditions)[:most])


def fit_weights(
    delta_CG: np.ndarray,
    kernels: Mapping[str, np.ndarray],
    noise_C: np.ndarray,
    size_C: np.ndarray,
    further: Collection[str] = (),
    begin: EvidenceWeights | None = None,
) -> EvidenceWeights:
    """Maximise the evidence over the weights of `kernels`, noise and unexplained variance.

    The G genes are taken as independent draws of a Gaussian process over conditions with

        cov = sum_k weight_k K_k + noise diag(noise_C) + nugget I + multiple [size > 1] I

    `noise_C` is the variance of each condition's mean from sampling cells (mean over genes), `size_C` the number of
    its perturbed genes, `further` the names of the kernels that are absent unless the evidence asks for them. The
    search begins at the weights `begin`.
    """
    from scipy.optimize import minimize

    scale = float((delta_CG**2).mean())
    is_multiple_C = size_C > 1
    has_multiple = bool(is_multiple_C.any() and not is_multiple_C.all())
    components = [scale * kernel for kernel in kernels.values()]
    components += [np.diag(noise_C), scale * np.eye(len(delta_CG))]
    if has_multiple:
        components.append(scale * np.diag(is_multiple_C.astype(float)))
    second_moment_CC = delta_CG @ delta_CG.T / delta_CG.shape[1]
    n = len(kernels)
    start = np.log([_START] * n + [1.0, _NUGGET_START] + [_NUGGET_START] * has_multiple)
    bounds = [(_LOW, _HIGH)] * n + [_NOISE_BOUNDS] + [(_LOW, _HIGH)] * (1 + has_multiple)
    if begin is not None:
        known = [begin.kernels.get(name, 0.0) / scale for name in kernels]
        known += [begin.noise, *(np.array([begin.nugget, begin.multiple]) / scale)[: 1 + has_multiple]]
        start = np.clip(np.log(np.maximum(known, np.finfo(float).tiny)), *np.transpose(bounds))
    centre, sd = np.zeros(len(start)), np.full(len(start), _PRIOR_SD)
    is_further = [name in further for name in kernels]
    centre[:n][is_further], sd[:n][is_further] = _LOW, _FURTHER_SD
    sd[n], centre[n + 1] = _NOISE_SD, _LOW
    args = (components, second_moment_CC, centre, sd)
    with progress(None, "fitting the prior", "iterations") as advance:
        optimum = minimize(
            _negative_evidence,
            start,
            args,
            "L-BFGS-B",
            jac=True,
            bounds=bounds,
            options={"ftol": 1e-12, "gtol": 1e-7},  # flat directions: the same weights whatever the rounding
            callback=lambda _: advance(1),
        )
    multipliers = np.exp(optimum.x)
    multiple = float(scale * multipliers[n + 2]) if has_multiple else 0.0
    return EvidenceWeights(
        {name: float(scale * weight) for name, weight in zip(kernels, multipliers[:n], strict=True)},
        float(multipliers[n]),
        float(scale * multipliers[n + 1]),
        multiple,
    )


def _negative_evidence(
    log_weights: np.ndarray,
    kernels: Sequence[np.ndarray],
    second_moment_CC: np.ndarray,
    centre: np.ndarray,
    sd: np.ndarray,
) -> tuple[float, np.ndarray]:
    weights = np.exp(log_weights)
    covariance = sum(weight * kernel for weight, kernel in zip(weights, kernels, strict=True))
    factor = linalg.cholesky(covariance, lower=True)
    inverse = linalg.cho_solve((factor, True), np.eye(len(factor)))
    explained = inverse @ second_moment_CC
    value = np.log(np.diag(factor)).sum() + 0.5 * np.trace(explained)
    slope = 0.5 * (inverse - explained @ inverse)
    gradient = [(slope * kernel).sum() * weight for weight, kernel in zip(weights, kernels, strict=True)]
    off = (log_weights - centre) / sd
    return float(value + 0.5 * (off**2).sum()), np.array(gradient) + off / sd
