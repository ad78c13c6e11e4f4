"""Simulated Perturb-seq screens with known truth.

The generator, in order (all logarithms natural):

1. *Genes.* Perturbed genes are drawn in small groups of genes with similar GO
   annotation, measured genes from all annotated human genes.
2. *Effects.* ``effect_PG``: for each measured gene a Gaussian over the
   perturbed genes whose covariance follows the Jaccard similarity of their GO
   terms, soft-thresholded so that few genes respond (or of low rank), times a
   strength per perturbation; a perturbed gene changes by `target_effect`.
   Instead, a share of the effects' variance can follow co-expression modules:
   genes vary together over cells (`cell_sd`), and a perturbation changes the
   modules of its gene in proportion to the gene's loadings. Or all effects
   come from a regulatory network with hubs, in which a perturbed gene is held
   at `target_effect`; regulation has a threshold and levels off, and the
   noise of cells passes through the network, too. Some perturbations can be
   without any effect (`null_share`).
3. *Interactions.* Two or three genes: the sum of their effects. For a known
   share of them the sum is multiplied by ``1 + interaction_size`` (synergy) or
   ``1 / (1 + interaction_size)`` (suppression); or the effect of the strongest
   gene stands alone (masking); or all effects level off at
   ``effect_size / interaction_size``, single ones and, in that share, sums
   (saturating); or the effect follows products of scores of the genes, which
   follow GO and which the effects of single genes do not show (products).
   Which ones depends on a tendency of each gene that follows
   GO, too. In a network, interactions follow from threshold and ceiling.
4. *Cells.* Each cell has an experimental batch, a cell type and a library size
   (lognormal). Batches can be confounded with conditions
   (`batch_confounding`). Expected counts are library size x softmax(baseline +
   batch + cell type + effect + modules or noise); counts are negative
   binomial, variance ``m + dispersion m^2``.
5. *Expression.* ``log1p(count / total x mean library)``.

:class:`SimulatedTruth` holds the parameters that the cells were drawn from.
"""

from gears.simulate._options import SimulationOptions
from gears.simulate._screen import SimulatedTruth, Simulation, simulate_to_h5ad, simulated_screen

__all__ = [
    "SimulatedTruth", "Simulation", "SimulationOptions", "Truth", "simulate_to_h5ad", "simulated_screen",
]  # fmt: skip

Truth = SimulatedTruth
"""The former name."""
