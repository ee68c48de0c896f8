"""`syncline-gateway`: stand in front of one engine; requests say which version they accept, answers which one they are of.

Every flag can be given as `SYNCLINE_GATEWAY_<FLAG>` in the environment; a flag wins. Exit status: 0 after SIGTERM or SIGINT,
2 for settings that cannot be used.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from yarl import URL

from syncline.clock import SystemClock, system_random
from syncline.errors import Rejected
from syncline.logs import LEVELS, logger, set_up_logs
from syncline.wire.records import is_gateway_url
from syncline_agent.flags import check_socket_path, port, seconds, whole
from syncline_agent.gateway.isolation import KvReuse
from syncline_agent.gateway.measuring import GatewayMetrics
from syncline_agent.gateway.process import serve
from syncline_agent.gateway.routes import Kind
from syncline_agent.gateway.settings import GatewaySettings

MIB = 1 << 20


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> GatewaySettings:
    """Settings from flags and environment. Exits with status 2, as argparse does, for what cannot be used."""
    parser = argparse.ArgumentParser(prog="syncline-gateway", description=__doc__.splitlines()[0] if __doc__ else None)

    def flag(name: str, default: str | None, text: str, **more: Any) -> None:
        variable = f"SYNCLINE_GATEWAY_{name.upper().replace('-', '_')}"
        given = environ.get(variable, default)
        shown = f"{text} ({variable}{f', default {default}' if default else ''})"
        parser.add_argument(f"--{name}", default=given, required=given is None, help=shown, **more)

    usual = GatewaySettings("", Kind.VLLM, Path())
    flag("engine-url", None, "where the engine answers", metavar="URL", type=_url)
    flag("engine-kind", "vllm", "whose routes it has: vllm, sglang or reference", type=_kind)
    flag("node-dir", None, "the agent's --node-dir, where gateway.sock is", metavar="DIR")
    flag("host", usual.host, "address that clients call")
    flag("port", "0", "their port; 0 takes a free one and logs it", type=port)
    flag(
        "advertise",
        "",
        "where trainers reach this gateway: told in the node's heartbeat, for `syncline route`",
        metavar="URL",
        type=_advertised,
    )
    flag("open", "", "more of the engine's paths that clients may call, separated by spaces", metavar="PATHS")
    flag("wait-seconds", "10", "how long a request waits for its version where it does not say", type=seconds)
    flag("most-wait-seconds", "600", "how long it may ask to wait", type=seconds)
    flag("most-waiting", "1024", "requests that wait at once", type=whole(1))
    flag("pin-seconds", "30", "how long a request for one version keeps commits out at most", type=seconds)
    flag("target", "", "the pool's target file: its maxVersionLag and maxLagSeconds hold", metavar="FILE")
    flag("max-version-lag", "", "versions that what is served may be from its target", metavar="N", type=_if(whole(0)))
    flag("max-lag-seconds", "", "seconds that it may be behind", metavar="SECONDS", type=_if(seconds))
    flag(
        "kv-reuse", "never", "what may be reused of older versions' keys and values: never, or sessions", type=_kv_reuse
    )
    flag("most-body-mib", "32", "largest body of a request that is read here", type=whole(1))
    flag("most-answer-mib", "64", "largest whole answer that is labelled", type=whole(1))
    flag("head-seconds", "60", "what a client has for a request's head, and an idle connection", type=seconds)
    flag("stall-seconds", "300", "how long a client may not read", type=seconds)
    flag("log-format", "console", "console or json", choices=["console", "json"])
    flag("log-level", "info", "least severe event that is logged", choices=list(LEVELS))
    given = parser.parse_args(arguments)
    socket = Path(given.node_dir) / "gateway.sock"
    try:
        check_socket_path(socket)
        open_paths = tuple(_path(path) for path in given.open.split())
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    return GatewaySettings(
        engine_url=given.engine_url,
        engine_kind=given.engine_kind,
        socket=socket,
        host=given.host,
        port=given.port,
        advertise=given.advertise or None,
        open_paths=open_paths,
        wait_seconds=given.wait_seconds,
        most_wait_seconds=given.most_wait_seconds,
        most_waiting=given.most_waiting,
        pin_seconds=given.pin_seconds,
        target=Path(given.target) if given.target else None,
        max_version_lag=given.max_version_lag,
        max_lag_seconds=given.max_lag_seconds,
        kv_reuse=given.kv_reuse,
        most_body_bytes=given.most_body_mib * MIB,
        most_answer_bytes=given.most_answer_mib * MIB,
        head_seconds=given.head_seconds,
        stall_seconds=given.stall_seconds,
        log_format=given.log_format,
        log_level=given.log_level,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
    clock = SystemClock()
    set_up_logs(log_format=settings.log_format, level=settings.log_level, clock=clock)
    log = logger("gateway")
    try:
        uvloop.run(serve(settings, clock=clock, randomness=system_random(), metrics=GatewayMetrics(), log=log))
    except Rejected as error:
        print(f"syncline-gateway: {error}", file=sys.stderr)
        return 2
    return 0


def _if(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Nothing said is None."""
    return lambda text: parse(text) if text else None


def _url(text: str) -> str:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/") or url.query_string:
        raise argparse.ArgumentTypeError(f"{text!r} is no engine's address; give http://host:port")
    return str(url.origin())


def _advertised(text: str) -> str:
    if text and not is_gateway_url(text.rstrip("/")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a gateway; give http://host:port")
    return text.rstrip("/")


def _kind(text: str) -> Kind:
    try:
        return Kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(Kind)}") from None


def _kv_reuse(text: str) -> KvReuse:
    try:
        return KvReuse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(KvReuse)}") from None


def _path(text: str) -> str:
    if not text.startswith("/") or "?" in text:
        raise argparse.ArgumentTypeError(f"argument --open: {text!r} is no path; it begins with / and has no query")
    return text


if __name__ == "__main__":
    sys.exit(main())
