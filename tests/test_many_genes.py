"""Conditions of one, two, three and four genes: prepared, split, trained, predicted and evaluated together."""

import itertools

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from driving import pert_data_of, trained_gears
from scipy import sparse

from gears.conditions import Condition
from gears.data.splits import check_split

GENES = [f"GX{i:02d}" for i in range(30)]


@pytest.fixture(scope="module")
def several():
    rng = np.random.default_rng(8)
    chosen = GENES[:10]
    sets = [(gene,) for gene in chosen] + list(itertools.pairwise(chosen))
    sets += [tuple(chosen[i : i + 3]) for i in range(8)] + [tuple(chosen[i : i + 4]) for i in range(7)]
    base = rng.uniform(0.5, 6, size=30)
    rows, rates = ["ctrl"] * 40, [base] * 40
    for genes in sets:
        rate = base.copy()
        for gene in genes:
            at = GENES.index(gene)
            rate[at] *= 0.1
            rate[at + 10 : at + 14] *= 2.0
        # spelled in any order, with the control's word or without
        label = "+".join(rng.permutation(genes)) if len(genes) > 1 else f"{genes[0]}+ctrl"
        rows += [label] * 8
        rates += [rate] * 8
    x = np.log1p(rng.poisson(np.array(rates)))
    obs = pd.DataFrame({"condition": rows, "cell_type": "A"}, index=[f"c{i}" for i in range(len(rows))])
    var = pd.DataFrame({"gene_name": GENES}, index=[f"E{i}" for i in range(30)])
    return AnnData(sparse.csr_matrix(x.astype(np.float32)), obs=obs, var=var)


def test_from_one_to_four_genes(tmp_path, several, toy_go):
    data = pert_data_of(tmp_path, several, "several", gene2go=toy_go)
    assert {len(condition) for condition in data.screen.conditions} == {0, 1, 2, 3, 4}
    data.prepare_split("simulation", seed=1, mode="strict")
    check_split(data.split, data.screen).raise_if_leaky()
    data.get_dataloader(32)
    model = trained_gears(data, epochs=1, objective="cells", prior=None)
    table = model.train(epochs=1, objective="moments", verbose=False).table
    seen = {gene for condition in model.parts.fitted_conditions() for gene in condition.genes}
    test = data.split.conditions("test")
    assert {len(condition) for condition in test} == {1, 2, 3, 4}
    rows = table[(table["method"] == "gears") & (table["metric"] == "mse")]
    assert set(rows["condition"]) == {condition.name for condition in test}
    for name, group in zip(rows["condition"], rows["subgroup"], strict=True):
        genes = Condition.parse(name).genes
        k = sum(gene in seen for gene in genes)
        want = {1: "unseen_single", 2: f"combo_seen{k}"}.get(len(genes), f"combo_seen{k}_of_{len(genes)}")
        assert group == want
    assert rows["value"].notna().all()
    sets = [GENES[:n] for n in range(1, 7)]
    predicted = model.predict(sets)
    assert predicted.expression_UG.shape == (6, 30)
    shuffled = model.predict([genes[::-1] for genes in sets])
    np.testing.assert_allclose(shuffled.expression_UG, predicted.expression_UG, atol=1e-6)
    additive = table[(table["method"] == "additive") & (table["metric"] == "pearson_delta")]["value"]
    assert additive.notna().any()
