"""The configuration of a deployment: one YAML file, which is checked completely before anything starts.

Read `deployment` first, which has `Config`, the model of the file; each of its larger sections has a module named after
its key. `yaml_document` reads the file, and names its mistakes by line; `values` has the types that
several sections share.
"""
