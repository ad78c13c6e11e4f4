"""`gears suggest`, `gears hits`, `gears reverse` and `gears power`: what to do next in the lab."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gears.cli._parser import DEVICE, CommandParser, show
from gears.cli._screens import add_data, add_nodes, add_workers, check_output_of, open_screen, workers_of
from gears.core._messages import count, shorten
from gears.files._untrusted import listed_names
from gears.files.formats import write_text

if TYPE_CHECKING:
    import pandas as pd

    from gears.gears import GEARS

_CANDIDATES = """
Candidates are GENES (a gene, or genes joined by +), those of --file (one a line), with --all-pairs every pair of them
(or of the genes perturbed in training). Where nothing is given they are the genes expressed in the screen.
"""
SUGGEST_EPILOG = f"""examples:
  gears suggest models/run1 --n 20
  gears suggest models/run1 KLF1 AHR CEBPA --all-pairs --n 5 --costs costs.csv
  gears suggest models/run1 --file library.txt --aim effect --readout HBG1 --threshold 0.5
  gears suggest models/run1 --aim interaction --output batch.csv
{_CANDIDATES}For --aim interaction they are all pairs of the genes perturbed in training.
"""
HITS_EPILOG = f"""examples:
  gears hits models/run1 --readout HBG1 --threshold 0.5
  gears hits models/run1 --signature signature.csv --threshold -0.2 --all-pairs
  gears hits models/run1 --file library.txt --threshold 0.1 --output hits.csv     (effect size of all genes)
{_CANDIDATES}"""
REVERSE_EPILOG = f"""examples:
  gears reverse models/run1 --wanted change.csv
  gears reverse models/run1 --up HBG1 HBG2 --down HBB --all-pairs --n 50
{_CANDIDATES}"""
POWER_EPILOG = """examples:
  gears power gears_data/screen --effect 0.25
  gears power screen.h5ad --cells 50 --control-cells 500 --output power.csv
"""
SHOWN = 20  # rows of a table on the terminal


def suggest_parser() -> CommandParser:
    parser = _model_parser("suggest", "Choose the perturbations to measure next.", SUGGEST_EPILOG)
    parser.add("--n", "size of the batch", type=int, default=10)
    parser.add("--aim", "information, effect or interaction", default="information")
    text = "file of conditions whose predictions are to become certain; default: the candidates (--aim information)"
    parser.add("--targets", text)
    text = "conditions whose predictions are to become certain, such as AHR+KLF1, or KLF1+* for all pairs of KLF1"
    parser.add("--for", text, several=True, dest="for_conditions")
    _add_readout(parser)
    parser.add("--threshold", "change of log expression that is a hit, for --aim effect", type=float)
    parser.add("--costs", "CSV of candidates and their costs; 1 for others")
    return parser


def run_suggest(options: Any) -> None:
    check_output_of(options)
    costs, readout = None if options.costs is None else _values(options.costs), _readout(options)
    targets = None if options.targets is None else listed_names(options.targets)
    model = _model(options)
    from gears.design.suggest import suggest

    _show(
        options,
        suggest(
            model, _candidates(options, model), options.n, options.aim, targets=targets, readout=readout,
            threshold=options.threshold, costs=costs, measured=_measured(options),
            for_conditions=options.for_conditions or None,
        ),
    )  # fmt: skip


def hits_parser() -> CommandParser:
    parser = _model_parser("hits", "Rank perturbations by the probability that a readout moves.", HITS_EPILOG)
    _add_readout(parser)
    text = (
        "change of log expression that is a hit: above 0 for a rise, below 0 for a fall; by default the median effect "
        "size of the conditions that were measured"
    )
    parser.add("--threshold", text, type=float | None)
    add_workers(parser)
    return parser


def run_hits(options: Any) -> None:
    check_output_of(options)
    readout, model = _readout(options), _model(options)
    from gears.design.hits import hits

    candidates, measured = _candidates(options, model), _measured(options)
    how = {"threshold": options.threshold, "readout": readout, "measured": measured, **workers_of(options)}
    _show(options, hits(model, candidates, **how))


def reverse_parser() -> CommandParser:
    text = "Perturbations whose predicted change is closest to a wanted one."
    parser = _model_parser("reverse", text, REVERSE_EPILOG, measured=False)
    parser.add("--wanted", "CSV of genes and their wanted changes")
    parser.add("--up", "genes to rise, instead of --wanted", several=True)
    parser.add("--down", "genes to fall, instead of --wanted", several=True)
    parser.add("--n", "rows of the table", type=int, default=SHOWN)
    return parser


def run_reverse(options: Any) -> None:
    check_output_of(options)
    if (options.wanted is None) == (not options.up and not options.down):
        msg = "the wanted change is missing or given twice: give --wanted FILE, or genes by --up and --down"
        raise ValueError(msg)
    both = sorted(set(options.up) & set(options.down))
    if both:
        msg = f"{shorten(both, 3)} cannot rise and fall: found in --up and in --down; give each gene in one of them"
        raise ValueError(msg)
    signs = dict.fromkeys(options.up, 1.0) | dict.fromkeys(options.down, -1.0)
    wanted, model = signs if options.wanted is None else _values(options.wanted), _model(options)
    from gears.design.reverse import reverse

    _show(options, reverse(model, wanted, _candidates(options, model), options.n))


def power_parser() -> CommandParser:
    text = "Cells per condition that an effect needs, or the effect that given cells show."
    parser = CommandParser("power", "DATA", text, POWER_EPILOG)
    add_data(parser)
    add_nodes(parser)
    parser.add("--effect", "change of mean log expression to be seen", type=float | None)
    parser.add("--cells", "cells of the condition, instead of --effect", type=int | None)
    parser.add("--control-cells", "control cells; default: those of the screen", type=int | None)
    parser.add("--power", "probability of seeing it", type=float, default=0.8)
    parser.add("--level", "two-sided level of the test of one gene", type=float, default=0.05)
    parser.add("--output", "write all rows to this CSV file")
    parser.add("--overwrite", "replace an existing OUTPUT", action="store_true")
    return parser


def run_power(options: Any) -> None:
    check_output_of(options)
    if options.effect is None and options.cells is None:
        msg = "nothing to compute: give --effect or --cells, the other is computed"
        raise ValueError(msg)
    from gears.design.power import power

    names = ("effect", "cells", "control_cells", "power", "level")
    table = power(open_screen(options).screen, **{name: options[name] for name in names})
    _show(options, table.sort_values("control_mean", ascending=False, ignore_index=True))


def _model_parser(name: str, description: str, epilog: str, *, measured: bool = True) -> CommandParser:
    parser = CommandParser(name, "MODEL [GENES ...]", description, epilog)
    parser.add("model", "folder of the model")
    parser.add("genes", "candidates, such as KLF1 or AHR+KLF1", nargs="*", default=[])
    parser.add("--file", "file with one candidate a line, beside or instead of GENES")
    parser.add("--all-pairs", "every pair of the candidates", action="store_true")
    if measured:
        parser.add_argument("--measured", help="file of conditions measured since the model was trained, one a line")
    parser.add("--output", "write all rows to this CSV file")
    parser.add("--overwrite", "replace an existing OUTPUT", action="store_true")
    parser.add("--device", DEVICE)
    return parser


def _add_readout(parser: CommandParser) -> None:
    parser.add("--readout", "measured gene that is to move; default: the effect size of all genes")
    parser.add("--signature", "CSV of genes and weights, instead of --readout: its weighted mean is to move")


def _model(options: Any) -> GEARS:
    from gears.gears import GEARS

    return GEARS.from_pretrained(options.model, device=options.device)


def _candidates(options: Any, model: GEARS) -> Iterable[Any] | None:
    names = list(options.genes) + ([] if options.file is None else listed_names(options.file))
    if options.file is not None and not names:
        msg = f"{options.file} names no candidate; give one a line"
        raise ValueError(msg)
    if not options.all_pairs:
        return names or None
    from gears.prediction._stream import all_pairs, candidate_genes

    return all_pairs(candidate_genes(model._need_model(), names or None))


def _measured(options: Any) -> list[str]:
    return [] if options.measured is None else listed_names(options.measured)


def _readout(options: Any) -> Any:
    if options.signature is not None and options.readout is not None:
        msg = f"--readout {options.readout} and --signature {options.signature} are both given; give one of them"
        raise ValueError(msg)
    return options.readout if options.signature is None else _values(options.signature)


def _values(path: str) -> dict[str, float]:
    """Names and numbers of a file with two columns, separated by a comma or a tab; a header is skipped."""
    values: dict[str, float] = {}
    for number, line in enumerate(listed_names(path)):
        name, _, text = line.replace("\t", ",").rpartition(",")
        name = name.strip()
        try:
            value = float(text)
        except ValueError:
            if number:
                msg = f"{path}: {line!r} is not a name and a number; expected two columns such as HBG1,0.5"
                raise ValueError(msg) from None
            continue
        if name in values:
            msg = f"{path} names {name} twice; give each name one number"
            raise ValueError(msg)
        values[name] = value
    return values


def _show(options: Any, table: pd.DataFrame) -> None:
    """Print the first rows and what is excluded; write all rows where a file is named."""
    from gears.design._candidates import excluded_by_reason

    if options.output is not None:
        write_text(options.output, table.to_csv(index=False))
    excluded = table.attrs.get("excluded", {})
    text = table.head(SHOWN).round(4).to_string(index=False)
    if len(table) > SHOWN:
        text += f"\n... of {len(table)} rows (--output FILE.csv writes all)"
    if excluded:
        text += f"\n\n{count(len(excluded), 'candidate')} excluded (--json lists all): {excluded_by_reason(excluded)}"
    show(options, {"rows": table.to_dict("records"), "excluded": excluded}, text)
