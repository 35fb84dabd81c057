"""Compare the tables with the live servers, key by key: `aggregator prove`.

Reads the tables by delta-rs, without Spark, and the servers over IPROTO, also while a stream runs. Results go to
`_validations`. `observe.proof` compares; `jobs.validate` checks the tables alone.
"""

import asyncio
import sys
import uuid as uuids
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from config.deployment import Config
from jobs.runtime.output import say, say_json
from observe.proof.epoch_tables import EpochTables, newest_tables
from observe.proof.replicaset_proof import prove_spaces
from observe.proof.space_proof import ProofLimits, SpaceProof
from pipeline.commit.load import load_state
from pipeline.state import State
from schemas.errors import ConfigurationError, IprotoError
from sources.iproto.address import PasswordSource, Peer, parse_address
from warehouse.copies.rid import is_writable
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.system_tables import validations
from warehouse.warehouse import Warehouse


def prove(
    config: Config,
    spaces: Collection[str],
    peers: Sequence[Sequence[Peer]],
    limits: ProofLimits,
    *,
    as_json: bool = False,
) -> int:
    """Compare, print differences, store the results; return 1 if something differs or cannot be compared."""
    location, moment = location_of(config.warehouse, config.database), datetime.now(UTC)
    epoch = newest_tables(location).epoch
    state = load_state(Warehouse(None, config.warehouse, config.database))
    _require_known_spaces(state, spaces)
    found, failures = asyncio.run(_prove_replicasets(location, state, peers, limits, spaces, as_json=as_json))
    if found and is_writable(location):
        validations.append(
            location, uuids.uuid4().hex, moment, epoch, [one.validation_row() for one in found]
        )
    for failure in failures:
        say(f"not compared: {failure}", err=True)
    return 0 if found and not failures and all(one.holds for one in found) else 1


async def _prove_replicasets(
    location: WarehouseLocation,
    state: State,
    peers: Sequence[Sequence[Peer]],
    limits: ProofLimits,
    spaces: Collection[str],
    *,
    as_json: bool,
) -> tuple[list[SpaceProof], list[str]]:
    """Compare and print the spaces of each replicaset; return (results of spaces, errors of unreadable replicasets)."""

    def tables() -> EpochTables:
        return newest_tables(location)

    found, failures = [], []
    for members in peers:
        try:
            async for one in prove_spaces(members, state, tables, limits, spaces):
                found.append(one)
                if as_json:
                    say_json(one.as_json())
                else:
                    say(one)
        except IprotoError as error:
            failures.append(str(error))
    return found, failures


def servers_to_read(
    config: Config, addresses: Sequence[str] = (), password_env: str | None = None
) -> list[list[Peer]]:
    """Return the servers to read from: one list for each replicaset, with its members.

    Args:
        addresses: One server of each replicaset, `user@host:port`; empty: those of the section `subscribe`.

    Raises:
        ConfigurationError: An address is malformed, or there are neither addresses nor the section.
    """
    if addresses:
        return [[_peer_at(text, password_env)] for text in addresses]
    if config.subscribe is None:
        raise ConfigurationError(
            "no servers are named", path="subscribe", advice="add the section, or pass --peer user@host:port"
        )
    return [[one.peer(text) for text in one.peers] for one in config.subscribe.replicasets]


def _peer_at(address_text: str, password_env: str | None) -> Peer:
    try:
        user, address = parse_address(address_text)
    except ValueError as error:
        raise ConfigurationError(str(error), path="--peer") from None
    return Peer(str(address), address, user, PasswordSource(password_env if user else None))


def _require_known_spaces(state: State, spaces: Collection[str]) -> None:
    known = set(state.versions)
    for one in state.replicasets.values():
        known |= {rows.decoded().name for space_id, rows in one.spaces.items() if space_id in one.tables}
    missing = sorted(set(spaces) - known)
    if missing:
        raise ConfigurationError(f"there is no table of {', '.join(missing)}", path="SPACE")


if __name__ == "__main__":
    from jobs.main import main

    sys.exit(main("prove"))
