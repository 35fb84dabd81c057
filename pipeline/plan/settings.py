"""Serializes the settings that affect the tables' content; `_epochs` stores them, so a start can report changes. Pure.

Paths and the keys of masks are left out.
"""

import json
from typing import Any

from config.deployment import Config

TABLES_FORMAT = 1
"""Version of the aggregator's own tables. It is incremented when releases before this one must no longer write them."""


def settings_json(config: Config) -> str:
    """Return the settings of a configuration as canonical JSON: equal settings give equal text."""
    spaces = config.spaces
    policies = config.policies
    found: dict[str, Any] = {
        "format": TABLES_FORMAT,
        "sources": sorted(source.name for source in config.sources),
        "start": config.start,
        "on_gap": config.on_gap,
        "types": config.types.model_dump(),
        "spaces": spaces.model_dump(exclude={"masks", "mask_key_env", "mask_key_file"}),
        "masks": spaces.masks,
        "policies": {
            "default": _nonempty_settings(policies.default.model_dump()),
            "spaces": {name: _nonempty_settings(policies.of(name).model_dump()) for name in policies.spaces},
        },
    }
    return json.dumps(found, sort_keys=True)


def _nonempty_settings(policy: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in policy.items() if value}
