"""Publishing a version: encode, put chunks, put the manifest (the commit), move head, advance the base — in this
order, once a version.

`Publisher` is the SDK inside a trainer and the core of the service. It is a state machine over a store: `open_steps`
and `publish_steps` are generators that stop at every kill point, so that a scheduler can interleave several writers in
one process; `open` and `publish` run them to their end. What a call leaves behind when it dies or raises is always one
of two things: no version, or a whole one. A call that raised Retryable may be repeated; if its commit had gone through
after all, the repetition finds its own version and returns it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import structlog

from syncline.chain import PUT_BACK, ChainReader
from syncline.clock import Clock, SystemClock, system_random
from syncline.errors import ChainBroken, Corrupt, LineageChanged, Rejected, SynclineError
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.open import open_store
from syncline.wire.digest import Digest, total
from syncline.wire.records import ObjectRef, VersionManifest, pack_digests
from syncline_distributor.accepting import Weights, check_files, check_kind, source_of
from syncline_distributor.bases import Base
from syncline_distributor.committing import Writer, create_or_read_run, new_nonce
from syncline_distributor.drafting import Draft, Drafter, Laps, empty_draft, put_table
from syncline_distributor.heap import seldom_collected
from syncline_distributor.measuring import PublishMeasures
from syncline_distributor.placing import BaseMemory, own_base
from syncline_distributor.published import Published, repeats
from syncline_distributor.remarks import Remarks
from syncline_distributor.settings import PublishSettings
from syncline_distributor.steps import Steps, reach, run_steps
from syncline_distributor.uploading import Uploads
from syncline_distributor.weights import Files, WeightSource

log = structlog.get_logger()


class Publisher:
    """The one writer of a view. Not thread-safe: a trainer publishes one version after the other."""

    def __init__(
        self,
        store: WeightStore | str | Path,
        run: str,
        *,
        view: str = "main",
        settings: PublishSettings | None = None,
        base: Base | None = None,
        clock: Clock | None = None,
        random: random.Random | None = None,
        metrics: Metrics | None = None,
        executor: Executor | None = None,
        files: Files | None = None,
        device: str | None = None,
        base_memory: BaseMemory | None = None,
    ) -> None:
        """`store` may be a url or a folder, as `open_store` takes them.

        `files` go beside the weights in anchors (config.json, tokenizer); a checkpoint folder brings its own.

        With a `device` ("cuda:0") steps are compared and encoded there: for a trainer whose weights are on a GPU. The base is kept there
        too, a second copy; with `base_memory` "host" in pinned host memory. Chunks are uploaded by threads meanwhile, as they are with an
        `executor`. Rejected where no such device can be used.
        """
        self._settings = settings or PublishSettings()
        self._clock = clock or SystemClock()
        self._random = random or system_random()
        if isinstance(store, str | Path):
            store = open_store(str(store), clock=self._clock, rng=self._random, metrics=metrics)
        self.reader = ChainReader(store, run, view)
        self._store = store
        self._measures = PublishMeasures(metrics or Metrics(), run, view)
        self._executor = executor
        self._uploaders = (
            ThreadPoolExecutor(self._settings.uploads, "syncline-upload")
            if executor is not None or device is not None
            else None
        )
        self._base: Base = own_base(device, base_memory, executor, given=base)
        self._files: Files = files or {}
        self._writer: Writer | None = None
        self._head: VersionManifest | None = None
        self._digests: list[Digest] = []
        self._unverified = 0
        self._wayless = False
        self.on_head: Callable[[VersionManifest], None] | None = None
        """Called as soon as a version of this writer can be followed, before its base has."""
        self._log = log.bind(run=run, view=view)

    # --- what callers may ask

    @property
    def head(self) -> VersionManifest | None:
        """The newest version that this writer knows to be committed."""
        return self._head

    @property
    def epoch(self) -> int | None:
        """The epoch held; None before the first version of a new run."""
        return self._writer.epoch if self._writer is not None else None

    @property
    def fenced(self) -> str | None:
        """Why this writer stopped for good; None while it may publish."""
        return self._writer.fenced if self._writer is not None else None

    def open(self) -> None:
        """Create or adopt the run; where versions exist, bring the base to head and take the next epoch."""
        run_steps(self.open_steps())

    def publish(
        self,
        weights: Weights,
        *,
        step: int | None = None,
        parent: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Published:
        """Commit `weights` as the next version. `parent` is the version that the training came from; left out it is
        head.

        Raises Fenced when another writer took over, NonFiniteWeights under Refuse, Retryable when the store did not do
        its part (repeat the call), LayoutRefused or SourceInvalid for weights that cannot be published.
        """
        return run_steps(self.publish_steps(weights, step=step, parent=parent, labels=labels))

    def close(self) -> None:
        """Let the upload threads go. The store needs no goodbye."""
        if self._uploaders is not None:
            self._uploaders.shutdown(cancel_futures=True)

    def heed(self, head: VersionManifest) -> None:
        """Somebody saw `head` in the store. Raises Fenced when another writer took over by it."""
        if self._writer is not None:
            self._writer.heed(head)

    # --- opening

    def open_steps(self) -> Steps[None]:
        """`open`, a step at a time."""
        check_files(self._files)
        keys = self.reader.keys
        record = create_or_read_run(
            self._store,
            keys.run,
            tiling=self._settings.tiling,
            lineage=new_nonce(self._random),
            created_ms=self._now_ms(),
        )
        writer = Writer(self._store, keys, record.lineage, new_nonce(self._random), on_fenced=self._measures.fenced)
        self._measures.opened()
        self.reader = ChainReader(self._store, keys.run, keys.view)
        self._head = self.reader.listed_head()
        if self._head is not None:
            writer.check()  # a lineage that was misread would be written into a version for good
            yield from self._take_epoch(writer)
        self._writer = writer

    def _take_epoch(self, writer: Writer) -> Steps[None]:
        while True:
            head = self._head
            assert head is not None
            self._load_base()
            draft = empty_draft(head.version, head.digests(), head.statistics)
            taken = self._manifest(
                writer,
                draft,
                head.tensors,
                epoch=head.epoch + 1,
                remarks=Remarks(head.step, head.version, {}),
                nonce=new_nonce(self._random),
            )
            other = writer.commit(taken)
            if other is None:
                break
            self._head = other  # an older writer won the slot first; the epoch is taken on top of what it wrote
        writer.epoch = taken.epoch
        self._writer = writer
        self._head = taken
        self._log.info("epoch taken", version=taken.version, epoch=taken.epoch, phase="open")
        yield reach("publish.epoch_taken")
        writer.move_head(taken)
        self._base.spool.clear()
        self._advance_base(taken, None)
        self._measures.head(taken.version)

    # --- publishing

    def publish_steps(
        self,
        weights: Weights,
        *,
        step: int | None = None,
        parent: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Steps[Published]:
        """`publish`, a step at a time."""
        check_kind(weights)
        remarks = Remarks.of(step, parent, labels)
        if self._writer is None:
            yield from self.open_steps()
        writer = self._writer
        assert writer is not None
        writer.check()
        if remarks.parent is not None and (self._head is None or not 0 < remarks.parent <= self._head.version):
            raise Rejected(
                f"parent {parent} is no committed version; head is {self._head.version if self._head else 'missing'}"
            )
        source = self._source(weights)
        laps = Laps(self._clock)
        earlier: VersionManifest | None = None
        while True:
            self._load_base()
            uploads = Uploads(
                self._store,
                self.reader.keys,
                self._base.spool,
                executor=self._uploaders,
                in_flight=self._settings.uploads,
            )
            nonce = new_nonce(self._random)
            try:
                draft = yield from self._draft(source, uploads, nonce, laps)
            finally:
                uploads.abandon()
            source.check()
            if earlier is not None and repeats(draft, earlier, remarks):
                manifest = earlier  # this very call, made before, had been committed after all
                break
            manifest = self._manifest(
                writer, draft, source.table.ref(), epoch=writer.epoch or 1, remarks=remarks, nonce=nonce
            )
            other = writer.commit(manifest)
            laps.lap("commit")
            if other is None:
                self._head = manifest
                self._digests = draft.digests
                break
            earlier = other if other.writer == writer.id else None
            self._head = other
            self._log.warning(
                "slot taken; starting again from there", version=other.version, writer=other.writer, phase="commit"
            )
        writer.epoch = manifest.epoch
        yield reach("publish.manifest_put")
        if manifest is not earlier:
            if manifest.anchor is not None:
                # A sweep may have met it before the manifest did.
                put_table(self._store, self.reader.keys, source.table)
            if laps.total > self._settings.suspect_after_s:
                self._restore(manifest, source, uploads)
        writer.move_head(manifest)
        if self.on_head is not None:
            self.on_head(manifest)
        laps.lap("head")
        yield reach("publish.head_moved")
        with seldom_collected():
            self._advance_base(manifest, source)
        laps.lap("base")
        self._measures.published(manifest, laps.seconds)
        return Published(manifest, laps.seconds)

    def _restore(self, manifest: VersionManifest, source: WeightSource, uploads: Uploads) -> None:
        """This writer slept for so long that a sweep may have taken what no manifest named: put back what is gone."""
        if manifest.anchor is None:
            uploads.restore(manifest.chunks)
        else:
            self._drafter().upload(source, self._base, version=manifest.version, nonce=manifest.anchor.nonce)

    def _drafter(self) -> Drafter:
        return Drafter(
            self._store,
            self.reader.keys,
            self.reader.run_record().tiling.tiling,
            self._settings,
            self._random,
            self._executor,
        )

    def _draft(self, source: WeightSource, uploads: Uploads, nonce: str, laps: Laps) -> Steps[Draft]:
        drafter = self._drafter()
        if self._base.manifest is None or self._base.table != source.table:
            version = self._head.version + 1 if self._head is not None else 1
            return (yield from drafter.whole(source, self._base, version=version, nonce=nonce, laps=laps))
        self._unverified += 1
        verify = 0 < self._settings.verify_every <= self._unverified
        draft = yield from drafter.delta(source, self._base, uploads, digests=self._digests, verify=verify, laps=laps)
        self._unverified = 0 if verify else self._unverified
        return draft

    def _manifest(
        self, writer: Writer, draft: Draft, tensors: ObjectRef, *, epoch: int, remarks: Remarks, nonce: str
    ) -> VersionManifest:
        head = self._head
        return VersionManifest(
            run=self.reader.keys.run,
            lineage=writer.lineage,
            view=self.reader.keys.view,
            version=head.version + 1 if head is not None else 1,
            digest=total(draft.digests).hex,
            writer=writer.id,
            nonce=nonce,
            created_ms=self._now_ms(),
            epoch=epoch,
            parent=remarks.parent if remarks.parent is not None or head is None else head.version,
            base=draft.base,
            step=remarks.step,
            tensors=tensors,
            tensor_digests=pack_digests(draft.digests),
            chunks=draft.chunks,
            anchor=draft.anchor,
            statistics=draft.statistics,
            labels=remarks.labels,
        )

    def _source(self, weights: Weights) -> WeightSource:
        files = self._files or self._base.files()
        if isinstance(weights, Mapping) and not files:
            self._measures.bare()
        return source_of(weights, files=files, column_split=self._settings.column_split)

    # --- the base

    def _load_base(self) -> None:
        """Bring the base to head. Where the store has no way there, the base is dropped and the next version carries
        its own anchor."""
        head, held = self._head, self._base.manifest
        if head is None:
            self._base.forget()
            return
        if held is None or (held.version, held.nonce) != (head.version, head.nonce):
            try:
                self._base.load(self.reader, head)
            except LineageChanged:
                raise
            except (ChainBroken, Corrupt) as error:
                self._base.forget()
                self._say_wayless(head, error)
            else:
                self._wayless = False
        self._digests = head.digests()

    def _say_wayless(self, head: VersionManifest, error: SynclineError) -> None:
        """Said once until there is a way again: opening and each publish look anew."""
        if not self._wayless:
            self._log.warning(
                "no way to head; the next version carries all weights",
                version=head.version,
                reason=str(error).removesuffix(f"; {PUT_BACK}"),
                phase="base",
            )
        self._wayless = True

    def _advance_base(self, manifest: VersionManifest, source: WeightSource | None) -> None:
        """The version is committed: whatever goes wrong here costs the next publish a load, never the version."""
        held = self._base.manifest
        if held is not None and (held.version, held.nonce) == (manifest.version, manifest.nonce):
            return
        try:
            if manifest.base is None and source is not None:
                self._base.replace(self.reader, manifest, source)
            elif held is not None and held.version == manifest.base:
                self._base.advance(self.reader, manifest, self._base.spool)
        except (
            Exception
        ) as error:  # a device without memory, a kernel's compiler: nothing may fail a version that is committed
            if not isinstance(error, SynclineError | OSError):
                self._base.forget()
            self._log.warning(
                "base did not advance; the next publish brings it on",
                version=manifest.version,
                error=str(error),
                phase="base",
            )

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
