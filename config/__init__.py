"""The configuration of a deployment: one YAML file, checked whole before anything starts.

Read `deployment` first: `Config` is the whole, its parts have a module each, named after their key in the YAML.
`yaml_document` reads the file with line numbers, `errors` turns pydantic's findings into one message, `values` has the
types that several parts share.
"""
