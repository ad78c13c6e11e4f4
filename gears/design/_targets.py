"""Conditions whose predictions are to become certain, and what could be measured for that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gears.conditions import Condition
from gears.design._candidates import Entries, Model, entries_of, expressed_genes, parts_of
from gears.prediction._stream import candidate_genes

ALL_PAIRS = "+*"
"""Ends an entry that means every pair of a gene with the genes perturbed in training."""


def wanted_conditions(model: Model, entries: Entries) -> list[Condition]:
    """The conditions that entries mean, each once; "KLF1+*" means all pairs of KLF1."""
    found: list[Condition] = []
    for entry in entries_of(entries):
        if isinstance(entry, str) and entry.endswith(ALL_PAIRS):
            gene = entry.removesuffix(ALL_PAIRS)
            others = candidate_genes(parts_of(model), None)
            found += [Condition((gene, other)) for other in others if other != gene]
        else:
            found.append(Condition.of(entry))
    return list(dict.fromkeys(found))


def informing_conditions(model: Model, wanted: list[Condition]) -> Iterator[Condition]:
    """What may tell of some conditions: these, their genes alone and in pairs, and all expressed genes."""
    genes = list(dict.fromkeys(gene for condition in wanted for gene in condition.genes))
    pairs = (Condition(pair) for condition in wanted for pair in itertools.combinations(condition.genes, 2))
    singles = (Condition((gene,)) for gene in [*genes, *expressed_genes(parts_of(model))])
    return iter(dict.fromkeys([*wanted, *singles, *pairs]))
