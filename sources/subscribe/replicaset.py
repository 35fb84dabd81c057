"""Follows one replicaset: receives streams of its peers, merges their rows, and writes them to the spool.

`_step` runs repeatedly. It decides from the peers' last answers and the spool's vclock which streams should run, so a
step that failed is simply repeated. `assignment` and `merge` have the rules, without I/O. `daemon` runs several
replicasets.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from uuid import uuid4

from schemas.conditions import RESTARTS
from schemas.errors import (
    AggregatorError,
    GapError,
    PeerError,
    RewindError,
    SpoolBrokenError,
    SpoolFullError,
    StreamGapError,
    TransactionLimitError,
    UnknownInstanceError,
)
from sources.iproto.row_stream import TransactionChunk
from sources.spool.acks import answer_snapshot, is_snapshot_asked
from sources.spool.disk_space import DiskSpace
from sources.spool.spool import Spool
from sources.spool.state import REWOUND_PREFIX
from sources.subscribe.assignment import FeedChooser, FeedDecision, format_assignment, peer_signature
from sources.subscribe.merge import merge_by_time, split_by_size
from sources.subscribe.options import ReplicasetOptions, SpoolStart
from sources.subscribe.peer_rows import PeerFeed, combined_versions, fetch_snapshot, start_feed
from sources.subscribe.peer_state import Backoff, PeerLink, left_out_text
from sources.subscribe.progress import FeedProgress
from sources.subscribe.rewind import PeerHistory
from sources.subscribe.whitelist import OriginWhitelist, RowSender

logger = logging.getLogger(__name__)


class ReplicasetSubscription:
    """Subscribes to the masters of one replicaset and writes their rows to a spool.

    An empty spool begins at `start`; without `start`, it begins with a snapshot.
    """

    def __init__(self, options: ReplicasetOptions, start: SpoolStart | None = None) -> None:
        self.options = options
        self.spool = Spool(options.directory, options.spool)
        self._disk_space = DiskSpace(options.directory, options.spool.min_free_bytes)
        self.links = [
            PeerLink(peer, options.timing, self.spool, self._on_peer_event) for peer in options.peers
        ]
        self.feeds: dict[str, PeerFeed] = {}
        """The running stream of each peer, by instance uuid."""
        self.chooser = FeedChooser(options)
        self.progress = FeedProgress(silence_seconds=options.timing.answer_seconds)
        self.error: AggregatorError | None = None
        """Why the last step failed; None if it did not."""
        self.unfed_since: float | None = time.time()
        """Since when no peer sends rows; None if one does."""
        self._is_unfed_logged = False
        self.is_fetching = False
        self._oversized_error: TransactionLimitError | None = None
        """Set if the next transaction is larger than any reader accepts; then no more rows are requested."""
        self.bad_acks: dict[str, str] = {}
        """For each reader whose acknowledgement cannot be read, the reason."""
        self.restarts = 0
        """How often `run` was called again after a failure."""
        self.restart_times: deque[float] = deque(maxlen=RESTARTS + 1)
        """When it was called again the last times; seconds since 1970."""
        self._backoff = Backoff(options.timing.poll_seconds, options.timing.max_retry_seconds)
        self._start = start
        self._history = PeerHistory(options.directory)
        self._whitelist = OriginWhitelist(options.origins)
        self._undecided_error: UnknownInstanceError | None = None
        """Set if the whitelist cannot decide about the next row; no rows are written until all streams start again."""
        self._changed_histories: dict[str, tuple[int, RewindError]] = {}
        """For each peer whose rows differ from those it sent before: its `connection_count` then, and the error."""
        self._lacking_logs: dict[str, dict[int, int]] = {}
        """For each peer that no longer has the needed logs: the spool's vclock when it refused."""
        self._changed = asyncio.Event()
        self._spool_error: AggregatorError | None = None
        """Why the spool cannot be written; `run` then ends, and must be called again."""
        self._truncation_count = 0
        """`Spool.truncation_count` when this run began."""

    async def run(self) -> None:
        """Follow the replicaset until cancelled; may be called again after an error."""
        self.chooser, self._lacking_logs, self._changed_histories = FeedChooser(self.options), {}, {}
        for link in self.links:
            link.ballot = None
        self._spool_error = self._undecided_error = None
        self._whitelist.invalidate()
        with self.spool:
            self._truncation_count = self.spool.truncation_count
            self._history.load()
            if self.spool.instance_uuid is None:
                self.spool.instance_uuid = str(uuid4())
            if self.spool.vclock is None and self._start is not None:
                self.spool.replicaset_uuid = self._start.replicaset_uuid
                self.spool.begin_at(self._start.vclock)
            try:
                async with asyncio.TaskGroup() as tasks:
                    for link in self.links:
                        tasks.create_task(link.run())
                    tasks.create_task(self._acknowledge_repeatedly())
                    tasks.create_task(self._flush_repeatedly())
                    tasks.create_task(self._step_repeatedly())
                    tasks.create_task(self._answer_readers())
            finally:
                self._close_feeds(set(self.feeds))
                self.unfed_since = self.unfed_since or time.time()
                self._save_history()

    async def _step_repeatedly(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.options.timing.poll_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            self._record_whether_fed()
            if self._spool_error is not None:
                raise self._spool_error
            try:
                await self._step()
                self.error = None
                self._backoff.reset()
            except SpoolBrokenError:
                raise
            except AggregatorError as error:
                if isinstance(error, TransactionLimitError):
                    self._oversized_error = error
                if str(error) != str(self.error):
                    logger.error("%s: %s", self.options.name, error)
                self.error = error
                await asyncio.sleep(self._backoff.next_wait_seconds())

    async def _acknowledge_repeatedly(self) -> None:
        while True:
            for feed in self.feeds.values():
                feed.acknowledge(self.spool.durable_vclock or {})
            await asyncio.sleep(self.options.timing.acknowledge_seconds)

    async def _flush_repeatedly(self) -> None:
        """Flush written rows to the disk regularly, in another thread; only flushed rows are acknowledged."""
        while True:
            await asyncio.sleep(self.options.timing.acknowledge_seconds)
            self._save_history()
            point = self.spool.flush_point()
            if point is None:
                continue
            try:
                await asyncio.to_thread(point.flush)
            except FileNotFoundError:  # the log was moved meanwhile
                continue
            except OSError as error:
                raise self.spool.record_flush_failure(error) from error
            self.spool.record_flush(point)

    async def _answer_readers(self) -> None:
        while True:
            await asyncio.sleep(self.options.timing.poll_seconds)
            links = self._ready_links()
            if not links or not is_snapshot_asked(self.spool.directory) or self.spool.vclock is None:
                continue
            link = max(links.values(), key=peer_signature)
            try:
                await fetch_snapshot(link, self.spool, self._disk_space, beside_logs=True)
                answer_snapshot(self.spool.directory)
            except (AggregatorError, OSError) as error:
                logger.warning("%s: a reader asks for a snapshot: %s", self.options.name, error)
                await asyncio.sleep(self.options.timing.max_retry_seconds)

    def _save_history(self) -> None:
        with contextlib.suppress(OSError):  # writing the spool reports errors of the disk
            self._history.save()

    def _on_peer_event(self, link: PeerLink, asked_at: float) -> None:
        """Handle that a peer has connected, disconnected or answered a VOTE that was sent at `asked_at`."""
        if link.ballot is not None and self._is_of_this_replicaset(link):
            self.progress.record_report(link.ballot.vclock, self.spool.vclock or {})
        feed = self.feeds.get(link.uuid or "")
        if feed is not None and feed.link is link and link.ballot is not None:
            feed.queue.record_vote(asked_at - self.options.timing.max_clock_skew_seconds, link.ballot.vclock)
            self._write_merged()
        self._changed.set()

    async def _step(self) -> None:
        self._close_dead_streams()
        self._close_undecided_streams()
        was_full = self.spool.is_full
        self.spool.write_waiting_rows()
        if was_full:
            logger.info("%s: there is room in %s again", self.options.name, self.options.directory)
        if self._oversized_error is not None:
            self._close_feeds(set(self.feeds))
            raise self._oversized_error
        self._write_merged()
        ready_links = self._without_changed_histories(self._ready_links())
        if not ready_links:
            return
        if self.spool.vclock is None:
            await self._fetch_snapshot(ready_links)
        if self._handle_rewound_instances(ready_links):
            return
        now = time.monotonic()
        decision = self.chooser.decide(
            ready_links, self.spool.vclock or {}, self._lacking_logs, self._running_assignment(), now
        )
        self._record_fitness(ready_links)
        if decision.needs_snapshot:
            self._close_feeds(set(self.feeds))
            logger.warning("%s: no peer has the logs any more: a new snapshot is fetched", self.options.name)
            await self._fetch_snapshot(ready_links)
            return
        await self._apply_decision(decision, ready_links)

    def _record_fitness(self, ready_links: Mapping[str, PeerLink]) -> None:
        for uuid, link in ready_links.items():
            reason = self.chooser.unfit_reasons.get(uuid)
            if reason is None or uuid in self.feeds:
                link.take_in()
            else:
                link.leave_out(
                    reason, is_decided=True, log_after_seconds=self.options.timing.patience_seconds
                )

    def _record_whether_fed(self) -> None:
        """Record whether a peer sends rows; log the beginning and the end of a time without any."""
        name, now = self.options.name, time.time()
        if self.feeds:
            if self._is_unfed_logged:
                logger.info(
                    "%s: rows are received again, after %.0f s", name, now - (self.unfed_since or now)
                )
            self.unfed_since, self._is_unfed_logged = None, False
            return
        self.unfed_since = self.unfed_since or max(link.heard_at for link in self.links)
        if not self._is_unfed_logged and now - self.unfed_since > self.options.timing.answer_seconds:
            self._is_unfed_logged = True
            logger.error("%s: no peer feeds it: %s", name, left_out_text(self.links))

    def _running_assignment(self) -> dict[str, frozenset[int] | None]:
        return {uuid: feed.ids for uuid, feed in self.feeds.items()}

    def _ready_links(self) -> dict[str, PeerLink]:
        ready_links: dict[str, PeerLink] = {}
        for link in self.links:
            if link.ballot is None or link.uuid is None:
                continue
            if link.uuid in ready_links:
                link.error = PeerError("another configured peer is the same instance", peer=link.name)
                link.leave_out("another configured peer is the same instance", is_decided=True)
                continue
            first = next(iter(ready_links.values()), link)
            self._check_replicaset(link, first.replicaset_uuid, first.name)
            if self.spool.replicaset_uuid is not None:
                self._check_replicaset(link, self.spool.replicaset_uuid, "the spool")
            ready_links[link.uuid] = link
        return ready_links

    def _without_changed_histories(self, ready_links: Mapping[str, PeerLink]) -> Mapping[str, PeerLink]:
        """Return the peers, by instance uuid, except those whose rows differ from the rows that they sent before."""
        for link in self.links:
            if (
                link.uuid in self._changed_histories
                and self._changed_histories[link.uuid][0] != link.connection_count
            ):
                del self._changed_histories[link.uuid]
        for uuid, link in ready_links.items():
            if uuid in self._changed_histories:
                link.leave_out(str(self._changed_histories[uuid][1]), is_decided=True)
        if not self._changed_histories or self.feeds or ready_links.keys() - self._changed_histories.keys():
            return {uuid: link for uuid, link in ready_links.items() if uuid not in self._changed_histories}
        if not self.options.accept_rewind:
            raise next(iter(self._changed_histories.values()))[1]
        self._begin_new_spool()
        return {}

    def _is_of_this_replicaset(self, link: PeerLink) -> bool:
        return self.spool.replicaset_uuid in (None, link.replicaset_uuid)

    def _check_replicaset(self, link: PeerLink, uuid: str | None, expected_by: str) -> None:
        if link.replicaset_uuid != uuid:
            link.leave_out(f"it is of replicaset {link.replicaset_uuid}", is_decided=True)
            raise PeerError(
                f"the peer is of replicaset {link.replicaset_uuid}, not {uuid} as {expected_by}",
                peer=link.name,
                advice="list peers of one replicaset only, and give each a spool of its own",
            )

    def _close_dead_streams(self) -> None:
        for uuid, feed in list(self.feeds.items()):
            error = feed.error
            if error is None and not feed.is_silent and feed.link.ballot is not None:
                continue
            if isinstance(error, TransactionLimitError):
                self._oversized_error = error
            if isinstance(error, GapError | StreamGapError):
                self._lacking_logs[uuid] = dict(self.spool.vclock or {})
            logger.warning(
                "%s: stream of %s ended: %s", self.options.name, feed.link.name, error or "silence"
            )
            feed.link.error = error or feed.link.error
            feed.link.record_stream_end(feed.age_seconds)
            self._close_feeds({uuid})

    def _close_undecided_streams(self) -> None:
        """If the whitelist cannot decide about a row, close all streams."""
        error, self._undecided_error = self._undecided_error, None
        if error is None:
            return
        logger.warning("%s: all streams begin again: %s", self.options.name, error)
        for feed in self.feeds.values():
            feed.link.error = error
            feed.link.record_stream_end(feed.age_seconds)
        self._close_feeds(set(self.feeds))

    async def _fetch_snapshot(self, ready_links: Mapping[str, PeerLink]) -> None:
        link = max(ready_links.values(), key=peer_signature)
        self.spool.replicaset_uuid = link.replicaset_uuid
        self.is_fetching = True
        try:
            await fetch_snapshot(link, self.spool, self._disk_space)
        finally:
            self.is_fetching = False
        self._whitelist.invalidate()
        self._lacking_logs.clear()
        self.progress.fetched_snapshots += 1

    def _handle_rewound_instances(self, ready_links: Mapping[str, PeerLink]) -> bool:
        """If an instance lost rows, raise RewindError or begin a new spool; return whether a new spool began."""
        rewound = self.chooser.rewound_instances(ready_links, self.spool.vclock or {}, time.monotonic())
        if not rewound:
            return False
        self._close_feeds(set(self.feeds))
        if self.options.accept_rewind:
            self._begin_new_spool()
            return True
        ids = ", ".join(
            f"{i} has {lsn}, {(self.spool.vclock or {})[i]} were received" for i, lsn in rewound.items()
        )
        raise RewindError(
            f"instances lost rows that were received already: replica id {ids}",
            replicaset=self.options.name,
            advice="a server was restored from an older state: start with --accept-rewind to begin a new spool, "
            "then rebuild the tables from its snapshot",
        )

    def _begin_new_spool(self) -> None:
        """Move the spool's files to a folder and begin an empty spool."""
        folder = self.spool.move_files_to(f"{REWOUND_PREFIX}{time.time_ns()}")
        self._history.clear()
        self._whitelist.invalidate()
        self.chooser, self._changed_histories = FeedChooser(self.options), {}
        for link in self.links:  # the ballots were compared with the old spool
            link.ballot = None
        logger.warning(
            "%s: a new spool begins; the files of the old one are in %s", self.options.name, folder
        )

    async def _apply_decision(self, decision: FeedDecision, ready_links: Mapping[str, PeerLink]) -> None:
        """Close streams that should not run, and only then start those that do not run yet: no row is fetched twice."""
        current, assignment = self._running_assignment(), decision.assignment
        changed = {uuid for uuid in current if uuid not in assignment or assignment[uuid] != current[uuid]}
        self._close_feeds(changed)
        missing = [uuid for uuid in assignment if uuid not in self.feeds]
        if missing:
            self._whitelist.load(self.options.directory)
            logger.info("%s: assignment %s", self.options.name, format_assignment(assignment, ready_links))
            self.progress.assignment_changes += 1
            await asyncio.gather(
                *(
                    self._start_feed(ready_links[uuid], assignment[uuid], decision.accepted_behind_ids)
                    for uuid in missing
                )
            )
        self._write_merged()

    async def _start_feed(
        self, link: PeerLink, ids: frozenset[int] | None, accepted_behind_ids: frozenset[int]
    ) -> None:
        if link.uuid is None or self.spool.instance_uuid is None:
            return
        self.spool.replicaset_uuid = link.replicaset_uuid
        try:
            feed = await start_feed(
                link,
                ids,
                (frozenset(self.chooser.owners) if ids is None else ids) - accepted_behind_ids,
                dict(self.spool.vclock or {}),
                self.spool.instance_uuid,
                self.options.timing,
                self._whitelist.origins,
                self._on_chunk,
                self._history,
                self.spool.options.max_block_bytes,
            )
        except AggregatorError as error:
            logger.warning("%s: %s", self.options.name, error)
            if isinstance(error, GapError):
                self._lacking_logs[link.uuid] = dict(self.spool.vclock or {})
            if isinstance(error, RewindError):
                self._changed_histories[link.uuid] = link.connection_count, error
            link.error = error
            link.record_stream_end()
            return
        self.feeds[link.uuid] = feed
        self.progress.started_streams += 1

    def _close_feeds(self, uuids: set[str]) -> None:
        for uuid in uuids:
            feed = self.feeds.pop(uuid)
            self.progress.repeated_rows += feed.rows.repeated_rows
            feed.close()

    def _on_chunk(self, feed: PeerFeed, chunk: TransactionChunk) -> None:
        if feed.link.uuid is not None:
            self._history.record_chunk(feed.link.uuid, chunk, time.monotonic())
        ahead = feed.queue.add(chunk, time.time() + self.options.timing.max_clock_skew_seconds)
        if ahead > feed.clock_ahead_seconds + 1.0:  # logged again only if it has grown
            feed.clock_ahead_seconds = ahead
            logger.warning(
                "%s: timestamps of rows of %s are %.1f seconds in the future",
                self.options.name,
                feed.link.name,
                ahead,
            )
        self.progress.received_transactions += int(chunk.last_lsns.size)
        self._write_merged()

    def _write_merged(self) -> None:
        """Write the rows that can be merged; pause streams with too many queued rows, or all if the disk is full."""
        if self.spool.truncation_count != self._truncation_count:
            # The spool was truncated: until this run is cancelled, streams continue after the lost rows.
            return
        if self._undecided_error is not None:
            return
        queues = [feed.queue for feed in self.feeds.values()]
        can_write = self._oversized_error is None and not self.spool.is_full
        if can_write and self.chooser.is_every_id_fed(self._running_assignment()):
            chunk = merge_by_time(queues)
            if chunk is not None:
                self._write_filtered(chunk)
        for feed in self.feeds.values():
            feed.set_paused(self.spool.is_full or feed.queue.size_bytes > self.options.max_queued_bytes)

    def _write_filtered(self, chunk: TransactionChunk) -> None:
        """Write a chunk, with NOPs for rows of unwanted instances, up to the first row of an unknown instance."""
        senders = [
            RowSender(uuid, feed.ids, feed.link.cluster, feed.link.is_relay)
            for uuid, feed in self.feeds.items()
        ]
        filtered = self._whitelist.filter(chunk, senders)
        if filtered.chunk.last_lsns.size:
            self._write(filtered.chunk)
        if filtered.error is not None:
            self._undecided_error = filtered.error
            self._changed.set()

    def _write(self, chunk: TransactionChunk) -> None:
        try:
            parts = split_by_size(chunk, self.spool.options.max_block_bytes)
        except TransactionLimitError as error:
            self._oversized_error = error
            self._changed.set()
            return
        self.progress.record_written(chunk)
        self.spool.versions = combined_versions(self.feeds.values())
        try:
            for part in parts:
                self.spool.append(part.rows, part.vclock)
        except SpoolFullError as error:
            logger.error("%s: %s", self.options.name, error)
            self.error = error
        except SpoolBrokenError as error:
            # Not raised: a connection may be the caller. `_step_repeatedly` raises it and so ends the run.
            self._spool_error = error
            self._changed.set()
