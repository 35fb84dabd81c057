"""Finds files of another replicaset among the files of a source: read with them, its rows would pass for the source's.

A header names the instance that wrote the file, and only a spool's names the replicaset. So an instance is known by
its own snapshot, which has the uuid of its replicaset, and by `_cluster` of the snapshots and logs of known instances.
A folder may rightly hold files of several members: a member that joined again has a new uuid. An unknown
instance is not refused while its snapshot is still being copied, or while no `_cluster` is known. If all files name one
instance, no file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from schemas.errors import AggregatorError, SourceError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.identity import uuids_in
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.stream.origins import Origins

_UNREADABLE = (AggregatorError, OSError, pa.ArrowException)


@dataclass
class Strangers:
    """Looks for files of other replicasets in one source; remembers what it has read.

    Parameters
    ----------
    directory : Directory
        Of the source.
    origins : Origins
        Of the same source; reads `_cluster`.

    """

    directory: Directory
    origins: Origins
    _replicasets: dict[str, str | None] = field(default_factory=dict)

    def refuse(self, listing: Listing, replicaset: str) -> None:
        """Raise an error if a file is of another replicaset.

        Parameters
        ----------
        listing : Listing
            Of the source.
        replicaset : str
            The uuid of the source's replicaset.

        Raises
        ------
        SourceError
            Names the file and one of the source's own, each with its instance.

        """
        found = self.find(listing, replicaset)
        if found is not None:
            raise SourceError(
                f"files of several replicasets are in one folder: {found}",
                source=listing.source,
                advice="give each replicaset a folder and a source of its own",
            )

    def find(self, listing: Listing, replicaset: str) -> str | None:
        """Return which files contradict each other, as text; None if all may be of one replicaset."""
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
        homes: set[str] = set()
        for file in own:
            uuid = self._replicaset_of(file) if self._may_name_replicaset(listing, file) else None
            if uuid == replicaset:
                homes.add(str(file.instance_uuid))
            elif uuid is not None:
                home = next((one for one in files if one.instance_uuid != file.instance_uuid), None)
                return _contradiction(home, replicaset, file, uuid)
        return self._no_member(listing, own, homes, replicaset)

    def _no_member(
        self, listing: Listing, own: list[LogFile], homes: set[str], replicaset: str
    ) -> str | None:
        """Return the first file whose instance is in no `_cluster` of the replicaset, as text."""
        unregistered = {str(file.instance_uuid) for file in own} - homes - self._being_copied(listing)
        has_members = False
        for members in self._clusters(listing, homes) if unregistered else ():
            has_members |= bool(members)
            unregistered -= members
            if not unregistered:
                break
        if not has_members:
            return None
        for file in own:
            if file.instance_uuid in unregistered:
                home = next((one for one in own if one.instance_uuid not in unregistered), None)
                return _contradiction(home, replicaset, file, None)
        return None

    def _clusters(self, listing: Listing, homes: Iterable[str]) -> Iterator[frozenset[str]]:
        """Yield the instances that each file of known instances registers, those of the newest snapshot first."""
        trusted = set(homes)
        for file in reversed(listing.snapshots):
            is_own = file.instance_uuid in trusted or file.replicaset_uuid is not None
            if is_own and self._is_complete(file):
                found = self._registered(file, closed=True)
                trusted |= found
                yield found
        for file in listing.logs:
            if file.instance_uuid in trusted or file.replicaset_uuid is not None:
                found = self._registered(file, closed=file is not listing.logs[-1])
                trusted |= found
                yield found

    def _registered(self, file: LogFile, *, closed: bool) -> frozenset[str]:
        try:
            end = self.directory.ends.of(file, closed=closed).position
            return self.origins.registered(file, end)
        except _UNREADABLE:
            return frozenset()  # whoever reads its rows reports the damage

    def _may_name_replicaset(self, listing: Listing, file: LogFile) -> bool:
        """Return whether a file may have the uuid of its replicaset: a snapshot, or the first log."""
        return self._is_complete(file) if file.is_snapshot else file is listing.logs[0]

    def _replicaset_of(self, file: LogFile) -> str | None:
        """Return the replicaset that a file's `_schema` names, if any."""
        if file.name not in self._replicasets:
            try:
                self._replicasets[file.name] = next(uuids_in(self.directory, file), None)
            except _UNREADABLE:
                return None
        return self._replicasets[file.name]

    def _being_copied(self, listing: Listing) -> set[str]:
        """Return the instances of snapshots that are not complete yet."""
        return {str(file.instance_uuid) for file in listing.snapshots if not self._is_complete(file)}

    def _is_complete(self, file: LogFile) -> bool:
        try:
            return self.directory.ends.is_complete(file)
        except _UNREADABLE:
            return False


def _contradiction(home: LogFile | None, replicaset: str, file: LogFile, other: str | None) -> str:
    belongs = f"of replicaset {other}" if other is not None else "which is no member of that replicaset"
    mine = f"{home.name} is of instance {home.instance_uuid}, " if home is not None else "the source is "
    return f"{mine}of replicaset {replicaset}; {file.name} is of instance {file.instance_uuid}, {belongs}"
