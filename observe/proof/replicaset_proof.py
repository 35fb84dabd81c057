"""Compares the tables with one server of a replicaset, the first peer that answers, space by space.

`observe.proof.space_proof` compares one space; `jobs.prove` stores the results.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence

from observe.proof.epoch_tables import EpochTables
from observe.proof.space_proof import ComparedSpace, ProofLimits, ReadRateLimit, SpaceComparison, SpaceProof
from pipeline.state import ReplicasetState, SpaceDefinition, State
from schemas.errors import AggregatorError, IprotoError, PeerError, TupleError
from schemas.names import local_instance_of
from schemas.system_tuples import fields_of
from sources.iproto.address import Peer
from sources.iproto.client import Connection, connect
from sources.iproto.space_pages import prepare_checksums

ANSWER_TIMEOUT_SECONDS = 30.0

INDEX_TYPE_FIELD = 3
"""Index of the field with the type of the index in a tuple of `_index`, counted from 0."""


async def prove_spaces(
    peers: Sequence[Peer],
    state: State,
    tables: Callable[[], EpochTables],
    limits: ProofLimits,
    spaces: Collection[str] = (),
) -> AsyncIterator[SpaceProof]:
    """Compare each space of the peers' replicaset, or those of some names, and yield the results.

    Raises:
        IprotoError: No peer answers, or the connection is lost.
    """
    connection, replicaset = await connect_to_replicaset(peers, state)
    uuid = replicaset.uuid
    try:
        rate_limit = ReadRateLimit(limits, connection)
        with_checksums = limits.uses_checksums and await prepare_checksums(connection)
        for space_id, table in sorted(replicaset.tables.items(), key=lambda item: item[1]):
            compared = _space_to_compare(replicaset, space_id, table, connection.peer.name, spaces)
            if compared is None:
                continue
            reason = _not_comparable_reason(replicaset, space_id)
            if reason is not None:
                yield SpaceProof(table, uuid, connection.peer.name, state.epoch, error=reason)
                continue
            try:
                comparison = SpaceComparison(
                    compared, connection, tables, limits, rate_limit, with_checksums=with_checksums
                )
            except AggregatorError as error:
                yield SpaceProof(table, uuid, connection.peer.name, state.epoch, error=str(error))
                continue
            yield await comparison.compare()
    finally:
        connection.close()


async def connect_to_replicaset(peers: Sequence[Peer], state: State) -> tuple[Connection, ReplicasetState]:
    """Return a connection to the first peer that answers, and the state of its replicaset.

    Raises:
        IprotoError: No peer answers, or the tables have no rows of its replicaset.
    """
    connection = await _connect_to_first(peers)
    try:
        uuid = await connection.replicaset_uuid()
        replicaset = state.replicasets.get(uuid)
        if replicaset is not None:
            return connection, replicaset
        raise PeerError(
            f"the tables have no rows of the server's replicaset {uuid}",
            peer=connection.peer.name,
            advice="is the replicaset among the sources of this deployment?",
        )
    except BaseException:
        connection.close()
        raise


def comparable_spaces(replicaset: ReplicasetState, peer: str) -> dict[str, ComparedSpace]:
    """Return the spaces of a replicaset that can be compared with a server, by their tables, in order."""
    found = {}
    for space_id, table in sorted(replicaset.tables.items(), key=lambda item: item[1]):
        compared = _space_to_compare(replicaset, space_id, table, peer, ())
        if compared is not None and _not_comparable_reason(replicaset, space_id) is None:
            found[table] = compared
    return found


async def _connect_to_first(peers: Sequence[Peer]) -> Connection:
    """Return a connection to the first peer that answers and has loaded its data; else raise the last error."""
    refusal: IprotoError | None = None
    for peer in peers:
        try:
            connection = await connect(peer, ANSWER_TIMEOUT_SECONDS)
            if not (await connection.request_ballot()).is_loading:
                return connection
            connection.close()
            refusal = PeerError("the server is still loading its data", peer=peer.name)
        except IprotoError as error:
            refusal = error
    assert refusal is not None, "a replicaset has peers"
    raise refusal


def _space_to_compare(
    replicaset: ReplicasetState, space_id: int, table: str, peer: str, names: Collection[str]
) -> ComparedSpace | None:
    """Return the space with its table; None if it is local, or if `names` is not empty and does not name it."""
    rows = replicaset.spaces.get(space_id)
    if rows is None or local_instance_of(table) is not None:
        return None
    space = rows.decoded()
    if names and not {space.name, table} & set(names):
        return None
    is_ordered = _primary_index_type(rows) != "hash"
    return ComparedSpace(space, table, replicaset.id, replicaset.uuid, peer, is_ordered)


def _not_comparable_reason(replicaset: ReplicasetState, space_id: int) -> str | None:
    if space_id in replicaset.refused:
        return f"the space is in _changelog only: {replicaset.refused[space_id]}"
    index_type = _primary_index_type(replicaset.spaces[space_id])
    if index_type is None:
        return "the space has no primary index"
    return None if index_type in ("tree", "hash") else f"the primary index is of type {index_type}"


def _primary_index_type(rows: SpaceDefinition) -> str | None:
    primary = rows.indexes.get(0)
    if primary is None:
        return None
    fields = fields_of(primary, "a row of _index")
    if len(fields) <= INDEX_TYPE_FIELD or not isinstance(fields[INDEX_TYPE_FIELD], str):
        raise TupleError("a row of _index has no type")
    return str(fields[INDEX_TYPE_FIELD]).lower()
