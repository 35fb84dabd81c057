"""UPDATE and UPSERT, byte for byte as Tarantool executes them: `operations` applies them to a tuple.

`operation` decodes an operation, `update_path` applies it to the tree of updated fields (`update_tree`). `scalars` has
the operations that compute a value, `arithmetic` and `decimals` define the types of these values. `update_rules` has
the rules of each server version, `tuple_format` the format of a space.
"""
