"""Conditions of one, two, three and four genes: prepared, split, trained, predicted and evaluated together."""

import numpy as np
import pytest
from driving import pert_data_of, trained_gears

from gears.conditions import Condition
from gears.data.splits import check_split
from gears.simulate import simulated_screen

GENES = [f"GX{i:02d}" for i in range(30)]


@pytest.fixture(scope="module")
def several():
    """Conditions of one to four genes, written in any order."""
    sizes = {"n_genes": 30, "n_singles": 10, "n_pairs": 9, "n_triples": 15}
    adata, _ = simulated_screen(**sizes, cells_per_condition=8, n_control=40, gene_names=GENES)
    triples = sorted({label for label in adata.obs["condition"] if label.count("+") == 2})
    rng = np.random.default_rng(8)
    new = {label: f"{label}+{next(gene for gene in GENES if gene not in label)}" for label in triples[:7]}
    new = {label: "+".join(rng.permutation(new.get(label, label).split("+"))) for label in set(adata.obs["condition"])}
    adata.obs["condition"] = [new[label] for label in adata.obs["condition"]]
    return adata


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
