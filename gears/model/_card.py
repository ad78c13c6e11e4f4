"""The card of a saved model: what it is, what it was trained on, how good it is and what it must not be used for."""

from __future__ import annotations

from pathlib import Path

from gears.core._installation import __version__
from gears.core._messages import count, shorten
from gears.files._atomic import write_atomically
from gears.files._paths import user_path
from gears.model._folder import CARD, ModelParts

NOT_FOR = """- single cells, doses, times or drugs: it predicts means of genetic perturbations;
- another cell line, donor or treatment than the training screen's, unless its split held such out;
- genes of which nothing is known: `informed_by` says "nothing", and the prediction is that of an average perturbation;
- decisions about patients."""


def write_card(folder: str | Path, parts: ModelParts, accuracy: str = "") -> None:
    """Write the card into a saved model's folder; `accuracy` is the table of held-out conditions, as text."""
    write_atomically(
        user_path(folder) / CARD, lambda temporary: temporary.write_text(card(parts, accuracy), encoding="utf-8")
    )


def card(parts: ModelParts, accuracy: str = "") -> str:
    """The card as Markdown, with the head that model hubs read."""
    facts, fitted = parts.provenance, parts.fitted_conditions()
    several = sum(len(condition) > 1 for condition in fitted)
    rows = {
        "screen": f"{facts.get('dataset') or 'not named'}, content {facts.get('screen_hash') or 'unknown'}",
        "fitted to": f"{count(len(fitted), 'condition')}, {several} of several genes",
        "predictions come from": str(parts).partition(",")[0],
        "genes": f"{len(parts.gene_names)} predicted, {len(parts.pert_names)} can be perturbed",
    }
    if parts.split is not None:
        rows["split"] = f"{parts.split.name}, content {parts.split.hash}"
    if parts.contexts is not None and parts.contexts.contexts:
        rows["contexts"] = shorten(parts.contexts.contexts)
    if facts.get("sources"):
        rows["evidence from other sources"] = shorten(facts["sources"])
    rows["written by"] = f"gears {__version__}"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    accuracy = f"```\n{accuracy}\n```" if accuracy else "Not evaluated when it was saved; `model.evaluate()` does it."
    return f"""---
library_name: gears
tags: [perturb-seq, gene-perturbation]
---

# Changes of gene expression after genetic perturbations

```python
from gears import GEARS

model = GEARS.from_pretrained("this folder")
```

| what | of this model |
|---|---|
{table}

## Accuracy on held-out conditions

{accuracy}

## Not for

{NOT_FOR}
"""
