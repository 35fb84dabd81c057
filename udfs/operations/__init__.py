"""UPDATE and UPSERT, byte for byte as Tarantool executes them: `operations` applies them to a tuple.

`operation` decodes one, `scalars` lists those that compute a value, `arithmetic` and `decimals` have the values that
they compute with. `quick_update` does the common ones on a list of fields; the others need a tree of updated fields
(`update_*`). `update_rules` has the rules of each version.
"""
