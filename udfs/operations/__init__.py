"""UPDATE and UPSERT, byte for byte as Tarantool executes them: `operations` applies them to a tuple.

`operation` decodes one, `update_path` applies it to the tree of updated fields (`update_tree`). `scalars` lists the
operations that compute a value, `arithmetic` and `decimals` have the values that they compute with. `update_rules` has
the rules of each server version, `tuple_format` the format of a space.
"""
