"""An engine without a GPU: vLLM's wire, a real prefix cache and scheduler, modelled step times.

Run one with `python -m core.engines.emulated --name p1 --model tiny`. What it promises and what
it leaves out: README.md beside this file.
"""
