"""Finds the public conversation trace, or skips saying where it was looked for."""

import functools
import os
from pathlib import Path

import pytest

from core.simulation.traces import read_trace
from core.simulation.workload import prepare

NAME = "conversation_trace.jsonl"


def trace_path():
    folder = os.environ.get("CONDUCTOR_TRACES")
    root = Path(__file__).resolve().parents[2]
    path = (Path(folder) if folder else root.parent / "shared" / "traces") / NAME
    if not path.exists():
        pytest.skip(f"{path} is absent; CONDUCTOR_TRACES names the folder that holds {NAME}")
    return path


@functools.cache
def conversation_trace():
    return read_trace(trace_path())


@functools.cache
def conversation():
    return prepare(conversation_trace())
