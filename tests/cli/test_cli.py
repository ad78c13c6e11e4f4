"""The `gears` command: the installed program by subprocess, its parts in this process."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anndata
import pandas as pd
import pytest

from gears import __version__
from gears.cli import main
from gears.cli._completion import SHELLS, command_tree, parser_of
from gears.cli.main import COMMANDS
from gears.training.options import TrainOptions

TRAIN = ["train", "a.h5ad", "--save-path", "m"]
GEARS = Path(sys.executable).with_name("gears")
TINY = [
    "--n-genes", "40", "--n-singles", "10", "--n-pairs", "8", "--cells-per-condition", "12", "--n-control", "40",
]  # fmt: skip


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a call in this process says on stderr when it refuses its arguments: one problem a line, exit code 2."""
    assert main(list(map(str, arguments))) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1 or all(line.startswith("  - ") for line in shown.err.splitlines()[1:])
    assert "Traceback" not in shown.err
    return shown.err


@pytest.fixture
def screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["simulate", str(tmp_path / "screen.h5ad"), *TINY, "--quiet"]) == 0
    capsys.readouterr()
    return tmp_path / "screen.h5ad"


def test_help_shows_commands_and_examples_without_heavy_imports(tmp_path: Path) -> None:
    check = (
        "import sys; from gears.cli import main; code = main(['--help'])\n"
        "heavy = {'torch', 'scanpy', 'anndata', 'pandas', 'jsonargparse'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("train", "predict", "simulate", "examples:", "--gpu-ids", "Exit codes"):
        assert word in done.stdout


JARGON = ("print_config", "(type", "(default: ())", "<class", "Union", "Parser key", "None)", "\\b")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_and_option_has_help_and_no_text_of_the_parser(command: str, capsys) -> None:
    texts = [str(action.help) for action in parser_of(command)._actions if action.option_strings]
    assert all(len(text) > 10 for text in texts)
    assert len(set(texts)) == len(texts)
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as left:
            main([command, option])
        assert left.value.code == 0
        shown = capsys.readouterr().out
        assert f"examples:\n  gears {command}" in shown or option == "--help-all"
    assert [word for word in JARGON if word in shown] == []
    assert not re.search(r"--[\w-]+\+", shown)


def test_the_help_names_everything_that_is_registered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gears.data.checks._styles import STYLES
    from gears.data.reading._open import KINDS
    from gears.data.splits import SPLITS
    from gears.training._loggers import LOGGERS

    monkeypatch.setenv("COLUMNS", "2000")  # no name is broken at the end of a line
    for command, names in {
        "inspect": [KINDS, *STYLES], "train": [KINDS, *STYLES, *SPLITS, *LOGGERS], "compare": [KINDS, *SPLITS],
    }.items():  # fmt: skip
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        shown = capsys.readouterr().out
        assert [name for name in names if name not in shown] == [], command


@pytest.mark.parametrize("command", ["train", "inspect", "prepare"])
def test_the_short_help_has_the_first_options_and_names_the_others(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: dict[str, set[str]] = {}
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main([command, word])
        text = capsys.readouterr().out.partition("examples:")[0]
        shown[word] = set(re.findall(r"^  (?:-h, )?(--[\w-]+)", text, flags=re.MULTILINE))
        if word == "--help":
            n_others = int(re.findall(r"--help-all` shows the other (\d+) options", text)[0])
    assert shown["--help"] < shown["--help-all"]
    assert 10 <= len(shown["--help"]) <= 18
    assert n_others == len(shown["--help-all"]) - len(shown["--help"])


def test_several_problems_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--epochs", -1, "--schedule", "cosin", "--min-cells", "two", "--lr", "0"]
    assert refused(capsys, "train", "screen.h5ad", "--save-path", "m", *words).splitlines() == [
        "gears train: error: 4 problems:",
        "  - --epochs must be a whole number of at least 0, got -1",
        "  - --lr must be a number above 0, got 0",
        "  - unknown --schedule 'cosin'; did you mean 'cosine'? (valid: step, constant, cosine, one-cycle, none)",
        "  - --min-cells must be a whole number of at least 1, got 'two'",
    ]
    assert refused(capsys, "train", "screen.h5ad", "--epoch", 3, "--n-gpu", 2).splitlines()[1:] == [
        "  - unknown option --epoch; did you mean --epochs?",
        "  - unknown option --n-gpu; did you mean --n-gpus?",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["power"], "DATA is missing; usage: gears power DATA [options]"),
        (["predict"], "MODEL is missing; usage: gears predict MODEL [GENES ...] [options]"),
        (["inspect", "a.h5ad", "b.h5ad"], "there is nothing to do with 'b.h5ad'; usage: gears inspect FILE [options]"),
        (["train", "a.h5ad", "--epochs"], "--epochs needs a value; it is a whole number of at least 0"),
        (["predict", "m", "--top", "x"], "--top must be a whole number, got 'x'"),
        (["predict", "m", "--all-pairs=1"], "--all-pairs takes no value, got '1'"),
        (
            [*TRAIN, "--max-residual", "a"],
            "--max-residual must be a share of the control's expression above 0, such as 0.3, got 'a'",
        ),
        ([*TRAIN, "--train-gene-set-size", "q"], "--train-gene-set-size must be a number from 0 to 1, got 'q'"),
        ([*TRAIN, "--timeout", "soon"], "--timeout must be a number, got 'soon'"),
        (["train", "a.h5ad", "--xyz", "1"], "unknown option --xyz; `gears train --help-all` lists the options"),
    ],
)
def test_errors_of_the_parser_are_sentences(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert refused(capsys, *words) == f"gears {words[0]}: error: {message}\n"


def test_errors_of_a_file_of_options_are_sentences(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def of(text: str) -> str:
        (tmp_path / "run.yaml").write_text(text)
        return refused(capsys, "train", "--config", tmp_path / "run.yaml", "--save-path", "m")

    assert "in the file of --config: unknown option --epoch; did you mean --epochs?" in of("epoch: 3\n")
    assert "the file of --config has no options; expected lines such as epochs: 20" in of("- 3\n")
    assert "--epochs must be a whole number of at least 0, got 'x'" in of("data: a.h5ad\nepochs: x\n")
    assert "cannot be read as YAML" in of("a: b: c\n")
    missing = refused(capsys, "train", "--config", tmp_path / "none.yaml")
    assert f"there is no file '{tmp_path / 'none.yaml'}' of options" in missing


def test_lists_are_words_with_commas() -> None:
    parser = parser_of("train")
    options = parser.parse(
        ["a.h5ad", "--control-shares", "0.8,0.1,0.1", "--loggers=wandb", "--ctrl-label", "[NT, safe]", "--quiet"]
    )
    assert list(options.control_shares) == [0.8, 0.1, 0.1]
    assert list(options.loggers) == ["wandb"]
    assert options.ctrl_label == ["NT", "safe"]


def test_completion_has_every_command_option_and_valid_name(capsys: pytest.CaptureFixture[str]) -> None:
    tree = command_tree()
    (commands,) = [action for action in tree._actions if action.dest == "command"]
    assert set(commands.choices or ()) == set(COMMANDS)
    train = {name: action for action in commands.choices["train"]._actions for name in action.option_strings}  # type: ignore[call-overload, index]
    assert {"--epochs", "--no-refit", "--help-all", "--gpu-ids"} < set(train)
    assert train["--schedule"].choices == ("step", "constant", "cosine", "one-cycle", "none")
    shtab = pytest.importorskip("shtab")
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert "epochs" in capsys.readouterr().out
    assert shtab


def test_doctor_says_what_each_way_to_train_costs_on_a_screen(small_data, capsys) -> None:
    assert main(["doctor", str(small_data.dataset_path)]) == 0
    costs = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert costs[0] == "this screen: 18 conditions, 60 genes, 640 cells"
    assert max(map(len, costs)) <= 80
    times = {line[:50].strip(): line[50:].split() for line in costs[2:8]}
    default = times.pop("train(): prior and correction network")
    assert default[:2] == default[2:], "nothing of it is trained on several devices"
    assert [way.partition("(")[0] for way in times] == [
        "train", "train", "Ensemble.train: 4 seeds, prior=None", "cross_validate", "cross_validate",
    ]  # fmt: skip
    assert "Estimates" in costs[8]


def without_torch(folder: Path, broken: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the command where importing torch runs the code `broken`."""
    (folder / "path" / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "path" / "torch" / "__init__.py").write_text(broken)
    path = os.pathsep.join([str(folder / "path"), str(Path(__file__).resolve().parents[2])])
    return subprocess.run(
        [sys.executable, "-m", "gears", *map(str, words)],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_doctor_and_inspect_work_without_torch(screen: Path, tmp_path: Path) -> None:
    broken = "raise OSError('libtorch_cpu.so: cannot open')"
    doctor = without_torch(tmp_path, "raise ModuleNotFoundError(\"No module named 'torch'\")", "doctor")
    assert doctor.returncode == 1
    assert "error: torch" in doctor.stdout
    assert "cannot be imported" in doctor.stdout
    assert "pytorch.org" in doctor.stdout
    inspected = without_torch(tmp_path, broken, "inspect", screen)
    assert (inspected.returncode, inspected.stderr) == (0, "")
    assert "ready to be prepared" in inspected.stdout
    train = without_torch(tmp_path, broken, "train", screen, "--save-path", "model")
    assert train.returncode == 1
    assert train.stderr.count("\n") == 1
    assert "`gears doctor` shows what this machine has" in train.stderr


def test_simulate_gives_json_and_writes_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gears.simulate import SimulatedTruth

    output, truth = tmp_path / "screen.h5ad", tmp_path / "truth.npz"
    assert main(["simulate", str(output), *TINY, "--truth", str(truth), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"output": str(output), "n_genes": 40, "n_conditions": 18, "truth": str(truth)}
    assert len(SimulatedTruth.load(truth).conditions) == 19


def test_the_kind_of_error_gives_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gears.cli._screens as command

    def run_with(error: BaseException) -> tuple[int, str]:
        def run(_: list[str]) -> None:
            raise error

        monkeypatch.setattr(command, "run_simulate", run)
        return main(["simulate", "screen.h5ad"]), capsys.readouterr().err

    assert run_with(RuntimeError("a worker\nfailed")) == (
        1,
        "gears simulate: error: a worker failed (--traceback shows more)\n",
    )
    assert run_with(KeyError("no such gene")) == (2, "gears simulate: error: no such gene\n")
    assert run_with(KeyboardInterrupt()) == (130, "gears simulate: interrupted\n")
    monkeypatch.setattr(command, "run_simulate", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["simulate", "screen.h5ad", "--traceback"])


def test_the_base_configuration_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    base = Path(__file__).resolve().parents[2] / "configs" / "base.yaml"
    with pytest.raises(SystemExit):
        main(["train", "--config", str(base), "--seed", "7", "--print-config"])
    taken, given = yaml.safe_load(capsys.readouterr().out), yaml.safe_load(base.read_text())
    assert {name: taken[name] for name in given} == given | {"seed": 7}
    with pytest.raises(SystemExit):
        main(["train", "--config", str(base), "--prior", "None", "--early-stopping=None", "--print_config"])
    taken = yaml.safe_load(capsys.readouterr().out)
    assert taken["prior"] is None
    assert taken["early_stopping"] is None
    TrainOptions.from_mapping({name: value for name, value in given.items() if name in TrainOptions.names()})


def test_training_and_prediction(
    screen: Path, tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "run.yaml"
    config.write_text(
        "data: screen.h5ad\nobjective: cells\nsave_path: model\ndevice: cpu\nn_gpus: 2\nepochs: 5\nhidden_size: 16\n"
        "batch_size: 8\ndefault_pert_graph: false\n"
    )
    assert main(["train", "--config", str(config), "--epochs", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["save_path"] == "model"
    assert result["devices"] == ["cpu", "cpu"]
    assert [record["epoch"] for record in result["history"]] == [1]
    assert result["test_metrics"]["mse"] > 0
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model"]["hidden_size"] == 16

    check_config(tmp_path / "model" / "run.yaml")
    genes = json.loads((tmp_path / "model" / "genes.json").read_text())["pert_names"][:2]
    assert main(["predict", "model", genes[0], "+".join(genes), "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": change over control (log1p), 95 % interval")
    assert lines[3].split() == ["rank", "gene", "delta", "low", "high", "expression"]
    assert len(lines) == 1 + 2 * (3 + 3)
    assert genes[0] in refused(capsys, "predict", "model", genes[0] + "X")


def check_config(path: Path) -> None:
    """The resolved options lie beside the model, and are a file for --config."""
    import yaml

    left = yaml.safe_load(path.read_text())
    assert {"data": "screen.h5ad", "epochs": 1, "batch_size": 8, "seed": 1}.items() <= left.items()
    assert not {"quiet", "json", "config"} & set(left)
    from gears.cli._parser import as_yaml
    from gears.cli._train import train_parser

    assert yaml.safe_load(as_yaml(train_parser().parse_args(["--config", str(path)]))) == left


@pytest.fixture(scope="module")
def model(small_model: Path) -> tuple[Path, str]:
    """A saved model, and a label that it can predict."""
    return small_model, "+".join(json.loads((small_model / "genes.json").read_text())["pert_names"][:2])


def test_predictions_are_written(model: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from anndata import read_h5ad

    folder, pair = str(model[0]), model[1]
    deltas, whole = tmp_path / "deltas.csv", tmp_path / "predictions.h5ad"
    assert main(["predict", folder, pair, "--output", str(deltas), "--values", "delta", "--quiet"]) == 0
    assert main(["predict", folder, pair, "--output", str(whole), "--json", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{deltas}: 1 condition x 60 genes\n")
    written = read_h5ad(whole)
    table = pd.read_csv(deltas, index_col=0)
    assert list(table.index) == list(written.obs_names)
    assert table.to_numpy() == pytest.approx(written.layers["delta"], abs=1e-6)
    assert main(["predict", folder, pair, "--top", "2", "--json", "--device", "cpu"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["rank"] for record in records] == [1, 2]
    assert set(records[0]) == {"condition", "rank", "gene", "delta", "low", "high", "expression", "informed_by"}


def test_genes_says_what_can_be_predicted(model: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, first = str(model[0]), model[1].partition("+")[0]
    assert main(["genes", folder, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    names = json.loads((model[0] / "genes.json").read_text())
    assert sorted(row["gene"] for row in value["genes"]) == sorted(names["pert_names"])
    assert value["n_measured"] == len(names["gene_names"])
    trained = [row["gene"] for row in value["genes"] if row["informed_by"] == "training"]
    assert [row["gene"] for row in value["genes"]][: len(trained)] == trained
    assert main(["genes", folder]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{value['n_perturbable']} genes can be perturbed" in shown
    assert f"perturbed in training: {', '.join(trained)}" in shown
    assert main(["genes", folder, first]) == 0
    assert capsys.readouterr().out.splitlines()[1].split("\t")[0] == first
    assert f"did you mean {first!r}" in refused(capsys, "genes", folder, first + "X") or first in refused(
        capsys, "predict", folder, first + "X"
    )
    assert "`gears genes MODEL` lists what can be predicted" in refused(capsys, "predict", folder, first + "X")


def rename_a_gene(screen: Path, rename: Callable[[str], str]) -> str:
    """Give the first gene that is perturbed alone another name in the labels; its right name."""
    adata = anndata.read_h5ad(screen)
    gene = next(label for label in adata.obs["condition"] if label.endswith("+ctrl")).partition("+")[0]
    adata.obs["condition"] = adata.obs["condition"].astype(str).str.replace(gene, rename(gene))
    adata.write_h5ad(screen)
    return gene


@pytest.mark.long  # in short: test_the_kind_of_error_gives_the_exit_code, training/test_resume.py
def test_the_installed_command_warns_once_and_ends_with_130_on_ctrl_c(screen: Path, tmp_path: Path) -> None:
    """It prepares a screen and opens it again for training: both find the gene without annotation."""
    rename_a_gene(screen, lambda gene: f"{gene}XY")
    arguments = ["train", str(screen), "--save-path", "model", "--device", "cpu", "--n-gpus", "2"]
    long_run = ["--objective", "cells", "--epochs", "10000", "--batch-size", "8", "--no-default-pert-graph"]
    with subprocess.Popen(
        [str(GEARS), *arguments, *long_run],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        try:
            seen = []
            for line in run.stderr:
                seen.append(line)
                if line.startswith("epoch"):
                    break
            assert seen[-1].startswith("epoch"), "".join(seen)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=600)
        finally:
            run.kill()
    assert run.returncode == 130
    assert out == ""
    assert err.endswith("gears train: interrupted; --resume continues from the last checkpoint, if one was written\n")
    assert "Traceback" not in err
    assert "".join(seen).count("not in the annotation") == 1
    epochs = re.findall(r"^epoch +(\d+)/", "".join(seen) + err, flags=re.MULTILINE)
    assert len(set(epochs)) == len(epochs), "only one worker reports"


def test_the_installed_command_gives_exit_codes(tmp_path: Path) -> None:
    for words, code, text in (
        (["--version"], 0, f"gears {__version__}\n"), ([], 2, "commands:"), (["trian"], 2, "did you mean 'train'"),
    ):  # fmt: skip
        done = subprocess.run([str(GEARS), *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert (done.returncode, bool(done.stdout), bool(done.stderr)) == (code, code == 0, code != 0)
        assert text in done.stdout + done.stderr


def test_inspect_names_the_gene_that_may_be_meant(screen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gene = rename_a_gene(screen, lambda gene: f"{gene[0]}{gene}")
    assert main(["inspect", str(screen), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["severity"] == "warning"
    assert f"1 perturbed gene neither measured nor annotated: {gene[0]}{gene} (near: " in finding["what"]
    assert gene in finding["what"].partition("near: ")[2]


def test_log_lines_speak_of_options(screen: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process of its own
    adata = anndata.read_h5ad(screen)
    adata.layers["logged"] = adata.X.copy()
    adata.layers["z"] = adata.X.toarray() - 1
    adata.write_h5ad(screen)
    main(["prepare", str(screen), "--work-dir", str(screen.parent), "--layer", "z"])
    told = capsys.readouterr().err
    assert "pass --layer logged (layers['logged'] holds log-normalised values)" in told
    assert "--clip does" in told
