"""The configuration that counts from a swap on: that of the writer, with the sections of the command's."""

from config.deployment import Config
from pipeline.plan.spaces.tables import current_table_plan
from pipeline.requests.arguments import SwapArguments
from pipeline.requests.beside import settings_of
from pipeline.state import State
from schemas.errors import UnsupportedError
from schemas.names import is_space_table

WHICH_TABLES = ("include", "exclude", "rename", "per_replicaset", "local")
"""The keys of `spaces` that say which tables there are: a swap does not change them."""


def with_sections(config: Config, sections: SwapArguments) -> Config:
    """Return a configuration with the sections that say what tables are."""
    found = {name: getattr(sections, name) for name in ("spaces", "types", "policies")}
    return config.model_copy(update=found)


def refuse_other_changes(state: State, before: Config, after: Config, space: str) -> None:
    """Raise UnsupportedError if a space's table is set aside, or the configuration changes other tables too."""
    table = after.spaces.table(space)
    if table in state.set_aside:
        raise UnsupportedError(
            f"its table is set aside: {state.set_aside[table]}",
            space=space,
            advice=f"aggregator rebuild {space}",
        )
    changed = [name for name in WHICH_TABLES if getattr(before.spaces, name) != getattr(after.spaces, name)]
    if changed:
        raise UnsupportedError(
            f"the configuration differs in spaces.{changed[0]} from that of the writer",
            space=space,
            advice="restart the job with it first",
        )
    tables = filter(is_space_table, state.versions.keys() - {table})
    others = sorted(one for one in tables if _settings(state, before, one) != _settings(state, after, one))
    if others:
        raise UnsupportedError(
            f"the configuration changes other tables too: {', '.join(others)}",
            space=space,
            advice="swap with one that changes this table alone, or restart the job, which writes all of them again",
        )


def _settings(state: State, config: Config, table: str) -> str:
    try:
        plan = current_table_plan(state, config, table)
    except UnsupportedError as error:
        return str(error)
    except KeyError as error:
        return f"there is no source {error}"
    return "" if plan is None else settings_of(plan)
