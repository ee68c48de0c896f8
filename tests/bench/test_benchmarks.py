"""Every benchmark says what it takes, those of a GPU say that they need one, and only runs of the default size bear the plain name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch
from bench import __main__ as bench
from bench.results import save, variant


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch):
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench", *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        return bench.main()

    return call


@pytest.mark.parametrize("name", bench.names())
def test_every_benchmark_explains_its_options(called, capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        called(name, "--help")
    assert 0 == ended.value.code
    assert "usage: " in capsys.readouterr().out


def test_help_names_every_benchmark(called, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == called("--help")
    assert set(bench.names()) <= set(capsys.readouterr().out.replace(",", "").split())


@pytest.mark.parametrize("name", [name for name in bench.names() if name.startswith("gpu_")])
def test_a_benchmark_of_a_gpu_says_so_where_none_is(called, name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(SystemExit, match=r"^this benchmark needs a CUDA GPU, and this torch \(.*\) finds none; on a"):
        called(name)


def test_only_a_run_of_the_default_size_bears_the_plain_name(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=64)
    parser.add_argument("--codec", action="append")
    parser.add_argument("--folder")
    for words in ([], ["--folder", "/x"], ["--elements", "8"], ["--codec", "raw", "--codec", "xor-lz4"]):
        given = parser.parse_args(words)
        save("some", "a table", {}, unlike=variant(parser, given, beside=["folder"]), folder=tmp_path)
    endings = sorted(path.name.partition("-some")[2] for path in tmp_path.glob("*.txt"))
    assert ["-codec-raw-xor-lz4.txt", "-elements-8.txt", ".txt"] == endings
    (plain,) = tmp_path.glob("*-some.txt")
    assert plain.read_text(encoding="utf-8").splitlines()[-1].startswith("load average of the last five minutes")
