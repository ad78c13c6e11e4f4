"""Simulated Perturb-seq screens with known truth.

The generator, in order (all logarithms natural):

1. *Genes.* Perturbed genes are drawn in small groups of genes with similar GO
   annotation, measured genes from all annotated human genes.
2. *Effects.* ``effect_PG``: for each measured gene a Gaussian over the
   perturbed genes whose covariance follows the Jaccard similarity of their GO
   terms, soft-thresholded so that few genes respond (or of low rank), times a
   strength per perturbation; a perturbed gene that is measured changes by
   `target_effect`.
3. *Interactions.* Two or three genes: the sum of their effects, times
   ``1 + interaction_size`` (synergy) or ``1 / (1 + interaction_size)``
   (suppression) for a known share of them. Which ones depends on a tendency
   of each gene that follows GO, too.
4. *Cells.* Each cell has a batch, a cell type and a library size (lognormal).
   Expected counts are library size x softmax(baseline + batch + cell type +
   effect); counts are negative binomial, variance ``m + dispersion m^2``.
5. *Expression.* ``log1p(count / total x target)``.

:class:`Truth` holds the parameters that the cells were drawn from.
"""

from gears.simulate.options import SimulationOptions
from gears.simulate.screen import Simulation, simulate_to_h5ad, simulated_screen
from gears.simulate.truth import Truth

__all__ = ["Simulation", "SimulationOptions", "Truth", "simulate_to_h5ad", "simulated_screen"]
