"""Another similarity of genes for the prior is registered in one place; the cache depends on its table."""

import numpy as np
import pandas as pd
import pytest
from driving import pert_data_of

from gears import GEARS, simulated_screen
from gears.graphs import SIMILARITIES
from gears.graphs._similarities import PriorInputs
from gears.priors import prior_of

N_SINGLES = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    adata, _ = simulated_screen(
        n_genes=60, n_singles=N_SINGLES, n_pairs=0, cells_per_condition=20, n_control=100, seed=4
    )
    return pert_data_of(tmp_path_factory.mktemp("similar"), adata, "screen", split="simulation")


@pytest.fixture
def registered():
    """A similarity called "pathways" by the user's table of genes that the test puts in."""
    tables: dict[str, pd.DataFrame] = {}

    @SIMILARITIES.register("pathways")
    def pathways(pert_data, inputs):
        return tables["pathways"].reindex(pert_data.pert_names).to_numpy() if tables else None

    yield tables
    del SIMILARITIES["pathways"]


def test_a_users_table_is_weighed_by_the_evidence(data, registered):
    before = prior_of(data)
    assert "pathways" not in before.prior.report["weights"]
    perturbed = [condition for condition in data.screen.conditions if condition.genes]
    rows = np.array([data.screen.id_of(condition) for condition in perturbed])
    genes = [condition.genes[0] for condition in perturbed]
    table = pd.DataFrame(data.screen.statistics.delta(rows), index=genes)
    registered["pathways"] = table
    fitted = prior_of(data)
    weights = fitted.prior.report["weights"]
    assert weights["pathways"] > 2 * max(
        weight for name, weight in weights.items() if name not in ("pathways", "offset")
    )
    tested = [data.condition_nodes(condition) for condition in data.split.conditions("test") if condition.genes]
    assert np.abs(fitted.prior(tested) - before.prior(tested)).max() > 0.01
    # another table is another prior, whatever the cache holds
    registered["pathways"] = pd.DataFrame(np.random.default_rng(0).normal(size=table.shape), index=genes)
    other = prior_of(data)
    assert other.prior.report["weights"]["pathways"] < 0.1 * weights["pathways"]


def test_all_that_is_fitted_reads_the_inputs_of_the_model(data):
    model = GEARS(data, device="cpu")
    names = [str(name) for name in data.pert_names]
    vectors = dict(zip(names, np.random.default_rng(1).normal(size=(len(names), 5)), strict=True))
    model.model_initialize(hidden_size=8, pert_embedding=vectors)
    fitted = prior_of(data, inputs=model.parts.inputs)
    assert "embeddings" in fitted.prior.report["weights"]
    assert fitted.inputs is model.parts.inputs
    assert PriorInputs().content_hash != fitted.inputs.content_hash
