"""`syncline`: the command line. Each command lives in a module of its own; this one only collects them and maps errors to exit codes."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import typer

from syncline import __version__
from syncline.errors import DiskFull, Rejected, SynclineError
from syncline_cli import follow, history, keep, publish, route, verify
from syncline_cli.bench.codec import app as bench
from syncline_cli.demo.command import demo
from syncline_cli.output import EXIT_FAULT, Output, exit_code
from syncline_cli.voice import speak_plainly

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keep rollout engines on the trainer's newest weights.",
)
app.command()(demo)
app.command()(publish.publish)
app.command()(follow.follow)
app.command()(history.log)
app.command()(history.show)
app.command()(history.diff)
app.add_typer(verify.app, name="verify")
app.command()(keep.materialize)
app.command("mark-bad")(keep.mark_bad)
app.command()(keep.gc)
app.command()(route.route)
app.add_typer(bench, name="bench")


@app.command()
def version() -> None:
    """Print the version of Syncline."""
    sys.stdout.write(f"{__version__}\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the console script: runs a command and exits with a documented code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    speak_plainly()
    output = Output(as_json="--json" in given)
    try:
        app(args=given, prog_name="syncline", standalone_mode=True)
    except SynclineError as error:
        output.error(error)
        sys.exit(exit_code(error))
    except OSError as error:
        named = of_the_machine(error)
        output.error(named)
        sys.exit(exit_code(named))
    except Exception as error:
        traceback.print_exc()
        output.error(error, "a fault in Syncline; please report it with the lines above")
        sys.exit(EXIT_FAULT)
    sys.exit(0)


def of_the_machine(error: OSError) -> SynclineError:
    """What this machine's files or sockets refused, as an error of ours."""
    text = f"{error.strerror or error}: {error.filename}" if error.filename is not None else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{text}; make room, then run it again")
    return Rejected(f"{text}; check the path and its permissions")


if __name__ == "__main__":
    main()
