"""Compares all spaces of one replicaset with one of its servers: the first peer that can answer.

`observe.proof.space_proof` compares a space, `jobs.prove` stores the results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence

from observe.proof.epoch_tables import EpochTables
from observe.proof.result import SpaceProof
from observe.proof.space_proof import Compared, Pace, ProofLimits, SpaceComparison
from pipeline.plan.control import SpaceDefinition
from pipeline.state import ReplicasetState, State
from schemas.errors import AggregatorError, IprotoError, PeerError, TupleError
from schemas.names import local_to
from schemas.system_tuples import fields_of
from sources.iproto.address import Peer
from sources.iproto.client import Connection, connect
from sources.iproto.space_pages import prepare_checksums

ANSWER_SECONDS = 30.0
"""Seconds to wait for a server's answer."""

INDEX_TYPE = 3
"""Number of the field with the index type in `_index`."""


async def proofs(
    peers: Sequence[Peer],
    state: State,
    tables: Callable[[], EpochTables],
    limits: ProofLimits,
    spaces: Collection[str] = (),
) -> AsyncIterator[SpaceProof]:
    """Yield the result of each space of the peers' replicaset.

    Parameters
    ----------
    peers : sequence of Peer
        Members of one replicaset.
    state : State
        Of the tables.
    tables : callable
        Returns the tables at the newest epoch.
    limits : ProofLimits
    spaces : collection of str
        Names of spaces or of their tables; empty: all.

    Raises
    ------
    IprotoError
        No peer can be asked, or the connection broke.

    """
    connection = await _first_that_answers(peers)
    try:
        uuid = await connection.replicaset_uuid()
        replicaset = state.replicasets.get(uuid)
        if replicaset is None:
            raise PeerError(
                f"the tables have nothing of its replicaset {uuid}",
                peer=connection.peer.name,
                advice="is it a source of this deployment?",
            )
        pace = Pace(limits.rate)
        with_checksums = limits.by_checksums and await prepare_checksums(connection)
        for space_id, table in sorted(replicaset.tables.items(), key=lambda item: item[1]):
            compared = _space_to_compare(replicaset, space_id, table, connection.peer.name, spaces)
            if compared is None:
                continue
            reason = _why_not(replicaset, space_id)
            if reason is not None:
                yield SpaceProof(table, uuid, connection.peer.name, state.epoch, error=reason)
                continue
            try:
                comparison = SpaceComparison(
                    compared, connection, tables, limits, pace, with_checksums=with_checksums
                )
            except AggregatorError as error:
                yield SpaceProof(table, uuid, connection.peer.name, state.epoch, error=str(error))
                continue
            yield await comparison.proof()
    finally:
        connection.close()


async def _first_that_answers(peers: Sequence[Peer]) -> Connection:
    refusal: IprotoError | None = None
    for peer in peers:
        try:
            connection = await connect(peer, ANSWER_SECONDS)
            if not (await connection.vote()).is_loading:
                return connection
            connection.close()
            refusal = PeerError("the server is still loading its data", peer=peer.name)
        except IprotoError as error:
            refusal = error
    assert refusal is not None, "a replicaset has peers"
    raise refusal


def _space_to_compare(
    replicaset: ReplicasetState, space_id: int, table: str, peer: str, wanted: Collection[str]
) -> Compared | None:
    """Return what to compare; None for a space that is not wanted, or that servers do not replicate."""
    rows = replicaset.spaces.get(space_id)
    if rows is None or local_to(table) is not None:
        return None
    space = rows.decoded()
    if wanted and not {space.name, table} & set(wanted):
        return None
    return Compared(space, table, replicaset.id, replicaset.uuid, peer)


def _why_not(replicaset: ReplicasetState, space_id: int) -> str | None:
    """Return why a space cannot be compared, None if it can."""
    if space_id in replicaset.refused:
        return f"it is followed in _changelog only: {replicaset.refused[space_id]}"
    kind = _index_type(replicaset.spaces[space_id])
    if kind is None:
        return "it has no primary index"
    if kind != "tree":
        return f"its primary index is a {kind}, which has no order to read pages by"
    return None


def _index_type(rows: SpaceDefinition) -> str | None:
    primary = rows.indexes.get(0)
    if primary is None:
        return None
    fields = fields_of(primary, "a row of _index")
    if len(fields) <= INDEX_TYPE or not isinstance(fields[INDEX_TYPE], str):
        raise TupleError("a row of _index has no type")
    return str(fields[INDEX_TYPE]).lower()
