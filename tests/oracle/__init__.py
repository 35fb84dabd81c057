"""A second opinion on logs: a simple fold in plain Python, checked against what real servers hold.

Imports nothing of the project: only the standard library, msgpack and zstandard. Slow and without streaming
on purpose. `fold_directory` gives the final tuples of every space, with who changed each last and when;
`last_write_wins` puts the versions of several replicasets together, key by key.
"""

from tests.oracle.fold import Folded, FoldedSpace, Version, fold, fold_directory
from tests.oracle.log import Row, Transaction, read_log, transactions
from tests.oracle.wins import Winner, last_write_wins

__all__ = [
    "Folded",
    "FoldedSpace",
    "Row",
    "Transaction",
    "Version",
    "Winner",
    "fold",
    "fold_directory",
    "last_write_wins",
    "read_log",
    "transactions",
]
