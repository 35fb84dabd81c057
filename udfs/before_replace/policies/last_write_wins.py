"""`last_write_wins`: the version with the greatest sequence wins, or where none is configured the latest one."""

from __future__ import annotations

from udfs.before_replace.policy import PolicyKind

POLICY = PolicyKind("last_write_wins", takes_deleted=True)
