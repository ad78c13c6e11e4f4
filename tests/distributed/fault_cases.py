"""The rows of the table of kills and faults (`faults.py` runs them): who is hit, by what and when, and what is told."""

import itertools
from dataclasses import dataclass

PREPARING, START, STEP, VALIDATION = "preparing", "start of workers", "a step", "validation"
CHECKPOINT, SAVE, PREDICTION = "writing a checkpoint", "final save", "prediction"
IN_WORKERS = (START, STEP, VALIDATION, CHECKPOINT, SAVE)
SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP")
LATE = 20.0
"""Seconds that a busy machine may add until the caller knows."""
CALLER, TORCHRUN = "caller", "torchrun"
RAISED = ("worker 1 of 2 failed: KeyError: 'no such gene'", "Original traceback")


@dataclass(frozen=True)
class Case:
    """Who is hit ("worker 0", "worker 1", "caller"), by what, and when; `words` must be in what the caller is told."""

    who: str
    what: str
    when: str
    words: tuple[str, ...] = ()
    outcome: str = ""

    @property
    def name(self) -> str:
        return f"{self.what} | {self.who} | {self.when}"

    @property
    def spawned(self) -> bool:
        """Whether workers are spawned."""
        return self.when == START or (self.when == STEP and self.who != "worker 0" and self.what in SIGNALS)

    @property
    def timeout(self) -> float:
        """Seconds after which a worker that does not respond is declared dead."""
        silent = self.who != CALLER and self.what in ("SIGSTOP", "hangs")
        return (30.0 if self.when == START else 8.0) if silent else 90.0

    @property
    def longest(self) -> float:
        """Seconds until the caller knows, at most."""
        return LATE + (self.timeout if self.timeout < 90 else 0.0)


def cases() -> list[Case]:
    """All rows of the table; `outcome` is "error", "stopped", "done" (a complete run) or "gone" (ended by a signal)."""
    rows = []
    for rank, when, name in itertools.product((0, 1), IN_WORKERS, SIGNALS):
        who = f"worker {rank}"
        if name in ("SIGTERM", "SIGINT"):
            outcome = {START: "error", SAVE: "done"}.get(when, "stopped")
            words: tuple[str, ...] = (f"stopped by {name} to {who} of 2", "the checkpoint is", "resume=True")
            if when == START:
                words = (f"{who} of 2 was killed by {name}",)
            rows.append(Case(who, name, when, () if when == SAVE else words, outcome))
        else:
            told = f"{who} of 2 was killed by SIGKILL; out of memory?"
            if name == "SIGSTOP":
                told = f"{who} of 2 did not respond"
            rows.append(Case(who, name, when, (told, name), "error"))
    for when, name in itertools.product((PREPARING, *IN_WORKERS, PREDICTION), SIGNALS):
        ends = {"SIGKILL": "gone", "SIGSTOP": "done", "SIGTERM": "stopped", "SIGINT": "stopped"}
        outcome = ends[name]
        words = {"SIGTERM": ("SystemExit: 143",), "SIGINT": ("KeyboardInterrupt",)}.get(name, ())
        if name == "SIGTERM" and when in (PREPARING, PREDICTION):
            outcome, words = "gone", ()
        if when in (STEP, VALIDATION, CHECKPOINT) and outcome == "stopped":
            words += (f"stopped by {name} to all workers", "the checkpoint is")
        rows.append(Case(CALLER, name, when, words, outcome))
    full, no_memory = "No space left on device", "memory is full"
    return [
        *rows,
        *(Case(f"worker {rank}", "SIGSTOP, SIGCONT after 2 s", STEP, (), "done") for rank in (0, 1)),
        Case("worker 0", "full disk", CHECKPOINT, (full, "checkpoints/epoch-"), "error"),
        Case("worker 0", "full disk", SAVE, (full, "model"), "error"),
        Case(CALLER, "full disk", PREPARING, (full, "screens"), "error"),
        Case("worker 1", "memory of torch full", STEP, ("worker 1 of 2", no_memory, "batch_size"), "error"),
        Case("worker 0", "memory of numpy full", VALIDATION, ("worker 0 of 2", no_memory, "batch_size"), "error"),
        Case("worker 1", "exception", STEP, RAISED, "error"),
        Case("worker 1", "exception, the other deaf to SIGTERM", STEP, RAISED, "error"),
        Case(CALLER, "SIGINT, to all at once", STEP, ("KeyboardInterrupt", "the checkpoint is"), "stopped"),
        Case("worker 1", "leaves with 0", STEP, ("worker 1 of 2 left early with exit code 0",), "error"),
        Case("worker 0", "leaves with 3", VALIDATION, ("worker 0 of 2 left early with exit code 3",), "error"),
        Case("worker 1", "hangs", STEP, ("worker 1 of 2 did not respond", "it hangs"), "error"),
        Case("worker 0", "hangs", VALIDATION, ("worker 0 of 2 did not respond", "it hangs"), "error"),
        Case("worker 1", "NaN", STEP, ("FloatingPointError", "nan"), "error"),
        Case(CALLER, "unreadable file", START, ("perturb_processed.h5ad", "damaged"), "error"),
        Case(CALLER, "missing folder", START, ("there is no folder", "screens"), "error"),
        Case("worker 1 of torchrun", "SIGKILL", STEP, ("Signal 9 (SIGKILL)", "(local_rank: 1)"), "error"),
        Case("worker 0 of torchrun", "SIGTERM", STEP, ("stopped by SIGTERM to worker 0 of 2",), "stopped"),
        Case(TORCHRUN, "SIGTERM", STEP, ("stopped by SIGTERM to all workers", "the checkpoint is"), "stopped"),
        Case("worker 0 of torchrun", "exception", STEP, ("KeyError: 'no such gene'",), "error"),
    ]  # fmt: skip
