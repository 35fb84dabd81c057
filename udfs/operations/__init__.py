"""UPDATE and UPSERT, byte for byte as Tarantool executes them: `operations` applies them to a tuple.

`operation` decodes one, `scalars` is the table of those that compute a value, `arithmetic` and `decimals` have the
values. `quick_update` does the common ones on a list of fields; the others need a tree of updated fields, the modules
`update_*`. `update_rules` has the rules of each version.
"""
