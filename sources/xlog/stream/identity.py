"""Finds the replicaset that a source belongs to, and refuses a source that also has files of another replicaset.

The uuid of a replicaset is a tuple of `_schema` (272): `{'cluster', uuid}` in Tarantool 1.6 to 2.x,
`{'replicaset_uuid', uuid}` in 3.x (`box_set_replicaset_uuid` in `src/box/box.cc`). A snapshot has it in its first
block, since spaces are written in the order of their ids; a log has it only if it began before the instance's first
snapshot. Files of a spool name it in their headers, since a spool may have no snapshot.

If files of another replicaset were read, their rows would be taken for rows of the source's replicaset. The header of a
file names the instance that wrote it, but only the header of a spool's file names the replicaset. So an instance is
known to belong to the replicaset if its own snapshot has the uuid of the replicaset, or if `_cluster` in the files of a
known instance names it. One folder may have files of several instances, since a member that joins again gets a new
uuid. An unknown instance is not refused while its snapshot is still being copied, or while no `_cluster` is known. If
all headers name the same instance, no file is read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from schemas.errors import SourceError, TupleError
from schemas.iproto import SystemSpace
from schemas.system_tuples import fields_of, uuid_of
from sources.xlog.directory.directory import SOURCE_ERRORS, Directory
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.format.selection import Selection
from sources.xlog.reader import reader
from sources.xlog.stream.origins import Origins

_UUID_KEYS = ("cluster", "replicaset_uuid")


def replicaset_uuids_in(directory: Directory, file: LogFile) -> Iterator[str]:
    """Yield the replicaset uuids in the `_schema` rows of a file, which is read only as far as the caller iterates."""
    selection = Selection(space_ids=frozenset({int(SystemSpace.SCHEMA)}))
    for batch in reader.read_rows(*directory.locate(file.name), selection=selection, limits=directory.limits):
        for packed in batch["tuple"].to_pylist():
            fields = fields_of(packed, "a row of _schema") if packed is not None else []
            if len(fields) > 1 and fields[0] in _UUID_KEYS:
                yield uuid_of(fields[1], "the uuid of the replicaset in _schema")


def _uuid_named_in_files(directory: Directory, listing: Listing) -> str | None:
    for file in (*listing.logs[-1:], *listing.snapshots[-1:]):
        if file.replicaset_uuid is not None:
            return uuid_of(file.replicaset_uuid, f"the uuid of the replicaset in the header of {file.name}")
    snapshot = directory.newest_complete(listing.snapshots)
    files = ([snapshot] if snapshot is not None else []) + list(listing.logs[:1])
    return next(chain.from_iterable(replicaset_uuids_in(directory, file) for file in files), None)


def replicaset_uuid_of(directory: Directory, listing: Listing, path_uuid: str | None = None) -> str:
    """Return the uuid of the replicaset that a source belongs to.

    Args:
        directory, listing: Of the source.
        path_uuid: For a source of the option `path` or `paths`: the uuid that identifies the path in offsets
            (`LogStream._uuid_of_path`). Then the files are not searched.

    Raises:
        SourceError: If neither the files nor the source's key `replicaset` name the replicaset, or if they name
            different ones.
    """
    source = directory.source
    if path_uuid is not None:
        return source.replicaset or path_uuid
    try:
        found = _uuid_named_in_files(directory, listing)
    except TupleError as error:
        raise SourceError(error.reason, source=source.name) from None
    if source.replicaset is not None and found is not None and found != source.replicaset:
        raise SourceError(
            f"the files are of replicaset {found}, not {source.replicaset}",
            source=source.name,
            advice="correct the source's key replicaset, or its path",
        )
    uuid = found or source.replicaset
    if uuid is None and not listing.logs and not listing.snapshots:
        raise SourceError(
            "there is no snapshot and no log yet",
            source=source.name,
            advice="`aggregator subscribe` begins a spool when a server answers; a server's logs are in its wal_dir",
        )
    if uuid is None:
        raise SourceError(
            "no file names the replicaset: there is no complete snapshot",
            source=source.name,
            advice="name it with the source's key replicaset",
        )
    return uuid


@dataclass
class ForeignFiles:
    """Finds files of other replicasets in one source; it remembers what it has read."""

    directory: Directory
    """Of the source."""
    origins: Origins
    """Of the same source; it reads `_cluster`."""
    _replicaset_by_file: dict[str, str | None] = field(default_factory=dict)
    """By file: the replicaset's uuid, or None if the file does not have it."""

    def refuse(self, listing: Listing, replicaset: str) -> None:
        """Raise an error if a file is of another replicaset.

        Raises:
            SourceError: If there is such a file. The error names it and a file of the source's replicaset, with their
                instances.
        """
        found = self.find_contradiction(listing, replicaset)
        if found is not None:
            raise SourceError(
                f"files of several replicasets are in one folder: {found}",
                source=listing.source,
                advice="give each replicaset a folder and a source of its own",
            )

    def find_contradiction(self, listing: Listing, replicaset: str) -> str | None:
        """Return a text that names two files of different replicasets; None if none are known to be."""
        files = (*listing.snapshots, *listing.logs)
        named = [file for file in files if file.replicaset_uuid is not None]
        for file in named:
            if str(file.replicaset_uuid).lower() != replicaset:
                home = next(
                    (one for one in files if one not in named or one.replicaset_uuid == replicaset), None
                )
                return _contradiction(home, replicaset, file, file.replicaset_uuid)
        own = [file for file in files if file.replicaset_uuid is None and file.instance_uuid is not None]
        instances = {str(file.instance_uuid) for file in own}
        if len(instances) + bool(named) < 2:
            return None
        known_instances: set[str] = set()
        for file in own:
            uuid = self._replicaset_of(file) if self._may_name_replicaset(listing, file) else None
            if uuid == replicaset:
                known_instances.add(str(file.instance_uuid))
            elif uuid is not None:
                home = next((one for one in files if one.instance_uuid != file.instance_uuid), None)
                return _contradiction(home, replicaset, file, uuid)
        return self._unregistered_instance(listing, own, known_instances, replicaset)

    def _unregistered_instance(
        self, listing: Listing, files: list[LogFile], known_instances: set[str], replicaset: str
    ) -> str | None:
        """Return a text about the first file whose instance is in no `_cluster` of the replicaset."""
        unregistered = (
            {str(file.instance_uuid) for file in files}
            - known_instances
            - self._instances_being_copied(listing)
        )
        has_members = False
        for members in self._instances_per_file(listing, known_instances) if unregistered else ():
            has_members |= bool(members)
            unregistered -= members
            if not unregistered:
                break
        if not has_members:
            return None
        for file in files:
            if file.instance_uuid in unregistered:
                home = next((one for one in files if one.instance_uuid not in unregistered), None)
                return _contradiction(home, replicaset, file, None)
        return None

    def _instances_per_file(
        self, listing: Listing, known_instances: Iterable[str]
    ) -> Iterator[frozenset[str]]:
        """Yield the instances that `_cluster` of each file of a known instance names; the newest snapshot is first."""
        trusted = set(known_instances)
        for file in reversed(listing.snapshots):
            is_own = file.instance_uuid in trusted or file.replicaset_uuid is not None
            if is_own and self._is_complete(file):
                found = self._instances_in_cluster(file, closed=True)
                trusted |= found
                yield found
        for file in listing.logs:
            if file.instance_uuid in trusted or file.replicaset_uuid is not None:
                found = self._instances_in_cluster(file, closed=file is not listing.logs[-1])
                trusted |= found
                yield found

    def _instances_in_cluster(self, file: LogFile, *, closed: bool) -> frozenset[str]:
        try:
            end = self.directory.ends.end_of(file, closed=closed).position
            return self.origins.registered_instances(file, end)
        except SOURCE_ERRORS:
            return frozenset()  # reading its rows reports the damage

    def _may_name_replicaset(self, listing: Listing, file: LogFile) -> bool:
        """Return whether a file may have the uuid of its replicaset: it is a complete snapshot or the first log."""
        return self._is_complete(file) if file.is_snapshot else file is listing.logs[0]

    def _replicaset_of(self, file: LogFile) -> str | None:
        if file.name not in self._replicaset_by_file:
            try:
                self._replicaset_by_file[file.name] = next(replicaset_uuids_in(self.directory, file), None)
            except SOURCE_ERRORS:
                return None
        return self._replicaset_by_file[file.name]

    def _instances_being_copied(self, listing: Listing) -> set[str]:
        """Return the instances of snapshots that are not complete yet."""
        return {str(file.instance_uuid) for file in listing.snapshots if not self._is_complete(file)}

    def _is_complete(self, file: LogFile) -> bool:
        try:
            return self.directory.ends.is_complete(file)
        except SOURCE_ERRORS:
            return False


def _contradiction(
    own_file: LogFile | None, replicaset: str, file: LogFile, other_replicaset: str | None
) -> str:
    belongs = (
        f"of replicaset {other_replicaset}"
        if other_replicaset is not None
        else "which is no member of that replicaset"
    )
    mine = (
        f"{own_file.name} is of instance {own_file.instance_uuid}, "
        if own_file is not None
        else "the source is "
    )
    return f"{mine}of replicaset {replicaset}; {file.name} is of instance {file.instance_uuid}, {belongs}"
