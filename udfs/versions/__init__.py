"""A key's version: what one replicaset holds of it after a part of its log. `fold_state` is one key's, step by step."""
