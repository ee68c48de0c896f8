"""The page's table of refusals, against the words that the gateway has."""

from __future__ import annotations

import re
from pathlib import Path

from syncline_agent.gateway.admission import Reason, Refused
from syncline_agent.gateway.refusals import STATUS, Code


def test_the_page_names_every_refusal_with_its_status_and_no_other() -> None:
    page = Path(__file__).parents[2] / "docs" / "gateway.md"
    section = page.read_text().partition("\n## Refusals\n")[2].partition("\n## ")[0]
    said: list[tuple[str, int]] = []
    for line in section.splitlines():
        if row := re.match(r"\| ([\d, ]+) \| (`[^|]+`) \|", line):
            statuses = [int(status) for status in row[1].split(", ")]
            codes = re.findall(r"`([^`]+)`", row[2])
            said += zip(codes, statuses * len(codes) if len(statuses) == 1 else statuses, strict=len(statuses) > 1)
    by_door = [(reason.value, Refused(reason, "", retry=True, after_s=1.0).status) for reason in Reason]
    assert sorted([*by_door, *((code.value, STATUS[code]) for code in Code)]) == sorted(said)
