"""What lists find and watches lose, told apart in every order that a network brings them in."""

from __future__ import annotations

from typing import Any

from syncline_operator.kube.client import Listing
from syncline_operator.kube.resources import CONFIG_MAPS, Document, ObjectKey
from syncline_operator.work.seen import Seen

A, B = (ObjectKey(CONFIG_MAPS, "any", name) for name in "ab")


def at(key: ObjectKey, version: int) -> Document:
    return {"metadata": {"namespace": key.namespace, "name": key.name, "resourceVersion": str(version)}}


def listed(moment: int, *documents: Document) -> list[Listing]:
    return [Listing(list(documents), str(moment))]


def versions(seen: Seen) -> dict[str, str]:
    return {document["metadata"]["name"]: document["metadata"]["resourceVersion"] for document in seen}


def test_what_the_watch_told_before_or_soon_after_a_list_was_not_missed() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.tell(at(A, 5), deleted=False)
    seen.begin_list()
    suspects = seen.compare(listed(9, at(A, 5), at(B, 7)))
    assert [B] == [suspect.key for suspect in suspects]
    assert {"a": "5", "b": "7"} == versions(seen)
    seen.tell(at(B, 8), deleted=False)  # the newer one alone: a watch that is read late skips none, a queue may
    assert [] == seen.missed(suspects)
    assert {"a": "5", "b": "8"} == versions(seen)


def test_what_the_watch_never_told_was_missed_and_is_counted_once() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.tell(at(A, 5), deleted=False)
    for expected in ([A, B], []):
        seen.begin_list()
        suspects = seen.compare(listed(9, at(A, 6), at(B, 7)))
        assert expected == seen.missed(suspects)
    assert {"a": "6", "b": "7"} == versions(seen)


def test_an_end_that_the_watch_never_told_was_missed() -> None:
    seen = Seen(CONFIG_MAPS)
    for key in (A, B):
        seen.tell(at(key, 5), deleted=False)
    for expected in ([A], []):
        seen.begin_list()
        suspects = seen.compare(listed(9, at(B, 5)))
        assert {"b": "5"} == versions(seen)
        assert expected == seen.missed(suspects)


def test_an_end_that_the_watch_tells_after_the_list_was_not_missed() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.tell(at(A, 5), deleted=False)
    seen.begin_list()
    suspects = seen.compare(listed(9))
    seen.tell(at(A, 8), deleted=True)
    assert [] == seen.missed(suspects)


def test_an_object_that_ended_while_it_was_listed_does_not_come_back() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.tell(at(A, 5), deleted=False)
    seen.begin_list()
    seen.tell(at(A, 10), deleted=True)
    assert [] == seen.missed(seen.compare(listed(9, at(A, 5))))
    assert {} == versions(seen)


def test_an_object_that_began_after_the_list_stays() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.begin_list()
    seen.tell(at(A, 12), deleted=False)
    assert [] == seen.missed(seen.compare(listed(9)))
    assert {"a": "12"} == versions(seen)


def test_an_object_that_was_made_again_after_its_end_is_the_new_one() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.tell(at(A, 5), deleted=False)
    seen.begin_list()
    suspects = seen.compare(listed(9))
    seen.tell(at(A, 12), deleted=False)  # the watch was opened anew: it never tells of the end
    assert [] == seen.missed(suspects)
    assert {"a": "12"} == versions(seen)
    seen.tell(at(A, 6), deleted=True)  # an end that comes late
    assert {"a": "12"} == versions(seen)


def test_an_older_state_never_takes_a_newer_one_s_place() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.wrote(at(A, 20))
    seen.tell(at(A, 19), deleted=False)
    seen.begin_list()
    seen.compare(listed(18, at(A, 18)))
    assert {"a": "20"} == versions(seen)


def test_only_a_list_makes_what_is_known_whole() -> None:
    seen = Seen(CONFIG_MAPS)
    seen.tell(at(A, 5), deleted=False)
    assert not seen.whole
    seen.compare(listed(9, at(A, 5)))
    assert seen.whole


def test_what_is_kept_is_trimmed_whoever_brings_it() -> None:
    def trim(document: Document) -> Document:
        return {"metadata": document["metadata"]}

    seen = Seen(CONFIG_MAPS, trim=trim)
    bulky: dict[str, Any] = {"data": {"a": "x" * 1000}}
    seen.tell(at(A, 5) | bulky, deleted=False)
    seen.wrote(at(B, 6) | bulky)
    assert [at(A, 5), at(B, 6)] == list(seen)
