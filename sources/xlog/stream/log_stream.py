"""The logs of all sources as one stream: computes the offsets up to which batches can read.

`LogStream` caches facts that do not change: headers of files, ends of closed files, and replicasets of sources. The
rows of a batch depend only on its offsets. `sources.xlog.stream.failover` and `plan` choose where to read.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import NAMESPACE_URL, UUID, uuid5

import pyarrow as pa

from schemas.errors import (
    AggregatorError,
    SourceError,
    XlogError,
    XlogMissingError,
    XlogRewrittenError,
    XlogTruncatedError,
)
from schemas.names import replicaset_label
from sources.xlog.directory import paths
from sources.xlog.directory.directory import SOURCE_ERRORS, Directory
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.directory.offset import Offset, OffsetEntry
from sources.xlog.directory.source import Source
from sources.xlog.format.vclock import Vclock, is_at_most, rows_ahead, vclock_maximum, without_local
from sources.xlog.options import XlogOptions
from sources.xlog.stream import failover
from sources.xlog.stream.failover import MemberFiles
from sources.xlog.stream.identity import ForeignFiles, replicaset_uuid_of
from sources.xlog.stream.origins import Origins
from sources.xlog.stream.plan import fair_shares
from sources.xlog.stream.read_ahead import ReadAhead, newest_entry, read_ahead_of
from sources.xlog.stream.same_instance import contradictory_sources

logger = logging.getLogger(__name__)


@dataclass
class LogStream:
    """The logs of all sources of a deployment as one stream; one object computes the offsets of all its batches."""

    options: XlogOptions
    ignores_growth: bool = False
    """Whether the files are read once and their growth is ignored."""
    logs_unreadable: bool = True
    """Whether a source that cannot be read is logged; a caller that shows `unreadable_sources` needs no line."""
    unreadable_sources: dict[str, str] = field(default_factory=dict)
    """By name of a source that the last call of `latest` could not read: the reason."""
    newest_offset: dict[str, OffsetEntry] = field(default_factory=dict)
    """The end of the logs: what the last call of `latest` would have returned without `max_bytes`."""
    origins_by_source: dict[str, Origins] = field(default_factory=dict)
    """By name of the source: the object that finds the instances of its replica ids."""
    _directory_by_source: dict[str, Directory] = field(default_factory=dict)
    _replicaset_uuid_by_source: dict[str, str] = field(default_factory=dict)
    _foreign_files_by_source: dict[str, ForeignFiles] = field(default_factory=dict)
    _previously_unreadable: dict[str, str] = field(default_factory=dict)
    _fixed_end_by_source: dict[str, OffsetEntry] | None = None
    """By name of the source: where the stream ends (`fix_end`); None if the end is not fixed."""
    _glob_matches: set[str] = field(default_factory=set)
    _changed_histories: set[str] = field(default_factory=set)
    """Uuids of replicasets whose leader has another history than the one that was read."""

    def directory(self, name: str) -> Directory:
        """Return the directory of a source; raise SourceError if no configured source has this name."""
        if name not in self._directory_by_source:
            source = next((s for s in self.options.sources if s.name == name), None)
            if source is None and self._is_glob_match(name):
                source = Source(name, name)
            if source is None:
                raise SourceError(
                    "a planned batch reads a source that is not configured any more",
                    source=name,
                    advice="configure it until that batch is done, then remove it",
                )
            options = self.options
            self._directory_by_source[name] = Directory(
                source, options.mode, options.on_gap == "report", options.max_block_bytes, self.ignores_growth
            )
        return self._directory_by_source[name]

    def initial(self) -> dict[str, OffsetEntry]:
        """Return the offset at which a new stream begins; it has each replicaset with a readable source."""
        return self.latest({})

    def fix_end(self) -> None:
        """Fix the end of the stream for `Trigger.AvailableNow`: rows that are written later are not read."""
        fixed_ends = {}
        for source in self._sources_to_read({}):
            member = self._list_member(source)
            if member.listing is not None:
                try:
                    end = newest_entry(self.directory(source.name), member.listing)
                except SOURCE_ERRORS as error:
                    self._raise_or_report(source.name, error)
                    continue
                if end is not None:
                    fixed_ends[source.name] = end
        self._fixed_end_by_source = fixed_ends

    def latest(self, start: Offset, max_bytes: int | None = None) -> dict[str, OffsetEntry]:
        """Return the offset up to which a batch can read.

        Args:
            start: The offset that the stream has reached. If a replicaset is missing in it, the batch has no rows of
                this replicaset: it ends where the replicaset begins.
            max_bytes: About how many bytes to read. They are divided fairly among the replicasets, and at least a block
                is read of each.

        Raises:
            AggregatorError: If a replicaset cannot be followed and `on_source_error` is `fail`.
        """
        self._previously_unreadable, self.unreadable_sources = self.unreadable_sources, {}
        self._glob_matches.clear()
        ends = dict(start)
        read_aheads: dict[str, ReadAhead] = {}
        for uuid, members in self._members_by_replicaset(start).items():
            found = self._files_or_entry(uuid, start.get(uuid), members)
            if isinstance(found, ReadAhead):
                read_aheads[uuid] = found
            elif found is not None:
                ends[uuid] = found
        for uuid in self._uuids_of_removed_files(start):
            del ends[uuid]
        self.newest_offset = ends | {
            uuid: self._advance(read_ahead, None) for uuid, read_ahead in read_aheads.items()
        }
        if max_bytes is None:
            return dict(self.newest_offset)
        budgets = fair_shares(
            {uuid: sum(read_ahead.unread_bytes) for uuid, read_ahead in read_aheads.items()}, max_bytes
        )
        return ends | {
            uuid: self._advance(read_ahead, budgets[uuid]) for uuid, read_ahead in read_aheads.items()
        }

    def _advance(self, read_ahead: ReadAhead, budget: int | None) -> OffsetEntry:
        try:
            end = read_ahead.entry_after(budget)
            return self._with_done_flag(read_ahead, end)
        except SOURCE_ERRORS as error:
            self._raise_or_report(read_ahead.entry.leader, error)
            return read_ahead.entry

    def _list_member(self, source: Source) -> MemberFiles:
        directory = self.directory(source.name)
        try:
            listing = directory.listing()
            snapshot = self._initial_snapshot(directory, listing)
            complete = directory.complete_snapshots(listing.snapshots) if directory.with_generations else ()
        except SOURCE_ERRORS as error:
            named = _error_with_source(error, source.name)
            self._report_unreadable(source.name, named)
            return MemberFiles(source.name, None, None, named)
        return MemberFiles(source.name, listing, snapshot, complete_snapshots=complete)

    def _initial_snapshot(self, directory: Directory, listing: Listing) -> LogFile | None:
        only_snapshots = not listing.logs and not self.options.with_replicaset
        if self.options.start_from == "snapshot" or (only_snapshots and self.options.start_from == "logs"):
            return directory.newest_complete(listing.snapshots)
        return (
            directory.oldest_snapshot_before_logs(listing) if self.options.start_from == "history" else None
        )

    def _members_by_replicaset(self, start: Offset) -> Mapping[str, Sequence[MemberFiles]]:
        """Return {replicaset uuid: its sources}; the sources are in the order of the options."""
        members: dict[str, list[MemberFiles]] = {}
        for source in self._sources_to_read(start):
            member = self._list_member(source)
            try:
                uuid = self._replicaset_uuid(source, member, start)
                self._refuse_foreign_files(member, uuid)
            except SOURCE_ERRORS as error:
                self._raise_or_report(source.name, error)
                continue
            members.setdefault(uuid, []).append(member)
        for own in members.values():
            listed = [(self.directory(one.name), one.listing) for one in own if one.listing is not None]
            for name, contradiction in contradictory_sources(listed).items():
                self._report_unreadable(name, contradiction)
        return {uuid: members[uuid] for uuid in sorted(members)}

    def _refuse_foreign_files(self, member: MemberFiles, uuid: str) -> None:
        if member.listing is None or not self.options.with_replicaset:
            return
        name = member.name
        if name not in self._foreign_files_by_source:
            directory = self.directory(name)
            self._foreign_files_by_source[name] = ForeignFiles(
                directory, self.origins_by_source.setdefault(name, Origins(directory))
            )
        self._foreign_files_by_source[name].refuse(member.listing, uuid)

    def _replicaset_uuid(self, source: Source, member: MemberFiles, start: Offset) -> str:
        if source.name in self._replicaset_uuid_by_source:
            return self._replicaset_uuid_by_source[source.name]
        if member.listing is not None:
            path_uuid = None if self.options.with_replicaset else self._uuid_of_path(source.name)
            self._replicaset_uuid_by_source[source.name] = replicaset_uuid_of(
                self.directory(source.name), member.listing, path_uuid
            )
            return self._replicaset_uuid_by_source[source.name]
        # If the source cannot be read now: it belongs to the replicaset that it leads in the offset.
        led = (uuid for uuid in sorted(start) if start[uuid].leader == source.name)
        uuid = source.replicaset or next(led, None)
        if uuid is None:
            raise member.error or SourceError("the source cannot be read", source=source.name)
        return uuid

    def _files_or_entry(
        self, uuid: str, entry: OffsetEntry | None, members: Sequence[MemberFiles]
    ) -> ReadAhead | OffsetEntry | None:
        """Return the files to read next, or the entry at which the stream begins, restarts or changes its leader.

        The result is None if no source of the replicaset can be read now, or if its source is one file without rows.
        """
        if entry is None:
            return self._initial_entry(uuid, members)
        leader = next((member for member in members if member.name == entry.leader), None)
        vclock_before_gap = self.options.vclock_before_gap.get(uuid)
        try:
            if leader is None:
                raise SourceError("the leader's source was removed", source=entry.leader)
            read_ahead = self._read_ahead(leader, entry)
            is_idle = read_ahead.entry_after() == entry
            ahead = self._members_ahead_of(leader, members) if is_idle else []
            successors = failover.successor_entries(entry, ahead, vclock_before_gap)
            reason: Exception = SourceError("the leader is behind another member", source=entry.leader)
            if not successors:
                if is_idle:
                    self._report_missing_logs(leader, entry)
                    self._report_lost_rows(uuid, leader)
                return read_ahead
        except SOURCE_ERRORS as error:
            restart = self._restart_entry(uuid, entry, members, error)
            if restart is not None:
                return restart
            successors, reason = failover.successor_entries(entry, members, vclock_before_gap), error
            if not successors and leader is not None and isinstance(error, XlogError):
                # No member has the whole damaged log, but one may have what comes after the last row that was read.
                reached = replace(entry, vclock=self._vclock_at(leader, entry))
                successors = failover.successor_entries(reached, members, vclock_before_gap)
        if not successors:
            self._raise_or_report(entry.leader, reason)
            return None
        label = replicaset_label(uuid, entry.leader)
        logger.warning("replicaset %s: %s takes over: %s", label, successors[0].leader, reason)
        return successors[0]

    def _vclock_at(self, leader: MemberFiles, entry: OffsetEntry) -> Vclock:
        """Return the vclock of the rows that were read up to an entry, or that of its file's header."""
        logs = leader.listing.logs if leader.listing is not None else ()
        file = next((log for log in logs if log.name == entry.file), None)
        if file is None or not entry.position:
            return entry.vclock
        try:
            return without_local(self.directory(leader.name).ends.vclock_at(file, entry.position))
        except SOURCE_ERRORS:
            return entry.vclock

    def _restart_entry(
        self, uuid: str, entry: OffsetEntry, members: Sequence[MemberFiles], error: Exception
    ) -> OffsetEntry | None:
        """Return the entry at which the stream continues if its file was removed or has another history, or None.

        A server removes old files. A server that is restored writes another history, perhaps under the same file names.
        A spool's log may become shorter when a disk fails; then the daemon gets the lost rows again.
        """
        if self.options.on_gap != "report":
            return None
        if isinstance(error, XlogTruncatedError | XlogRewrittenError):
            return self._start_of_changed_history(uuid, entry, members, error)
        if not isinstance(error, XlogMissingError):
            return None
        settled = self.options.start_vclock.get(uuid, {})
        found = failover.entry_after_removed_file(entry, members, settled) if settled else None
        if found is None and not failover.successor_entries(
            entry, members, self.options.vclock_before_gap.get(uuid)
        ):
            found = failover.generation_entry(entry, members, settled)
            if found is None:
                return self._start_of_changed_history(uuid, entry, members, error)
        if found is not None:
            label = replicaset_label(uuid, found.leader)
            logger.warning("replicaset %s continues in %s: %s", label, found.file, error)
        return found

    def _start_of_changed_history(
        self, uuid: str, entry: OffsetEntry, members: Sequence[MemberFiles], error: Exception
    ) -> OffsetEntry | None:
        """Return the entry at which a leader with another history is read again, or None; what is cached is forgotten.

        Raises:
            SourceError: If the leader's files are of another replicaset now.
        """
        leader = entry.leader
        for cached in (self._directory_by_source, self._foreign_files_by_source, self.origins_by_source):
            cached.pop(leader, None)
        member = self._list_member(next(one for one in self._sources_to_read({}) if one.name == leader))
        if member.listing is not None and self.options.with_replicaset:
            found_uuid = replicaset_uuid_of(self.directory(leader), member.listing)
            if found_uuid != uuid:
                self._replicaset_uuid_by_source.pop(leader, None)
                raise SourceError(
                    f"its files were of replicaset {uuid}, and are of {found_uuid} now", source=leader
                ) from error
        found = failover.start_of_changed_history(entry, [member])
        if found is None:
            found = failover.generation_entry(entry, members, self.options.start_vclock.get(uuid, {}))
        if found is not None:
            self._changed_histories.add(uuid)
            logger.warning(
                "replicaset %s: the history of %s has changed, it is read again from %s on: %s",
                *(replicaset_label(uuid, leader), leader, found.file, error),
            )
        return found

    def _initial_entry(self, uuid: str, members: Sequence[MemberFiles]) -> OffsetEntry | None:
        reasons = []
        for member in members:
            try:
                if self.options.with_replicaset or not self.directory(member.name).is_file:
                    return failover.initial_entry(member, uuid, self.options)
                found = failover.initial_entry_of_file(member)
                return None if found is None or self._is_empty_match(found) else found
            except SOURCE_ERRORS as error:
                reasons.append((member.name, error))
        for name, reason in reasons:
            self._raise_or_report(name, reason)
        return None

    def _read_ahead(self, leader: MemberFiles, entry: OffsetEntry) -> ReadAhead:
        if leader.listing is None:
            raise leader.error or SourceError("the source cannot be read", source=leader.name)
        directory = self.directory(leader.name)
        if self._fixed_end_by_source is None:
            return read_ahead_of(directory, leader.listing, entry)
        # A source that could not be read when the end was fixed has no rows before that end.
        return read_ahead_of(
            directory, leader.listing, entry, self._fixed_end_by_source.get(leader.name, entry)
        )

    def _members_ahead_of(self, leader: MemberFiles, members: Sequence[MemberFiles]) -> list[MemberFiles]:
        """Return the members with rows that the leader should have by now, but does not have."""
        names = failover.names_of_members_ahead(leader, members, self.options.max_lag_seconds)
        if not names or self._fixed_end_by_source is not None:
            return []
        own = self._end_vclock(leader)
        return [m for m in members if m.name in names and rows_ahead(self._end_vclock(m), own) > 0]

    def _report_missing_logs(self, leader: MemberFiles, entry: OffsetEntry) -> None:
        """Report a source whose newest snapshot has rows that are in none of its logs.

        A server writes a row to a log before it takes a snapshot with the row. So the logs with these rows were
        removed, or are in another directory, and waiting does not help.
        """
        listing = leader.listing
        if listing is None or not listing.snapshots or listing.snapshots[-1].replicaset_uuid is not None:
            return
        newest, directory = listing.snapshots[-1], self.directory(leader.name)
        if listing.logs and newest.name[:20] <= listing.logs[-1].name[:20]:
            return
        reached = vclock_maximum(entry.vclock, self._end_vclock(leader))
        if is_at_most(without_local(newest.vclock), reached) or not directory.ends.is_complete(newest):
            return
        reason = (
            f"its snapshot is at {without_local(newest.vclock)}, its logs end at {without_local(reached)}"
        )
        advice = "are there no logs (wal_mode = none), or do they lie elsewhere (wal_dir)? The tables stay as they are"
        self._report_unreadable(
            leader.name, SourceError(reason, source=leader.name, file=newest.name, advice=advice)
        )

    def _report_lost_rows(self, uuid: str, leader: MemberFiles) -> None:
        """Report a source whose history has changed, while its logs end before rows that were applied."""
        if uuid not in self._changed_histories:
            return
        applied, reached = self.options.start_vclock.get(uuid, {}), without_local(self._end_vclock(leader))
        if is_at_most(applied, reached):
            self._changed_histories.discard(uuid)
            return
        reason = f"its logs end at {reached}, rows up to {dict(applied)} are in the tables: the server has lost them"
        advice = "if no other member sends them to it, heal by a snapshot of it: see Healing a divergence"
        self._report_unreadable(leader.name, SourceError(reason, source=leader.name, advice=advice))

    def _end_vclock(self, member: MemberFiles) -> dict[int, int]:
        logs = member.listing.logs if member.listing is not None else ()
        return self.directory(member.name).ends.end_vclock(logs[-1]) if logs else {}

    def _is_glob_match(self, name: str) -> bool:
        if self.options.with_replicaset:
            return False
        patterns = (source.path for source in self.options.sources if source.name != name)
        return any(paths.glob_matches(pattern, name) for pattern in patterns)

    def _sources_to_read(self, start: Offset) -> tuple[Source, ...]:
        """Return the sources of the options, and for each glob its matches, but for files read to their end marker."""
        done = {entry.leader for entry in start.values() if entry.is_done}
        found: dict[str, Source] = {}
        for source in self.options.sources:
            if self.options.with_replicaset or not paths.is_glob(source.path):
                found[source.name] = source
                continue
            try:
                matched = paths.expand_glob(source.path)
            except (OSError, pa.ArrowException) as error:
                self._raise_or_report(source.name, _error_with_source(error, source.name))
                self._glob_matches.update(entry.leader for entry in start.values())
                continue
            if not matched:
                nothing = SourceError("nothing matches the path", source=source.name, advice="check the path")
                (self._raise_or_report if self.ignores_growth else self._report_unreadable)(
                    source.name, nothing
                )
            self._glob_matches.update(matched)
            found |= {path: Source(path, path) for path in matched if path not in done}
        return tuple(found.values())

    def _uuid_of_path(self, name: str) -> str:
        is_one = len(self.options.sources) == 1 and self.options.sources[0].name == name
        return str(UUID(int=0) if is_one else uuid5(NAMESPACE_URL, name))

    def _is_empty_match(self, entry: OffsetEntry) -> bool:
        """Return whether the file of an entry was matched by a glob and has no rows so far."""
        directory = self.directory(entry.leader)
        if not (directory.is_file and self._is_glob_match(entry.leader)):
            return False
        (file,) = (*(listing := directory.listing()).logs, *listing.snapshots)
        return directory.ends.end_of(file, closed=file.is_snapshot).position <= file.header_bytes

    def _with_done_flag(self, read_ahead: ReadAhead, entry: OffsetEntry) -> OffsetEntry:
        """Return the entry, with `is_done` if it is at the end of a closed file that a glob matched."""
        directory, file = read_ahead.directory, read_ahead.files[-1]
        if not (directory.is_file and self._is_glob_match(entry.leader)):
            return entry
        end = directory.ends.end_of(file, closed=file.is_snapshot)
        return replace(entry, is_done=end.has_marker and entry.position >= end.position > file.header_bytes)

    def _uuids_of_removed_files(self, start: Offset) -> list[str]:
        """Return the uuids (`_uuid_of_path`) of files of a glob that were removed after they were read to their end."""
        gone = []
        for uuid, entry in start.items():
            if entry.leader in self._glob_matches or not self._is_glob_match(entry.leader):
                continue
            if entry.is_done:
                gone.append(uuid)
            else:
                error = XlogMissingError(
                    "the file is gone, and it was not read to its end marker",
                    file=entry.file,
                    offset=entry.position,
                    source=entry.leader,
                    advice="bring it back; to follow a server, load its directory instead of a glob of its files",
                )
                self._raise_or_report(entry.leader, error)
        return gone

    def _raise_or_report(self, source: str, error: Exception) -> None:
        if self.options.on_source_error == "fail":
            raise error
        self._report_unreadable(source, error)

    def _report_unreadable(self, source: str, error: Exception) -> None:
        """Store the reason why a source is not read, and log it if it is new."""
        known = self.unreadable_sources.get(source, self._previously_unreadable.get(source))
        self.unreadable_sources[source] = str(error)
        if known != str(error) and self.logs_unreadable:
            logger.warning("source %s is not followed: %s", source, error)


def _error_with_source(error: Exception, source: str) -> AggregatorError:
    if isinstance(error, AggregatorError):
        if "source" in error.fields:
            return error
        return type(error)(error.reason, **error.fields, source=source)
    return SourceError(f"the source cannot be read: {error}", source=source)
