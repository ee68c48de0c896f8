"""Flags and environment of `syncline-distributor` to settings. Every flag can be `SYNCLINE_<FLAG>` in the
environment."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from syncline.errors import SynclineError
from syncline.logs import LEVELS
from syncline.store.keys import checked_name
from syncline.wire.limits import CODEC_NAMES
from syncline_distributor.settings import (
    AUTO,
    LEASE_LEAST_S,
    LINK_MBIT,
    AnchorSettings,
    Completion,
    NonFinite,
    PublishSettings,
    RetentionSettings,
    ServiceSettings,
    WatchSettings,
    codec_choice,
)

DESCRIPTION = """The trainer's side. `watch` publishes every checkpoint that a trainer writes; `serve` leaves publishing to the
trainer. Both write anchors and skip deltas, collect what nobody needs, and answer /status, /head, /metrics, /livez and
/readyz. `erase` deletes all of a view from the store, and tells in /status how far it is. Exit status after SIGTERM or
SIGINT: 0, or 1 when another writer had taken over (/readyz says so at once); 2 for settings that cannot be used."""

Choice = TypeVar("Choice", bound=StrEnum)
HEX16 = re.compile(r"[0-9a-f]{32}")


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> ServiceSettings:
    """Settings from flags, then environment, then defaults. Exits with status 2 for what cannot be used."""
    parser = argparse.ArgumentParser(prog="syncline-distributor", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("watch", "publish what a trainer writes"),
        ("serve", "the trainer publishes itself"),
        ("erase", "delete all of a view from the store"),
    ):
        command = commands.add_parser(name, help=text, description=DESCRIPTION)
        _add_place(command, environ)
        if name == "erase":
            _flag(command, environ, "lineage", None, "identity of the run whose objects go; syncline log shows it")
        else:
            _add_common(command, environ)
        if name == "watch":
            _add_watch(command, environ)
    given = parser.parse_args(arguments)
    try:
        return _erase_settings(given) if given.command == "erase" else _settings(given)
    except (ValueError, SynclineError) as error:
        parser.error(str(error))


def _flag(
    parser: argparse.ArgumentParser, environ: Mapping[str, str], name: str, default: str | None, text: str
) -> None:
    variable = f"SYNCLINE_{name.upper().replace('-', '_')}"
    value = environ.get(variable, default)
    shown = f"{text} ({variable}{'' if default in (None, '') else f', default {default}'})"
    parser.add_argument(f"--{name}", default=value, required=value is None, help=shown.replace("%", "%%"))


def _add_place(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    for name, default, text in (
        ("store", None, "store of the run: a folder, file:///folder or s3://bucket/prefix?endpoint=…"),
        ("run", None, "name of the run"),
        ("view", "main", "name of the view"),
        ("state-dir", None, "folder for the base, the anchor and files on their way"),
        ("host", "127.0.0.1", "address to listen on"),
        ("port", "0", "port to listen on; 0 takes a free one and logs it"),
        ("log-format", "console", "console or json"),
        ("log-level", "info", f"one of {', '.join(LEVELS)}"),
    ):
        _flag(parser, environ, name, default, text)


def _add_common(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    publish, anchors, kept = PublishSettings(), AnchorSettings(), RetentionSettings()
    for name, default, text in (
        ("workers", "2", "threads that encode and decode"),
        ("codec", AUTO, f"{AUTO}: the cheapest for each tensor; or {', '.join(CODEC_NAMES.values())}"),
        ("link-mbit", f"{LINK_MBIT:g}", "link of most replicas, Mbit/s: where bytes are cheap, quicker codecs win"),
        ("anchor-every", str(anchors.anchor_every), "versions between anchors; 0 is never"),
        ("anchor-ratio", str(anchors.anchor_ratio), "anchor once deltas exceed this share of all weights; 0 is never"),
        ("skip-every", str(anchors.skip_every), "versions between skip deltas; 0 is never"),
        ("max-shard-bytes", str(publish.max_shard_bytes), "largest safetensors file of an anchor"),
        ("retention", "on", "on or off: collect what nobody needs"),
        ("lease-seconds", str(kept.lease_period_s), "time between finding an object unneeded and deleting it"),
        ("keep-anchors", str(kept.keep_anchors), "newest anchors that always stay"),
        ("keep-versions", str(kept.keep_versions), "newest versions that always stay"),
        ("sweep-seconds", str(kept.sweep_every_s), "time between sweeps"),
    ):
        _flag(parser, environ, name, default, text)


def _add_watch(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    watch = WatchSettings()
    for name, default, text in (
        ("source", None, "folder or store url below which the trainer writes checkpoints"),
        ("subfolder", "", "where the weights are inside a checkpoint"),
        ("complete", watch.completion.value, "stable, rename or marker: what makes a checkpoint complete"),
        ("marker", "", "name of the file that completes a checkpoint (implies --complete marker)"),
        ("stable-polls", str(watch.stable_polls), "polls that must find sizes and times unchanged"),
        ("poll-seconds", str(watch.poll_s), "time between polls"),
        ("nonfinite", NonFinite.PUBLISH.value, "Publish or Refuse weights with NaN or Inf"),
        ("verify-every", "0", "versions between full digests of what is published; 0 is never"),
    ):
        _flag(parser, environ, name, default, text)
    parser.add_argument(
        "--latest-only",
        action="store_true",
        default=environ.get("SYNCLINE_LATEST_ONLY", "").lower() in ("1", "true", "yes"),
        help="publish only the newest complete checkpoint, not every one in order (SYNCLINE_LATEST_ONLY)",
    )


def _settings(given: argparse.Namespace) -> ServiceSettings:
    watching = given.command == "watch"
    if given.retention not in ("on", "off"):
        raise ValueError(f"--retention is on or off, not {given.retention}")
    _check_logs(given)
    shard = _at_least(1, given.max_shard_bytes, "--max-shard-bytes")
    choice = codec_choice(given.codec, link_mbit=_seconds(given.link_mbit, "--link-mbit", least=0.001))
    return ServiceSettings(
        store=given.store,
        run=checked_name(given.run, "run"),
        view=checked_name(given.view, "view"),
        state_dir=Path(given.state_dir),
        source=given.source if watching else None,
        host=given.host,
        port=_port(given.port),
        workers=_at_least(1, given.workers, "--workers"),
        log_format=given.log_format,
        log_level=given.log_level,
        publish=PublishSettings(
            nonfinite=_one_of(NonFinite, given.nonfinite, "--nonfinite") if watching else NonFinite.PUBLISH,
            verify_every=_at_least(0, given.verify_every, "--verify-every") if watching else 0,
            max_shard_bytes=shard,
            choice=choice,
        ),
        anchors=AnchorSettings(
            anchor_every=_at_least(0, given.anchor_every, "--anchor-every"),
            anchor_ratio=_seconds(given.anchor_ratio, "--anchor-ratio"),
            skip_every=_at_least(0, given.skip_every, "--skip-every"),
            choice=choice,
            max_shard_bytes=shard,
        ),
        retention=RetentionSettings(
            enabled=given.retention == "on",
            lease_period_s=_seconds(given.lease_seconds, "--lease-seconds", least=LEASE_LEAST_S),
            keep_anchors=_at_least(1, given.keep_anchors, "--keep-anchors"),
            keep_versions=_at_least(0, given.keep_versions, "--keep-versions"),
            sweep_every_s=_seconds(given.sweep_seconds, "--sweep-seconds"),
        ),
        watch=_watch(given) if watching else WatchSettings(),
    )


def _erase_settings(given: argparse.Namespace) -> ServiceSettings:
    _check_logs(given)
    if not HEX16.fullmatch(given.lineage):
        raise ValueError(f"--lineage is the run's identity, 32 hexadecimal digits, not {given.lineage!r}")
    return ServiceSettings(
        store=given.store,
        run=checked_name(given.run, "run"),
        view=checked_name(given.view, "view"),
        state_dir=Path(given.state_dir),
        erases=given.lineage,
        host=given.host,
        port=_port(given.port),
        log_format=given.log_format,
        log_level=given.log_level,
    )


def _check_logs(given: argparse.Namespace) -> None:
    if given.log_level not in LEVELS or given.log_format not in ("console", "json"):
        raise ValueError(f"--log-format is console or json, --log-level one of {', '.join(LEVELS)}")


def _watch(given: argparse.Namespace) -> WatchSettings:
    completion = Completion.MARKER if given.marker else _one_of(Completion, given.complete, "--complete")
    if completion is Completion.MARKER and not given.marker:
        raise ValueError("--complete marker needs --marker NAME")
    return WatchSettings(
        completion=completion,
        marker=given.marker,
        stable_polls=_at_least(1, given.stable_polls, "--stable-polls"),
        poll_s=_seconds(given.poll_seconds, "--poll-seconds"),
        subfolder=given.subfolder.strip("/"),
        latest_only=given.latest_only,
    )


def _one_of(kind: type[Choice], text: str, flag: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        *others, last = kind
        raise ValueError(f"{flag} must be {', '.join(others)} or {last}, not {text}") from None


def _at_least(least: int, text: str, flag: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{flag} is a whole number of at least {least}, not {text}")
    return value


def _port(text: str) -> int:
    port = _at_least(0, text, "--port")
    if port > 65535:
        raise ValueError(f"--port is at most 65535, not {text}")
    return port


def _seconds(text: str, flag: str, *, least: float = 0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < 1e9:
        raise ValueError(f"{flag} is a number of at least {least:g}, not {text}")
    return value
