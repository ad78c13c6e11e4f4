"""`gears evaluate`, `compare` and `report`, in this process."""

from __future__ import annotations

import json

from test_cli import refused

from gears.cli import main


def called(capsys, *arguments: object) -> str:
    assert main([*map(str, arguments), "--quiet"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_evaluate_prints_the_table_and_writes_the_report(small_model, small_data, tmp_path, capsys, without_figures):
    report = tmp_path / "report"
    out = called(
        capsys, "evaluate", small_model, small_data.dataset_path, "--part", "test", "--n-split-half", 1,
        "--report", report, "--metrics", "relative_error", "pearson_delta",
    )  # fmt: skip
    assert out.startswith(("Better than", "Worse than", "No better", "Too few conditions"))
    assert "pearson_delta" in out
    page = (report / "report.html").read_text()
    assert out.splitlines()[0].replace("&", "&amp;") in page
    assert "split: simulation, seed 1, part test" in page
    assert (report / "figures" / "top_de_1.svg").is_file()

    again = tmp_path / "again"
    value = json.loads(called(capsys, "report", report / "evaluation.csv", again, "--title", "Again", "--json"))
    assert value["page"] == str(again / "report.html")
    assert "<h1>Again</h1>" in (again / "report.html").read_text()
    assert value["verdicts"]["gears"] == out.splitlines()[0]


def test_decisive_metrics_come_first_and_all_on_request(small_model, small_data, capsys):
    words = ["compare", small_data.dataset_path, "--baselines", "additive", "train_mean", "--n-split-half", 0]
    few, every = called(capsys, *words), called(capsys, *words, "--all-metrics")
    assert "\n10 further metrics: --all-metrics\n" in few
    assert "top20_de" not in few
    assert "top20_de" in every
    assert "--all-metrics" not in every


def test_evaluate_takes_the_h5ad_file_too(small_model, screens, tmp_path, capsys):
    out = called(
        capsys, "evaluate", small_model, screens / "small.h5ad", "--work-dir", tmp_path,
        "--metrics", "mse", "--baselines", "additive", "--n-split-half", 0, "--json",
    )  # fmt: skip
    methods = {row["method"] for row in json.loads(out)["summary"]}
    assert {"gears", "additive"} <= methods
    assert all(name.startswith("prior") for name in methods - {"gears", "additive"})


def test_the_former_name_of_split_half_repeats_works_and_is_reported(
    small_model, small_data, tmp_path, capsys, caplog, without_figures
):
    words = ["compare", small_data.dataset_path, "--baselines", "additive", "--metrics", "mse", "--report"]
    called(capsys, *words, tmp_path / "former", "--halvings", 2)
    assert "--halvings is called --n-split-half now" in caplog.text
    called(capsys, *words, tmp_path / "new", "--n-split-half", 2)
    former, new = ((tmp_path / name / "evaluation.csv").read_text() for name in ("former", "new"))
    assert "half_ceiling" in new
    assert former == new


def test_compare_gives_baselines_alone_over_folds(small_model, small_data, capsys):
    out = called(
        capsys, "compare", small_data.dataset_path, "--folds", 3, "--baselines", "additive", "no_change",
        "--metrics", "mse", "--n-split-half", 0, "--json",
    )  # fmt: skip
    value = json.loads(out)
    assert value["verdicts"] == {}
    row = next(row for row in value["summary"] if row["method"] == "additive" and row["subgroup"] == "all")
    assert row["n_conditions"] == 18
    assert {row["method"]: row["runs"] for row in value["costs"]} == {"additive": 3, "no_change": 3}


def test_compare_trains_gears(small_model, small_data, tmp_path, capsys, without_figures):
    options = [
        "--gears", "moments", "--no-default-pert-graph", "--epochs", 1, "--hidden-size", 8, "--device", "cpu",
    ]  # fmt: skip
    options += ["--baselines", "train_mean", "--metrics", "relative_error", "--n-split-half", 0, "--report", tmp_path]
    out = called(capsys, "compare", small_data.dataset_path, *options)
    assert "gears_moments" in out
    assert (tmp_path / "evaluation.json").is_file()


def test_bad_calls_are_one_line(small_model, small_data, tmp_path, capsys):
    assert "no file or folder" in refused(capsys, "compare", tmp_path / "none.h5ad")
    assert "did you mean 'moments'" in refused(capsys, "compare", small_data.dataset_path, "--gears", "moment")
    assert "did you mean 'additive'" in refused(capsys, "compare", small_data.dataset_path, "--baselines", "aditive")
    assert "no saved model" in refused(capsys, "evaluate", tmp_path, small_data.dataset_path)
    assert "--folds is 1; expected" in refused(capsys, "compare", small_data.dataset_path, "--folds", 1)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "lacks the columns" in refused(capsys, "report", tmp_path / "other.csv", tmp_path / "out")
    assert "no file" in refused(capsys, "report", tmp_path / "none.csv", tmp_path)
    assert not (tmp_path / "out").exists()
