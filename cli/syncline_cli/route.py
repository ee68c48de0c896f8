"""`syncline route`: one address in front of a fleet, or, once, a table of its replicas and which one a request would go to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from syncline.clock import SystemClock
from syncline.errors import Rejected
from syncline.logs import set_up_logs
from syncline.route import Fleet, FleetSettings, Wish, open_fleet
from syncline.wire.records import ConsumerRecord
from syncline_cli.context import JsonOption, ViewOption
from syncline_cli.output import EXIT_CODES, Output


def route(
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="SYNCLINE_STORE", help="Store whose heartbeats name the replicas."),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", envvar="SYNCLINE_RUN", help="Run name.")] = None,
    view: ViewOption = "main",
    gateway: Annotated[
        list[str] | None,
        typer.Option("--gateway", help="A gateway's address, in the place of heartbeats; given once for each."),
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", help="Only nodes of this pool; may be given several times.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address that clients call.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Their port; 0 takes a free one.")] = 8080,
    wait_seconds: Annotated[
        float, typer.Option("--wait-seconds", min=0, help="How long a request waits where it does not say.")
    ] = 60.0,
    resend_lost: Annotated[
        bool,
        typer.Option(
            "--resend-lost/--no-resend-lost",
            help="Send a request elsewhere whose gateway went away before any of its answer came.",
        ),
    ] = True,
    once: Annotated[bool, typer.Option("--once", help="Print the replicas and which one is picked, and end.")] = False,
    at_least: Annotated[int | None, typer.Option("--min", min=1, help="With --once: this version or later.")] = None,
    exact: Annotated[int | None, typer.Option("--exact", min=1, help="With --once: this version alone.")] = None,
    max_lag: Annotated[int | None, typer.Option("--max-lag", min=0, help="With --once: versions behind.")] = None,
    affinity: Annotated[str | None, typer.Option("--affinity", help="With --once: whose home is asked for.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer OpenAI's API from whichever replica serves the version that a request wants."""
    output = Output(as_json=as_json)
    set_up_logs(log_format="console", level="warning", clock=SystemClock())
    settings = FleetSettings(wait_seconds=wait_seconds, resend_lost=resend_lost)

    def fleet() -> Fleet:
        pools = set(pool or ())

        def wanted(record: ConsumerRecord) -> bool:
            return not pools or record.pool in pools

        if gateway:
            return open_fleet(gateways=gateway, run=run, settings=settings)
        if store is None or run is None:
            raise Rejected("give --store and --run, or --gateway once for each replica")
        return open_fleet(store, run=run, view=view, wanted=wanted, settings=settings)

    if once:
        wish = Wish(min=at_least, exact=exact, max_lag=max_lag, affinity=affinity)
        table, picked = asyncio.run(_look(fleet, wish))
        _show(output, table, picked)
        if picked is None:
            raise typer.Exit(next(code for kind, code in EXIT_CODES if kind.__name__ == "Retryable"))
        return
    _serve(fleet, host, port, output)


async def _look(fleet: Any, wish: Wish) -> tuple[list[dict[str, Any]], str | None]:
    async with fleet() as opened:
        return opened.table(wish), opened.picked(wish)


def _show(output: Output, table: Sequence[dict[str, Any]], picked: str | None) -> None:
    output.result({"picked": picked, "replicas": list(table)})
    columns = ["", "replica", "address", "version", "target", "load", "able", "why"]
    rows = [
        [
            "->" if row["url"] == picked else "",
            row["replica"],
            row["url"],
            "-" if row["applied"] is None else str(row["applied"]),
            "-" if row["target"] is None else str(row["target"]),
            str(row["load"]),
            row["able"],
            row["why"],
        ]
        for row in table
    ]
    output.table(columns, rows)
    if not table:
        output.note("no replica is there: heartbeats name none; start gateways with --advertise http://host:port")
    elif picked is None:
        output.note("no replica would take it now")


def _serve(fleet: Any, host: str, port: int, output: Output) -> None:
    try:
        import uvloop

        from syncline_cli.front import serve
    except ModuleNotFoundError as error:
        raise Rejected(
            f"the front door needs {error.name}: pip install 'syncline[agent]'; --once and the library do without"
        ) from error

    async def go() -> None:
        async with fleet() as opened:
            told: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
            told.add_done_callback(lambda done: done.cancelled() or _say(output, done.result(), len(opened.table())))
            await serve(opened, host, port, told)
            told.cancel()

    uvloop.run(go())


def _say(output: Output, address: tuple[str, int], replicas: int) -> None:
    url = "http://{}:{}".format(*address)
    output.result({"url": url, "replicas": replicas})
    output.line(f"listening at {url} before {replicas} replicas; OpenAI's clients take {url}/v1")
