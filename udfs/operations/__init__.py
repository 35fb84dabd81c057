"""UPDATE and UPSERT, byte for byte as Tarantool executes them: `operations` applies them to a tuple.

`operation` decodes one, `arithmetic` and `decimals` compute. `quick_update` does the common ones on a list of fields;
the others need a tree of updated fields, the modules `update_*`. `update_rules` has the rules of each version.
"""
