"""What of a configuration decides how tables look, as `_epochs` keeps it: so a later start can say what changed. Pure.

Neither paths nor keys of masks are part of it.
"""

from __future__ import annotations

import json
from typing import Any

from config.deployment import Config

TABLES_FORMAT = 1
"""Counts changes of the aggregator's own tables after which an earlier release must not write them any more."""


def settings_json(config: Config) -> str:
    """Return the settings of a configuration as JSON: one text for one meaning."""
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
