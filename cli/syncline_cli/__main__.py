"""`syncline`: the command line. Each command lives in a module of its own; this one only collects them and maps errors to exit codes."""

from __future__ import annotations

import sys

import typer

from syncline import __version__
from syncline.errors import SynclineError
from syncline.logs import set_up_logs
from syncline_cli import follow, history, keep, publish, verify
from syncline_cli.demo.command import demo
from syncline_cli.output import Output, exit_code

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


@app.command()
def version() -> None:
    """Print the version of Syncline."""
    sys.stdout.write(f"{__version__}\n")


def main() -> None:
    """Entry point of the console script."""
    set_up_logs(level="warning")
    try:
        app(standalone_mode=True)
    except SynclineError as error:
        Output(as_json="--json" in sys.argv).error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
