"""The operations that compute a field's new value from its old one.

Each module has one or more of them; `SCALAR_OPERATIONS` maps their codes to them.

`=`, `!` and `#` change the tree of a tuple instead (`udfs.operations.update_tree`, `udfs.operations.update_path`).
"""

from collections.abc import Mapping

from udfs.operations.arithmetic import ScalarOperation
from udfs.operations.scalars import addition, bits, splice

SCALAR_OPERATIONS: Mapping[str, ScalarOperation] = {
    **dict.fromkeys("+-", addition.ADDITION),
    **dict.fromkeys("&|^", bits.BITS),
    ":": splice.SPLICE,
}
"""The operations by their codes in the log."""
