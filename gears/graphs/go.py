"""Similarity of genes by the GO terms they share."""

from __future__ import annotations

import numpy as np
from scipy import sparse


def jaccard(rows_A: sparse.csr_matrix, rows_B: sparse.csr_matrix) -> np.ndarray:
    """Jaccard similarity of term sets: shared terms divided by terms of either.

    Parameters
    ----------
    rows_A, rows_B
        (A, terms) and (B, terms) sparse ones, as :meth:`GeneAnnotation.rows` gives.

    Returns
    -------
    np.ndarray
        (A, B) float64; 0 where neither has a term.
    """
    shared_AB = (rows_A @ rows_B.T).toarray().astype(np.float64)
    either_AB = np.diff(rows_A.indptr)[:, None] + np.diff(rows_B.indptr)[None, :] - shared_AB
    return np.divide(shared_AB, either_AB, out=np.zeros_like(shared_AB), where=either_AB > 0)
