"""The card of a saved model: what it was trained on, and how good it is where that is known."""

from gears import GEARS, PerturbationModel, simulated_screen
from gears.evaluation import short_table


def test_a_saved_model_has_a_card_with_its_digests_and_its_table(tmp_path):
    adata, _ = simulated_screen(n_genes=60, n_singles=14, n_pairs=8, cells_per_condition=10, n_control=40, seed=0)
    model = PerturbationModel(adata, device="cpu", default_pert_graph=False, verbose=False)
    result = model.train(verbose=False, save_path=tmp_path / "trained")
    model.save(tmp_path / "saved")
    parts = model.gears.parts
    for folder in ("trained", "saved"):
        text = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        assert text.startswith("---\nlibrary_name: gears\n")
        assert short_table(result.table) in text
        assert parts.split.hash in text
        assert parts.provenance["screen_hash"] in text
        assert f"{len(parts.fitted_conditions())} conditions" in text
        assert "## Not for" in text
    GEARS.from_pretrained(tmp_path / "saved", device="cpu").save_model(tmp_path / "again")
    model.gears.train(epochs=0, verbose=False, evaluate_test=False, save_path=tmp_path / "not evaluated")
    for folder in ("again", "not evaluated"):
        assert "Not evaluated" in (tmp_path / folder / "README.md").read_text(encoding="utf-8")
