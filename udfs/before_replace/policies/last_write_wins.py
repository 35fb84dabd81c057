"""`last_write_wins`: the version with the greatest sequence wins, or the latest one if no sequence is configured."""

from udfs.before_replace.policy import PolicyKind

POLICY = PolicyKind()
