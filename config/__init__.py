"""The configuration of a deployment: one YAML file, checked whole before anything starts.

Read `deployment` first: `Config` is the whole; each of its larger parts has a module named after its key in the YAML.
`yaml_document` reads the file with line numbers, `errors` turns pydantic's errors into one message, `values` has the
types that several parts share.
"""
