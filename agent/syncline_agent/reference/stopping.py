"""Text out of tokens, one at a time, that ends before a stop string and never lets part of one out."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Decodes one sequence. Text that may be the beginning of a stop string is held back until that is decided."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._held = ""
        self.stopped = False
        """A stop string was met; it and what follows it is no text."""

    def feed(self, token: int) -> str:
        """The text that may go out after this token."""
        if self.stopped:
            return ""
        self._held += self._decode([token])
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            out, self._held = self._held[: min(found)], ""
            return out
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def flush(self) -> str:
        """What was held back, when no more tokens come."""
        out, self._held = self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
