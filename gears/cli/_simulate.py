"""`gears simulate`: write a simulated screen."""

from __future__ import annotations

from gears.cli._parser import CommandParser, show, values_of
from gears.files._paths import check_output, user_path

EPILOG = """examples:
  gears simulate screen.h5ad
  gears simulate screen.h5ad --n-genes 300 --n-singles 30 --n-pairs 20 --seed 7 --truth truth.npz
"""


def make_parser() -> CommandParser:
    """Options of ``gears simulate``."""
    from gears.simulate._options import SimulationOptions

    parser = CommandParser("simulate", "OUTPUT.h5ad", "Write a simulated screen with real gene symbols.", EPILOG)
    parser.add_argument("output", metavar="OUTPUT.h5ad", help="file to write")
    parser.add_argument("--truth", help="npz file for the simulation's parameters (gears.simulate.SimulatedTruth)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_options("the screen", SimulationOptions)
    return parser


def run_simulate(arguments: list[str]) -> None:
    """Simulate, write, and print a summary."""
    options = make_parser().parse(arguments)
    output = user_path(options.output)
    if output.suffix != ".h5ad":
        msg = f"the output is an h5ad file; found {options.output!r}: give a name that ends in .h5ad"
        raise ValueError(msg)
    for path in (output, options.truth):
        if path is not None:
            check_output(path, options.overwrite)
    from gears.simulate._options import SimulationOptions
    from gears.simulate._screen import simulate_to_h5ad

    simulation_options = SimulationOptions(**values_of(options, SimulationOptions))
    truth = simulate_to_h5ad(output, simulation_options, overwrite=options.overwrite)
    if options.truth is not None:
        truth.save(options.truth, overwrite=options.overwrite)
    n_conditions = len(truth.conditions) - 1
    value = {"output": str(output), "n_genes": len(truth.genes), "n_conditions": n_conditions}
    text = f"{output}: {len(truth.genes)} genes, {n_conditions} perturbed conditions and the control"
    show(options, value | {"truth": options.truth}, text)
