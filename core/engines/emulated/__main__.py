"""`python -m core.engines.emulated`: run one emulated engine in the foreground."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from core.engines.emulated import tokenizer
from core.engines.emulated.config import from_arguments
from core.engines.emulated.server import serve


def write_tokenizer(directory: Path) -> None:
    """Write the tokenizer's files where `tokenizers` can load them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer.huggingface_files().items():
        (directory / name).write_text(content)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and serve until told to stop."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    config, tokenizer_dir = from_arguments(sys.argv[1:] if arguments is None else arguments)
    if tokenizer_dir is not None:
        write_tokenizer(tokenizer_dir)
    uvloop.run(serve(config))


if __name__ == "__main__":
    main()
